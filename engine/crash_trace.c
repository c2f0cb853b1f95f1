/* SPDX-License-Identifier: Apache-2.0 */
/* crash_trace.c - see crash_trace.h. Nothing here allocates, locks or formats with stdio. */
#include "engine/crash_trace.h"

#include <execinfo.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include "engine/fault.h"

enum { FRAMES = 64, LONGEST_S = 10 };

void crash_trace_prepare(void)
{
    void *frame[1];
    backtrace(frame, 1);
}

/* ---- a line --------------------------------------------------------------------------------- */

struct line {
    char text[240];
    size_t n;
};

static void put(struct line *l, const char *text)
{
    size_t n = strlen(text), room = sizeof l->text - l->n;
    n = n < room ? n : room;
    memcpy(l->text + l->n, text, n);
    l->n += n;
}

static void put_address(struct line *l, const void *address)
{
    char hex[2 * sizeof address + 1];
    char *at = hex + sizeof hex - 1;
    uintptr_t left = (uintptr_t)address;
    *at = 0;
    do {
        *--at = "0123456789abcdef"[left % 16];
        left /= 16;
    } while (left);
    put(l, "0x");
    put(l, at);
}

static void print(const struct line *l)
{
    if (write(STDERR_FILENO, l->text, l->n) < 0)
        return; /* nobody is left to be told */
}

/* ---- what is said --------------------------------------------------------------------------- */

static const void *counter_of(const void *context)
{
#if defined(__x86_64__)
    return (const void *)(uintptr_t)((const ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void *)(uintptr_t)((const ucontext_t *)context)->uc_mcontext.pc;
#else
    (void)context;
    return NULL;
#endif
}

/* "error crash: SIGSEGV writing 0x8 in thread whet-engine, at 0x55d0..." */
static void say_what(int sig, const siginfo_t *info, const void *context)
{
    struct line l = {.n = 0};
    struct fault f;
    char thread[16] = "";
    const char *name = sigabbrev_np(sig);
    fault_note(&f, sig, info, context);
    prctl(PR_GET_NAME, thread);
    put(&l, "error crash: SIG");
    put(&l, name ? name : "?");
    if (f.access_known) {
        put(&l, f.writing ? " writing " : " reading ");
        put_address(&l, f.address);
    }
    put(&l, " in thread ");
    put(&l, thread);
    put(&l, ", at ");
    put_address(&l, counter_of(context));
    put(&l, "; these called each other:\n");
    print(&l);
}

/* Until here the frames are this handler's, as far as can be told. */
static int first_of_fault(void *const *frame, int n, const void *counter)
{
    for (int i = 0; i < n; i++)
        if (frame[i] == counter)
            return i;
    return 0;
}

void crash_trace(int sig, const siginfo_t *info, const void *context)
{
    void *frame[FRAMES];
    sigset_t alarms;
    say_what(sig, info, context);
    signal(SIGALRM, SIG_DFL);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    const unsigned before = alarm(LONGEST_S);
    int n = backtrace(frame, FRAMES), first = first_of_fault(frame, n, counter_of(context));
    backtrace_symbols_fd(frame + first, n - first, STDERR_FILENO);
    alarm(before);
}
