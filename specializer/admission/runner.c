/* SPDX-License-Identifier: Apache-2.0 */
/* runner.c - the parent's half of a runner: it asks, waits, and puts into words what went wrong.
 *
 * Parent and runner share three things: the arenas of the cases (mappings made before the fork), a
 * page for facts and reports, and a socket. A command goes one way, a byte comes back when it is
 * done. Since the runner is a copy of the parent from before any reference was computed, a kernel
 * cannot find an answer in memory, and since it is another process it cannot change what the parent
 * believes: a forged reply byte only means that outputs are still NaN.
 *
 * What can go wrong in a call ends the runner, and how it ended becomes the reason: fault handlers
 * note signal, address and access; seccomp turns a system call into SIGSYS; a watchdog ends what
 * does not end.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/watchdog.h"
#include "engine/sandbox.h"
#include "specializer/admission/runner_private.h"

static const int64_t scratch_limit = 4LL << 30;

struct runner {
    struct runner_options o;
    struct report *report;
    pid_t pid;
    int socket;
};

/* "(wall after input x)" for an address of one of the cases' or the scratch's mappings. */
static const char *where(const struct runner *r, const void *p)
{
    const struct guarded *s = r->o.scratch;
    if (s && s->map && (const char *)p >= s->map && (const char *)p < s->map + s->map_bytes)
        return "outside its scratch";
    for (int32_t i = 0; i < r->o.n; i++) {
        const char *name = case_where(r->o.cases[i], p);
        if (name)
            return name;
    }
    return "outside its buffers";
}

static void explain_fault(const struct runner *r, struct err *err)
{
    const struct fault *f = &r->report->fault;
    const char *name = sigabbrev_np(f->signal);
    if (f->signal == SIGSYS)
        err_set(err, "system call %s", sandbox_call_name(f->number));
    else if (f->signal == SIGSEGV && f->access_known)
        err_set(err, "SIGSEGV %s at %p: %s", f->writing ? "writing" : "reading", f->address,
                where(r, f->address));
    else
        err_set(err, "SIG%s at %p", name ? name : "?", f->address);
}

/* The runner is gone or must go: reaps it and says how it went. */
static void explain_end(struct runner *r, struct err *err)
{
    int status = 0;
    while (waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
        ;
    r->pid = -1;
    if (atomic_load(&r->report->faults) > 0)
        explain_fault(r, err);
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) /* not by its own doing: sealed */
        err_killed(err, "killed by SIGKILL");
    else if (WIFSIGNALED(status))
        err_set(err, "killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
    else
        err_set(err, "ended the process with status %d", WEXITSTATUS(status));
}

/* Waits for the reply byte; -1 with the reason when the runner died or had to be killed. */
static int await(struct runner *r, int32_t size, double watchdog_s, struct err *err)
{
    struct watchdog dog;
    watchdog_start(&dog, r->pid, watchdog_s * size, watchdog_s);
    for (;;) {
        struct pollfd p = {r->socket, POLLIN, 0};
        char byte;
        if (poll(&p, 1, 20) > 0) {
            if (read(r->socket, &byte, 1) == 1)
                return 0;
            explain_end(r, err);
            return -1;
        }
        if (!watchdog_over(&dog))
            continue;
        kill(r->pid, SIGKILL);
        explain_end(r, NULL);
        return err_set(err, "%s", dog.why);
    }
}

static int order(struct runner *r, const struct command *d, int32_t size, struct err *err)
{
    if (r->pid < 0)
        return err_set(err, "the runner has ended");
    r->report->problem[0] = 0;
    if (send(r->socket, d, sizeof *d, MSG_NOSIGNAL) != (ssize_t)sizeof *d) {
        explain_end(r, err);
        return -1;
    }
    if (await(r, size, d->call.watchdog_s > 0 ? d->call.watchdog_s : r->o.watchdog_s, err) != 0)
        return -1;
    r->report->problem[sizeof r->report->problem - 1] = 0;
    return r->report->problem[0] ? err_set(err, "%s", r->report->problem) : 0;
}

struct runner *runner_open(const struct runner_options *o, struct err *err)
{
    int end[2];
    struct report *report =
        mmap(NULL, sizeof *report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end) != 0) {
        err_outside(err, "runner: %s", strerror(errno));
        return NULL;
    }
    struct runner *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->report = report;
    r->pid = fork();
    if (r->pid == 0)
        runner_child(&r->o, report, end[1]);
    close(end[1]);
    r->socket = end[0];
    int rc = r->pid < 0 ? err_outside(err, "runner: %s", strerror(errno))
                        : await(r, 1, o->watchdog_s, err);
    if (rc == 0 && report->problem[0])
        rc = (report->outside ? err_outside : err_set)(err, "%.199s", report->problem);
    if (rc != 0) {
        runner_close(r);
        return NULL;
    }
    return r;
}

void runner_close(struct runner *r)
{
    if (!r)
        return;
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        explain_end(r, NULL);
    }
    close(r->socket);
    munmap(r->report, sizeof *r->report);
    free(r);
}

bool runner_sealed(const struct runner *r)
{
    return r->report->sealed;
}

const struct runner_facts *runner_facts(const struct runner *r)
{
    return &r->report->facts;
}

int64_t runner_scratch(struct runner *r, int32_t m, int32_t size, struct err *err)
{
    struct command d = {.op = OP_SCRATCH, .call = {.m = m, .size = size}};
    if (order(r, &d, 1, err) != 0)
        return err_prefix(err, "scratch_bytes(%d, %d)", m, size);
    int64_t bytes = r->report->answer;
    if (bytes < 0 || bytes > scratch_limit)
        return err_set(err, "scratch_bytes(%d, %d) is absurd: %lld", m, size, (long long)bytes);
    return bytes;
}

int runner_pack(struct runner *r, int32_t at, int32_t i, bool whole, void *packed, struct err *err)
{
    struct command d = {
        .op = OP_PACK, .call = {.at = at}, .weight = i, .whole = whole, .packed = packed};
    return order(r, &d, 1, err) == 0 ? 0 : err_prefix(err, "pack of weight %d", i);
}

int runner_call(struct runner *r, const struct runner_call *c, struct err *err)
{
    struct command d = {.op = OP_CALL, .call = *c};
    return order(r, &d, c->size, err);
}
