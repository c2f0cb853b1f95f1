/* SPDX-License-Identifier: Apache-2.0 */
/* prober.c - the server's side of the process that probes kernels on a device.
 *
 * A slice runs on the engine thread between two steps: it tells the process to go, and waits until
 * the device was given back or the time is up. A kernel that hangs therefore delays one step by
 * GRACE_NS, and the steps until its process is killed by the time slices of the driver; nobody
 * waits for it. What the slice took is charged to the engine's meter like that of a bench.
 *
 * Whatever the process does, the server only ever reads whole messages from it or learns that it is
 * gone. If it goes while it has a request, that is the kernel's fault if a signal other than
 * SIGKILL ended it or the device was not given back; otherwise nothing was learnt, and the request
 * fails without blame. It ends by itself after a kernel that did more than compute wrong numbers. A
 * new one is started at once on an idle server and else after a while, longer if it was for
 * nothing.
 */
#include "specializer/admission/prober.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"

enum { OUTPUT_MAX = 16 * 1024, RESTART_S = 5, RESTART_MOST_S = 120 };
static const int64_t grace_ns = 10000000;         /* of a slice, before the engine goes on */
static const int64_t overdue_ns = 3000000000;     /* of a slice, before its process is killed */
static const int64_t lonely_budget_ns = 10000000; /* of a slice where there is no engine */

struct prober {
    const struct stage_env *env;
    struct process *process; /* NULL: none */
    int fd;
    int64_t started_ns, asked_ns, polled_ns;
    int failures; /* processes since the last answer */
    bool gone;    /* it closed its end */
    bool wants, held;
    int64_t slice_until_ns; /* of a slice that was not given back; 0: none */
    struct errand *queue;   /* the first may be ASKED */
    _Atomic uint64_t starts, slices, late;
};

double prober_patience_s(int failures, bool busy)
{
    double s = RESTART_S;
    for (int i = 1; i < failures && s < RESTART_MOST_S; i++)
        s *= 2;
    if (failures > 1)
        return s < RESTART_MOST_S ? s : RESTART_MOST_S;
    return busy ? s : 0;
}

/* ---- the process ---------------------------------------------------------------------------- */

static bool busy(const struct prober *p)
{
    return p->env->engine && engine_load(p->env->engine) > 0;
}

static void start(struct prober *p)
{
    const char *argv[] = {p->env->program, "probe", "--serve", NULL};
    int pair[2];
    struct err err = {""};
    p->started_ns = clock_ns();
    p->failures++;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        log_error("specializer", "no socket for a probe: %s", strerror(errno));
        return;
    }
    struct process_spec spec = {.argv = argv,
                                .priority = p->env->alone ? PROCESS_NORMAL : PROCESS_LOW,
                                .file_bytes = 1 << 20,
                                .output_max = OUTPUT_MAX,
                                .input = pair[1]};
    p->process = process_start(&spec, &err);
    close(pair[1]);
    p->fd = pair[0];
    p->gone = p->wants = false;
    p->slice_until_ns = 0;
    if (p->process) {
        atomic_fetch_add(&p->starts, 1);
        return;
    }
    log_error("specializer", "probe: %s", err.msg);
    close(p->fd);
}

static void stop(struct prober *p)
{
    if (!p->process)
        return;
    process_end(p->process);
    close(p->fd);
    p->process = NULL;
}

/* ---- messages ------------------------------------------------------------------------------- */

static void tell(struct prober *p, const char *text)
{
    if (send(p->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        p->gone = true;
}

static struct errand *asked(const struct prober *p)
{
    return p->queue && p->queue->state == ERRAND_ASKED ? p->queue : NULL;
}

static void settle(struct prober *p, struct errand *e)
{
    e->seconds = (double)(clock_ns() - p->asked_ns) * 1e-9;
    p->queue = e->next;
    e->next = NULL;
}

/* Reads what is there. */
static void listen_to(struct prober *p)
{
    char text[PROBER_MESSAGE_MAX];
    while (!p->gone) {
        ssize_t n = recv(p->fd, text, sizeof text - 1, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0 || (size_t)n >= sizeof text) {
            p->gone = true;
            return;
        }
        text[n] = 0;
        struct errand *e = asked(p);
        if (strcmp(text, "want") == 0) {
            p->wants = true;
        } else if (strcmp(text, "rest") == 0) {
            p->slice_until_ns = 0;
        } else if (e && (strncmp(text, "answer ", 7) == 0 || strncmp(text, "last ", 5) == 0)) {
            e->answer = xstrdup(strchr(text, ' ') + 1);
            p->gone = text[0] == 'l';
            e->state = ERRAND_ANSWERED;
            p->failures = 0;
            settle(p, e);
        }
    }
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* A slice: on the engine thread, while the specializer's waits. */
static int slice(void *ctx, int64_t budget_ns)
{
    struct prober *p = ctx;
    char text[40];
    int64_t until = clock_ns() + budget_ns, left;
    snprintf(text, sizeof text, "slice %lld", (long long)until);
    p->wants = false;
    p->slice_until_ns = until;
    tell(p, text);
    while (p->slice_until_ns && !p->gone && (left = until + grace_ns - clock_ns()) > 0) {
        struct pollfd at = {p->fd, POLLIN, 0};
        struct timespec wait = {0, left < 100000000 ? (long)left : 100000000};
        if (ppoll(&at, 1, &wait, NULL) > 0)
            listen_to(p);
    }
    return 1;
}

static void give_slice(struct prober *p)
{
    atomic_fetch_add(&p->slices, 1);
    if (!p->env->engine)
        slice(p, lonely_budget_ns);
    else if (engine_slices(p->env->engine, slice, p) < 0)
        return; /* the engine stops */
    if (p->slice_until_ns)
        atomic_fetch_add(&p->late, 1);
}

/* ---- watching ------------------------------------------------------------------------------- */

/* The request that the process had is answered by what became of the process. */
static void fail(struct prober *p, bool fault, const char *how)
{
    struct errand *e = asked(p);
    if (!e)
        return;
    e->state = ERRAND_FAILED;
    e->fault = fault;
    snprintf(e->reason, sizeof e->reason, "%s", how);
    settle(p, e);
}

static void look_after(struct prober *p)
{
    char how[80], reason[200];
    int64_t now = clock_ns();
    double limit = 10 * p->env->config->specializer_probe_timeout;
    if (p->slice_until_ns && now > p->slice_until_ns + overdue_ns) {
        fail(p, true, "hang: it did not give the device back");
        stop(p);
    } else if (asked(p) && (double)(now - p->asked_ns) * 1e-9 > limit) {
        fail(p, false, "no answer in time");
        stop(p);
    } else if (p->gone && !asked(p)) {
        stop(p);
    } else if (process_poll(p->process) || p->gone) {
        listen_to(p); /* the answer may have been its last word */
        for (int i = 0; i < 1000 && !process_poll(p->process); i++)
            usleep(1000); /* it closed its socket: it is ending */
        const struct process_result *r = process_result(p->process);
        bool ended = process_poll(p->process);
        snprintf(reason, sizeof reason, "%s%s%.100s",
                 ended ? process_describe(r, how, sizeof how) : "it stopped listening",
                 ended && r->err_n ? ": " : "", ended && r->err_n ? r->err : "");
        bool fault = ended && r->signal && r->signal != SIGKILL;
        if (asked(p))
            asked(p)->died = !fault;
        fail(p, fault, reason);
        stop(p);
    }
}

static void ask(struct prober *p)
{
    struct errand *e = p->queue;
    char *text = xasprintf("examine %s", e->path);
    tell(p, text);
    free(text);
    e->state = ERRAND_ASKED;
    p->asked_ns = clock_ns();
}

void prober_poll(struct prober *p)
{
    int64_t now = clock_ns(), passed = now - p->polled_ns;
    p->polled_ns = now;
    if (p->held)
        p->asked_ns += passed;
    if (!p->process) {
        double since = (double)(now - p->started_ns) * 1e-9;
        if (p->queue && since >= prober_patience_s(p->failures, busy(p)))
            start(p);
        if (!p->process)
            return;
    }
    listen_to(p);
    if (p->queue && p->queue->state == ERRAND_WAITS && !p->gone && !p->held)
        ask(p);
    if (p->wants && !p->held && !p->gone)
        give_slice(p);
    look_after(p);
}

/* ---- from outside --------------------------------------------------------------------------- */

struct prober *prober_open(const struct stage_env *env)
{
    struct prober *p = xcalloc(1, sizeof *p);
    p->env = env;
    start(p);
    return p;
}

void prober_close(struct prober *p)
{
    if (!p)
        return;
    stop(p);
    free(p);
}

void prober_add(struct prober *p, struct errand *e)
{
    struct errand **at = &p->queue;
    while (*at)
        at = &(*at)->next;
    e->state = ERRAND_WAITS;
    e->next = NULL;
    *at = e;
}

void prober_remove(struct prober *p, struct errand *e)
{
    if (e->state == ERRAND_ASKED)
        stop(p);
    for (struct errand **at = &p->queue; *at; at = &(*at)->next)
        if (*at == e) {
            *at = e->next;
            break;
        }
    free(e->answer);
    e->answer = NULL;
}

void prober_hold(struct prober *p, bool hold)
{
    if (p)
        p->held = hold;
}

struct prober_counts prober_counts(const struct prober *p)
{
    struct prober_counts none = {0};
    return p ? (struct prober_counts){atomic_load(&p->starts), atomic_load(&p->slices),
                                      atomic_load(&p->late)}
             : none;
}
