/* SPDX-License-Identifier: Apache-2.0 */
/* Which tokens of a wide step are looked at, and that a step made of these alone has their rows, in
 * every region: what is compared with the oracle is what the kernel was given. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "specializer/admission/check_rows.h"

enum { TOKENS = 9, HIDDEN = 5, WIDTH = 6, COLS = 7 };

static const int32_t row[] = {1, 4, 8};
enum { ROWS = sizeof row / sizeof *row };

static const struct model model = {.shape = {.hidden = HIDDEN}};
static float wide[TOKENS * COLS], other[TOKENS * HIDDEN];
static int32_t number[3][TOKENS];

/* No two values are the same. */
static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < TOKENS * COLS; i++)
        wide[i] = (float)i;
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        other[i] = (float)(1000 + i);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < TOKENS; i++)
            number[k][i] = 100 * k + i;
    return 0;
}

static void has_rows(const float *got, const float *of, int cols)
{
    assert_ptr_not_equal(got, of);
    for (int i = 0; i < ROWS; i++)
        assert_memory_equal(got + i * cols, of + row[i] * cols, (size_t)cols * sizeof *of);
}

static void has_numbers(const int32_t *got, int k)
{
    assert_ptr_not_equal(got, number[k]);
    for (int i = 0; i < ROWS; i++)
        assert_int_equal(got[i], number[k][row[i]]);
}

/* ---- a step of a few ------------------------------------------------------------------------- */

static void embed_has_the_tokens(void **state)
{
    (void)state;
    const struct embed_args a = {.m = TOKENS, .tokens = number[1], .table.rows = 77};
    struct row_set s;
    row_set_open(&s, &model, REGION_EMBED, &a, row, ROWS);
    assert_int_equal(s.args.embed.m, ROWS);
    assert_int_equal(s.args.embed.table.rows, 77);
    has_numbers(s.args.embed.tokens, 1);
    row_set_close(&s);
}

static void attn_in_has_activations_positions_and_places(void **state)
{
    (void)state;
    const struct attn_in_args a = {
        .m = TOKENS, .heads = 3, .x = wide, .position = number[1], .kv_at = number[2]};
    struct row_set s;
    row_set_open(&s, &model, REGION_ATTN_IN, &a, row, ROWS);
    assert_int_equal(s.args.attn_in.m, ROWS);
    assert_int_equal(s.args.attn_in.heads, 3);
    has_rows(s.args.attn_in.x, wide, HIDDEN);
    has_numbers(s.args.attn_in.position, 1);
    has_numbers(s.args.attn_in.kv_at, 2);
    row_set_close(&s);
}

/* Three sequences of 2, 5 and 2 tokens: a token sees what its sequence had when it came. */
static void attention_has_a_span_a_token_that_ends_at_it(void **state)
{
    (void)state;
    const struct span span[] = {{0, 2, 10, 30}, {2, 5, 25, 40}, {7, 2, 2, 50}};
    const struct span want[] = {{0, 1, 10, 30}, {1, 1, 23, 40}, {2, 1, 2, 50}};
    const struct attn_args a = {.m = TOKENS,
                                .spans = 3,
                                .heads = 3,
                                .head_dim = 2,
                                .scale = 0.5f,
                                .q = wide,
                                .span = span,
                                .page_table = number[0]};
    struct row_set s;
    row_set_open(&s, &model, REGION_ATTN, &a, row, ROWS);
    assert_int_equal(s.args.attn.m, ROWS);
    assert_int_equal(s.args.attn.spans, ROWS);
    assert_ptr_equal(s.args.attn.page_table, number[0]);
    assert_memory_equal(s.args.attn.span, want, sizeof want);
    has_rows(s.args.attn.q, wide, WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++)
        assert_true(s.args.attn.a[i] == 0); /* a buffer of its own */
    row_set_close(&s);
}

/* A span's first and last tokens are its own, and its neighbours' are not. */
static void a_token_belongs_to_one_span(void **state)
{
    (void)state;
    const struct span span[] = {{0, 4, 4, 1}, {4, 1, 70, 2}, {5, 3, 33, 3}};
    const struct attn_args a = {
        .m = TOKENS, .spans = 3, .heads = 1, .head_dim = 1, .q = wide, .span = span};
    const int32_t all[] = {0, 3, 4, 5, 7, 8};
    const struct span want[] = {{0, 1, 1, 1},  {1, 1, 4, 1},  {2, 1, 70, 2},
                                {3, 1, 31, 3}, {4, 1, 33, 3}, {5, 1, 1, 0}};
    struct row_set s; /* the last one is in none: a cell that no sequence fills */
    row_set_open(&s, &model, REGION_ATTN, &a, all, 6);
    assert_int_equal(s.args.attn.spans, 6);
    assert_memory_equal(s.args.attn.span, want, sizeof want);
    row_set_close(&s);
}

static void both_halves_of_the_mlp_have_activations(void **state)
{
    (void)state;
    const struct mlp_in_args in = {.m = TOKENS, .eps = 3, .x = wide, .norm = other};
    const struct mlp_args whole = {.m = TOKENS, .eps = 4, .x = wide, .norm = other};
    struct row_set s;
    row_set_open(&s, &model, REGION_MLP_IN, &in, row, ROWS);
    assert_int_equal(s.args.mlp_in.m, ROWS);
    assert_true(s.args.mlp_in.eps == 3 && s.args.mlp_in.norm == other);
    has_rows(s.args.mlp_in.x, wide, HIDDEN);
    row_set_close(&s);
    row_set_open(&s, &model, REGION_MLP, &whole, row, ROWS);
    assert_int_equal(s.args.mlp.m, ROWS);
    assert_true(s.args.mlp.eps == 4 && s.args.mlp.norm == other);
    has_rows(s.args.mlp.x, wide, HIDDEN);
    row_set_close(&s);
}

/* x is not gathered: `row` says which rows of it. */
static void head_has_the_rows_that_it_reads(void **state)
{
    (void)state;
    const struct head_args a = {.m = TOKENS, .row = number[1], .x = wide, .w.rows = 55};
    struct row_set s;
    row_set_open(&s, &model, REGION_HEAD, &a, row, ROWS);
    assert_int_equal(s.args.head.m, ROWS);
    assert_ptr_equal(s.args.head.x, wide);
    assert_int_equal(s.args.head.w.rows, 55);
    has_numbers(s.args.head.row, 1);
    row_set_close(&s);
}

/* The residual is as wide as the product, the input as deep. */
static void an_out_region_has_input_and_residual(void **state)
{
    (void)state;
    const enum region out[] = {REGION_ATTN_OUT, REGION_MLP_OUT};
    const struct out_args a = {
        .m = TOKENS, .in = wide, .x = other, .w = {.rows = HIDDEN, .cols = COLS}};
    for (int i = 0; i < 2; i++) {
        struct row_set s;
        row_set_open(&s, &model, out[i], &a, row, ROWS);
        assert_int_equal(s.args.out.m, ROWS);
        has_rows(s.args.out.in, wide, COLS);
        has_rows(s.args.out.x, other, HIDDEN);
        row_set_close(&s);
    }
}

/* ---- which ---------------------------------------------------------------------------------- */

static void chooses(int32_t m, int32_t most, const int32_t *want, int32_t n)
{
    int32_t got[64];
    assert_int_equal(row_set_choose(m, most, 1, got), n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(got[i], want[i]);
}

static bool among(const int32_t *rows, int32_t n, int32_t value)
{
    bool so = false;
    for (int32_t i = 0; i < n; i++)
        so |= rows[i] == value;
    return so;
}

/* As many as there is room for: the ends, then for every size of a tile, from the largest on, the
 * first row of the last tile, and the last row of the first while one more place is left. */
static void both_ends_and_the_edges_of_tiles_come_first(void **state)
{
    (void)state;
    chooses(1, 8, (const int32_t[]){0}, 1);
    chooses(2, 8, (const int32_t[]){0, 1}, 2);
    chooses(128, 1, (const int32_t[]){127}, 1);
    chooses(128, 2, (const int32_t[]){0, 127}, 2);
    chooses(100, 4, (const int32_t[]){0, 64, 96, 99}, 4);
    chooses(100, 5, (const int32_t[]){0, 63, 64, 96, 99}, 5);
    chooses(128, 6, (const int32_t[]){0, 63, 64, 96, 112, 127}, 6);
    chooses(128, 8, (const int32_t[]){0, 31, 63, 64, 96, 112, 120, 127}, 8);
    chooses(128, 9, (const int32_t[]){0, 15, 31, 63, 64, 96, 112, 120, 127}, 9);
    chooses(128, 11, (const int32_t[]){0, 7, 15, 31, 63, 64, 96, 112, 120, 124, 127}, 11);
}

/* A kernel's tile may be as large as the power of two below m, and as small as 4. */
static void the_largest_and_the_smallest_tile_have_their_edges(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        int32_t got[64];
        int32_t n = row_set_choose(129, 20, seed, got);
        assert_true(among(got, n, 127) && among(got, n, 128) && among(got, n, 3));
        n = row_set_choose(5, 4, seed, got);
        assert_true(among(got, n, 3) && among(got, n, 4) && among(got, n, 0));
    }
}

static void the_rest_is_by_chance_and_none_is_left_out_for_ever(void **state)
{
    (void)state;
    bool seen[40] = {false};
    int32_t a[64], b[64], differ = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        assert_int_equal(row_set_choose(40, 12, seed, a), 12);
        assert_int_equal(row_set_choose(40, 12, seed, b), 12);
        assert_memory_equal(a, b, 12 * sizeof *a);
        for (int i = 0; i < 12; i++) {
            assert_in_range(a[i], i ? a[i - 1] + 1 : 0, 39);
            seen[a[i]] = true;
        }
        row_set_choose(40, 12, seed + 1000, b);
        differ += memcmp(a, b, 12 * sizeof *a) != 0;
    }
    for (int i = 0; i < 40; i++)
        assert_true(seen[i]);
    assert_true(differ > 300);
}

/* No kernel has tiles of two rows: what is left is not spent on those. */
static void edges_of_no_tile_are_left_to_chance(void **state)
{
    (void)state;
    bool seen[8] = {false};
    for (uint64_t seed = 1; seed <= 100; seed++) {
        int32_t got[64];
        assert_int_equal(row_set_choose(8, 5, seed, got), 5);
        assert_true(among(got, 5, 0) && among(got, 5, 3) && among(got, 5, 4) && among(got, 5, 7));
        for (int i = 0; i < 5; i++)
            seen[got[i]] = true;
    }
    for (int i = 0; i < 8; i++)
        assert_true(seen[i]);
}

/* All of a step that has no more. */
static void a_small_step_is_looked_at_in_full(void **state)
{
    (void)state;
    for (int32_t m = 1; m <= 24; m++) {
        int32_t got[64];
        assert_int_equal(row_set_choose(m, 24, 3, got), m);
        for (int32_t i = 0; i < m; i++)
            assert_int_equal(got[i], i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_has_the_tokens),
        cmocka_unit_test(attn_in_has_activations_positions_and_places),
        cmocka_unit_test(attention_has_a_span_a_token_that_ends_at_it),
        cmocka_unit_test(a_token_belongs_to_one_span),
        cmocka_unit_test(both_halves_of_the_mlp_have_activations),
        cmocka_unit_test(head_has_the_rows_that_it_reads),
        cmocka_unit_test(an_out_region_has_input_and_residual),
        cmocka_unit_test(both_ends_and_the_edges_of_tiles_come_first),
        cmocka_unit_test(the_largest_and_the_smallest_tile_have_their_edges),
        cmocka_unit_test(the_rest_is_by_chance_and_none_is_left_out_for_ever),
        cmocka_unit_test(edges_of_no_tile_are_left_to_chance),
        cmocka_unit_test(a_small_step_is_looked_at_in_full),
    };
    return cmocka_run_group_tests(tests, fill, NULL);
}
