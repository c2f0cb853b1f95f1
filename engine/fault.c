/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - see fault.h. */
#include "engine/fault.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "config/err.h"

enum { FAULT_STACK = 64 * 1024 };

static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};

void fault_catch(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigfillset(&a.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &a, NULL);
}

void fault_each(struct sigaction *before, const struct sigaction *now)
{
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], now ? &now[fatal[i]] : NULL, before ? &before[fatal[i]] : NULL);
}

void fault_stack(void)
{
    stack_t s = {.ss_sp = xmalloc(FAULT_STACK), .ss_size = FAULT_STACK};
    sigaltstack(&s, NULL);
}

#if defined(__aarch64__)

/* ESR_EL1 of the Arm architecture: the class of an exception, that of accesses to memory from a
 * program, and its bit for writes. */
enum { CLASS_AT = 26, DATA_ABORT = 0x24, DATA_ABORT_WRITE = 1 << 6 };

/* The kernel puts it into one of the records behind the registers; 0 if it did not. */
static uint64_t syndrome(const void *context)
{
    const unsigned char *at = ((const ucontext_t *)context)->uc_mcontext.__reserved;
    const unsigned char *end = at + sizeof((const ucontext_t *)context)->uc_mcontext.__reserved;
    struct _aarch64_ctx head;
    for (; end - at >= (ptrdiff_t)sizeof(struct esr_context); at += head.size) {
        memcpy(&head, at, sizeof head);
        if (head.magic == ESR_MAGIC)
            return ((const struct esr_context *)at)->esr;
        if (head.magic == 0 || head.size == 0)
            break;
    }
    return 0;
}

#endif

void fault_note(struct fault *f, int sig, const siginfo_t *info, const void *context)
{
    f->signal = sig;
    f->code = info->si_code;
    f->address = info->si_addr;
    f->number = sig == SIGSYS ? info->si_syscall : 0;
#if defined(__x86_64__)
    /* bit 1 of the page-fault error code: the access was a write */
    f->writing = ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
    f->access_known = sig == SIGSEGV && info->si_code != SI_KERNEL;
#elif defined(__aarch64__)
    uint64_t esr = syndrome(context);
    f->writing = esr & DATA_ABORT_WRITE;
    f->access_known = sig == SIGSEGV && esr >> CLASS_AT == DATA_ABORT;
#else
    (void)context;
#endif
}
