/* SPDX-License-Identifier: Apache-2.0 */
/* test_probe.c - the device's half of the probe: templates at the points they start from pass it on
 * small shapes, and its oracle agrees with the CPU's.
 *
 * Inputs are given as captures, so that both oracles see the same; the kernel under test is
 * compiled as the specializer does it. A template that writes before it waits, reads after its row
 * ends or leaves a counter behind fails here. The oracle's own bound is that of doubles summed in
 * another order.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/capture.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/oracle.h"
#include "engine/device_probe.h"
#include "kernels/bricks.h"
#include "specializer/admission/comparator.h"
#include "specializer/search/space.h"
#include "tests/device/compile_pool.h"
#include "tests/device/device_test.h"

static const double oracle_bound = 1e-9;
/* Of wider steps so many rows are captured and judged, except by attention, and what lies between
 * its regions is bf16. */
enum { ROWS = 64 };

/* ---- inputs -------------------------------------------------------------------------------- */

/* Long sequences share pages, as they do in what is captured of a live step. */
static void draw_pages(struct capture *c, const struct model_shape *s, uint64_t *state)
{
    enum { MOST = 1024 };
    int32_t each = (c->context + KV_PAGE - 1) / KV_PAGE;
    c->span = xcalloc((size_t)c->m, sizeof *c->span);
    c->page_table = xmalloc((size_t)(each * c->m) * sizeof *c->page_table);
    for (int32_t i = 0; i < c->m; i++)
        c->span[i] = (struct span){i, 1, c->context - i % 3, i * each};
    for (int32_t i = 0; i < each * c->m; i++)
        c->page_table[i] = each * c->m - 1 - i;
    c->pages = each * c->m;
    free(capture_fold(c, MOST));
    int64_t n = (int64_t)c->pages * KV_PAGE * s->kv_heads * s->head_dim;
    c->k_pages = rng_normals(state, n, true);
    c->v_pages = rng_normals(state, n, true);
}

static void draw(struct capture *c, const struct model_shape *s, bool wide)
{
    uint64_t state = 11;
    int64_t q = (int64_t)s->heads * s->head_dim, m = c->m;
    if (c->region != REGION_ATTN)
        c->x = rng_normals(&state, m * s->hidden, false);
    if (c->region == REGION_ATTN || c->region == REGION_ATTN_OUT)
        c->in = rng_normals(&state, m * q, wide);
    if (c->region == REGION_MLP_OUT)
        c->in = rng_normals(&state, m * s->ffn, wide);
    if (c->region == REGION_ATTN)
        draw_pages(c, s, &state);
    if (c->region != REGION_ATTN_IN)
        return;
    c->pages = (c->m + KV_PAGE - 1) / KV_PAGE;
    c->position = xmalloc((size_t)m * sizeof *c->position);
    c->kv_at = xmalloc((size_t)m * sizeof *c->kv_at);
    for (int32_t i = 0; i < c->m; i++) {
        c->position[i] = 40 + 7 * i;
        c->kv_at[i] = c->m - 1 - i;
    }
}

static void want(const struct model *model, const struct capture *c, struct oracle_out *out)
{
    union region_args a = {0};
    int32_t row[128];
    size_t n = 512 * (size_t)(model->shape.head_dim / 2);
    float *cosine = xmalloc(n * 4), *sine = xmalloc(n * 4);
    rope_tables(&model->shape, 512, cosine, sine);
    a.embed.m = c->m;
    bind_layer(model, c->region, c->layer, &a);
    for (int32_t i = 0; i < c->m; i++)
        row[i] = i;
    if (c->region == REGION_ATTN_IN) {
        a.attn_in.x = c->x;
        a.attn_in.position = c->position;
        a.attn_in.rope_cos = cosine;
        a.attn_in.rope_sin = sine;
    } else if (c->region == REGION_ATTN) {
        a.attn.spans = c->spans;
        a.attn.q = c->in;
        a.attn.k_pages = c->k_pages;
        a.attn.v_pages = c->v_pages;
        a.attn.span = c->span;
        a.attn.page_table = c->page_table;
    } else if (c->region == REGION_MLP_IN) {
        a.mlp_in.x = c->x;
    } else if (c->region == REGION_HEAD) {
        a.head.x = c->x;
        a.head.row = row;
    } else {
        a.out.in = c->in;
        a.out.x = c->x;
    }
    oracle_run(c->region, &a, out);
    free(cosine);
    free(sine);
}

/* The device's column of a column in the file's order of RoPE pairs. */
static int32_t column(const struct model_shape *s, enum region r, int output, int32_t i)
{
    int32_t half = s->head_dim / 2, d = i % s->head_dim;
    if (r != REGION_ATTN_IN || output == 2 || s->rope_interleaved)
        return i;
    return i - d + (d < half ? 2 * d : 2 * (d - half) + 1);
}

static double farthest(const struct model_shape *s, enum region r, int o,
                       const struct device_outcome *got, const struct oracle_out *truth)
{
    double worst = 0, scale = 1e-30;
    int32_t rows = truth->output[o].rows, cols = truth->output[o].cols;
    if (got->output[o].rows != rows || got->output[o].cols != cols)
        return HUGE_VAL;
    for (int64_t i = 0; i < (int64_t)rows * cols; i++) {
        double w = truth->output[o].value[i];
        double d =
            got->output[o].truth[0][i / cols * cols + column(s, r, o, (int32_t)(i % cols))] - w;
        scale = fmax(scale, fabs(w));
        worst = fmax(worst, fabs(d));
    }
    return worst / scale;
}

/* What a point makes of a case, against the oracle and eager, by the rule for what it declares of
 * its activations. Only those that declare less than a float's precision are looked at here, and
 * attention, whose yardstick are its scores, too. */
static void hold_to(enum precision declared, bool attn, const struct device_outcome *out,
                    const char *what)
{
    bool looked = declared || attn;
    const struct rule rule = {.factor = 2, .precision = declared};
    struct comparison j;
    struct err e = {""};
    int rc = 0;
    comparison_start(&j);
    for (int c = 0; c < out->contents && rc == 0 && looked; c++)
        for (int i = 0; i < out->outputs && rc == 0; i++) {
            struct outcome o = {out->output[i].rows,     out->output[i].cols,
                                out->output[i].own[c],   out->output[i].eager[c],
                                out->output[i].truth[c], out->output[i].scores[c]};
            rc = compare(&j, &rule, &o, &e);
        }
    if (looked)
        check(rc == 0, true, "%s: rms error %.2e, eager's %.2e: %s", what, j.own_rms, j.eager_rms,
              rc ? e.msg : "within what it declares");
}

/* ---- one template -------------------------------------------------------------------------- */

static struct device_session *session;

/* `chance`: nobody says that the point stays in registers, which LEGAL rows only estimate. */
static void run_one(const struct model *model, const char *name, const struct template *t,
                    int32_t m, bool chance, enum precision declared, const char *object)
{
    const struct model_shape *s = &model->shape;
    int32_t longest = m == 64 ? 1024 : 512; /* 64 page tables of 64 entries */
    int32_t rows = m < ROWS || t->region == REGION_ATTN ? m : ROWS;
    struct capture c = {.region = t->region, .layer = 1, .m = rows, .spans = rows};
    struct device_probe_options o = {model, &model->shape, object, t->region, m, longest, 512};
    struct device_case one = {.shape = {.region = t->region, .layer = 1, .m = m}, .capture = &c};
    struct device_case drawn = {
        .shape = {t->region, 0, m, m, 60, true, true}, .random_params = true, .seed = 5};
    struct device_case large = drawn, prompt = drawn;
    struct device_outcome out = {0}, second = {0}, third = {0};
    bool attn = t->region == REGION_ATTN;
    struct oracle_out truth;
    enum device_verdict v = DEVICE_ERROR;
    struct err e = {""};
    c.context = t->region == REGION_ATTN && m == 64 ? longest : 77;
    draw(&c, s, m > ROWS);
    want(model, &c, &truth);
    const struct device_probe_ops *ops = whet_backend_cuda.probe;
    struct device_probe *p = session ? ops->open(session, &o, &v, &e) : NULL;
    int done, failed;
    if (!p && chance && strstr(e.msg, "local memory")) {
        printf("note: %s %s m=%d: %s\n", name, t->id, m, e.msg);
        oracle_free(&truth);
        capture_free(&c);
        return;
    }
    check(p != NULL, false, "%s %s m=%d is opened: %s", name, t->id, m, e.msg);
    if (p)
        v = ops->run(p, &one, 1, &out, &done, &failed, &e);
    check(v == DEVICE_OK, true, "%s %s m=%d passes a captured case: %s", name, t->id, m, e.msg);
    for (int i = 0; p && v == DEVICE_OK && i < truth.outputs; i++) {
        double far = farthest(s, t->region, i, &out, &truth);
        check(far <= oracle_bound, false, "%s %s m=%d output %d: oracles differ by %.2e", name,
              t->id, m, i, far);
    }
    if (p && v == DEVICE_OK)
        hold_to(declared, attn, &out, "     real weights");
    if (p && v == DEVICE_OK)
        v = ops->run(p, &drawn, 1, &second, &done, &failed, &e);
    check(v == DEVICE_OK, true, "%s %s m=%d passes a drawn case: %s", name, t->id, m, e.msg);
    if (p && v == DEVICE_OK)
        hold_to(declared, attn, &second, "     drawn weights");
    prompt.shape.sequences = 1;
    prompt.shape.context = rows + 100;
    if (p && v == DEVICE_OK && t->region == REGION_ATTN_IN) {
        v = ops->run(p, &prompt, 1, &third, &done, &failed, &e);
        check(v == DEVICE_OK, true, "%s %s m=%d passes one prompt: %s", name, t->id, m, e.msg);
        if (v == DEVICE_OK)
            hold_to(declared, attn, &third, "     one prompt");
    }
    large.fill = FILL_LARGE;
    if (p && v == DEVICE_OK && attn)
        v = ops->run(p, &large, 1, &third, &done, &failed, &e);
    if (p && v == DEVICE_OK && attn)
        hold_to(declared, attn, &third, "     large scores");
    if (p && v == DEVICE_OK)
        v = ops->finish(p, &e);
    check(v == DEVICE_OK, true, "%s %s m=%d leaves memory in order: %s", name, t->id, m, e.msg);
    if (p)
        ops->close(p, true);
    oracle_free(&truth);
    capture_free(&c);
}

struct job {
    struct compile_job c;
    int32_t m;
    bool chance;
};

struct jobs {
    struct compile_job **job; /* each the head of a struct job */
    int n;
};

static void add(struct jobs *jobs, const struct template *t, int32_t m, const struct facts *f,
                const struct point *p, bool chance)
{
    struct job *j = xcalloc(1, sizeof *j);
    *j = (struct job){.c = {.t = t, .f = *f, .p = *p}, .m = m, .chance = chance};
    jobs->job = xrealloc(jobs->job, (size_t)(jobs->n + 1) * sizeof(struct compile_job *));
    jobs->job[jobs->n++] = &j->c;
}

/* Points with activations in e4m3: the start, and one by chance of each way. */
static void add_e4m3(struct jobs *jobs, const struct template *t, int32_t m, struct facts f,
                     uint32_t *seed)
{
    enum { TRIES = 400 };
    int k = template_role(t, ROLE_OPERANDS);
    uint32_t found = 0;
    struct point p;
    f.POLICY_REDUCED = f.POLICY_FP8 = 1;
    if (k >= 0 && template_start(t, &f, &p) && !template_illegal(t, &p, &f))
        add(jobs, t, m, &f, &p, false);
    for (int i = 0; k >= 0 && i < TRIES; i++)
        if (cuda_point_random(t, &f, seed, &p) && p.value[k] && !(found >> p.value[k] & 1)) {
            add(jobs, t, m, &f, &p, true);
            found |= 1u << p.value[k];
        }
}

static void add_template(struct jobs *jobs, const struct template *t, const struct model *model,
                         int32_t m, uint32_t *seed)
{
    static const struct machine machine = {.kind = MACHINE_CUDA, .sms = 132};
    struct facts f;
    struct point p;
    facts_fill(&f, model, t->region, m, NUMERICS_TOLERANCE);
    facts_machine(&f, &machine);
    if (!template_start(t, &f, &p) || template_illegal(t, &p, &f))
        p = template_defaults(t);
    if (template_illegal(t, &p, &f))
        return;
    add(jobs, t, m, &f, &p, false);
    /* Shapes of blocks have no measured starts yet, so another point by chance as well. */
    if (cuda_reads_bricks(t) && cuda_point_random(t, &f, seed, &p))
        add(jobs, t, m, &f, &p, true);
    if (f.WTYPE == DTYPE_F8 && m > ROWS)
        add_e4m3(jobs, t, m, f, seed);
}

/* Of wide steps in blocks, each format has a third of the templates, F8 all. What ranks run
 * together has a probe of its own (test_bad_probe --ranks). */
static bool is_asked(int i, int k, int32_t m, enum dtype type)
{
    const struct template *t = template_at(i);
    bool blocks = type != DTYPE_BF16;
    if (t->library || t->region == REGION_REDUCE || !template_fits(t, MACHINE_CUDA, t->region, m) ||
        (blocks && !cuda_reads_bricks(t)))
        return false;
    bool all = type == DTYPE_F8 && m > ROWS;
    if (blocks && m > 8 && !all && (i + k + (int)type) % 3 != 0)
        return false;
    bool few = m == 1 || m == 8 || (blocks && m == 128);
    return !brief || (strcmp(t->file, "ring") != 0 && few);
}

static void run_job(const struct model *model, const char *name, const struct job *j,
                    const char *dir)
{
    const struct compile_job *c = &j->c;
    char object[300];
    snprintf(object, sizeof object, "%s/k.cubin", dir);
    bool built = c->cubin && file_write(object, c->cubin, c->size);
    printf("     %s %s m=%d: WTYPE=%d %s\n", name, c->t->id, j->m, c->f.WTYPE, c->knobs);
    fflush(stdout); /* who waits for ever says for what */
    check(built, false, "%s %s m=%d compiles: %s", name, c->t->id, j->m, c->why);
    if (built)
        run_one(model, name, c->t, j->m, j->chance, (enum precision)c->t->precision(&c->p, &c->f),
                object);
}

static void run_shape(const struct shape_row *row, enum dtype type, const char *dir)
{
    static const int32_t ms[] = {1, 2, 4, 8, 32, 48, 64, 128};
    struct model *model = model_random(&row->shape, type, 7);
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    struct jobs jobs = {0};
    uint32_t seed = (uint32_t)type;
    model->own_formats = true;
    for (int i = 0; i < template_count(); i++)
        for (int k = 0; k < (int)(sizeof ms / sizeof *ms); k++)
            if (is_asked(i, k, ms[k], type))
                add_template(&jobs, template_at(i), model, ms[k], &seed);
    struct compile_pool *pool = compile_pool_start(jobs.job, jobs.n, 0, root, "sm_90a");
    for (int i = 0; i < jobs.n; i++) {
        compile_pool_await(pool, jobs.job[i]);
        run_job(model, row->name, (const struct job *)jobs.job[i], dir);
    }
    compile_pool_end(pool);
    for (int i = 0; i < jobs.n; i++)
        free(jobs.job[i]);
    free(jobs.job);
    model_close(model);
}

/* A new folder for objects, and a session. */
static bool begin(char *dir)
{
    static const struct device_slices always = {0};
    struct err e = {""};
    setenv("WHET_RANK_GPUS", "0,1", 0); /* projections are probed as a rank's; one GPU is enough */
    check(mkdtemp(dir) != NULL, false, "there is a folder for objects");
    session = whet_backend_cuda.probe->start(&always, &e);
    check(session != NULL, true, "a session begins: %s", e.msg);
    return session != NULL;
}

/* Weights in each format that the device keeps, in the template that reads them. */
void test_probe_formats(void)
{
    static const int some[] = {0, 3};
    char dir[] = "/tmp/whet-device-probe-XXXXXX";
    bool ok = begin(dir);
    for (int k = 0; ok && k < BRICK_KINDS; k++)
        for (size_t i = 0; i < sizeof some / sizeof *some; i++)
            if (strstr(dtype_name((enum dtype)brick_type(k)), part_of))
                run_shape(&device_shapes[some[i]], (enum dtype)brick_type(k), dir);
}

void test_probe(void)
{
    char dir[] = "/tmp/whet-device-probe-XXXXXX";
    bool ok = begin(dir);
    for (int i = 0; ok && i < device_shape_count; i++)
        if (strstr(device_shapes[i].name, part_of))
            run_shape(&device_shapes[i], DTYPE_BF16, dir);
}
