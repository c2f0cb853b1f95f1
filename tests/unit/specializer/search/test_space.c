/* SPDX-License-Identifier: Apache-2.0 */
/* The spaces: enumeration against a brute-force count that goes through template_illegal(), steps
 * of one knob, and the text forms of a point. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "engine/quant.h"
#include "specializer/agent/agent_source.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/space.h"
#include "tests/unit/specializer/shapes.h"

static struct model *model;

/* SmolLM2's shape with two layers, in Q4_1. */
static int open_model(void **unused)
{
    (void)unused;
    const struct model_shape shape = {SMOLLM_MODEL, .rope_interleaved = true};
    model = model_random(&shape, DTYPE_Q4_1, 1);
    return model ? 0 : -1;
}

static int close_model(void **unused)
{
    (void)unused;
    model_close(model);
    return 0;
}

/* A machine that has everything, whatever this one has. */
static struct facts facts_of(enum region region, int m, enum numerics numerics)
{
    struct facts f;
    facts_fill(&f, model, region, m, numerics);
    f.HAS_AVX2 = f.HAS_AVX512 = f.HAS_VNNI = f.HAS_AMX = 1;
    f.HAS_NEON = f.HAS_DOTPROD = f.HAS_I8MM = 0;
    return f;
}

static int brute_force(const struct template *t, const struct facts *f, bool bit_equal)
{
    int count = 0, index[KNOBS_MAX] = {0}, k;
    do {
        struct point p = {{0}};
        for (k = 0; k < t->knobs; k++)
            p.value[k] = t->knob[k].value[index[k]];
        count += !template_illegal(t, &p, f) && (!bit_equal || t->bit_equal(&p, f));
        for (k = 0; k < t->knobs && ++index[k] == t->knob[k].values; k++)
            index[k] = 0;
    } while (k < t->knobs);
    return count;
}

static void space_has_exactly_the_legal_points(void **unused)
{
    (void)unused;
    static const int ms[] = {1, 4, 12, 128, 512};
    static const enum numerics policies[] = {NUMERICS_TOLERANCE, NUMERICS_BIT_EQUAL,
                                             NUMERICS_REDUCED};
    enum { EVERY = SANITIZED ? 4 : 1 };
    for (int r = 0; r < REGION_NODES; r++)
        for (int i = 0; i < 5; i++)
            for (int n = 0; n < 3; n++) {
                if ((r + i + n) % EVERY != 0)
                    continue;
                struct facts f = facts_of((enum region)r, ms[i], policies[n]);
                int want = 0;
                for (int t = 0; t < template_count(); t++)
                    if (template_fits(template_at(t), MACHINE_CPU, (enum region)r, ms[i]))
                        want += brute_force(template_at(t), &f, n == 1);
                struct space *s = space_open(&f, (enum region)r, ms[i], policies[n]);
                if (want <= SPACE_MOST)
                    assert_int_equal(space_size(s), want);
                else
                    assert_in_range(space_size(s), SPACE_MOST / 3, SPACE_MOST * 1.2);
                space_close(s);
            }
}

static void space_offers_hundreds_of_points_for_decode(void **unused)
{
    (void)unused;
    static const enum region regions[] = {REGION_ATTN_IN, REGION_ATTN_OUT, REGION_MLP_IN,
                                          REGION_MLP_OUT, REGION_HEAD};
    for (int i = 0; i < 5; i++) {
        struct facts f = facts_of(regions[i], 1, NUMERICS_TOLERANCE);
        struct space *s = space_open(&f, regions[i], 1, NUMERICS_TOLERANCE);
        assert_true(space_size(s) >= 100);
        space_close(s);
    }
}

static void template_defaults_are_legal_where_the_template_fits(void **unused)
{
    (void)unused;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (t->machine != MACHINE_CPU)
            continue;
        struct facts f = facts_of(t->region, t->m_min, NUMERICS_TOLERANCE);
        struct point p = template_defaults(t);
        const char *why = template_illegal(t, &p, &f);
        if (why)
            print_error("%s: %s\n", t->id, why);
        assert_null(why);
    }
}

static void template_names_why_a_point_is_illegal(void **unused)
{
    (void)unused;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (t->machine != MACHINE_CPU)
            continue;
        struct facts f = facts_of(t->region, t->m_min, NUMERICS_TOLERANCE);
        struct point p = template_defaults(t);
        p.value[0] = 12345; /* no list has it */
        assert_non_null(template_illegal(t, &p, &f));
        int isa = template_knob(t, "ISA");
        assert_true(isa >= 0);
        p = template_defaults(t);
        p.value[isa] = 2;
        f.HAS_AVX512 = 0;
        assert_non_null(strstr(template_illegal(t, &p, &f), "avx512"));
        f = facts_of(t->region, t->m_min, NUMERICS_TOLERANCE);
        f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = DTYPE_COUNT; /* layers of different types */
        p = template_defaults(t);
        if (t->region != REGION_ATTN && t->region != REGION_REDUCE)
            assert_non_null(template_illegal(t, &p, &f));
    }
}

static void space_neighbours_differ_in_one_knob_and_are_legal(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_MLP_OUT, 4, NUMERICS_TOLERANCE);
    struct space *s = space_open(&f, REGION_MLP_OUT, 4, NUMERICS_TOLERANCE);
    uint64_t seed = 7;
    int most = 0;
    for (int i = 0; i < 200; i++) {
        int32_t id = random_below(&seed, space_size(s)), step[2 * KNOBS_MAX];
        int n = space_neighbours(s, id, step);
        most = n > most ? n : most;
        struct point from, to;
        space_point(s, id, &from);
        for (int k = 0; k < n; k++) {
            space_point(s, step[k], &to);
            int different = 0;
            for (int v = 0; v < KNOBS_MAX; v++)
                different += from.value[v] != to.value[v];
            assert_int_equal(different, 1);
            assert_int_equal(space_distance(s, id, step[k]), 1);
            assert_null(template_illegal(space_template(s, step[k]), &to, &f));
        }
    }
    assert_true(most >= 4);
    space_close(s);
}

static void space_finds_every_point_it_lists(void **unused)
{
    (void)unused;
    struct facts f = facts_of(REGION_ATTN_IN, 8, NUMERICS_TOLERANCE);
    struct space *s = space_open(&f, REGION_ATTN_IN, 8, NUMERICS_TOLERANCE);
    struct point p;
    for (int32_t i = 0; i < space_size(s); i++) {
        space_point(s, i, &p);
        assert_int_equal(space_find(s, space_template(s, i), &p), i);
    }
    p.value[0] = 77;
    assert_int_equal(space_find(s, space_template(s, 0), &p), -1);
    const struct template *text = agent_template(MACHINE_CPU, REGION_ATTN_IN);
    assert_true(agent_point(text, &f, &p));
    assert_int_equal(space_find(s, text, &p), -1);
    space_close(s);
}

static void point_text_is_read_back_and_nonsense_is_refused(void **unused)
{
    (void)unused;
    const struct template *t = template_at(0);
    struct point p = template_defaults(t), q;
    struct err err;
    char text[400], bad[420];
    p.value[0] = t->knob[0].value[t->knob[0].values - 1];
    point_text(t, &p, text, sizeof text);
    assert_int_equal(point_parse(t, text, &q, &err), 0);
    assert_memory_equal(&p, &q, sizeof p);
    assert_int_equal(point_parse(t, "", &q, &err), -1);
    assert_non_null(strstr(err.msg, "missing"));
    snprintf(bad, sizeof bad, "%s NOISE=1", text);
    assert_int_equal(point_parse(t, bad, &q, &err), -1);
    assert_non_null(strstr(err.msg, "NOISE"));
    snprintf(bad, sizeof bad, "%s ISA=1", text);
    assert_int_equal(point_parse(t, bad, &q, &err), -1);
    assert_int_equal(point_parse(t, "ISA=99", &q, &err), -1);
    assert_int_equal(point_parse(t, "; rm -rf /", &q, &err), -1);
}

static void point_flags_pass_every_knob_and_shape(void **unused)
{
    (void)unused;
    const struct template *t = template_find("mlp_out");
    assert_non_null(t);
    struct facts f = facts_of(REGION_MLP_OUT, 6, NUMERICS_TOLERANCE);
    struct point p = template_defaults(t);
    p.value[template_knob(t, "ISA")] = 2;
    char **flags = point_flags(t, &p, &f);
    bool isa = false, m_max = false, ffn = false, wtype = false, avx512 = false;
    for (char **c = flags; *c; c++) {
        isa |= strcmp(*c, "-DISA=2") == 0;
        m_max |= strcmp(*c, "-DM_MAX=6") == 0;
        ffn |= strcmp(*c, "-DFFN=1536") == 0;
        wtype |= strcmp(*c, "-DWTYPE=5") == 0; /* DTYPE_Q4_1 */
        avx512 |= strcmp(*c, "-mavx512f") == 0;
        free(*c);
    }
    free(flags);
    assert_true(isa && m_max && ffn && wtype && avx512);
}

static void template_source_hash_is_stable_and_differs_by_file(void **unused)
{
    (void)unused;
    char a[17], b[17];
    template_source_hash(template_find("mlp_out"), a);
    template_source_hash(template_find("mlp_out"), b);
    assert_string_equal(a, b);
    template_source_hash(template_find("mlp_in"), b);
    assert_string_not_equal(a, b);
    assert_non_null(strstr(template_source(template_find("mlp_out")), "whet_kernel"));
}

/* The values of ISA in a space, as bits. */
static unsigned instruction_sets(const struct facts *f, enum region r, int m)
{
    unsigned sets = 0;
    struct point p;
    struct space *s = space_open(f, r, m, NUMERICS_TOLERANCE);
    for (int32_t id = 0; id < space_size(s); id++) {
        space_point(s, id, &p);
        sets |= 1u << p.value[template_knob(space_template(s, id), "ISA")];
    }
    space_close(s);
    return sets;
}

/* Portable code rounds products and sums apart on x86, as eager does where there is no AVX2. */
static void portable_kernels_have_eagers_bits_where_eager_is_portable(void **unused)
{
    (void)unused;
    static const struct {
        const char *id;
        enum region region;
    } row[] = {{"attn_in", REGION_ATTN_IN}, {"attn", REGION_ATTN}, {"attn_out", REGION_ATTN_OUT},
               {"mlp_in", REGION_MLP_IN},   {"mlp", REGION_MLP},   {"mlp_out", REGION_MLP_OUT},
               {"head", REGION_HEAD}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct template *t = template_find(row[i].id);
        struct facts f = facts_of(row[i].region, 1, NUMERICS_TOLERANCE);
        struct point p = template_defaults(t);
        int isa = template_knob(t, "ISA");
        f.HAS_AVX2 = 1;
        p.value[isa] = 0;
        assert_false(t->bit_equal(&p, &f));
        p.value[isa] = 1;
        assert_true(t->bit_equal(&p, &f));
        f.HAS_AVX2 = f.HAS_AVX512 = f.HAS_VNNI = f.HAS_AMX = 0;
        p.value[isa] = 0;
        assert_true(t->bit_equal(&p, &f));
    }
}

static void an_arm_has_its_own_instruction_sets_and_no_other_has_them(void **unused)
{
    (void)unused;
    enum { PORTABLE = 1 << 0, X86 = 0x1e, NEON = 1 << 5, DOTPROD = 1 << 6, I8MM = 1 << 7 };
    static const enum region regions[] = {REGION_ATTN_IN, REGION_ATTN, REGION_MLP_OUT};
    static const int widths[] = {1, 64};
    for (int i = 0; i < 6; i++) {
        const enum region r = regions[i / 2];
        const int m = widths[i % 2];
        struct facts f = facts_of(r, m, NUMERICS_TOLERANCE);
        assert_int_equal(instruction_sets(&f, r, m) & ~(unsigned)(PORTABLE | X86), 0);
        f.HAS_AVX2 = f.HAS_AVX512 = f.HAS_VNNI = f.HAS_AMX = 0;
        f.HAS_NEON = 1;
        assert_int_equal(instruction_sets(&f, r, m), PORTABLE | NEON);
        f.HAS_DOTPROD = 1;
        const unsigned digits = r == REGION_ATTN ? 0 : DOTPROD; /* attention has no weights */
        assert_int_equal(instruction_sets(&f, r, m), PORTABLE | NEON | digits);
        f.HAS_I8MM = 1;
        assert_int_equal(instruction_sets(&f, r, m),
                         PORTABLE | NEON | (digits ? DOTPROD | I8MM : 0));
        f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = DTYPE_F16; /* digits multiply integers */
        assert_int_equal(instruction_sets(&f, r, m), PORTABLE | NEON);
    }
}

/* A processor that has all instruction sets up to `isa`, at two weight formats. */
static struct facts facts_up_to(enum region r, int m, int isa, enum dtype format)
{
    struct facts f;
    facts_fill(&f, model, r, m, NUMERICS_TOLERANCE);
    f.HAS_AVX2 = isa >= 1;
    f.HAS_AVX512 = isa >= 2;
    f.HAS_VNNI = isa >= 3;
    f.HAS_AMX = isa >= 4;
    f.HAS_NEON = f.HAS_DOTPROD = f.HAS_I8MM = 0;
    f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = (int32_t)format;
    return f;
}

/* How many of its START rows hold and are legal, and the instruction set of the first of them. */
static int starts_of(const struct template *t, const struct facts *f, int *isa)
{
    struct point p;
    int legal = 0, n = 0;
    for (; template_start_row(t, f, n, &p); n++) {
        if (template_illegal(t, &p, f))
            continue;
        if (legal++ == 0)
            *isa = p.value[template_knob(t, "ISA")];
    }
    assert_null(t->start(f, n)); /* the last row did not end at a knob that is not there */
    return legal;
}

static void there_is_a_start_for_each_instruction_set_and_format(void **unused)
{
    (void)unused;
    static const enum dtype formats[] = {
        DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_F16,    DTYPE_F32,   DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
        DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_IQ4_NL, DTYPE_MXFP4, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_IQ4_XS};
    static const int widths[] = {1, 2, 3, 4, 6, 8, 16, 32, 512, 2048};
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (size_t d = 0; d < sizeof formats / sizeof *formats; d++)
                for (int isa = 0; isa <= 4; isa++) {
                    struct facts f = facts_up_to((enum region)r, widths[w], isa, formats[d]);
                    int any = 0, best = 0, fit = 0;
                    for (int t = 0; t < template_count(); t++) {
                        int first = 0;
                        if (!template_fits(template_at(t), MACHINE_CPU, (enum region)r, widths[w]))
                            continue;
                        fit++;
                        any += starts_of(template_at(t), &f, &first);
                        best = first > best ? first : best;
                    }
                    /* Eager is as good, or all there is; and its attention of 17 to 255 tokens was
                     * compared with none (attn_wide.def). */
                    bool between = r == REGION_ATTN && widths[w] > 16 && widths[w] < 256;
                    bool eager = isa == 0 || fit == 0 || between;
                    /* One token times few bits: panels of AVX2 before rows of AVX-512. */
                    bool panels = r != REGION_ATTN && widths[w] == 1 && SMALL_TYPE(formats[d]);
                    int least = isa == 2 && panels ? 1 : isa > 2 ? 2 : isa;
                    if (eager)
                        assert_int_equal(any, 0);
                    else if (any == 0 || best < least || (isa == 2 && best > least))
                        fail_msg(
                            "%s, %d tokens, %s, instruction set %d: %d START rows hold and are "
                            "legal, the best for set %d",
                            region_name((enum region)r), widths[w], dtype_name(formats[d]), isa,
                            any, best);
                }
}

/* Under bit_equal the first rows are not in the space, and others are. */
static void a_start_that_keeps_the_bits_is_there_for_narrow_steps(void **unused)
{
    (void)unused;
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++)
        for (int isa = 1; isa <= 4; isa++) {
            struct facts f = facts_up_to((enum region)r, 1, isa, DTYPE_Q4_1);
            bool found = false;
            for (int t = 0; t < template_count(); t++) {
                const struct template *of = template_at(t);
                struct point p;
                bool fits = template_fits(of, MACHINE_CPU, (enum region)r, 1);
                for (int n = 0; fits && template_start_row(of, &f, n, &p); n++)
                    found |= of->bit_equal(&p, &f);
            }
            assert_true(found);
        }
}

/* A START row that holds, and whether its point was legal anywhere. */
struct start_row {
    const struct template *t;
    const char *knobs, *why;
    bool legal;
};

/* Adds the rows of one template that hold for `f` to the `n` that were seen; how many there are. */
static int see_starts(struct start_row *seen, int n, int most, const struct template *t,
                      const struct facts *f)
{
    const char *knobs;
    for (int row = 0; (knobs = t->start(f, row)) != NULL; row++) {
        struct point p;
        if (!template_start_row(t, f, row, &p))
            fail_msg("%s.def: START(\"%s\") names a knob that is not there", t->file, knobs);
        int at = 0;
        while (at < n && (seen[at].t != t || strcmp(seen[at].knobs, knobs) != 0))
            at++;
        assert_true(at < most);
        if (at == n)
            seen[n++] = (struct start_row){.t = t, .knobs = knobs};
        const char *why = template_illegal(t, &p, f);
        seen[at].legal |= !why;
        seen[at].why = why ? why : seen[at].why;
    }
    return n;
}

/* A row that is illegal wherever it holds is one that no search ever begins with. */
/* The first of attn's START rows that is in the space, under bit_equal or not. */
static struct point attn_start(const struct facts *f, bool bits)
{
    const struct template *t = template_find("attn");
    struct point p = template_defaults(t);
    for (int n = 0; template_start_row(t, f, n, &p); n++)
        if (!template_illegal(t, &p, f) && (!bits || t->bit_equal(&p, f)))
            return p;
    fail_msg("no START row of attn holds");
    return p;
}

/* However many heads there are, and whatever the policy: any other way is slower than eager. */
static void attention_of_few_tokens_begins_in_the_order_of_memory(void **unused)
{
    (void)unused;
    static const int widths[] = {1, 2, 16}, heads[] = {1, 9, 64, 128};
    const struct template *t = template_find("attn");
    const int share = template_knob(t, "SHARE"), splits = template_knob(t, "SPLITS");
    for (int i = 0; i < 3 * 4 * 2; i++) {
        struct facts f = facts_up_to(REGION_ATTN, widths[i % 3], i < 12 ? 1 : 2, DTYPE_Q4_1);
        f.HEADS = heads[i / 3 % 4];
        f.KV_HEADS = f.HEADS == 9 ? 3 : 1;
        struct point any = attn_start(&f, false), exact = attn_start(&f, true);
        assert_int_equal(any.value[share], 2);
        assert_int_equal(exact.value[share], 2);
        assert_true(any.value[splits] > 1); /* work for a second thread */
        assert_int_equal(exact.value[splits], 1);
    }
}

static void every_start_row_is_legal_somewhere(void **unused)
{
    (void)unused;
    static const int widths[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32, 64, 128, 256, 512, 2048};
    static struct start_row seen[500];
    int n = 0;
    for (int i = 0; i < template_count(); i++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int isa = 0; isa <= 4; isa++)
                for (int type = 0; type < DTYPE_COUNT; type++)
                    for (int reduced = 0; reduced < 2; reduced++) {
                        const struct template *t = template_at(i);
                        struct facts f = facts_up_to(t->region, widths[w], isa, (enum dtype)type);
                        f.POLICY_REDUCED = reduced;
                        if (template_fits(t, MACHINE_CPU, t->region, widths[w]))
                            n = see_starts(seen, n, 500, t, &f);
                    }
    assert_true(n > 20);
    for (int i = 0; i < n; i++)
        if (!seen[i].legal)
            fail_msg("%s.def: START(\"%s\") is legal nowhere: %s", seen[i].t->file, seen[i].knobs,
                     seen[i].why);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(space_has_exactly_the_legal_points),
        cmocka_unit_test(space_offers_hundreds_of_points_for_decode),
        cmocka_unit_test(template_defaults_are_legal_where_the_template_fits),
        cmocka_unit_test(template_names_why_a_point_is_illegal),
        cmocka_unit_test(space_neighbours_differ_in_one_knob_and_are_legal),
        cmocka_unit_test(space_finds_every_point_it_lists),
        cmocka_unit_test(point_text_is_read_back_and_nonsense_is_refused),
        cmocka_unit_test(point_flags_pass_every_knob_and_shape),
        cmocka_unit_test(template_source_hash_is_stable_and_differs_by_file),
        cmocka_unit_test(portable_kernels_have_eagers_bits_where_eager_is_portable),
        cmocka_unit_test(an_arm_has_its_own_instruction_sets_and_no_other_has_them),
        cmocka_unit_test(there_is_a_start_for_each_instruction_set_and_format),
        cmocka_unit_test(a_start_that_keeps_the_bits_is_there_for_narrow_steps),
        cmocka_unit_test(attention_of_few_tokens_begins_in_the_order_of_memory),
        cmocka_unit_test(every_start_row_is_legal_somewhere),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
