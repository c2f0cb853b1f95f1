/* SPDX-License-Identifier: Apache-2.0 */
/* fault.c - see fault.h. */
#include "engine/fault.h"

#include <ucontext.h>

#include "config/err.h"

enum { FAULT_STACK = 64 * 1024 };

void fault_catch(void (*handler)(int, siginfo_t *, void *))
{
    static const int fatal[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP};
    struct sigaction a = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigfillset(&a.sa_mask);
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        sigaction(fatal[i], &a, NULL);
}

void fault_stack(void)
{
    stack_t s = {.ss_sp = xmalloc(FAULT_STACK), .ss_size = FAULT_STACK};
    sigaltstack(&s, NULL);
}

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
#else
    (void)context;
#endif
}
