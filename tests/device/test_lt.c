/* SPDX-License-Identifier: Apache-2.0 */
/* test_lt.c - products of the library as kernels: chosen, loaded, admitted, and in wide live steps.
 *
 * A small model with the matrices' proportions of a large one, so that the library has a choice.
 * The whole admission (check_device) runs in this process, as in test_agent_device.c. Records that
 * were tampered with come last: nobody knows what the library makes of bytes that are not its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/lt_record.h"
#include "engine/cuda/memory.h"
#include "specializer/admission/capture_file.h"
#include "specializer/admission/check_device.h"
#include "tests/device/device_test.h"

enum { WIDE = 1024, TOKENS = 1000, PAGES = 256 };

static const struct model_shape shape = {ARCH_QWEN3, 2,    1024,  8,    4, 128, 3072,
                                         4096,       8192, 1e-6f, 1e6f, 0, 1,   {0}};
static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};
static const enum region products[] = {REGION_ATTN_IN, REGION_ATTN_OUT, REGION_MLP_IN,
                                       REGION_MLP_OUT, REGION_HEAD};

/* ---- choosing ------------------------------------------------------------------------------ */

static int choose(struct rig *r, enum region region, int32_t m, int32_t rank, int32_t ask,
                  int32_t split, const char *path, struct err *e)
{
    char text[5][32], *define[6], *log = NULL;
    const int32_t value[] = {(int32_t)region, m, rank, ask, split};
    static const char *const name[] = {"REGION", "M_MAX", "RANK", "ASK", "SPLIT"};
    for (int i = 0; i < 5; i++) {
        snprintf(text[i], sizeof text[i], "-D%s=%d", name[i], value[i]);
        define[i] = text[i];
    }
    define[5] = NULL;
    int rc = r->ops->choose(r->b, define, path, &log, e);
    if (rc == 0)
        check(log && strstr(log, "tile"), false, "%s m=%d rank %d: %s", region_name(region), m,
              rank, log ? log : "");
    free(log);
    return rc;
}

static struct kernel *load(struct rig *r, enum region region, const char *path, struct err *e)
{
    struct kernel_object o = {path, "", region, ORIGIN_TEMPLATE, "0123", "lt"};
    return r->ops->load(r->b, &o, e);
}

/* Any algorithm that is not eager's; ranks from `first` on. */
static struct kernel *other_than_eager(struct rig *r, enum region region, int32_t m, int32_t first,
                                       const char *path)
{
    struct err e = {""};
    for (int32_t rank = first; rank < 8; rank++)
        if (choose(r, region, m, rank, 0, 0, path, &e) == 0)
            return load(r, region, path, &e);
    check(false, true, "%s m=%d has another algorithm: %s", region_name(region), m, e.msg);
    return NULL;
}

/* ---- a wide step --------------------------------------------------------------------------- */

struct wide {
    struct step step;
    int32_t tokens[TOKENS], position[TOKENS], kv_at[TOKENS], table[PAGES], row;
    struct span span;
    struct sample_row sample;
};

static void make_wide(struct wide *s)
{
    for (int32_t i = 0; i < TOKENS; i++) {
        s->tokens[i] = (7 * i + 3) % shape.vocab;
        s->position[i] = s->kv_at[i] = i;
    }
    for (int32_t i = 0; i < PAGES; i++)
        s->table[i] = i;
    s->row = TOKENS - 1;
    s->span = (struct span){0, TOKENS, TOKENS, 0};
    s->sample = (struct sample_row){.params = &greedy, .target = -1};
    s->step = (struct step){.m = TOKENS,
                            .tokens = s->tokens,
                            .position = s->position,
                            .kv_at = s->kv_at,
                            .spans = 1,
                            .span = &s->span,
                            .page_table = s->table,
                            .pages = (TOKENS + KV_PAGE - 1) / KV_PAGE,
                            .context = TOKENS,
                            .rows = 1,
                            .row = &s->row,
                            .sample = &s->sample};
}

static void run(struct rig *r, struct wide *s, float *logits)
{
    struct err e = {""};
    check(r->ops->step(r->b, &s->step, NULL, &e) == 0, false, "a wide step: %s", e.msg);
    cudaMemcpy(logits, r->b->logits, (size_t)shape.vocab * 4, cudaMemcpyDeviceToHost);
}

static void bench(struct rig *r, struct slot *slot, const struct kernel *k, const struct capture *c)
{
    float a[12], b[12];
    struct err e = {""};
    struct bench_job job = {slot, slot->eager, k, c, 12, 0, a, b, NULL};
    int rc = 0;
    while (rc == 0)
        rc = r->ops->bench(r->b, &job, 2000000, &e);
    r->ops->bench_end(r->b, &job);
    check(rc == 1 && a[11] > 0 && b[11] > 0, true, "%s: eager %.1f us, other %.1f us %s",
          slot->name, (double)a[11] * 1e-3, (double)b[11] * 1e-3, e.msg);
}

/* Capture, bench, sampled comparisons, and then in service. */
static void live(struct rig *r, struct wide *s, enum region region, const struct kernel *k)
{
    static float eager[4096], other[4096];
    struct slot *slot = dispatch_slot(r->d, region, 0, TOKENS, TOKENS);
    struct capture c = {0};
    struct hook copy = {.kind = HOOK_CAPTURE, .slot = slot, .every = 1, .left = 1, .capture = &c};
    check(slot->m == WIDE && r->ops->hook(r->b, &copy) == 0, false, "%s takes a hook", slot->name);
    run(r, s, eager);
    r->ops->hook(r->b, NULL);
    bool in = region == REGION_ATTN_OUT || region == REGION_MLP_OUT;
    check(copy.left == 0 && c.m == NARROW && c.step_m == TOKENS && c.x && !c.in == !in, true,
          "%s: rows of a wide step are captured", slot->name);
    if (copy.left == 0)
        bench(r, slot, k, &c);
    capture_free(&c);
    dispatch_publish(r->d, slot, k);
    run(r, s, other);
    double d = logits_difference(other, eager, shape.vocab);
    check(d < 0.02, true, "%s serves: logits differ by %.1e", slot->name, d);
    const struct kernel *each[] = {slot->eager, k};
    for (int i = 0; i < 2; i++) { /* what serves is `k`: eager beside it, and itself */
        struct hook t = {
            .kind = HOOK_COMPARE, .slot = slot, .kernel = each[i], .every = 1, .left = 2};
        r->ops->hook(r->b, &t);
        for (int n = 0; n < 3; n++)
            run(r, s, other);
        r->ops->hook(r->b, NULL);
        check(t.comparisons == 2 && t.nonfinite == 0 && t.worst_rms < 0.01 &&
                  (i == 0 || !t.different),
              true, "%s: compared with %s: rms %.1e, %d with other bits, %.1f us against %.1f us",
              slot->name, each[i]->name, t.worst_rms, t.different,
              (double)t.kernel_ns * 1e-3 / (t.comparisons + !t.comparisons),
              (double)t.served_ns * 1e-3 / (t.comparisons + !t.comparisons));
    }
    check(logits_difference(other, eager, shape.vocab) == d, false,
          "%s: comparisons change nothing", slot->name);
    dispatch_publish(r->d, slot, slot->eager);
}

/* ---- wide graphs --------------------------------------------------------------------------- */

/* The step that came last ran as a graph. */
static bool was_graph(const struct rig *r)
{
    return r->b->inflight[!r->b->parity].graph;
}

/* A prompt's step that comes again and again becomes a graph, which reads what is in the block
 * then: other tokens give what an uncaptured step makes of them. */
static void comes_again(struct rig *r, struct wide *s)
{
    static float uncaptured[4096], graph[4096];
    struct slot *slot = dispatch_slot(r->d, REGION_MLP_IN, 0, TOKENS, TOKENS);
    int steps = 0;
    do
        run(r, s, graph);
    while (!was_graph(r) && ++steps < 500);
    check(was_graph(r), true, "a wide step is a graph after %d uncaptured ones", steps);
    for (int32_t i = 0; i < TOKENS; i++)
        s->tokens[i] = (11 * i + 5) % shape.vocab;
    run(r, s, graph);
    bool first = was_graph(r);
    struct hook t = {
        .kind = HOOK_COMPARE, .slot = slot, .kernel = slot->eager, .every = 1, .left = 1};
    r->ops->hook(r->b, &t);
    run(r, s, uncaptured); /* a step that is looked at is uncaptured */
    r->ops->hook(r->b, NULL);
    check(first && !was_graph(r) && t.comparisons == 1, false, "one of each");
    check(logits_difference(graph, uncaptured, shape.vocab) == 0, true, "both give the same bits");
    s->step.m = s->span.count = s->span.context = s->step.context = TOKENS - 100;
    s->row = TOKENS - 101;
    run(r, s, uncaptured);
    check(!was_graph(r), false, "another number of tokens is uncaptured");
    make_wide(s);
}

/* ---- checks of the whole model -------------------------------------------------------------- */

/* The whole model with k in its slot against eager: same bits or not. Twice, and each time as wide
 * as the slot. */
static void checked(struct rig *r, enum region region, int32_t m, const struct kernel *k, bool same,
                    const char *what)
{
    enum { ROWS = 2, POSITIONS = 8 };
    bool prompt = m > NARROW;
    struct model_check x = {.slot = dispatch_slot(r->d, region, 0, m, m),
                            .kernel = k,
                            .prompt = prompt,
                            .m = m,
                            .positions = prompt ? 1 : POSITIONS,
                            .rows = ROWS};
    struct err e = {""};
    size_t n = (size_t)(x.positions * x.rows) * (size_t)shape.vocab;
    int done = 0;
    x.token = xcalloc((size_t)(x.positions + 1) * (size_t)m, sizeof *x.token);
    x.eager = xcalloc(n, sizeof *x.eager);
    x.own = xcalloc(n, sizeof *x.own);
    for (int32_t i = 0; i < m; i++)
        x.token[i] = (i * 31 + 5) % shape.vocab;
    while (!done)
        done = r->ops->check_model(r->b, &x, &e);
    double d = done > 0 ? logits_difference(x.own, x.eager, (int32_t)n) : HUGE_VAL;
    bool bits = memcmp(x.own, x.eager, n * sizeof *x.own) == 0;
    check(done > 0 && x.m == m && d < 0.03 && bits == same, true,
          "%s m=%d whole model %s: logits differ by %.1e %s", region_name(region), m, what, d,
          e.msg);
    free(x.token);
    free(x.eager);
    free(x.own);
}

static void model_checks(struct rig *r, const char *path)
{
    static const int32_t ms[] = {24, 64, WIDE};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (int split = 0; split < 2; split++) {
            struct err e = {""};
            struct kernel *k = split && choose(r, REGION_MLP_OUT, ms[i], 0, 0, 4, path, &e) == 0
                                   ? load(r, REGION_MLP_OUT, path, &e)
                               : split ? NULL
                                       : other_than_eager(r, REGION_MLP_OUT, ms[i], 1, path);
            check(k != NULL, false, "mlp_out m=%d, split %d: %s", ms[i], split, e.msg);
            if (k)
                checked(r, REGION_MLP_OUT, ms[i], k, !split,
                        split ? "with K in four parts" : "with another algorithm");
            r->ops->unload(r->b, k);
        }
}

/* ---- admission ----------------------------------------------------------------------------- */

static int admit_record(enum region region, int32_t from, int32_t m, const struct model *model,
                        const char *path, struct check_result *result, struct err *e)
{
    return admit(model, path, &(struct check_range){region, from, m, 0}, result, e);
}

static void admissions(struct rig *r, const struct model *model, const char *path)
{
    static const int32_t ms[] = {24, 64, WIDE};
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (size_t k = 0; k < sizeof ms / sizeof *ms; k++) {
            struct check_result result;
            struct err e = {""};
            if (products[i] == REGION_HEAD && ms[k] > NARROW)
                continue;
            int rc = -1;
            for (int32_t rank = 1; rank < 8 && rc; rank++)
                rc = choose(r, products[i], ms[k], rank, 0, 0, path, &e);
            if (!rc)
                rc = admit_record(products[i], ms[k] / 2 + 1, ms[k], model, path, &result, &e);
            check(rc == 0, true, "lt %s m=%d is admitted after %d cases (bits %s) %s",
                  region_name(products[i]), ms[k], rc ? 0 : result.cases,
                  !rc && result.comparison.bit_equal ? "equal" : "other", e.msg);
        }
    struct check_result result;
    struct err e = {""};
    int rc = choose(r, REGION_MLP_OUT, 64, 0, 0, 4, path, &e) ||
             admit_record(REGION_MLP_OUT, 49, 64, model, path, &result, &e);
    check(rc == 0 && !result.comparison.bit_equal, true,
          "K in four parts is admitted, with other bits %s", e.msg);
}

/* ---- planted ------------------------------------------------------------------------------- */

static void refused(struct rig *r, const struct model *model, const char *path,
                    const struct lt_record *record, const char *words, const char *what)
{
    struct err e = {""};
    struct check_result result;
    lt_record_write(path, record, &e);
    int rc = admit_record(REGION_MLP_IN, 49, 64, model, path, &result, &e);
    check(rc == -1 && strstr(e.msg, words), true, "%s is refused by the probe: %s", what, e.msg);
    struct kernel *k = load(r, REGION_MLP_IN, path, &e);
    check(!k && strstr(e.msg, words), true, "%s is not loaded: %s", what, e.msg);
}

static void planted(struct rig *r, const struct model *model, const char *path)
{
    struct lt_record good, bad;
    struct err e = {""};
    bool there = choose(r, REGION_MLP_IN, 64, 1, 0, 0, path, &e) == 0 &&
                 lt_record_read(path, &good, &e) == 0;
    check(there, true, "a record to tamper with: %s", e.msg);
    if (!there)
        return;
    bad = good;
    bad.library++;
    refused(r, model, path, &bad, "chosen by cuBLASLt", "a record of another version");
    bad = good;
    bad.n /= 2;
    refused(r, model, path, &bad, "here is mlp_in", "a record for another shape");
    bad = good;
    bad.region = REGION_HEAD;
    refused(r, model, path, &bad, "for head", "a record for another region");
    bad = good;
    bad.m = 32;
    lt_record_write(path, &bad, &e);
    struct check_result result;
    int rc = admit_record(REGION_MLP_IN, 49, 64, model, path, &result, &e);
    check(rc == -1 && strstr(e.msg, "takes 32 tokens"), true, "one for fewer tokens is refused: %s",
          e.msg);
    bad = good;
    memset(bad.algo, 0, sizeof bad.algo);
    refused(r, model, path, &bad, "product of", "an algorithm of zeros");
    memset(bad.algo, 0xff, sizeof bad.algo);
    refused(r, model, path, &bad, "product of", "an algorithm of ones");
}

/* Each of so many sequences has a token; all share pages, which a capture does not mind. */
static void captures_of_decodes(struct rig *r, const char *path)
{
    enum { SEQUENCES = 128 };
    static struct wide s;
    static struct span span[SEQUENCES];
    struct err e = {""};
    make_wide(&s);
    for (int32_t i = 0; i < SEQUENCES; i++) {
        span[i] = (struct span){i, 1, 1, i % PAGES};
        s.position[i] = 0;
        s.kv_at[i] = i % PAGES * KV_PAGE;
    }
    s.step.m = s.step.spans = SEQUENCES;
    s.step.span = span;
    s.step.pages = SEQUENCES;
    s.step.context = 1;
    s.row = SEQUENCES - 1;
    for (int i = 0; i < 4; i++) {
        struct slot *slot = dispatch_slot(r->d, products[i], 0, SEQUENCES, 1);
        struct capture c = {0};
        struct hook copy = {
            .kind = HOOK_CAPTURE, .slot = slot, .every = 1, .left = 1, .capture = &c};
        bool ok = r->ops->hook(r->b, &copy) == 0 && r->ops->step(r->b, &s.step, NULL, &e) == 0;
        r->ops->hook(r->b, NULL);
        ok = ok && copy.left == 0 && capture_save(&c, &shape, path, &e) == 0;
        struct capture *back = ok ? capture_load(path, &shape, &e) : NULL;
        check(back && back->m == NARROW, true,
              "%s: a probe reads what was captured of %d sequences: %s", slot->name, SEQUENCES,
              e.msg);
        if (back)
            capture_free(back);
        free(back);
        capture_free(&c);
    }
}

void test_lt(void)
{
    struct model *m = model_random(&shape, DTYPE_BF16, 3);
    struct rig r;
    char path[] = "/tmp/whet-device-lt.lt";
    if (rig_open(&r, &whet_backend_cuda, m, PAGES, WIDE, 128)) {
        static struct wide s;
        make_wide(&s);
        for (int i = 0; i < 4; i++) {
            struct kernel *k = other_than_eager(&r, products[i], WIDE, 1, path);
            check(k && k->m_max == WIDE, false, "%s loads", region_name(products[i]));
            if (k)
                live(&r, &s, products[i], k);
            r.ops->unload(r.b, k);
        }
        captures_of_decodes(&r, path);
        comes_again(&r, &s);
        model_checks(&r, path);
        if (!brief) /* a probe's case is a thousand launches */
            admissions(&r, m, path);
        planted(&r, m, path);
        unlink(path);
    }
    rig_close(&r);
    model_close(m);
}
