/* SPDX-License-Identifier: Apache-2.0 */
/* crash_trace.h - the last words of a process that a fault ends: on stderr, which thread it was and
 * where, as addresses that `addr2line -f -e whet` turns into functions. */
#ifndef WHET_ENGINE_CRASH_TRACE_H
#define WHET_ENGINE_CRASH_TRACE_H

#include <signal.h>

/* Before any fault: what walks a stack is loaded when it first does, which a handler cannot. */
void crash_trace_prepare(void);
/* In a handler with all signals blocked, once in a process. It takes some milliseconds; where a
 * stack cannot be walked to its end (a lock of the dynamic linker that is held, say) the process
 * ends by SIGALRM after some seconds. */
void crash_trace(int sig, const siginfo_t *info, const void *context);

#endif
