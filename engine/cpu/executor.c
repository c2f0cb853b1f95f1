/* SPDX-License-Identifier: Apache-2.0 */
/* executor.c - the server's half of an executor: it is started, watched, and never believed.
 *
 * While the engine thread waits for a call (executor_call.c), or the specializer's for a start, it
 * looks once a millisecond whether the process still lives, and now and then whether it has used
 * more time than the work can need. A process that something outside kills while it starts (the
 * kernel of the system is short of memory, say) is started once more before the text is blamed.
 *
 * Words that the server acts on (how long it spins, where things lie) are not in the shared memory,
 * and text from there is cleaned before it is shown.
 */
#include "engine/cpu/executor.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/cores.h"
#include "config/process.h"
#include "config/watchdog.h"
#include "engine/cpu/executor_private.h"
#include "engine/numa.h"
#include "engine/plan.h"
#include "engine/sandbox.h"

enum { OUTPUT_MAX = 4096, LOOK_NS = 1000000, LOOKS_A_WATCH = 20, STARTS = 2 };

static const char killed_words[] = "killed by SIGKILL";

/* ---- how it ends ---------------------------------------------------------------------------- */

void executor_broke(struct executor *x, const char *why)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&x->broken, &none, 1))
        return;
    snprintf(x->why, sizeof x->why, "%s", why);
    for (char *c = x->why; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
    atomic_store(&x->broken, 2);
}

static void explain_fault(const struct executor *x, char *why, size_t n)
{
    struct fault f = x->control->fault; /* the process may still write there */
    const char *name = f.signal > 0 && f.signal < NSIG ? sigabbrev_np(f.signal) : NULL;
    if (f.signal == SIGSYS)
        snprintf(why, n, "system call %s", sandbox_call_name(f.number));
    else if (f.signal == SIGSEGV && f.access_known)
        snprintf(why, n, "SIGSEGV %s at %p", f.writing ? "writing" : "reading", f.address);
    else
        snprintf(why, n, "SIG%s at %p", name ? name : "?", f.address);
}

/* True if the process is gone; says how. Does not reap it. */
static bool ended(struct executor *x)
{
    siginfo_t info = {0};
    char why[200];
    if (waitid(P_PID, (id_t)x->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        return false;
    if (atomic_load(&x->control->state) == EXECUTOR_FAULT)
        explain_fault(x, why, sizeof why);
    else if (info.si_code == CLD_EXITED)
        snprintf(why, sizeof why, "ended the process with status %d", info.si_status);
    else
        snprintf(why, sizeof why, "killed by SIG%s",
                 sigabbrev_np(info.si_status) ? sigabbrev_np(info.si_status) : "?");
    executor_broke(x, why);
    return true;
}

const char *executor_broken(struct executor *x)
{
    return atomic_load(&x->broken) == 2 ? x->why : NULL;
}

const char *executor_check(struct executor *x)
{
    if (!executor_broken(x))
        ended(x);
    return executor_broken(x);
}

/* ---- waiting -------------------------------------------------------------------------------- */

int executor_await(struct executor *x, uint32_t seen, double cpu_s, double sleep_s)
{
    struct watchdog dog;
    struct executor_control *c = x->control;
    for (int looks = 0; !gate_wait(&c->done, seen, &x->wait, LOOK_NS); looks++) {
        if (ended(x))
            return -1;
        if (looks == 0)
            watchdog_start(&dog, x->pid, cpu_s, sleep_s);
        if (looks % LOOKS_A_WATCH == LOOKS_A_WATCH - 1 && watchdog_over(&dog)) {
            executor_broke(x, dog.why);
            kill(x->pid, SIGKILL);
            return -1;
        }
    }
    if (atomic_load(&c->state) != EXECUTOR_FAULT)
        return 0;
    char why[200];
    explain_fault(x, why, sizeof why);
    executor_broke(x, why);
    kill(x->pid, SIGKILL);
    return -1;
}

/* ---- start ---------------------------------------------------------------------------------- */

/* Memory that neither side can make smaller under the other. */
static int make_area(int64_t bytes, struct err *err)
{
    int fd = memfd_create("whet-executor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        err_set(err, "no shared memory: %s", strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

/* Pages go over by descriptors that cannot be written through. */
static int reopen(int fd)
{
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

static _Atomic int32_t ranks_open; /* of all executors that run */

bool executor_alone(const struct executor *x)
{
    return x->cores >= x->team + atomic_load(&ranks_open);
}

static int tell(const struct executor *x, const struct executor_options *o, int socket, int area)
{
    struct executor_setup s = {.bytes = (int32_t)sizeof s,
                               .kv_bf16 = x->shape.kv_bf16,
                               .region = (int32_t)o->region,
                               .layer = o->formats ? o->formats->layer[0] : -1,
                               .team = o->team,
                               .max_tokens = o->max_tokens,
                               .positions = o->positions,
                               .settle = o->settle,
                               .spread = numa_spreads(),
                               .area_bytes = x->area.bytes,
                               .area_inputs = x->area.inputs,
                               .pack_bytes = o->pack_bytes};
    int fd[1 + EXECUTOR_PAGES] = {area}, n = 1, sent;
    char room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec text = {&s, sizeof s};
    struct msghdr m = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = room};
    snprintf(s.model, sizeof s.model, "%s", o->model_path);
    snprintf(s.object, sizeof s.object, "%s", o->object);
    for (int i = 0; o->region == REGION_ATTN && i < EXECUTOR_PAGES; i++) {
        s.page_bytes[i] = o->pages[i].bytes;
        fd[n++] = reopen(o->pages[i].fd);
        s.pages++;
    }
    m.msg_controllen = CMSG_SPACE((size_t)n * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n * sizeof(int));
    memcpy(CMSG_DATA(c), fd, (size_t)n * sizeof(int));
    sent = sendmsg(socket, &m, MSG_NOSIGNAL) == (ssize_t)sizeof s ? 0 : -1;
    for (int i = 1; i < n; i++)
        if (fd[i] >= 0)
            close(fd[i]);
    return sent;
}

static int start(struct executor *x, const struct executor_options *o, int area, struct err *err)
{
    const char *argv[] = {o->program ? o->program : "/proc/self/exe", "executor", NULL};
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return err_set(err, "no socket: %s", strerror(errno));
    struct process_spec spec = {.argv = argv, .output_max = OUTPUT_MAX, .input = pair[1]};
    x->process = process_start(&spec, err);
    close(pair[1]);
    int rc = x->process ? 0 : -1;
    if (rc == 0) {
        x->pid = process_pid(x->process);
        rc = tell(x, o, pair[0], area) == 0 ? 0 : err_set(err, "it takes no message");
    }
    close(pair[0]);
    return rc;
}

/* Opening a model may read all of it, drawing one takes 20 ns a weight, packing about as long. */
static double patience_s(const struct model *m)
{
    return 30 + (double)m->weight_bytes * 1e-7;
}

static int await_start(struct executor *x, const struct executor_options *o, struct err *err)
{
    char why[sizeof x->control->problem];
    if (executor_await(x, 0, patience_s(o->model), patience_s(o->model)) != 0)
        return err_set(err, "%s", x->why);
    int state = atomic_load(&x->control->state);
    if (state == EXECUTOR_READY) {
        x->m_max = x->control->m_max;
        x->packed_bytes = x->control->packed_bytes;
        /* It was told how much it may have; what it says only keeps books. */
        if (x->m_max < 1 || x->packed_bytes < 0 || x->packed_bytes > o->pack_bytes)
            return err_set(err, "says absurd things of itself");
        return 0;
    }
    memcpy(why, x->control->problem, sizeof why);
    why[sizeof why - 1] = 0;
    executor_broke(x, state == EXECUTOR_REFUSED ? why : "its process is in no known state");
    return err_set(err, "%s", x->why);
}

/* CPU seconds that a plain loop on a slow core does not need for one token. */
static double token_s(const struct executor_options *o)
{
    struct region_cost c = plan_cost(o->model, o->region, 0, 1, 1, o->positions, 1);
    return (double)c.flops * 1e-9;
}

static struct executor *open_once(const struct executor_options *o, bool *killed, struct err *err)
{
    struct executor *x = xaligned(sizeof *x);
    x->shape = o->model->shape;
    x->region = o->region;
    x->team = o->team;
    memcpy(x->pages, o->pages, sizeof x->pages);
    x->cores = cores_allowed() < cores_usable() ? cores_allowed() : cores_usable();
    x->wait =
        (struct gate_wait){.spin_ns = x->cores > o->team ? GATE_SPIN_MAX_NS : 0, .shared = true};
    x->area = area_of(&x->shape, o->region, o->max_tokens, o->positions);
    x->work_s = token_s(o);
    int fd = make_area(x->area.bytes, err), rc = fd < 0 ? -1 : 0;
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(NULL, (size_t)x->area.bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (rc == 0 && at == MAP_FAILED)
        rc = err_set(err, "no shared memory: %s", strerror(errno));
    x->control = at == MAP_FAILED ? NULL : at;
    if (rc == 0)
        rc = start(x, o, fd, err);
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        rc = await_start(x, o, err);
    if (rc == 0) {
        x->ranks = x->team;
        atomic_fetch_add(&ranks_open, x->ranks);
        return x;
    }
    *killed = strcmp(x->why, killed_words) == 0;
    executor_close(x);
    return NULL;
}

struct executor *executor_open(const struct executor_options *o, struct err *err)
{
    struct executor *x = NULL;
    bool killed = true;
    for (int i = 0; i < STARTS && !x && killed; i++) {
        killed = false;
        x = open_once(o, &killed, err);
    }
    if (err)
        err->outside = !x && killed;
    return x;
}

void executor_close(struct executor *x)
{
    if (!x)
        return;
    process_end(x->process);
    atomic_fetch_sub(&ranks_open, x->ranks);
    if (x->control)
        munmap(x->control, (size_t)x->area.bytes);
    free(x);
}

int32_t executor_m_max(const struct executor *x)
{
    return x->m_max;
}

int64_t executor_packed_bytes(const struct executor *x)
{
    return x->packed_bytes;
}
