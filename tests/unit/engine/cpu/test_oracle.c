/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/oracle: every region against torch in float64 (tests/golden/oracle.json,
 * written by scripts/make-golden-oracle). */
#include "tests/unit/unit.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/oracle.h"
#include "tests/unit/engine/golden.h"

enum { M = 5, HIDDEN = 24, HEADS = 4, KV = 2, DIM = 8, FFN = 20, VOCAB = 11 };

static cJSON *golden;

/* Input number s, as the script makes it. Freed with the list at the end of a test. */
static float *made[32];
static int mades;

static float *make(int64_t s, int64_t n)
{
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)((7919 * i + 104729 * s) % 2001 - 1000) / 1024;
    return made[mades++] = v;
}

static struct weight weight(int64_t s, int32_t rows, int32_t cols)
{
    return (struct weight){
        .data = make(s, (int64_t)rows * cols), .rows = rows, .cols = cols, .type = DTYPE_F32};
}

static void assert_golden(enum region r, const void *args, const char *name)
{
    const cJSON *want = cJSON_GetObjectItem(golden, name);
    struct oracle_out out;
    assert_non_null(want);
    oracle_run(r, args, &out);
    assert_int_equal(out.outputs, cJSON_GetArraySize(want));
    for (int o = 0; o < out.outputs; o++) {
        const cJSON *values = cJSON_GetArrayItem(want, o), *v;
        int i = 0;
        assert_int_equal(out.output[o].rows * out.output[o].cols, cJSON_GetArraySize(values));
        cJSON_ArrayForEach(v, values)
        {
            if (fabs(out.output[o].value[i] - v->valuedouble) > 1e-6)
                fail_msg("%s output %d element %d: %.12g, torch has %.12g", name, o, i,
                         out.output[o].value[i], v->valuedouble);
            i++;
        }
    }
    oracle_free(&out);
    while (mades)
        free(made[--mades]);
}

static struct attn_in_args attn_in(void)
{
    static const int32_t position[M] = {0, 1, 2, 3, 4};
    return (struct attn_in_args){
        .m = M,
        .heads = HEADS,
        .kv_heads = KV,
        .head_dim = DIM,
        .eps = 1e-5f,
        .x = make(1, M * HIDDEN),
        .norm = make(2, HIDDEN),
        .wq = weight(3, HEADS * DIM, HIDDEN),
        .wk = weight(4, KV * DIM, HIDDEN),
        .wv = weight(5, KV * DIM, HIDDEN),
        .rope_cos = make(6, M * DIM / 2),
        .rope_sin = make(7, M * DIM / 2),
        .position = position,
    };
}

static void attn_in_rotates_halves_as_torch_does(void **state)
{
    (void)state;
    struct attn_in_args a = attn_in();
    assert_golden(REGION_ATTN_IN, &a, "attn_in half");
}

static void attn_in_adds_biases_norms_heads_and_rotates_pairs(void **state)
{
    (void)state;
    struct attn_in_args a = attn_in();
    a.rope_interleaved = 1;
    a.bq = make(8, HEADS * DIM);
    a.bk = make(9, KV * DIM);
    a.bv = make(10, KV * DIM);
    a.q_norm = make(11, DIM);
    a.k_norm = make(12, DIM);
    assert_golden(REGION_ATTN_IN, &a, "attn_in interleaved extras");
}

/* Rows of a sequence into pages numbered in the order of `page`. */
static void to_pages(const float *rows, int32_t n, const int32_t *page, float *pages)
{
    for (int32_t i = 0; i < n; i++)
        for (int h = 0; h < KV; h++)
            memcpy(pages + ((page[i / KV_PAGE] * KV + h) * KV_PAGE + i % KV_PAGE) * DIM,
                   rows + (i * KV + h) * DIM, DIM * sizeof(float));
}

static void attn_is_causal_grouped_and_follows_the_page_table(void **state)
{
    (void)state;
    static const int32_t table[] = {2, 0, 1};
    static const struct span span[] = {{0, 3, 20, 0}, {3, 2, 2, 2}};
    static float k[3 * KV * KV_PAGE * DIM], v[3 * KV * KV_PAGE * DIM];
    to_pages(make(2, 20 * KV * DIM), 20, table, k);
    to_pages(make(3, 20 * KV * DIM), 20, table, v);
    to_pages(make(4, 2 * KV * DIM), 2, table + 2, k);
    to_pages(make(5, 2 * KV * DIM), 2, table + 2, v);
    struct attn_args a = {.m = M,
                          .spans = 2,
                          .heads = HEADS,
                          .kv_heads = KV,
                          .head_dim = DIM,
                          .scale = 1 / sqrtf(DIM),
                          .q = make(1, M * HEADS * DIM),
                          .k_pages = k,
                          .v_pages = v,
                          .span = span,
                          .page_table = table};
    assert_golden(REGION_ATTN, &a, "attn");
}

static void out_projects_and_adds_the_residual(void **state)
{
    (void)state;
    struct out_args a = {
        .m = M, .in = make(3, M * FFN), .x = make(1, M * HIDDEN), .w = weight(4, HIDDEN, FFN)};
    assert_golden(REGION_ATTN_OUT, &a, "out");
    a = (struct out_args){
        .m = M, .in = make(3, M * FFN), .x = make(1, M * HIDDEN), .w = weight(4, HIDDEN, FFN)};
    assert_golden(REGION_MLP_OUT, &a, "out");
}

static void mlp_in_gates_with_silu(void **state)
{
    (void)state;
    struct mlp_in_args a = {.m = M,
                            .eps = 1e-5f,
                            .x = make(1, M * HIDDEN),
                            .norm = make(2, HIDDEN),
                            .gate = weight(3, FFN, HIDDEN),
                            .up = weight(4, FFN, HIDDEN)};
    assert_golden(REGION_MLP_IN, &a, "mlp_in");
}

static void head_scores_the_rows_that_are_asked_for(void **state)
{
    (void)state;
    static const int32_t row[] = {4, 0, 2};
    struct head_args a = {.m = 3,
                          .eps = 1e-5f,
                          .row = row,
                          .x = make(1, M * HIDDEN),
                          .norm = make(2, HIDDEN),
                          .w = weight(3, VOCAB, HIDDEN)};
    assert_golden(REGION_HEAD, &a, "head");
}

static void embed_looks_rows_up(void **state)
{
    (void)state;
    static const int32_t tokens[] = {3, 0, 10, 3, 7};
    struct embed_args a = {.m = M, .tokens = tokens, .table = weight(1, VOCAB, HIDDEN)};
    assert_golden(REGION_EMBED, &a, "embed");
}

static int read_golden(void **state)
{
    (void)state;
    golden = golden_json("oracle.json");
    return golden ? 0 : -1;
}

static int free_golden(void **state)
{
    (void)state;
    cJSON_Delete(golden);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attn_in_rotates_halves_as_torch_does),
        cmocka_unit_test(attn_in_adds_biases_norms_heads_and_rotates_pairs),
        cmocka_unit_test(attn_is_causal_grouped_and_follows_the_page_table),
        cmocka_unit_test(out_projects_and_adds_the_residual),
        cmocka_unit_test(mlp_in_gates_with_silu),
        cmocka_unit_test(head_scores_the_rows_that_are_asked_for),
        cmocka_unit_test(embed_looks_rows_up),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}
