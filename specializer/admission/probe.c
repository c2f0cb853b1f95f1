/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c - the stage that runs a kernel for the first time, in another process.
 *
 * The request and the captured inputs go into a directory of their own beside the object. For a CPU
 * kernel `whet probe <request>` is started at idle priority (a restored winner's short one at low
 * priority: it is over in tens of milliseconds), and its answer is one line of JSON. A GPU's
 * kernels go to one process, one after the other (prober.h). The answer decides between pass and
 * refuse. Everything that says nothing about the kernel - a child that could not start, was starved
 * or taken by the kernel for its memory, a model file that vanished - is "retry". Of those the ones
 * that died are marked (candidate.probe_died): whoever probes again and again counts them.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/cores.h"
#include "config/process.h"
#include "specializer/admission/capture_file.h"
#include "specializer/admission/probe.h"
#include "specializer/admission/probe_request.h"
#include "specializer/admission/prober.h"
#include "specializer/search/space.h"

enum { OUTPUT_MAX = 16 * 1024 };

struct probe {
    struct candidate *c;
    struct process *process; /* its own, */
    struct prober *prober;   /* or that of all */
    struct errand errand;
    struct probe_request request;
    char *dir, *path;
};

enum precision probe_precision(const struct stage_env *env, const struct candidate *c)
{
    struct facts f;
    if (c->bit_equal || !c->template)
        return PRECISION_F32;
    facts_slot(&f, env->model, c->slot, env->numerics);
    enum precision p = (enum precision)c->template->precision(&c->point, &f);
    return numerics_allows(env->numerics, p) ? p : PRECISION_F32;
}

/* Of a model by name whose layers differ, the one format that the device keeps of the slot's. */
static enum dtype drawn_type(const struct model *m, const struct slot *s)
{
    bool named = m->path && strncmp(m->path, "random:", strlen("random:")) == 0;
    enum dtype more, t = named ? model_random_type(m->path, &more) : DTYPE_BF16;
    return named && t == more ? t : device_type(m, s->region, slot_layer(s), s->m);
}

/* A slot reads one form of its matrix, and its probe has no other. */
static bool reads_own(const struct model *m, const struct slot *s)
{
    if (!m->own_formats || !m->bf16_copies || s->m <= OWN_MOST)
        return m->own_formats;
    return device_type(m, s->region, slot_layer(s), s->m) != DTYPE_BF16;
}

static void fill_request(const struct stage_env *env, const struct candidate *c,
                         enum probe_depth depth, struct probe_request *q)
{
    const struct slot *s = c->slot;
    int32_t most = env->model->shape.max_context;
    q->machine = env->machine->kind;
    q->shape = env->model->shape;
    q->shape.vocab = env->model->head.rows; /* a rank's own */
    q->model = xstrdup(env->model->path ? env->model->path : "");
    q->object = xstrdup(c->object);
    q->name = xstrdup(c->name);
    q->references = xstrdup(env->reference_dir ? env->reference_dir : "");
    q->region = s->region;
    q->m_to = s->m;
    q->m_from = s->m_index > 0 ? m_bucket[s->m_index - 1] + 1 : 1;
    q->context = s->region != REGION_ATTN ? 0 : s->context < most ? s->context : most;
    q->layer = slot_layer(s);
    q->drawn = drawn_type(env->model, s);
    q->threads = cores_or(env->config->engine_threads);
    q->pack_mib = env->config->specializer_pack_mib < 0
                      ? PACK_MIB_USUAL
                      : (int32_t)env->config->specializer_pack_mib;
    q->numerics = env->numerics;
    q->precision = probe_precision(env, c);
    q->depth = depth;
    q->risk = (int32_t)c->risk;
    q->text = c->body[0] != 0;
    q->own_formats = reads_own(env->model, s);
    q->ranks = env->model->shard.world > 1 && !env->model->alone ? env->model->shard.world : 1;
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
    return depth == PROBE_SHORT && !env->alone ? PROCESS_LOW : stage_priority(env);
}

static int start_child(const struct stage_env *env, struct probe *p, struct err *err)
{
    const char *argv[] = {env->program, "probe", p->path, NULL};
    double limit = env->config->specializer_probe_timeout;
    struct process_spec spec = {.argv = argv,
                                .priority = priority_of(env, p->request.depth),
                                .wall_s = 10 * limit,
                                .cpu_s = (int32_t)ceil(limit),
                                .file_bytes = 16 << 20, /* references (reference_cache.h) */
                                .output_max = OUTPUT_MAX};
    p->process = process_start(&spec, err);
    return p->process ? 0 : -1;
}

struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err)
{
    struct probe *p = xcalloc(1, sizeof *p);
    p->c = c;
    c->probe_died = false;
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
    if (rc == 0 && env->prober) {
        p->prober = env->prober;
        p->errand.path = p->path;
        prober_add(p->prober, &p->errand);
    } else if (rc == 0) {
        rc = start_child(env, p, err);
    }
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
    candidate_explain(p->c, STAGE_PROBE, CAUSE_OTHER, 0, "no verdict: %s%s%.100s", how,
                      r->err_n ? ": " : "", r->err);
    bool starved = r->timed_out && !r->cpu_out;
    bool taken = r->signal == SIGKILL && !r->timed_out && !r->cpu_out;
    p->c->probe_died = taken || (!r->signal && !r->timed_out);
    return starved || p->c->probe_died ? STAGE_RETRY : STAGE_REFUSE;
}

static void take_evidence(struct candidate *c, const struct probe_answer *a, double seconds,
                          double cpu)
{
    const struct evidence *from = &a->evidence;
    struct evidence *e = &c->evidence;
    e->probe_s = seconds;
    e->probe_cpu_s = cpu;
    e->probe_cases = from->probe_cases;
    e->own_max = from->own_max;
    e->own_rms = from->own_rms;
    e->eager_max = from->eager_max;
    e->eager_rms = from->eager_rms;
    e->bit_equal = from->bit_equal;
    memcpy(e->worst, from->worst, sizeof e->worst);
}

static enum stage_result take_answer(struct probe *p, const struct probe_answer *a, double seconds,
                                     double cpu)
{
    struct candidate *c = p->c;
    if (a->verdict == PROBE_ERROR) {
        candidate_explain(c, STAGE_PROBE, CAUSE_OTHER, 0, "%.220s", a->reason);
        c->probe_died = a->killed;
        return STAGE_RETRY;
    }
    if (p->request.depth == PROBE_END)
        c->evidence.probe_s += seconds, c->evidence.probe_cpu_s += cpu;
    else
        take_evidence(c, a, seconds, cpu);
    if (a->verdict == PROBE_PASS)
        return STAGE_PASS;
    const struct refusal *why = &a->evidence.refusal;
    bool error = why->cause == CAUSE_ERROR;
    candidate_explain(c, STAGE_PROBE, error ? CAUSE_ERROR : CAUSE_OTHER, error ? why->value : 0,
                      "%.230s", a->reason);
    memcpy(c->evidence.refusal.in_case, why->in_case, sizeof why->in_case);
    return STAGE_REFUSE;
}

static enum stage_result poll_errand(struct probe *p)
{
    const struct errand *e = &p->errand;
    struct probe_answer a;
    prober_poll(p->prober);
    if (e->state == ERRAND_WAITS || e->state == ERRAND_ASKED)
        return STAGE_RUNNING;
    if (e->state == ERRAND_ANSWERED && probe_answer_parse(&a, e->answer) == 0)
        return take_answer(p, &a, e->seconds, 0);
    candidate_explain(p->c, STAGE_PROBE, CAUSE_OTHER, 0, "no verdict: %s", e->reason);
    p->c->probe_died = e->died;
    return e->fault ? STAGE_REFUSE : STAGE_RETRY;
}

enum stage_result probe_poll(struct probe *p)
{
    if (p->prober)
        return poll_errand(p);
    if (!process_poll(p->process))
        return STAGE_RUNNING;
    const struct process_result *r = process_result(p->process);
    struct probe_answer a;
    candidate_log_add(p->c, r->err_n ? r->err : NULL);
    if (r->signal || r->timed_out || probe_answer_parse(&a, r->out) != 0)
        return no_answer(p, r);
    return take_answer(p, &a, r->wall_s, r->cpu_s);
}

void probe_end(struct probe *p)
{
    if (!p)
        return;
    process_end(p->process);
    if (p->prober)
        prober_remove(p->prober, &p->errand);
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
