/* SPDX-License-Identifier: Apache-2.0 */
/* The spaces of the CUDA templates, which need no GPU: what a search can reach, where it begins,
 * and what the compiler is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/bricks.h"
#include "specializer/admission/comparator.h"
#include "specializer/search/cost.h"
#include "specializer/search/space.h"
#include "tests/unit/specializer/shapes.h"

static const struct machine h200 = {H200, .kv_element = 2, .driver = "580.159.04"};

static struct facts facts_of(enum region region, int m)
{
    struct facts f = {.REGION = (int32_t)region, .M_MAX = m, QWEN3_SHAPE};
    facts_machine(&f, &h200);
    return f;
}

static void every_region_has_legal_points_of_cuda_templates_only(void **unused)
{
    (void)unused;
    static const int ms[] = {1, 4, 8, 32, 48, 64};
    for (int r = REGION_ATTN_IN; r < REGION_NODES; r++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms && r != REGION_MLP; i++) {
            struct facts f = facts_of((enum region)r, ms[i]);
            struct space *s = space_open(&f, (enum region)r, ms[i], NUMERICS_TOLERANCE);
            assert_in_range(space_size(s), 50, SPACE_MOST * 2);
            for (int32_t id = 0; id < space_size(s); id += 37) {
                struct point p;
                const struct template *t = space_template(s, id);
                space_point(s, id, &p);
                assert_int_equal(t->machine, MACHINE_CUDA);
                assert_null(template_illegal(t, &p, &f));
                assert_int_equal(space_find(s, t, &p), id);
            }
            space_close(s);
        }
}

/* Weights in blocks, and no bf16. */
static bool reads_bricks(const struct template *t)
{
    return strncmp(t->file, "brick", strlen("brick")) == 0;
}

static void the_point_to_start_from_is_in_the_space_with_its_neighbours(void **unused)
{
    (void)unused;
    int starts = 0;
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct facts f = facts_of((enum region)r, 1);
        struct space *s = space_open(&f, (enum region)r, 1, NUMERICS_TOLERANCE);
        for (int i = 0; i < template_count(); i++) {
            const struct template *t = template_at(i);
            struct point p;
            int32_t near[2 * KNOBS_MAX];
            if (!template_fits(t, MACHINE_CUDA, (enum region)r, 1) || !template_start(t, &f, &p) ||
                reads_bricks(t)) /* and no bf16 */
                continue;
            int32_t id = space_find(s, t, &p);
            assert_true(id >= 0);
            assert_true(space_neighbours(s, id, near) > 3);
            starts++;
        }
        space_close(s);
    }
    assert_true(starts >= 5);
}

/* Weights that are kept in their own format are read by the templates of bricks and no others: from
 * 9 to 64 tokens by one of them, and beyond by another, which has no head. */
static void a_kept_format_has_points_that_read_it(void **unused)
{
    (void)unused;
    static const int ms[] = {1, 4, 16, 64, 128};
    for (int kind = 0; kind < BRICK_KINDS; kind++)
        for (int r = REGION_MLP_OUT; r < REGION_COUNT; r++)
            for (size_t i = 0; i < (kind >= BRICK_KINDS - 4 ? sizeof ms / sizeof *ms : 1); i++) {
                int32_t type = brick_type(kind);
                struct facts f = facts_of((enum region)r, ms[i]);
                struct point p;
                f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = type;
                struct space *s = space_open(&f, (enum region)r, ms[i], NUMERICS_TOLERANCE);
                bool none = ms[i] > 64 && r != REGION_MLP_OUT;
                const char *alone = ms[i] > 64 ? "brick_wide" : "brick_mma";
                assert_true(none ? space_size(s) == 0 : space_size(s) >= 50);
                for (int32_t id = 0; id < space_size(s); id++) {
                    const struct template *t = space_template(s, id);
                    assert_true(reads_bricks(t));
                    assert_true(ms[i] <= 8 || strcmp(t->file, alone) == 0);
                }
                if (!none) {
                    const struct template *t = space_template(s, 0);
                    assert_true(template_start(t, &f, &p) && !template_illegal(t, &p, &f));
                }
                space_close(s);
            }
}

/* Activations in e4m3 are a lower precision than eager's: there are such points of F8 under
 * `fp8`, where a search begins with one, and nowhere else. */
static void activations_in_e4m3_are_for_f8_under_fp8(void **unused)
{
    (void)unused;
    static const enum dtype types[] = {DTYPE_F8, DTYPE_Q8_0, DTYPE_Q4_K};
    const struct template *t = template_find("brick_wide_mlp_in");
    int k = template_role(t, ROLE_OPERANDS);
    assert_true(k >= 0);
    static const enum numerics levels[] = {NUMERICS_TOLERANCE, NUMERICS_REDUCED, NUMERICS_FP8};
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            struct facts f = facts_of(REGION_MLP_IN, 256);
            struct point start;
            int32_t with = 0, n;
            bool may = levels[l] == NUMERICS_FP8 && types[i] == DTYPE_F8;
            f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = (int32_t)types[i];
            f.POLICY_REDUCED = numerics_allows(levels[l], PRECISION_INT8);
            f.POLICY_FP8 = numerics_allows(levels[l], PRECISION_E4M3);
            struct space *s = space_open(&f, REGION_MLP_IN, 256, levels[l]);
            n = space_size(s);
            for (int32_t id = 0; id < n; id++) {
                struct point p;
                space_point(s, id, &p);
                bool e4m3 = p.value[k] != 0;
                assert_int_equal(t->precision(&p, &f), e4m3 ? PRECISION_E4M3 : PRECISION_F32);
                with += e4m3;
            }
            assert_true(may ? with >= 50 && with < n : with == 0);
            assert_true(template_start(t, &f, &start) && !template_illegal(t, &start, &f));
            assert_int_equal(start.value[k] != 0, may);
            space_close(s);
        }
}

/* Rows of 4096 columns at 64 tokens: a search begins with the library there, and beside it has the
 * points of the template that it begins with at 32. */
static void where_another_template_is_faster_one_has_points_and_no_start(void **unused)
{
    (void)unused;
    struct point p;
    struct facts f = facts_of(REGION_MLP_IN, 64);
    const struct template *mma = template_find("mma_mlp_in"), *lt = template_find("lt_mlp_in");
    f.HIDDEN = 4096, f.FFN = 14336;
    assert_false(template_start(mma, &f, &p));
    assert_true(template_start(lt, &f, &p) && !template_illegal(lt, &p, &f));
    f = facts_of(REGION_MLP_IN, 32);
    f.HIDDEN = 4096, f.FFN = 14336;
    assert_true(template_start(mma, &f, &p) && !template_illegal(mma, &p, &f));
}

/* A point found for one width may not fit another: of 24576 rows of 4096 columns the sums for 32
 * tokens, which the first row keeps to the end, need more shared memory than there is. */
static void a_start_that_is_illegal_gives_way_to_the_next_that_holds(void **unused)
{
    (void)unused;
    const struct template *t = template_find("mma_mlp_in");
    struct facts f = facts_of(REGION_MLP_IN, 32);
    struct point first, start;
    assert_true(template_start_row(t, &f, 0, &first) && template_start(t, &f, &start));
    assert_null(template_illegal(t, &first, &f));
    assert_memory_equal(first.value, start.value, (size_t)t->knobs * sizeof *start.value);

    f.HIDDEN = 4096, f.FFN = 12288; /* Qwen3-8B */
    assert_true(template_start_row(t, &f, 0, &first) && template_start(t, &f, &start));
    assert_non_null(template_illegal(t, &first, &f));
    assert_null(template_illegal(t, &start, &f));
    assert_int_equal(first.value[template_knob(t, "REDUCE")], 0);
    assert_true(start.value[template_knob(t, "REDUCE")] > 0);
    assert_int_equal(start.value[template_knob(t, "SPLIT")],
                     first.value[template_knob(t, "SPLIT")]);
}

static int32_t knob_of(const struct space *s, int32_t id, const char *name)
{
    struct point p;
    int k = template_knob(space_template(s, id), name);
    space_point(s, id, &p);
    return k < 0 ? 0 : p.value[k];
}

/* Blocks of a cluster in a point's launch, or 2 for what else only devices with clusters have. */
static int32_t cluster_of(const struct space *s, int32_t id)
{
    const struct facts *f = space_facts(s);
    bool qk = f->REGION == REGION_ATTN_IN && f->HAS_QK_NORM;
    bool split = strcmp(space_template(s, id)->file, "mma") == 0;
    int32_t cluster = qk ? knob_of(s, id, "CLUSTER") : 1;
    if (knob_of(s, id, "MERGE") || knob_of(s, id, "BULK"))
        cluster = 2;
    return split ? knob_of(s, id, "SPLIT") : cluster;
}

static void a_device_without_clusters_has_only_points_without(void **unused)
{
    (void)unused;
    static const int ms[] = {1, 2, 8, 32};
    struct machine l40 = h200;
    strcpy(l40.target, "sm_89");
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
            struct facts f = facts_of((enum region)r, ms[i]), old = f;
            int with = 0;
            assert_int_equal(f.HAS_CLUSTERS, 1);
            facts_machine(&old, &l40);
            assert_int_equal(old.HAS_CLUSTERS, 0);
            struct space *s = space_open(&f, (enum region)r, ms[i], NUMERICS_TOLERANCE);
            for (int32_t id = 0; id < space_size(s); id++)
                with += cluster_of(s, id) > 1;
            assert_true(with > 0);
            space_close(s);
            s = space_open(&old, (enum region)r, ms[i], NUMERICS_TOLERANCE);
            assert_true(space_size(s) >= 50);
            for (int32_t id = 0; id < space_size(s); id++)
                assert_true(cluster_of(s, id) <= 1);
            space_close(s);
        }
}

static void a_space_too_large_to_enumerate_is_the_same_every_time(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_OUT, 1);
    struct space *a = space_open(&f, REGION_MLP_OUT, 1, NUMERICS_TOLERANCE);
    struct space *b = space_open(&f, REGION_MLP_OUT, 1, NUMERICS_TOLERANCE);
    assert_int_equal(space_size(a), space_size(b));
    for (int32_t id = 0; id < space_size(a); id += 11) {
        struct point p, q;
        space_point(a, id, &p);
        space_point(b, id, &q);
        assert_memory_equal(&p, &q, sizeof p);
    }
    space_close(a);
    space_close(b);
}

/* Without START rows a search still has points, those about the defaults and an even sample; what
 * lies about the start is in it no more than by chance. */
static void without_starts_a_space_lies_about_the_defaults(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_IN, 1);
    const struct template *t = template_find("gemv_mlp_in");
    struct point start, defaults = template_defaults(t), p;
    int32_t near[2 * KNOBS_MAX];
    assert_true(template_start(t, &f, &start));
    struct space *with = space_open(&f, REGION_MLP_IN, 1, NUMERICS_TOLERANCE);
    struct space *without = space_open_starts(&f, REGION_MLP_IN, 1, NUMERICS_TOLERANCE, false);
    int all = space_neighbours(with, space_find(with, t, &start), near), left = 0;
    for (int i = 0; i < all; i++) {
        space_point(with, near[i], &p);
        left += space_find(without, t, &p) >= 0;
    }
    assert_true(left < all);
    assert_true(template_illegal(t, &defaults, &f) || space_find(without, t, &defaults) >= 0);
    assert_in_range(space_size(without), 50, SPACE_MOST * 2);
    space_close(with);
    space_close(without);
}

static void a_cpu_has_no_cuda_templates_and_bit_equality_admits_none(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_IN, 1);
    struct space *s = space_open(&f, REGION_MLP_IN, 1, NUMERICS_BIT_EQUAL);
    assert_int_equal(space_size(s), 0);
    space_close(s);
    f.SMS = 0;
    f.WTYPE = f.WTYPE_2 = DTYPE_Q4_1;
    s = space_open(&f, REGION_MLP_IN, 1, NUMERICS_TOLERANCE);
    for (int32_t id = 0; id < space_size(s); id++)
        assert_int_equal(space_template(s, id)->machine, MACHINE_CPU);
    space_close(s);
}

static void direct_loads_and_both_kinds_of_rings_are_families_that_every_region_has(void **unused)
{
    (void)unused;
    enum { WAYS = 3 };
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct facts f = facts_of((enum region)r, 1);
        struct space *s = space_open(&f, (enum region)r, 1, NUMERICS_TOLERANCE);
        int points[WAYS] = {0}, family[WAYS] = {-1, -1, -1};
        for (int32_t id = 0; id < space_size(s); id++) {
            struct point p;
            const struct template *t = space_template(s, id);
            int bulk = template_knob(t, "BULK"), persist = template_knob(t, "PERSIST");
            space_point(s, id, &p);
            if (persist < 0 || p.value[persist] > 0)
                continue;
            int way = bulk < 0 ? 0 : 1 + p.value[bulk];
            points[way]++;
            family[way] = family[way] < 0 ? space_family(s, id) : family[way];
            assert_int_equal(space_family(s, id), family[way]);
        }
        space_close(s);
        if (r == REGION_ATTN)
            continue;
        for (int w = 0; w < WAYS; w++)
            assert_true(points[w] >= 10);
        assert_true(family[0] != family[1] && family[1] != family[2] && family[0] != family[2]);
    }
}

static void a_deeper_ring_has_more_on_its_way(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_IN, 1);
    const struct template *t = template_find("ring_mlp_in");
    struct point p = template_defaults(t), deep;
    struct cost cost;
    p.value[template_knob(t, "PERSIST")] = 1;
    p.value[template_knob(t, "STAGES")] = 1;
    p.value[template_knob(t, "ROWS")] = 1;
    deep = p;
    deep.value[template_knob(t, "STAGES")] = 4;
    cost_open(&cost, &h200, 1);
    assert_true(cost_formula(&cost, t, &deep, &f) < cost_formula(&cost, t, &p, &f));
    cost_close(&cost);
}

static double predicted(const struct cost *cost, const char *id, const struct facts *f,
                        const char *const *knob, const int *value, int n)
{
    const struct template *t = template_find(id);
    struct point p = template_defaults(t);
    for (int i = 0; i < n; i++)
        p.value[template_knob(t, knob[i])] = value[i];
    return cost_formula(cost, t, &p, f);
}

/* With few tokens a second number for each activation is free, with 64 the products decide; and
 * clusters that read all of x cost the more, the more of them there are. */
static void products_and_activations_cost_what_tokens_there_are(void **unused)
{
    (void)unused;
    static const char *const knob[] = {"TERMS", "NORMED", "SPLIT", "PERSIST", "SPARE"};
    static const int two[] = {2, 0, 4, 1, 12}, one[] = {1, 2, 4, 1, 12}, small[] = {1, 2, 2, 1, 12};
    struct facts few = facts_of(REGION_MLP_IN, 8), many = facts_of(REGION_MLP_IN, 64);
    struct cost c;
    cost_open(&c, &h200, 1);
    double few_ratio = predicted(&c, "mma_mlp_in", &few, knob, two, 5) /
                       predicted(&c, "mma_mlp_in", &few, knob, one, 5);
    double ratio = predicted(&c, "mma_mlp_in", &many, knob, two, 5) /
                   predicted(&c, "mma_mlp_in", &many, knob, one, 5);
    assert_true(few_ratio < 1.02 && ratio > 1.05);
    assert_true(predicted(&c, "mma_mlp_in", &many, knob, small, 5) >
                predicted(&c, "mma_mlp_in", &many, knob, one, 5));
    cost_close(&c);
}

/* One token's sum is one way over the link, with nothing to wait for behind it; 64 tokens' are
 * bytes, of which lines have half as many, if enough of them are asked for at once. */
static void small_sums_of_ranks_are_ways_and_large_ones_bytes(void **unused)
{
    (void)unused;
    static const char *const knob[] = {"WAY", "SHOTS", "BLOCKS", "WARPS"};
    static const int call[] = {0, 1, 64, 1}, plain[] = {2, 1, 16, 1}, twice[] = {0, 2, 64, 1};
    static const int calls[] = {0, 1, 64, 8}, lines[] = {1, 1, 64, 8}, few[] = {1, 1, 8, 8};
    struct facts one = facts_of(REGION_REDUCE, 1), many = facts_of(REGION_REDUCE, 64);
    struct cost c;
    cost_open(&c, &h200, 1);
    double best = predicted(&c, "reduce_peer", &one, knob, call, 4);
    assert_true(best < predicted(&c, "reduce_peer", &one, knob, plain, 4));
    assert_true(best < predicted(&c, "reduce_peer", &one, knob, twice, 4));
    best = predicted(&c, "reduce_peer", &many, knob, lines, 4);
    assert_true(best < predicted(&c, "reduce_peer", &many, knob, calls, 4));
    assert_true(best < predicted(&c, "reduce_peer", &many, knob, few, 4));
    cost_close(&c);
}

/* 64 tokens of 8 key heads are 512 blocks, four for each of 132 multiprocessors: with a warp each
 * they ask for too little. */
static void attention_of_many_tokens_is_bytes_if_enough_of_them_are_asked_for(void **unused)
{
    (void)unused;
    static const char *const knob[] = {"SPLITS", "WARPS", "PIECE", "MERGE"};
    static const int enough[] = {1, 4, 8, 0}, little[] = {1, 1, 8, 0};
    struct facts f = facts_of(REGION_ATTN, 64);
    struct cost c;
    cost_open(&c, &h200, 1);
    double bytes = 4.0 * 512 * 8 * 128 * 64, s = predicted(&c, "attn_decode", &f, knob, enough, 4);
    assert_true(s > bytes / h200.read_bandwidth && s < 1.5 * bytes / h200.read_bandwidth);
    assert_true(predicted(&c, "attn_decode", &f, knob, little, 4) > 1.2 * s);
    cost_close(&c);
}

/* Of many sequences each byte counts: attention through a ring gains from depth until memory is
 * busy, and is never faster than that. */
static void attention_with_a_deeper_ring_comes_nearer_to_its_bytes(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_ATTN, 32);
    const struct template *t = template_find("attn_mma");
    struct point p = template_defaults(t);
    double before = 1, bound = 32.0 * 32 * f.KV_HEADS * 64 * f.HEAD_DIM / 4.8e12;
    struct cost cost;
    cost_open(&cost, &h200, 1);
    p.value[template_knob(t, "WARPS")] = p.value[template_knob(t, "SPLITS")] = 1;
    for (int stages = 1; stages <= 4; stages++) {
        p.value[template_knob(t, "STAGES")] = stages;
        double s = cost_formula(&cost, t, &p, &f);
        assert_true(s > bound && s < before);
        before = s;
    }
    assert_true(before < 3 * bound);
    cost_close(&cost);
}

static bool has(char **flags, const char *wanted)
{
    for (; *flags; flags++)
        if (strcmp(*flags, wanted) == 0)
            return true;
    return false;
}

static void the_compiler_is_told_knobs_and_shapes_and_no_cpu_facts(void **unused)
{
    (void)unused;
    const struct template *t = template_find("gemv_mlp_in");
    struct facts f = facts_of(REGION_MLP_IN, 1);
    struct point p = template_defaults(t);
    char **flags = point_flags(t, &p, &f), path[80], a[17], b[17];
    assert_true(has(flags, "-DSMS=132"));
    assert_true(has(flags, "-DFFN=6144"));
    assert_true(has(flags, "-DROWS=2"));
    assert_true(has(flags, "-DWTYPE=2")); /* DTYPE_BF16 */
    for (char **at = flags; *at; at++) {
        assert_null(strstr(*at, "HAS_AVX2"));
        assert_null(strstr(*at, "WTYPE_2"));
        free(*at);
    }
    free(flags);
    template_path(t, path, sizeof path);
    assert_string_equal(path, "cuda/gemv.cu");
    assert_non_null(strstr(template_source(t), "#include \"cuda/lib/gemv_run.cuh\""));
    assert_non_null(strstr(kernel_source_text("cuda/lib/gemv_run.cuh"), "whet_kernel("));
    template_source_hash(t, a);
    template_source_hash(template_find("mma_mlp_in"), b);
    assert_string_not_equal(a, b);
}

/* Points that were written down are a space, whatever would be sampled today. */
static void a_list_of_points_is_a_space_of_them(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_OUT, 1);
    const struct template *gemv = template_find("gemv_mlp_out"), *of[3] = {gemv, gemv, gemv};
    struct point p[3];
    for (int i = 0; i < 3; i++) {
        p[i] = template_defaults(gemv);
        p[i].value[template_knob(gemv, "ROWS")] = 4 >> i;
        assert_null(template_illegal(gemv, &p[i], &f));
    }
    struct space *s = space_listed(&f, of, p, 3);
    assert_non_null(s);
    assert_int_equal(space_size(s), 3);
    for (int i = 0; i < 3; i++) {
        struct point found;
        int32_t id = space_find(s, gemv, &p[i]);
        assert_in_range(id, 0, 2);
        space_point(s, id, &found);
        assert_memory_equal(&found, &p[i], sizeof found);
    }
    space_close(s);
    p[1] = p[0];
    assert_null(space_listed(&f, of, p, 3)); /* twice */
    p[1].value[template_knob(gemv, "ROWS")] = 5;
    assert_null(space_listed(&f, of, p, 3)); /* no such value */
}

/* Slots have what a library offers, up to the widest. */
static void wide_slots_have_a_library_to_choose_from(void **unused)
{
    (void)unused;
    static const int ms[] = {48, 64, 128, 512, 2048};
    static const enum region regions[] = {REGION_ATTN_IN, REGION_ATTN_OUT, REGION_MLP_IN,
                                          REGION_MLP_OUT};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t r = 0; r < sizeof regions / sizeof *regions; r++) {
            struct facts f = facts_of(regions[r], ms[i]);
            struct space *all = space_open(&f, regions[r], ms[i], NUMERICS_TOLERANCE);
            struct space *equal = space_open(&f, regions[r], ms[i], NUMERICS_BIT_EQUAL);
            assert_true(space_size(all) > space_size(equal) && space_size(equal) >= 20);
            for (int32_t id = 0; id < space_size(equal); id++) {
                struct point p;
                const struct template *t = space_template(equal, id);
                space_point(equal, id, &p);
                assert_true(t->library);
                assert_int_equal(p.value[template_knob(t, "SPLIT")], 0);
                assert_true(p.value[template_knob(t, "RANK")] + p.value[template_knob(t, "ASK")] >
                            0); /* the first of its own list is eager */
            }
            space_close(equal);
            space_close(all);
        }
    char path[80];
    const struct template *t = template_find("lt_mlp_in");
    template_path(t, path, sizeof path);
    assert_string_equal(path, "cuda/lt.def");
    assert_non_null(strstr(template_source(t), "KNOB(RANK"));
}

/* Decodes of hundreds of sequences have attention to choose from, and a point to begin with. */
static void attention_of_hundreds_of_sequences_has_points_and_a_start(void **unused)
{
    (void)unused;
    static const int ms[] = {128, 256, 512};
    static const int heads[][3] = {{32, 8, 64}, {32, 8, 128}, {16, 8, 128}, {28, 4, 64}};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
        for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
            struct facts f = facts_of(REGION_ATTN, ms[i]);
            f.HEADS = heads[h][0], f.KV_HEADS = heads[h][1], f.HEAD_DIM = heads[h][2];
            struct space *s = space_open(&f, REGION_ATTN, ms[i], NUMERICS_TOLERANCE);
            int even = 0, starts = 0;
            for (int32_t id = 0; id < space_size(s); id++)
                even += strcmp(space_template(s, id)->file, "attn_even") == 0;
            assert_true(even >= 50 && space_size(s) - even >= 50);
            for (int t = 0; t < template_count(); t++) {
                struct point p;
                if (template_fits(template_at(t), MACHINE_CUDA, REGION_ATTN, ms[i])) {
                    assert_true(template_start(template_at(t), &f, &p));
                    assert_true(space_find(s, template_at(t), &p) >= 0);
                    starts++;
                }
            }
            assert_true(starts >= 2);
            space_close(s);
        }
}

static int32_t points_of(const struct space *s, const char *file)
{
    int32_t n = 0;
    for (int32_t id = 0; id < space_size(s); id++)
        n += strcmp(space_template(s, id)->file, file) == 0;
    return n;
}

/* Beyond 64 tokens there are products of ours where the device has the instructions for them, and
 * beside the library's nothing else; up to there other templates. A start is one of them. */
static void wide_slots_have_templates_where_the_device_has_wgmma(void **unused)
{
    (void)unused;
    static const char *const targets[] = {"sm_90a", "sm_89", "sm_100a"};
    static const int ms[] = {64, 128, 256, 2048};
    for (int r = REGION_ATTN_IN; r <= REGION_MLP_OUT; r++)
        for (size_t i = 0; i < sizeof ms / sizeof *ms && r != REGION_ATTN; i++)
            for (size_t t = 0; t < sizeof targets / sizeof *targets; t++) {
                struct machine m = h200;
                struct facts f = facts_of((enum region)r, ms[i]);
                strcpy(m.target, targets[t]);
                facts_machine(&f, &m);
                struct space *s = space_open(&f, (enum region)r, ms[i], NUMERICS_TOLERANCE);
                int32_t wide = points_of(s, "wide"), lt = points_of(s, "lt");
                int32_t skinny = points_of(s, "skinny");
                assert_true(ms[i] > 64 && t == 0 ? wide >= 100 : wide == 0);
                assert_true(ms[i] <= 256 && t == 0 ? skinny >= 20 : skinny == 0);
                assert_true(lt >= 20 && (ms[i] <= 64 || wide + skinny + lt == space_size(s)));
                space_close(s);
            }
}

/* What blocks of a cluster share they need not read each for itself, and many tokens take as long
 * as tensor cores need. */
static void wide_products_cost_what_they_multiply_and_read(void **unused)
{
    (void)unused;
    static const char *const knob[] = {"TOKENS", "STAGES", "CLUSTER"};
    static const int alone[] = {256, 4, 1}, shared[] = {256, 4, 2}, small[] = {64, 8, 2};
    struct facts f = facts_of(REGION_MLP_IN, 2048);
    double least = 2.0 * 2048 * f.HIDDEN * 2 * f.FFN / h200.peak_flops;
    struct cost c;
    cost_open(&c, &h200, 1);
    double s = predicted(&c, "wide_mlp_in", &f, knob, shared, 3);
    assert_true(s > least && s < 2 * least);
    assert_true(predicted(&c, "wide_mlp_in", &f, knob, alone, 3) > s);
    assert_true(predicted(&c, "wide_mlp_in", &f, knob, small, 3) > s);
    cost_close(&c);
}

/* Weights as columns: a matrix that is dealt to all multiprocessors at once is never read faster
 * than memory is, and takes longer in tiles of which some wait for others, and with a step in
 * shared memory at a time; four blocks that share K are soon too many at once. */
static void skinny_products_cost_what_their_stream_of_weights_does(void **unused)
{
    (void)unused;
    static const char *const knob[] = {"ROWS", "STAGES", "SPLIT"};
    static const int even[] = {96, 8, 1}, two_waves[] = {88, 8, 1}, few[] = {96, 3, 1};
    static const int by_four[] = {72, 8, 4}, too_many[] = {64, 8, 4};
    struct facts f = facts_of(REGION_MLP_IN, 64);
    double least = 2.0 * f.HIDDEN * 2 * f.FFN / h200.read_bandwidth;
    struct cost c;
    cost_open(&c, &h200, 1);
    double s = predicted(&c, "skinny_mlp_in", &f, knob, even, 3);
    assert_true(s > least && s < 2 * least);
    assert_true(predicted(&c, "skinny_mlp_in", &f, knob, two_waves, 3) > s);
    assert_true(predicted(&c, "skinny_mlp_in", &f, knob, few, 3) > s);
    f = facts_of(REGION_MLP_OUT, 64);
    s = predicted(&c, "skinny_mlp_out", &f, knob, by_four, 3);
    assert_true(s > least / 2 && predicted(&c, "skinny_mlp_out", &f, knob, too_many, 3) > s);
    cost_close(&c);
}

/* A search begins with weights as columns where those were measured to be the fastest: from 33
 * tokens on, and not where tiles of heads would leave half of the device idle. */
static void skinny_points_come_first_where_they_were_faster(void **unused)
{
    (void)unused;
    const struct template *t = template_find("skinny_attn_in");
    struct facts f = facts_of(REGION_ATTN_IN, 64);
    struct point p;
    f.HAS_QK_NORM = 1, f.HEAD_DIM = 128, f.HEADS = 16, f.KV_HEADS = 8, f.HIDDEN = 2048;
    assert_false(template_start(t, &f, &p));
    f.HEADS = 32, f.HIDDEN = 2560;
    assert_true(template_start(t, &f, &p) && !template_illegal(t, &p, &f));
    assert_int_equal(p.value[template_knob(t, "ROWS")], 64);
    f.M_MAX = 32;
    assert_false(template_start(t, &f, &p));
    f.M_MAX = 48, f.HAS_QK_NORM = 0, f.HEADS = 32, f.KV_HEADS = 8, f.HEAD_DIM = 64, f.HIDDEN = 2048;
    assert_true(template_start(t, &f, &p));
    assert_int_equal(p.value[template_knob(t, "ROWS")], 32);
}

/* The library's order is a guess worth having; a product never beats memory or tensor cores. */
static void a_librarys_first_guesses_are_predicted_fastest(void **unused)
{
    (void)unused;
    struct cost cost;
    cost_open(&cost, &h200, 1);
    const struct template *t = template_find("lt_mlp_in");
    struct facts f = facts_of(REGION_MLP_IN, 2048);
    struct point p = template_defaults(t);
    double before = 0, bound = 2.0 * 2048 * 2 * 6144 * 2048 / 8e14;
    for (int rank = 1; rank < 8; rank++) {
        p.value[template_knob(t, "RANK")] = rank;
        double s = cost_predict(&cost, t, &p, &f);
        assert_true(s > bound && s < 3 * bound);
        assert_true(s > before);
        before = s;
    }
    cost_close(&cost);
}

static void predictions_follow_bytes_and_never_beat_the_memory(void **unused)
{
    (void)unused;
    struct cost cost;
    cost_open(&cost, &h200, 1);
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct facts f = facts_of((enum region)r, 1);
        struct space *s = space_open(&f, (enum region)r, 1, NUMERICS_TOLERANCE);
        space_predict(s, &cost);
        double least = r == REGION_MLP_IN ? 2.0 * 6144 * 2048 * 2 / 4.3e12 : 0;
        for (int32_t id = 0; id < space_size(s); id++) {
            assert_true(space_predicted(s, id) > least);
            assert_true(space_predicted(s, id) < 5e-3);
        }
        space_close(s);
    }
    cost_close(&cost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_region_has_legal_points_of_cuda_templates_only),
        cmocka_unit_test(the_point_to_start_from_is_in_the_space_with_its_neighbours),
        cmocka_unit_test(a_kept_format_has_points_that_read_it),
        cmocka_unit_test(activations_in_e4m3_are_for_f8_under_fp8),
        cmocka_unit_test(where_another_template_is_faster_one_has_points_and_no_start),
        cmocka_unit_test(a_start_that_is_illegal_gives_way_to_the_next_that_holds),
        cmocka_unit_test(a_device_without_clusters_has_only_points_without),
        cmocka_unit_test(a_space_too_large_to_enumerate_is_the_same_every_time),
        cmocka_unit_test(without_starts_a_space_lies_about_the_defaults),
        cmocka_unit_test(a_cpu_has_no_cuda_templates_and_bit_equality_admits_none),
        cmocka_unit_test(direct_loads_and_both_kinds_of_rings_are_families_that_every_region_has),
        cmocka_unit_test(a_deeper_ring_has_more_on_its_way),
        cmocka_unit_test(products_and_activations_cost_what_tokens_there_are),
        cmocka_unit_test(small_sums_of_ranks_are_ways_and_large_ones_bytes),
        cmocka_unit_test(attention_of_many_tokens_is_bytes_if_enough_of_them_are_asked_for),
        cmocka_unit_test(attention_with_a_deeper_ring_comes_nearer_to_its_bytes),
        cmocka_unit_test(the_compiler_is_told_knobs_and_shapes_and_no_cpu_facts),
        cmocka_unit_test(a_list_of_points_is_a_space_of_them),
        cmocka_unit_test(wide_slots_have_a_library_to_choose_from),
        cmocka_unit_test(attention_of_hundreds_of_sequences_has_points_and_a_start),
        cmocka_unit_test(wide_slots_have_templates_where_the_device_has_wgmma),
        cmocka_unit_test(wide_products_cost_what_they_multiply_and_read),
        cmocka_unit_test(skinny_products_cost_what_their_stream_of_weights_does),
        cmocka_unit_test(skinny_points_come_first_where_they_were_faster),
        cmocka_unit_test(a_librarys_first_guesses_are_predicted_fastest),
        cmocka_unit_test(predictions_follow_bytes_and_never_beat_the_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
