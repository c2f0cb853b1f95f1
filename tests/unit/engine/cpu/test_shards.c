/* SPDX-License-Identifier: Apache-2.0 */
/* test_shards.c - the oracle of every region on each rank's part of the model: put together they
 * are the oracle on the whole one.
 *
 * Rows of a matrix are the same sums whoever computes them, so cut rows must agree to the last bit;
 * sums over cut columns are added in another order, so they agree as doubles do. The residual
 * is added to the sum.
 */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/bind.h"
#include "engine/cpu/oracle.h"
#include "engine/model.h"

enum { M = 3, CONTEXT = 20, PAGES = 2, WORLDS = 4 };

static const int32_t worlds[WORLDS] = {1, 2, 4, 8}; /* 8: each KV head is held by two ranks */
static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q5_1};

static const struct model_shape shape = {ARCH_QWEN2, 2,  96,    8,    4, 32, 256,
                                         330,        64, 1e-6f, 1e4f, 1, 1,  {0}};

static struct model *whole, *part[8];
static int32_t world;

static float *draw(int64_t n, uint32_t seed)
{
    float *v = xmalloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525 + 1013904223;
        v[i] = (float)(int32_t)seed / 2147483648.0f;
    }
    return v;
}

static void open_all(enum dtype t, int32_t ranks)
{
    world = ranks;
    whole = model_random(&shape, t, 3);
    for (int32_t r = 0; r < world; r++) {
        part[r] = model_random(&shape, t, 3);
        assert_int_equal(model_take_part(part[r], world, r, NULL, NULL, NULL, NULL), 0);
    }
}

static void close_all(void)
{
    model_close(whole);
    for (int32_t r = 0; r < world; r++)
        model_close(part[r]);
}

static void for_all_worlds(void (*check)(void))
{
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int w = 0; w < WORLDS; w++) {
            open_all(types[t], worlds[w]);
            check();
            close_all();
        }
}

/* Columns [from, from + out.cols) of the whole's rows, to the last bit. */
static void assert_columns(const struct oracle_out *own, const struct oracle_out *all, int o,
                           int32_t from)
{
    int32_t rows = own->output[o].rows, cols = own->output[o].cols, width = all->output[o].cols;
    assert_int_equal(rows, all->output[o].rows);
    for (int32_t i = 0; i < rows; i++)
        assert_memory_equal(own->output[o].value + (int64_t)i * cols,
                            all->output[o].value + (int64_t)i * width + from,
                            (size_t)cols * sizeof(double));
}

/* ---- regions that are cut by rows ----------------------------------------------------------- */

static void fill_attn_in(union region_args *a, const struct model *m, const float *x,
                         const float *turn)
{
    static const int32_t position[M] = {4, 9, 17};
    memset(a, 0, sizeof *a);
    bind_layer(m, REGION_ATTN_IN, 1, a);
    a->attn_in.m = M;
    a->attn_in.x = x;
    a->attn_in.position = position;
    a->attn_in.rope_cos = turn;
    a->attn_in.rope_sin = turn + shape.max_context * shape.head_dim / 2;
}

static void check_attn_in(void)
{
    float *x = draw(M * shape.hidden, 1);
    float *turn = draw((int64_t)shape.max_context * shape.head_dim, 2);
    union region_args a;
    struct oracle_out all, own;
    fill_attn_in(&a, whole, x, turn);
    oracle_run(REGION_ATTN_IN, &a, &all);
    for (int32_t r = 0; r < world; r++) {
        const struct shard *s = &part[r]->shard;
        fill_attn_in(&a, part[r], x, turn);
        oracle_run(REGION_ATTN_IN, &a, &own);
        assert_columns(&own, &all, 0, s->heads.from * shape.head_dim);
        assert_columns(&own, &all, 1, s->kv_heads.from * shape.head_dim);
        assert_columns(&own, &all, 2, s->kv_heads.from * shape.head_dim);
        oracle_free(&own);
    }
    oracle_free(&all);
    free(x);
    free(turn);
}

static void q_k_and_v_of_a_rank_are_its_heads_of_the_whole(void **state)
{
    (void)state;
    for_all_worlds(check_attn_in);
}

/* A rank's pages: its KV heads of each page. */
static float *own_pages(const float *pages, struct shard_range kv)
{
    int64_t head = KV_PAGE * (int64_t)shape.head_dim;
    float *own = xmalloc((size_t)(PAGES * kv.count * head) * sizeof *own);
    for (int p = 0; p < PAGES; p++)
        memcpy(own + p * kv.count * head, pages + (p * shape.kv_heads + kv.from) * head,
               (size_t)(kv.count * head) * sizeof *own);
    return own;
}

/* The rank's columns of [M, all] rows. */
static float *own_columns(const float *rows, int64_t all, struct shard_range r, int32_t size)
{
    int64_t n = (int64_t)r.count * size;
    float *own = xmalloc((size_t)(M * n) * sizeof *own);
    for (int i = 0; i < M; i++)
        memcpy(own + i * n, rows + i * all + (int64_t)r.from * size, (size_t)n * sizeof *own);
    return own;
}

static void run_attn(const struct model *m, const float *q, const float *k, const float *v,
                     struct oracle_out *out)
{
    static const struct span span = {0, M, CONTEXT, 0};
    static const int32_t table[PAGES] = {1, 0};
    union region_args a = {0};
    bind_layer(m, REGION_ATTN, 1, &a);
    a.attn.m = M;
    a.attn.spans = 1;
    a.attn.span = &span;
    a.attn.page_table = table;
    a.attn.q = q;
    a.attn.k_pages = k;
    a.attn.v_pages = v;
    oracle_run(REGION_ATTN, &a, out);
}

static void check_attn(void)
{
    int64_t width = (int64_t)shape.heads * shape.head_dim;
    int64_t page = (int64_t)shape.kv_heads * KV_PAGE * shape.head_dim;
    float *q = draw(M * width, 3), *k = draw(PAGES * page, 4), *v = draw(PAGES * page, 5);
    struct oracle_out all, own;
    run_attn(whole, q, k, v, &all);
    for (int32_t r = 0; r < world; r++) {
        const struct shard *s = &part[r]->shard;
        float *oq = own_columns(q, width, s->heads, shape.head_dim);
        float *ok = own_pages(k, s->kv_heads), *ov = own_pages(v, s->kv_heads);
        run_attn(part[r], oq, ok, ov, &own);
        assert_columns(&own, &all, 0, s->heads.from * shape.head_dim);
        oracle_free(&own);
        free(oq);
        free(ok);
        free(ov);
    }
    oracle_free(&all);
    free(q);
    free(k);
    free(v);
}

static void a_rank_attends_with_its_heads_as_the_whole_does(void **state)
{
    (void)state;
    for_all_worlds(check_attn);
}

static void run_mlp_in(const struct model *m, const float *x, struct oracle_out *out)
{
    union region_args a = {0};
    bind_layer(m, REGION_MLP_IN, 1, &a);
    a.mlp_in.m = M;
    a.mlp_in.x = x;
    oracle_run(REGION_MLP_IN, &a, out);
}

static void run_head(const struct model *m, const float *x, struct oracle_out *out)
{
    static const int32_t row[2] = {2, 0};
    union region_args a = {0};
    bind_layer(m, REGION_HEAD, 0, &a);
    a.head.m = 2;
    a.head.row = row;
    a.head.x = x;
    oracle_run(REGION_HEAD, &a, out);
}

static void check_rows(void)
{
    float *x = draw(M * shape.hidden, 6);
    struct oracle_out all, logits, own;
    run_mlp_in(whole, x, &all);
    run_head(whole, x, &logits);
    for (int32_t r = 0; r < world; r++) {
        run_mlp_in(part[r], x, &own);
        assert_columns(&own, &all, 0, part[r]->shard.ffn.from);
        oracle_free(&own);
        run_head(part[r], x, &own);
        assert_int_equal(own.output[0].cols, part[r]->shard.vocab.count);
        assert_columns(&own, &logits, 0, part[r]->shard.vocab.from);
        oracle_free(&own);
    }
    oracle_free(&all);
    oracle_free(&logits);
    free(x);
}

static void h_and_logits_of_a_rank_are_its_columns_of_the_whole(void **state)
{
    (void)state;
    for_all_worlds(check_rows);
}

/* ---- regions that are cut by columns: the sum is the whole ---------------------------------- */

static void run_out(const struct model *m, enum region r, const float *in, const float *x,
                    struct oracle_out *out)
{
    union region_args a = {0};
    bind_layer(m, r, 1, &a);
    a.out.m = M;
    a.out.in = in;
    a.out.x = x;
    oracle_run(r, &a, out);
}

/* Of a sum whose terms are of size 1: what double additions in another order may differ by. */
static const double ROUNDING = 1e-13;

static void assert_sum(enum region r, int64_t width)
{
    float *in = draw(M * width, 7), *x = draw(M * shape.hidden, 8);
    float *none = xcalloc((size_t)(M * shape.hidden), sizeof *none);
    double *sum = xcalloc((size_t)(M * shape.hidden), sizeof *sum);
    struct oracle_out all, own;
    run_out(whole, r, in, x, &all);
    for (int32_t k = 0; k < world; k++) {
        const struct shard *s = &part[k]->shard;
        bool attn = r == REGION_ATTN_OUT;
        float *mine = own_columns(in, width, attn ? s->heads : s->ffn, attn ? shape.head_dim : 1);
        run_out(part[k], r, mine, none, &own);
        assert_int_equal(own.output[0].cols, shape.hidden);
        for (int i = 0; i < M * shape.hidden; i++)
            sum[i] += own.output[0].value[i];
        oracle_free(&own);
        free(mine);
    }
    for (int i = 0; i < M * shape.hidden; i++)
        sum[i] += (double)x[i];
    for (int i = 0; i < M * shape.hidden; i++)
        if (!(fabs(sum[i] - all.output[0].value[i]) <= ROUNDING))
            fail_msg("%s, %d ranks, element %d: %.17g, the whole has %.17g", region_name(r), world,
                     i, sum[i], all.output[0].value[i]);
    oracle_free(&all);
    free(in);
    free(x);
    free(none);
    free(sum);
}

static void check_sums(void)
{
    assert_sum(REGION_ATTN_OUT, (int64_t)shape.heads * shape.head_dim);
    assert_sum(REGION_MLP_OUT, shape.ffn);
}

static void partial_sums_of_all_ranks_add_up_to_the_whole(void **state)
{
    (void)state;
    for_all_worlds(check_sums);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(q_k_and_v_of_a_rank_are_its_heads_of_the_whole),
        cmocka_unit_test(a_rank_attends_with_its_heads_as_the_whole_does),
        cmocka_unit_test(h_and_logits_of_a_rank_are_its_columns_of_the_whole),
        cmocka_unit_test(partial_sums_of_all_ranks_add_up_to_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
