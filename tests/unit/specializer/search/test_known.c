/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/search/known.c: which points of other machines are taken for a slot, and
 * that a text which is damaged, old or of another version costs no more than its own rows. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/sources.h"
#include "specializer/search/known.c"
#include "tests/unit/specializer/shapes.h"

#define WEIGHTS(format) \
    "weights attn_in=" format "," format "," format " mlp_out=" format "," format "," format "\n"
#define SMOLLM "model hidden=576 heads=9 kv_heads=3 head_dim=64 ffn=1536 vocab=49152\n"
#define KNOBS(prefetch) \
    "mlp_out ISA=2 PACK=0 DIGITS=0 ROWS=4 TOKENS=1 PREFETCH=" prefetch " SPLIT=0 PREP=0\n"

/* Two threads and VNNI; Q4_1 under two policies, a wider model, another format. */
static const char text[] =
    "whet-known 1\n"
    "# a comment\n"
    "\n"
    "machine cpu vnni 2 A machine, 2 threads\n"
    "numerics bit_equal\n" SMOLLM WEIGHTS("Q4_1") "mlp_out/m1 1.90 " KNOBS(
        "256") "mlp_out/m2 1.80 " KNOBS("512") "numerics tolerance\n" SMOLLM
        WEIGHTS("Q4_1") "mlp_out/m1 1.20 " KNOBS("1024") "mlp_out/m8 1.70 " KNOBS(
            "512") "numerics tolerance\n"
                   "model hidden=1152 heads=18 kv_heads=6 head_dim=64 ffn=1536 "
                   "vocab=49152\n" WEIGHTS("Q4_1") "mlp_out/m1 3.00 " KNOBS(
                       "2048") "numerics tolerance\n" SMOLLM
                       WEIGHTS("Q8_0") "mlp_out/m1 9.00 " KNOBS("4096");

static const struct facts smollm = {.REGION = REGION_MLP_OUT,
                                    .M_MAX = 1,
                                    .HAS_AVX2 = 1,
                                    .HAS_AVX512 = 1,
                                    .HAS_VNNI = 1,
                                    SMOLLM_SHAPE};

static struct known *read_text(const char *what, int left_out)
{
    struct known *k = xcalloc(1, sizeof *k);
    int out = known_add(k, "test", what);
    if (out != left_out)
        fail_msg(
            "%d rows are left out and not %d, for what the log says above; a knob that mlp_out "
            "gained or lost is to be in KNOBS of this file, too",
            out, left_out);
    return k;
}

static int prefetch(const struct known_point *p)
{
    return p->point.value[template_knob(p->template, "PREFETCH")];
}

static void the_nearest_model_and_the_same_policy_come_first(void **state)
{
    (void)state;
    struct known *k = read_text(text, 0);
    struct known_slot slot = {&smollm, 1, 0, 2, NUMERICS_TOLERANCE, "A machine"};
    struct known_point found[8];
    assert_int_equal(known_rows(k), 6);
    assert_int_equal(known_find(k, &slot, found, 8), 3);
    assert_int_equal(prefetch(&found[0]), 1024);
    assert_int_equal(prefetch(&found[1]), 256);
    assert_int_equal(prefetch(&found[2]), 2048);
    assert_string_equal(found[0].device, "A machine, 2 threads");
    assert_true(found[0].speed == 1.2);
    slot.numerics = NUMERICS_REDUCED; /* fewer digits win there, which none of these has */
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    slot.numerics = NUMERICS_BIT_EQUAL;
    assert_int_equal(known_find(k, &slot, found, 1), 1); /* no more than there is room for */
    assert_int_equal(prefetch(&found[0]), 256);
    known_close(k);
}

static void other_instructions_formats_and_buckets_are_too_far(void **state)
{
    (void)state;
    struct known *k = read_text(text, 0);
    struct known_slot slot = {&smollm, 1, 0, 2, NUMERICS_TOLERANCE, "A machine"};
    struct known_point found[8];
    struct facts other = smollm;
    slot.facts = &other;
    other.HAS_VNNI = 0;
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    other = smollm;
    other.HAS_AMX = 1;
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    other = smollm;
    other.WTYPE_2 = DTYPE_F16;
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    other = smollm;
    other.REGION = REGION_ATTN_OUT;
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    other = smollm;
    slot.threads = 64;
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    slot.threads = 4;
    assert_int_equal(known_find(k, &slot, found, 8), 3);
    slot.m = 16;
    assert_int_equal(known_find(k, &slot, found, 8), 0); /* m8 is a doubling away */
    known_close(k);
}

/* On a CPU `fp8` is `reduced`: what won under one is looked at under the other. */
static void lower_precisions_know_of_each_other(void **state)
{
    (void)state;
    struct known_point found[8];
    struct known_slot slot = {&smollm, 1, 0, 2, NUMERICS_FP8, "A machine"};
    struct known *k = read_text(text, 0);
    assert_int_equal(known_find(k, &slot, found, 8), 0);
    known_close(k);
    static const char *const levels[] = {"fp8", "reduced"};
    for (int i = 0; i < 2; i++) {
        char *whole =
            xasprintf("%snumerics %s\n" SMOLLM WEIGHTS("Q4_1") "mlp_out/m1 1.5 " KNOBS("512"), text,
                      levels[i]);
        k = read_text(whole, 0);
        assert_int_equal(known_find(k, &slot, found, 8), 1);
        assert_true(found[0].distance == (i == 0 ? 0 : other_numerics));
        slot.numerics = NUMERICS_TOLERANCE;
        assert_int_equal(known_find(k, &slot, found, 8), 4);
        slot.numerics = NUMERICS_FP8;
        known_close(k);
        free(whole);
    }
}

/* What is wrong costs its own line and no other. */
static void bad_and_stale_rows_are_left_out(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "mlp_out/m1 1.2 no_such_template ISA=2\n",
        "mlp_out/m1 1.2 mlp_out ISA=2 PACK=0\n", /* knobs are missing */
        "mlp_out/m1 1.2 mlp_out ISA=2 NO_SUCH_KNOB=1 PACK=0 DIGITS=0 ROWS=4 TOKENS=1\n",
        "mlp_out/m1 fast " KNOBS("256"),
        "mlp_out/m1 nan " KNOBS("256"),
        "mlp_out/m1 -1 " KNOBS("256"),
        "no_such_region/m1 1.2 " KNOBS("256"),
        "mlp_out/m0 1.2 " KNOBS("256"),
        "mlp_out 1.2 " KNOBS("256"),
        "head/m1 1.2 " KNOBS("256"),     /* a template of another region */
        "mlp_out/m64 1.2 " KNOBS("256"), /* more tokens than it takes */
        "machine gpu vnni 2 A machine\n",
        "machine cpu vnni 0 A machine\n",
        "numerics whatever\n",
        "numerics frozen\n", /* serves what was found under another */
        "model hidden=576\n",
        "weights mlp_out=Q4_1\n",
        "mlp_out/m1\n",
        "\x01\xff\n",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *whole = xasprintf("%s%s", text, bad[i]);
        struct known *k = read_text(whole, 1);
        assert_int_equal(known_rows(k), 6);
        known_close(k);
        free(whole);
    }
    char *line = xcalloc(1, 5001);
    memset(line, 'x', 5000);
    char *whole = xasprintf("%s%s\nmlp_out/m1 1.1 " KNOBS("0"), text, line);
    struct known *k = read_text(whole, 1);
    assert_int_equal(known_rows(k), 7); /* what follows a line that is too long is read */
    known_close(k);
    free(whole);
    free(line);
}

static void rows_without_a_machine_and_other_versions_are_not_taken(void **state)
{
    (void)state;
    struct known *k = read_text(text, 0);
    struct known_point found[8];
    struct known_slot slot = {&smollm, 1, 0, 2, NUMERICS_TOLERANCE, "A machine"};
    /* The machine of the text before is not that of this one. */
    assert_int_equal(known_add(k, "second", "whet-known 1\nmlp_out/m1 8.00 " KNOBS("4096")), 1);
    assert_int_equal(known_add(k, "third", "whet-known 2\nmlp_out/m1 8.00 " KNOBS("4096")), -1);
    assert_int_equal(known_add(k, "fourth", ""), 0);
    assert_int_equal(known_add(k, "fifth", "{\"whet_store\":1}"), -1);
    assert_int_equal(known_rows(k), 6);
    assert_int_equal(known_find(k, &slot, found, 8), 3);
    known_close(k);
}

/* Formats and instruction sets of a row, as facts. */
static struct facts facts_of_row(const struct known *k, const struct row *row)
{
    const struct origin_lines *o = k->origin[row->origin];
    struct facts f = o->shape;
    f.REGION = (int32_t)row->region;
    f.M_MAX = row->m;
    f.HAS_AVX2 = f.HAS_AVX512 = f.HAS_VNNI = 1;
    f.HAS_AMX = strcmp(o->isa, "amx") == 0;
    f.WTYPE = o->type[row->region][0];
    f.WTYPE_2 = o->type[row->region][1];
    f.WTYPE_3 = o->type[row->region][2];
    return f;
}

/* A template that changed may leave rows behind: then they are to be measured again. */
static void every_row_of_the_program_is_a_legal_point(void **state)
{
    (void)state;
    struct known *k = xcalloc(1, sizeof *k);
    int texts = 0, left_out = 0;
    for (int i = 0; i < kernel_source_count; i++)
        if (strncmp(kernel_sources[i].name, "known/", 6) == 0) {
            left_out += known_add(k, kernel_sources[i].name, kernel_sources[i].text);
            texts++;
        }
    if (left_out)
        fail_msg(
            "kernels/known has %d stale rows, which the log names above: add a new knob to them "
            "with its default, or measure again (CONTRIBUTING.md, \"Points of a machine\")",
            left_out);
    assert_true(texts > 0 && known_rows(k) > 0);
    for (int i = 0; i < k->rows; i++) {
        const struct row *row = &k->row[i];
        struct facts f = facts_of_row(k, row);
        const char *why = template_illegal(row->template, &row->point, &f);
        f.ROPE_INTERLEAVED = 1; /* which of the two, a heading does not say */
        why = why ? template_illegal(row->template, &row->point, &f) : NULL;
        if (why)
            print_error("row %d, %s: %s\n", i, row->template->id, why);
        assert_null(why);
    }
    known_close(k);
}

/* A slower point of the same maker's comes before a faster one of another's, wherever they stand.
 */
static void points_of_the_same_maker_come_first(void **state)
{
    (void)state;
    static const char rows[] =
        "whet-known 1\nmachine cpu vnni 2 Fast chip\nnumerics tolerance\n" SMOLLM
            WEIGHTS("Q4_1") "mlp_out/m1 1.50 " KNOBS(
                "256") "machine cpu vnni 2 Slow chip 3\nnumerics tolerance\n" SMOLLM
                WEIGHTS("Q4_1") "mlp_out/m1 1.10 " KNOBS("512");
    struct known *k = read_text(rows, 0);
    struct known_slot slot = {&smollm, 1, 0, 2, NUMERICS_TOLERANCE, "Slow chip 4"};
    struct known_point found[2];
    assert_int_equal(known_find(k, &slot, found, 2), 2);
    assert_int_equal(prefetch(&found[0]), 512);
    slot.device = "Slower chip";
    assert_int_equal(known_find(k, &slot, found, 2), 2);
    assert_int_equal(prefetch(&found[0]), 256);
    slot.device = NULL;
    assert_int_equal(known_find(k, &slot, found, 2), 2);
    assert_int_equal(prefetch(&found[0]), 256);
    known_close(k);
}

/* What reads half the bytes was measured by itself; matrices know nothing of it. */
static void attention_is_known_by_the_type_of_its_cache(void **state)
{
    (void)state;
#define ATTENTION "ISA=2 SHARE=2 SPLITS=1 FLIGHT=1 CHUNK=1024 PREFETCH="
    static const char model[] = "model hidden=576 heads=9 kv_heads=3 head_dim=64 ffn=1536 "
                                "vocab=49152";
    char *rows =
        xasprintf("whet-known 1\nmachine cpu vnni 2 A machine\nnumerics tolerance\n"
                  "%s\n" WEIGHTS("Q4_1") "attn/m1/c256 1.5 attn " ATTENTION "1 DEAL=0\n"
                                         "%s kv=bf16\n" WEIGHTS(
                                             "Q4_1") "attn/m1/c256 1.4 attn " ATTENTION
                                                     "2 DEAL=0\nmlp_out/m1 1.3 " KNOBS("256"),
                  model, model);
    struct known *k = read_text(rows, 0);
    struct facts f = smollm;
    struct known_slot slot = {&f, 1, 256, 2, NUMERICS_TOLERANCE, "A machine"};
    struct known_point found[4];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        f.KV_BF16 = bf16;
        f.REGION = REGION_ATTN;
        slot.context = 256;
        assert_int_equal(known_find(k, &slot, found, 4), 1);
        assert_int_equal(prefetch(&found[0]), 1 + bf16);
        f.REGION = REGION_MLP_OUT;
        slot.context = 0;
        assert_int_equal(known_find(k, &slot, found, 4), 1);
    }
    known_close(k);
    free(rows);
}

/* What an export says of this machine is what its own rows are found by. */
static void a_heading_leads_back_to_the_machine_that_wrote_it(void **state)
{
    (void)state;
    const struct model_shape shape = {SMOLLM_MODEL};
    struct machine machine = {.kind = MACHINE_CPU, .device = "This one, 3 threads"};
    struct model *model = model_random(&shape, DTYPE_Q4_1, 1);
    assert_non_null(model);
    struct facts f;
    facts_fill(&f, model, REGION_MLP_OUT, 1, NUMERICS_TOLERANCE);
    char *heading = known_heading(&machine, model, 3, NUMERICS_TOLERANCE);
    char *whole = xasprintf("whet-known 1\n%smlp_out/m1 1.50 " KNOBS("256"), heading);
    struct known *k = read_text(whole, 0);
    struct known_slot slot = {&f, 1, 0, 3, NUMERICS_TOLERANCE, machine.device};
    struct known_point found;
    assert_int_equal(known_find(k, &slot, &found, 1), 1);
    assert_true(found.distance == 0);
    assert_string_equal(found.device, "This one, 3 threads");
    known_close(k);
    free(whole);
    free(heading);
    model_close(model);
}

/* What an export says of a model whose layers differ is "mixed"; its slots say their formats. */
static void a_slots_name_says_the_formats_of_its_class(void **state)
{
    (void)state;
    const struct model_shape shape = {SMOLLM_MODEL};
    struct machine machine = {.kind = MACHINE_CPU, .device = "This one, 3 threads"};
    struct model *model = model_random_mixed(&shape, DTYPE_Q4_1, DTYPE_Q8_0, 1);
    assert_non_null(model);
    char *heading = known_heading(&machine, model, 3, NUMERICS_TOLERANCE);
    assert_non_null(strstr(heading, "mlp_out=mixed,mixed,mixed"));
    char *whole = xasprintf("whet-known 1\n%smlp_out/m1/q4_1 1.50 " KNOBS(
                                "256") "mlp_out/m1/q8_0 1.40 " KNOBS("512") "mlp_out/m1/q9 "
                                                                            "1.40 " KNOBS("512"),
                            heading);
    struct known *k = read_text(whole, 1);
    struct facts f;
    facts_fill(&f, model, REGION_MLP_OUT, 1, NUMERICS_TOLERANCE);
    struct known_slot slot = {&f, 1, 0, 3, NUMERICS_TOLERANCE, machine.device};
    struct known_point found[2];
    assert_int_equal(known_find(k, &slot, found, 2), 0);
    f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = DTYPE_Q8_0;
    assert_int_equal(known_find(k, &slot, found, 2), 1);
    assert_int_equal(prefetch(&found[0]), 512);
    f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = DTYPE_Q4_1;
    assert_int_equal(known_find(k, &slot, found, 2), 1);
    assert_int_equal(prefetch(&found[0]), 256);
    known_close(k);
    free(whole);
    free(heading);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_model_and_the_same_policy_come_first),
        cmocka_unit_test(points_of_the_same_maker_come_first),
        cmocka_unit_test(attention_is_known_by_the_type_of_its_cache),
        cmocka_unit_test(other_instructions_formats_and_buckets_are_too_far),
        cmocka_unit_test(lower_precisions_know_of_each_other),
        cmocka_unit_test(bad_and_stale_rows_are_left_out),
        cmocka_unit_test(rows_without_a_machine_and_other_versions_are_not_taken),
        cmocka_unit_test(every_row_of_the_program_is_a_legal_point),
        cmocka_unit_test(a_heading_leads_back_to_the_machine_that_wrote_it),
        cmocka_unit_test(a_slots_name_says_the_formats_of_its_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
