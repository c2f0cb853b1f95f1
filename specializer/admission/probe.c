/* probe.c - the stage that runs a kernel for the first time, and the process that does it.
 *
 * Server side: the request and the captured inputs go into a directory of their own beside the
 * object; `whet probe <request>` is started at idle priority (a restored winner's short one at low
 * priority: it is over in tens of milliseconds); its answer is one line of JSON. The answer decides
 * between pass and refuse. Everything that says nothing about the kernel - a child that could not
 * start, was starved or taken by the kernel for its memory, a model file that vanished - is
 * "retry".
 *
 * Probe side: opens the model without its vocabulary, then checks the kernel alone (check.c; on a
 * GPU check_device.c) or, for a finalist, the whole model's logits with it (endcheck.c). It holds
 * no socket and no file of the server, computes alone, and leaves foreign code to children of its
 * own, so a crash or a hang there becomes a reason here.
 */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/clock.h"
#include "specializer/admission/capture_file.h"
#include "specializer/admission/check.h"
#include "specializer/admission/check_device.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe_request.h"
#include "specializer/build/process.h"
#include "specializer/search/space.h"
#include "specializer/stages.h"

enum { OUTPUT_MAX = 16 * 1024 };
static const double error_factor = 2; /* k of SPECIALIZER.md section 3.4 */

/* ---- in the server -------------------------------------------------------------------------- */

struct probe {
    struct candidate *c;
    struct process *process;
    struct probe_request request;
    char *dir, *path;
};

static int32_t team_size(const struct config *config)
{
    if (config->engine_threads > 0)
        return (int32_t)config->engine_threads;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int32_t)n : 1;
}

/* What the point declares (PRECISION row of its knob table), where the policy lets it. */
static enum precision precision_of(const struct stage_env *env, const struct candidate *c)
{
    struct facts f;
    if (env->numerics != NUMERICS_REDUCED || c->bit_equal || !c->template)
        return PRECISION_F32;
    facts_fill(&f, env->model, c->slot->region, c->slot->m, env->numerics);
    return (enum precision)c->template->precision(&c->point, &f);
}

static void fill_request(const struct stage_env *env, const struct candidate *c,
                         enum probe_depth depth, struct probe_request *q)
{
    const struct slot *s = c->slot;
    int32_t most = env->model->shape.max_context;
    q->machine = env->machine->kind;
    q->shape = env->model->shape;
    q->model = xstrdup(env->model->path ? env->model->path : "");
    q->object = xstrdup(c->object);
    q->name = xstrdup(c->name);
    q->region = s->region;
    q->m_to = s->m;
    q->m_from = s->m_index > 0 ? m_bucket[s->m_index - 1] + 1 : 1;
    q->context = s->region != REGION_ATTN ? 0 : s->context < most ? s->context : most;
    q->threads = team_size(env->config);
    q->numerics = env->numerics;
    q->precision = precision_of(env, c);
    q->depth = depth;
    q->risk = (int32_t)c->risk;
    q->seed = (uint64_t)env->config->specializer_seed;
}

static int save_captures(const struct stage_env *env, struct probe *p,
                         const struct capture *const *captured, int captures, struct err *err)
{
    for (int i = 0; i < captures && p->request.captures < PROBE_CAPTURES_MAX; i++) {
        char *path = xasprintf("%s/capture-%d", p->dir, i);
        p->request.capture[p->request.captures++] = path;
        if (capture_save(captured[i], &env->model->shape, path, err) != 0)
            return -1;
    }
    return 0;
}

/* A restored winner's short probe is over in tens of milliseconds, and its slot waits for it. */
static enum process_priority priority_of(const struct stage_env *env, enum probe_depth depth)
{
    if (env->alone)
        return PROCESS_NORMAL;
    return depth == PROBE_SHORT ? PROCESS_LOW : PROCESS_IDLE;
}

static int start_child(const struct stage_env *env, struct probe *p, struct err *err)
{
    const char *argv[] = {env->program, "probe", p->path, NULL};
    double limit = env->config->specializer_probe_timeout;
    struct process_spec spec = {.argv = argv,
                                .priority = priority_of(env, p->request.depth),
                                .wall_s = 10 * limit,
                                .cpu_s = (int32_t)ceil(limit),
                                .file_bytes = 1 << 20,
                                .output_max = OUTPUT_MAX};
    p->process = process_start(&spec, err);
    return p->process ? 0 : -1;
}

struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err)
{
    struct probe *p = xcalloc(1, sizeof *p);
    p->c = c;
    p->dir = xasprintf("%s.probe-XXXXXX", c->object);
    fill_request(env, c, depth, &p->request);
    int rc = 0;
    if (!mkdtemp(p->dir)) {
        rc = err_set(err, "%.300s: %s", p->dir, strerror(errno));
        free(p->dir);
        p->dir = NULL;
    }
    if (rc == 0) {
        p->path = xasprintf("%s/request.json", p->dir);
        rc = save_captures(env, p, captured, captures, err);
    }
    if (rc == 0)
        rc = probe_request_write(&p->request, p->path, err);
    if (rc == 0)
        rc = start_child(env, p, err);
    if (rc != 0) {
        err_prefix(err, "probe");
        probe_end(p);
        return NULL;
    }
    return p;
}

/* No answer came: is the kernel to blame? */
static enum stage_result no_answer(struct probe *p, const struct process_result *r)
{
    char how[80];
    process_describe(r, how, sizeof how);
    snprintf(p->c->reason, sizeof p->c->reason, "probe: no verdict: %s%s%.100s", how,
             r->err_n ? ": " : "", r->err);
    bool starved = r->timed_out && !r->cpu_out;
    bool taken = r->signal == SIGKILL && !r->timed_out && !r->cpu_out;
    return starved || taken || (!r->signal && !r->timed_out) ? STAGE_RETRY : STAGE_REFUSE;
}

static void take_evidence(struct candidate *c, const struct probe_answer *a, double seconds)
{
    const struct evidence *from = &a->evidence;
    struct evidence *e = &c->evidence;
    e->probe_s = seconds;
    e->probe_cases = from->probe_cases;
    e->own_max = from->own_max;
    e->own_rms = from->own_rms;
    e->eager_max = from->eager_max;
    e->eager_rms = from->eager_rms;
    e->bit_equal = from->bit_equal;
    memcpy(e->worst, from->worst, sizeof e->worst);
}

enum stage_result probe_poll(struct probe *p)
{
    if (!process_poll(p->process))
        return STAGE_RUNNING;
    const struct process_result *r = process_result(p->process);
    struct probe_answer a;
    free(p->c->log);
    p->c->log = r->err_n ? xstrdup(r->err) : NULL;
    if (r->signal || r->timed_out || probe_answer_parse(&a, r->out) != 0)
        return no_answer(p, r);
    if (a.verdict == PROBE_ERROR) {
        snprintf(p->c->reason, sizeof p->c->reason, "probe: %.220s", a.reason);
        return STAGE_RETRY;
    }
    if (p->request.depth == PROBE_END)
        p->c->evidence.probe_s += r->wall_s;
    else
        take_evidence(p->c, &a, r->wall_s);
    if (a.verdict == PROBE_PASS)
        return STAGE_PASS;
    snprintf(p->c->reason, sizeof p->c->reason, "probe: %.230s", a.reason);
    return STAGE_REFUSE;
}

void probe_end(struct probe *p)
{
    if (!p)
        return;
    process_end(p->process);
    for (int32_t i = 0; i < p->request.captures; i++)
        unlink(p->request.capture[i]);
    if (p->path)
        unlink(p->path);
    if (p->dir)
        rmdir(p->dir);
    probe_request_free(&p->request);
    free(p->path);
    free(p->dir);
    free(p);
}

/* ---- in the probe --------------------------------------------------------------------------- */

static int load_captures(const struct probe_request *q,
                         struct capture *captured[PROBE_CAPTURES_MAX], struct err *err)
{
    for (int32_t i = 0; i < q->captures; i++) {
        captured[i] = capture_load(q->capture[i], &q->shape, err);
        if (!captured[i])
            return -1;
    }
    return 0;
}

/* A kernel of a device of its own. Its module is loaded in this process only. */
static int check_on_device(const struct probe_request *q, const struct check_request *check,
                           struct check_result *r, struct err *err)
{
    const struct backend_ops *ops = backend_cuda_load(err);
    if (!ops || !ops->probe)
        return 1;
    struct check_device_request d = {*check, q->shape, ops->probe};
    return check_device(&d, r, err);
}

/* 0 passed, -1 refused, 1 nothing was learnt. */
static int run_check(const struct probe_request *q, const struct model *model,
                     struct capture *const *captured, struct probe_answer *a, struct err *err)
{
    struct check_request check = {
        .model = model,
        .object = q->object,
        .range = {q->region, q->m_from, q->m_to, q->context},
        .threads = q->threads,
        .full = q->depth == PROBE_FULL,
        .rule = {.factor = error_factor,
                 .precision = q->precision,
                 .bit_equal = q->numerics == NUMERICS_BIT_EQUAL},
        .risk = (unsigned)q->risk,
        .captured = (const struct capture *const *)captured,
        .captures = q->captures,
        .seed = q->seed,
    };
    struct check_result r = {.cases = 0};
    int rc = q->machine == MACHINE_CUDA ? check_on_device(q, &check, &r, err)
                                        : check_kernel(&check, &r, err);
    struct evidence *e = &a->evidence;
    e->probe_cases = r.cases;
    e->own_max = r.judgement.own_max;
    e->own_rms = r.judgement.own_rms;
    e->eager_max = r.judgement.eager_max;
    e->eager_rms = r.judgement.eager_rms;
    e->bit_equal = r.judgement.bit_equal;
    memcpy(e->worst, r.worst, sizeof e->worst);
    a->sealed = r.sealed;
    return rc;
}

static void refuse(struct probe_answer *a, const char *stage, const struct err *err)
{
    a->verdict = PROBE_REFUSE;
    snprintf(a->stage, sizeof a->stage, "%s", stage);
    snprintf(a->reason, sizeof a->reason, "%.239s", err->msg);
}

static void error(struct probe_answer *a, const struct err *err)
{
    a->verdict = PROBE_ERROR;
    snprintf(a->reason, sizeof a->reason, "%.239s", err->msg);
}

/* Random weights have no file: on a GPU they are drawn again. */
static bool drawn(const struct probe_request *q)
{
    return q->machine == MACHINE_CUDA &&
           (!*q->model || strncmp(q->model, "random:", strlen("random:")) == 0);
}

static void examine(const struct probe_request *q, const struct model *model,
                    struct capture *const *captured, struct probe_answer *a)
{
    struct err err = {""};
    struct end_result end = {.top1 = 1};
    int rc = q->depth != PROBE_END ? run_check(q, model, captured, a, &err) : 0;
    if (rc < 0)
        refuse(a, "check", &err);
    if (rc > 0)
        error(a, &err);
    if (q->depth == PROBE_END && end_check(model, q->object, q->m_to, q->numerics, &end, &err) != 0)
        refuse(a, "end", &err);
    a->kl = isfinite(end.kl) ? end.kl : 1e9;
    a->top1 = end.top1;
}

/* Uploads and drawn weights use as many threads as there are cores; with a GPU the server's own
 * threads need little time but need it at once, so an eighth of the cores is enough here. */
static void leave_cores(void)
{
    cpu_set_t all, few;
    CPU_ZERO(&few);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    int left = CPU_COUNT(&all) / 8;
    left = left < 1 ? 1 : left;
    for (int i = CPU_SETSIZE - 1; i >= 0 && left > 0; i--)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &few);
            left--;
        }
    sched_setaffinity(0, sizeof few, &few);
}

int probe_main(int argc, char **argv)
{
    struct probe_request q;
    struct probe_answer a = {.verdict = PROBE_PASS, .top1 = 1};
    struct capture *captured[PROBE_CAPTURES_MAX] = {0};
    struct model *model = NULL;
    struct err err = {""};
    if (argc != 2) {
        fprintf(stderr, "usage: whet probe REQUEST.json (started by the specializer)\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int unread = probe_request_read(&q, argv[1], &err);
    if (!unread && q.machine == MACHINE_CUDA)
        leave_cores();
    if (unread) {
        error(&a, &err);
    } else if ((!drawn(&q) && !(model = model_open(q.model, false, NULL, NULL, &err))) ||
               load_captures(&q, captured, &err) != 0) {
        error(&a, &err);
    } else {
        examine(&q, model, captured, &a);
    }
    char *text = probe_answer_text(&a);
    int rc = puts(text) >= 0 && fflush(stdout) == 0 && a.verdict != PROBE_ERROR ? 0 : 1;
    free(text);
    if (q.machine == MACHINE_CUDA)
        _exit(rc); /* the device may not answer any more: nothing waits for it */
    for (int i = 0; i < PROBE_CAPTURES_MAX; i++) {
        if (captured[i])
            capture_free(captured[i]);
        free(captured[i]);
    }
    model_close(model);
    probe_request_free(&q);
    return rc;
}
