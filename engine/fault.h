/* SPDX-License-Identifier: Apache-2.0 */
/* fault.h - what ended a process that runs foreign code, noted by a handler of its signals. */
#ifndef WHET_ENGINE_FAULT_H
#define WHET_ENGINE_FAULT_H

#include <signal.h>
#include <stdbool.h>

struct fault {
    int signal, code;
    int number; /* of the system call, for SIGSYS */
    bool writing, access_known;
    const void *address;
};

/* Handles every signal that a fault raises, on the stack of fault_stack() where a thread has one.
 * `handler` must end the process. */
void fault_catch(void (*handler)(int, siginfo_t *, void *));
/* What is done at each of these signals, into before[NSIG], and what is to be done from then on;
 * NULL: as it is. */
void fault_each(struct sigaction *before, const struct sigaction *now);
/* Gives the calling thread a stack for handlers. It stays until the thread ends. */
void fault_stack(void);
/* In a handler. */
void fault_note(struct fault *f, int sig, const siginfo_t *info, const void *context);

#endif
