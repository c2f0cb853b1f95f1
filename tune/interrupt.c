/* SPDX-License-Identifier: Apache-2.0 */
/* interrupt.c - see interrupt.h. */
#include "tune/interrupt.h"

#include <signal.h>
#include <unistd.h>

static _Atomic(struct session *) running;

static void on_signal(int unused)
{
    static const char said[] =
        "whet tune: ends with what has been decided; the same again ends it at once\n";
    (void)unused;
    ssize_t told = write(STDERR_FILENO, said, sizeof said - 1);
    (void)told;
    struct session *session = atomic_load(&running);
    if (session)
        session_stop(session);
}

void interrupt_stops(struct session *session)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    atomic_store(&running, session);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

void interrupt_done(void)
{
    atomic_store(&running, NULL);
}
