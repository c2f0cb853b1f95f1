/* executor.c - the server's half of an executor: it starts one, hands over, and never believes it.
 *
 * A call: inputs are copied into the area, `command` is raised, and the engine thread waits on
 * `done`; the process's team does the work on the same cores, so the engine thread gets out of its
 * way: it spins only where there are more cores than ranks, yields, and then sleeps. While it
 * sleeps it looks once a millisecond whether the process still lives, and now and then whether it
 * has used more time than the work can need.
 *
 * What could a hostile text do with the area? Raise `done` too early, or never: the first gives
 * wrong numbers, the second is a hang. Write to outputs after they were taken: nobody reads them
 * any more. Forge its own state: then it is rolled back. Words that the server acts on (how long it
 * spins, where things lie) are not in the area, and text from there is cleaned before it is shown.
 */
#include "engine/cpu/executor.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/process.h"
#include "config/watchdog.h"
#include "engine/cpu/executor_private.h"
#include "engine/plan.h"
#include "engine/sandbox.h"

enum { OUTPUT_MAX = 4096, COPIES_MAX = 8, LOOK_NS = 1000000, LOOKS_A_WATCH = 20 };
static const int64_t parallel_bytes = 128 << 10; /* of copies that are worth waking the pool */

struct executor {
    struct process *process;
    pid_t pid;
    struct executor_control *control; /* at the start of the area */
    struct area area;
    struct model_shape shape;
    enum region region;
    int32_t team, m_max;
    int64_t packed_bytes;
    double work_s; /* generous CPU time of one token */
    struct executor_pages pages[EXECUTOR_PAGES];
    struct gate_wait wait;
    _Atomic int broken; /* 0, 1 while `why` is written, 2 */
    char why[200];
};

/* ---- how it ends ---------------------------------------------------------------------------- */

static void broke(struct executor *x, const char *why)
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
    broke(x, why);
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

/* Until `done` is no longer `seen`. -1: broken, and the process is no more. */
static int await(struct executor *x, uint32_t seen, double cpu_s, double sleep_s)
{
    struct watchdog dog;
    struct executor_control *c = x->control;
    for (int looks = 0; !gate_wait(&c->done, seen, &x->wait, LOOK_NS); looks++) {
        if (ended(x))
            return -1;
        if (looks == 0)
            watchdog_start(&dog, x->pid, cpu_s, sleep_s);
        if (looks % LOOKS_A_WATCH == LOOKS_A_WATCH - 1 && watchdog_over(&dog)) {
            broke(x, dog.why);
            kill(x->pid, SIGKILL);
            return -1;
        }
    }
    if (atomic_load(&c->state) != EXECUTOR_FAULT)
        return 0;
    char why[200];
    explain_fault(x, why, sizeof why);
    broke(x, why);
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
        err_set(err, "executor: no shared memory: %s", strerror(errno));
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

static int tell(const struct executor *x, const struct executor_options *o, int socket, int area)
{
    struct executor_setup s = {.bytes = (int32_t)sizeof s,
                               .region = (int32_t)o->region,
                               .team = o->team,
                               .max_tokens = o->max_tokens,
                               .positions = o->positions,
                               .settle = o->settle,
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
        return err_set(err, "executor: no socket: %s", strerror(errno));
    struct process_spec spec = {.argv = argv, .output_max = OUTPUT_MAX, .input = pair[1]};
    x->process = process_start(&spec, err);
    close(pair[1]);
    int rc = x->process ? 0 : -1;
    if (rc == 0) {
        x->pid = process_pid(x->process);
        rc = tell(x, o, pair[0], area) == 0 ? 0 : err_set(err, "executor: it takes no message");
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
    if (await(x, 0, patience_s(o->model), patience_s(o->model)) != 0)
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
    broke(x, state == EXECUTOR_REFUSED ? why : "its process is in no known state");
    return err_set(err, "%s", x->why);
}

/* More cores than ranks: the engine thread may watch without being in the way. */
static bool spare_core(int32_t team)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > team;
}

/* CPU seconds that a plain loop on a slow core does not need for one token. */
static double token_s(const struct executor_options *o)
{
    struct region_cost c = plan_cost(o->model, o->region, 0, 1, 1, o->positions, 1);
    return (double)c.flops * 1e-9;
}

struct executor *executor_open(const struct executor_options *o, struct err *err)
{
    struct executor *x = xaligned(sizeof *x);
    x->shape = o->model->shape;
    x->region = o->region;
    x->team = o->team;
    memcpy(x->pages, o->pages, sizeof x->pages);
    x->wait = (struct gate_wait){spare_core(o->team) ? GATE_SPIN_MAX_NS : 0, true};
    x->area = area_of(&x->shape, o->region, o->max_tokens, o->positions);
    x->work_s = token_s(o);
    int fd = make_area(x->area.bytes, err), rc = fd < 0 ? -1 : 0;
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(NULL, (size_t)x->area.bytes, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (rc == 0 && at == MAP_FAILED)
        rc = err_set(err, "executor: cannot map its memory: %s", strerror(errno));
    x->control = at == MAP_FAILED ? NULL : at;
    if (rc == 0)
        rc = start(x, o, fd, err);
    if (fd >= 0)
        close(fd);
    if (rc == 0)
        rc = await_start(x, o, err);
    if (rc == 0)
        return x;
    executor_close(x);
    return NULL;
}

void executor_close(struct executor *x)
{
    if (!x)
        return;
    process_end(x->process);
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

/* ---- copies --------------------------------------------------------------------------------- */

/* `rows` of `bytes` each; one side may be scattered: row i is at `stride` times index[i]. */
struct copy {
    char *to;
    const char *from;
    int64_t rows, bytes;
    const int32_t *from_index; /* NULL: in order */
};

/* Rows of keys or values: token i is at position i of compact pages, and goes to kv_at[i]. */
struct copies {
    int n;
    int64_t bytes;
    struct copy copy[COPIES_MAX];
    const struct attn_in_args *kv; /* or NULL */
    const float *own[2];
};

static void add(struct copies *c, void *to, const void *from, int64_t rows, int64_t floats,
                const int32_t *from_index)
{
    int64_t bytes = floats * (int64_t)sizeof(float);
    c->copy[c->n++] = (struct copy){to, from, rows, bytes, from_index};
    c->bytes += rows * bytes;
}

static void copy_kv(const struct copies *c, int32_t from, int32_t to)
{
    const struct attn_in_args *a = c->kv;
    float *pages[2] = {a->k_pages, a->v_pages};
    for (int32_t i = from; i < to; i++)
        for (int64_t h = 0; h < a->kv_heads; h++) {
            int64_t here = ((i / KV_PAGE * a->kv_heads + h) * KV_PAGE + i % KV_PAGE) * a->head_dim;
            int64_t page = a->kv_at[i] / KV_PAGE, offset = a->kv_at[i] % KV_PAGE;
            int64_t there = ((page * a->kv_heads + h) * KV_PAGE + offset) * a->head_dim;
            for (int v = 0; v < 2; v++)
                memcpy(pages[v] + there, c->own[v] + here, (size_t)a->head_dim * sizeof(float));
        }
}

static void copy_share(const void *args, const struct team *team)
{
    const struct copies *c = args;
    for (int i = 0; i < c->n; i++) {
        const struct copy *p = &c->copy[i];
        int64_t from = p->rows * team->rank / team->size,
                to = p->rows * (team->rank + 1) / team->size;
        if (!p->from_index && to > from)
            memcpy(p->to + from * p->bytes, p->from + from * p->bytes,
                   (size_t)((to - from) * p->bytes));
        for (int64_t r = from; p->from_index && r < to; r++)
            memcpy(p->to + r * p->bytes, p->from + p->from_index[r] * p->bytes, (size_t)p->bytes);
    }
    if (c->kv)
        copy_kv(c, (int32_t)((int64_t)c->kv->m * team->rank / team->size),
                (int32_t)((int64_t)c->kv->m * (team->rank + 1) / team->size));
}

static void copy_all(const struct copies *c, struct pool *pool)
{
    struct team alone = {.rank = 0, .size = 1};
    if (c->bytes > parallel_bytes)
        pool_run(pool, copy_share, c, 0);
    else
        copy_share(c, &alone);
}

/* ---- calls ---------------------------------------------------------------------------------- */

static char *in_area(const struct executor *x, int64_t at)
{
    return (char *)x->control + at;
}

/* Where the process has the pages that args point to; false if it does not have them. */
static bool find_pages(const struct executor *x, const struct attn_args *a)
{
    for (int i = 0; i < EXECUTOR_PAGES; i++) {
        const char *base = x->pages[i].base, *k = a->k_pages, *v = a->v_pages;
        if (!base || k < base || v < base || k >= base + x->pages[i].bytes ||
            v >= base + x->pages[i].bytes)
            continue;
        x->control->call.pages = i;
        x->control->call.k_at = k - base;
        x->control->call.v_at = v - base;
        return true;
    }
    return false;
}

static int64_t table_used(const struct attn_args *a)
{
    int64_t used = 0;
    for (int32_t i = 0; i < a->spans; i++) {
        int64_t end = a->span[i].pages_at + (a->span[i].context + KV_PAGE - 1) / KV_PAGE;
        used = end > used ? end : used;
    }
    return used;
}

static const char *give_attn(const struct executor *x, const struct attn_args *a, struct copies *in)
{
    int64_t used = table_used(a), cols = (int64_t)a->heads * a->head_dim;
    if (!find_pages(x, a) || used > x->area.table_numbers)
        return "its keys and values are where it cannot see them";
    x->control->call.spans = a->spans;
    memcpy(in_area(x, x->area.span), a->span, (size_t)a->spans * sizeof *a->span);
    memcpy(in_area(x, x->area.table), a->page_table, (size_t)used * sizeof *a->page_table);
    add(in, in_area(x, x->area.in), a->q, a->m, cols, NULL);
    return NULL;
}

/* Inputs of a call. NULL, or why it cannot be made. */
static const char *give(const struct executor *x, const union region_args *args, struct copies *in)
{
    const struct model_shape *s = &x->shape;
    const struct area *at = &x->area;
    int64_t half = s->head_dim / 2, m = args->embed.m;
    switch (x->region) {
    case REGION_ATTN_IN:
        add(in, in_area(x, at->x), args->attn_in.x, m, s->hidden, NULL);
        add(in, in_area(x, at->cosine), args->attn_in.rope_cos, m, half, args->attn_in.position);
        add(in, in_area(x, at->sine), args->attn_in.rope_sin, m, half, args->attn_in.position);
        return NULL;
    case REGION_ATTN:
        return give_attn(x, &args->attn, in);
    case REGION_MLP_IN:
        add(in, in_area(x, at->x), args->mlp_in.x, m, s->hidden, NULL);
        return NULL;
    case REGION_HEAD:
        add(in, in_area(x, at->x), args->head.x, m, s->hidden, args->head.row);
        return NULL;
    default:
        add(in, in_area(x, at->in), args->out.in, m, args->out.w.cols, NULL);
        add(in, in_area(x, at->x), args->out.x, m, s->hidden, NULL);
        return NULL;
    }
}

static void take(const struct executor *x, const union region_args *args, struct copies *out)
{
    const struct model_shape *s = &x->shape;
    const char *own = in_area(x, x->area.out);
    int64_t m = args->embed.m;
    switch (x->region) {
    case REGION_ATTN_IN:
        add(out, args->attn_in.q, own, m, (int64_t)s->heads * s->head_dim, NULL);
        out->kv = &args->attn_in;
        out->own[0] = (const float *)(const void *)in_area(x, x->area.k);
        out->own[1] = (const float *)(const void *)in_area(x, x->area.v);
        out->bytes += 2 * m * s->kv_heads * s->head_dim * (int64_t)sizeof(float);
        break;
    case REGION_ATTN:
        add(out, args->attn.a, own, m, (int64_t)s->heads * s->head_dim, NULL);
        break;
    case REGION_MLP_IN:
        add(out, args->mlp_in.h, own, m, s->ffn, NULL);
        break;
    case REGION_HEAD:
        add(out, args->head.logits, own, m, s->vocab, NULL);
        break;
    default:
        add(out, args->out.y, own, m, s->hidden, NULL);
        break;
    }
}

int executor_run(struct executor *x, struct pool *pool, int32_t layer,
                 const union region_args *args)
{
    struct executor_control *c = x->control;
    struct copies in = {.n = 0}, out = {.n = 0};
    if (atomic_load(&x->broken))
        return -1;
    const char *why = give(x, args, &in);
    if (why) {
        broke(x, why);
        return -1;
    }
    copy_all(&in, pool);
    c->call.m = args->embed.m;
    c->call.layer = layer;
    c->call.guests = process_guests();
    uint32_t seen = gate_value(&c->done);
    gate_raise(&c->command, true);
    if (await(x, seen, 1 + x->work_s * args->embed.m * x->team, 1) != 0)
        return -1;
    take(x, args, &out);
    copy_all(&out, pool);
    return 0;
}
