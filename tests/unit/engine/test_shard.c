/* SPDX-License-Identifier: Apache-2.0 */
/* test_shard.c - cuts of every shape that the tree knows, and of published ones, into every number
 * of ranks: what all ranks have together is the model, and what cannot be cut is refused by name.
 */
#include "tests/unit/engine/model_world.h"

#include "engine/model_load.h"
#include "engine/shard.h"

/* Shapes of published models: layers, hidden, heads, kv_heads, head_dim, ffn, vocab. */
static const struct {
    const char *name;
    struct model_shape shape;
} published[] = {
    {"llama-3.1-8b",
     {ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5f, 5e5f, 0, 0, {0}}},
    {"llama-3.1-70b",
     {ARCH_LLAMA, 80, 8192, 64, 8, 128, 28672, 128256, 131072, 1e-5f, 5e5f, 0, 0, {0}}},
    {"qwen2.5-0.5b", {ARCH_QWEN2, 24, 896, 14, 2, 64, 4864, 151936, 32768, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3-32b", {ARCH_QWEN3, 64, 5120, 64, 8, 128, 25600, 151936, 40960, 1e-6f, 1e6f, 0, 0, {0}}},
    {"of an odd vocabulary",
     {ARCH_LLAMA, 2, 768, 12, 12, 64, 3072, 50257, 1024, 1e-5f, 1e4f, 0, 1, {0}}},
    {"of few tokens", {ARCH_LLAMA, 2, 64, 64, 4, 16, 128, 67, 1024, 1e-5f, 1e4f, 0, 1, {0}}},
};
enum { PUBLISHED = sizeof published / sizeof *published };

static const char *const golden[] = {"tiny-llama", "tiny-qwen2", "tiny-qwen3"};
enum { GOLDEN = sizeof golden / sizeof *golden };

typedef void check_fn(const char *name, const struct model_shape *s, int32_t world);

static void for_every_cut(check_fn *check)
{
    const struct model_shape *s;
    const char *name;
    int known = 0;
    for (; (s = model_shape_at(known, &name)); known++)
        for (int32_t w = 1; w <= SHARD_WORLD_MAX; w++)
            check(name, s, w);
    assert_true(known >= 5);
    for (int i = 0; i < PUBLISHED; i++)
        for (int32_t w = 1; w <= SHARD_WORLD_MAX; w++)
            check(published[i].name, &published[i].shape, w);
    for (int i = 0; i < GOLDEN; i++) {
        struct model *m = open_golden(golden[i]);
        for (int32_t w = 1; w <= SHARD_WORLD_MAX; w++)
            check(golden[i], &m->shape, w);
        model_close(m);
    }
}

static bool possible(const struct model_shape *s, int32_t world)
{
    return s->heads % world == 0 && s->ffn % world == 0 && world <= s->vocab &&
           (s->kv_heads % world == 0 || world % s->kv_heads == 0);
}

/* ---- what all ranks have is the model ------------------------------------------------------- */

static void check_legal(const char *name, const struct model_shape *s, int32_t world)
{
    struct shard cut;
    struct err err = {""};
    int rc = shard_plan(s, world, world - 1, &cut, &err);
    if ((rc == 0) != possible(s, world))
        fail_msg("%s on %d ranks: %d (%s)", name, world, rc, err.msg);
    if (rc) {
        assert_non_null(strstr(err.msg, "ranks: "));
        assert_non_null(strstr(err.msg, "would do"));
    }
}

static void a_cut_is_possible_where_heads_and_columns_divide(void **state)
{
    (void)state;
    for_every_cut(check_legal);
}

static int64_t total(struct shard_range r, const char *name, int32_t all)
{
    if (r.from < 0 || r.count < 1 || r.from + r.count > all)
        fail_msg("%s: [%d, +%d) of %d", name, r.from, r.count, all);
    return r.count;
}

/* Which matrices are cut along which axis, said once more, by hand. */
static const struct {
    enum shard_tensor t;
    bool rows, cols;
} cuts[] = {{SHARD_WQ, true, false},   {SHARD_WK, true, false},   {SHARD_WV, true, false},
            {SHARD_WO, false, true},   {SHARD_GATE, true, false}, {SHARD_UP, true, false},
            {SHARD_DOWN, false, true}, {SHARD_HEAD, true, false}, {SHARD_EMBED, false, false}};
_Static_assert(sizeof cuts / sizeof *cuts == SHARD_TENSORS, "every matrix");

static void whole_matrix(const struct model_shape *s, enum shard_tensor t, int32_t *rows,
                         int32_t *cols)
{
    int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    *rows = t == SHARD_WQ                         ? q
            : t == SHARD_WK || t == SHARD_WV      ? kv
            : t == SHARD_GATE || t == SHARD_UP    ? s->ffn
            : t == SHARD_HEAD || t == SHARD_EMBED ? s->vocab
                                                  : s->hidden;
    *cols = t == SHARD_WO ? q : t == SHARD_DOWN ? s->ffn : s->hidden;
}

static void check_covered(const char *name, const struct model_shape *s, int32_t world)
{
    if (!possible(s, world))
        return;
    for (int i = 0; i < SHARD_TENSORS; i++) {
        int32_t rows, cols, next_row = 0, next_col = 0;
        struct shard_part first = {{0, 0}, {0, 0}};
        whole_matrix(s, cuts[i].t, &rows, &cols);
        for (int32_t rank = 0; rank < world; rank++) {
            struct shard cut;
            assert_int_equal(shard_plan(s, world, rank, &cut, NULL), 0);
            struct shard_part p = shard_part(&cut, s, cuts[i].t);
            if (rank == 0)
                first = p;
            assert_int_equal(total(p.rows, name, rows), first.rows.count);
            assert_int_equal(total(p.cols, name, cols), first.cols.count);
            assert_int_equal(!cuts[i].rows && p.rows.count != rows, 0);
            assert_int_equal(!cuts[i].cols && p.cols.count != cols, 0);
            assert_true(p.rows.from <= next_row); /* no gap */
            next_row = p.rows.from + p.rows.count;
            if (cuts[i].cols) /* and what is summed is summed once */
                assert_int_equal(p.cols.from, next_col);
            next_col = p.cols.from + p.cols.count;
        }
        assert_int_equal(next_row, rows);
        assert_int_equal(next_col, cols);
    }
}

static void all_ranks_together_have_every_row_and_column(void **state)
{
    (void)state;
    for_every_cut(check_covered);
}

static void check_kv(const char *name, const struct model_shape *s, int32_t world)
{
    for (int32_t rank = 0; possible(s, world) && rank < world; rank++) {
        struct shard cut;
        assert_int_equal(shard_plan(s, world, rank, &cut, NULL), 0);
        for (int32_t h = 0; h < cut.heads.count; h++) {
            int32_t own = cut.kv_heads.from + h / (cut.heads.count / cut.kv_heads.count);
            int32_t whole = (cut.heads.from + h) / (s->heads / s->kv_heads);
            if (own != whole)
                fail_msg("%s: rank %d of %d, head %d reads KV head %d instead of %d", name, rank,
                         world, h, own, whole);
        }
    }
}

static void a_rank_has_the_kv_heads_that_its_heads_read(void **state)
{
    (void)state;
    for_every_cut(check_kv);
}

/* The fields that a cut may change, and those beside them. */
static void assert_same(const struct model_shape *a, const struct model_shape *b)
{
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->hidden, b->hidden);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->kv_heads, b->kv_heads);
    assert_int_equal(a->head_dim, b->head_dim);
    assert_int_equal(a->ffn, b->ffn);
    assert_int_equal(a->vocab, b->vocab);
    assert_int_equal(a->max_context, b->max_context);
    assert_int_equal(a->tied_head, b->tied_head);
}

static void check_equal(const char *name, const struct model_shape *s, int32_t world)
{
    struct shard cut;
    (void)name;
    if (!possible(s, world))
        return;
    assert_int_equal(shard_plan(s, world, 0, &cut, NULL), 0);
    struct model_shape own = shard_shape(&cut, s), first = own;
    assert_int_equal(own.hidden, s->hidden);
    assert_int_equal(own.vocab, s->vocab);
    assert_int_equal(own.heads * world, s->heads);
    assert_int_equal(own.ffn * world, s->ffn);
    assert_int_equal(own.kv_heads, s->kv_heads > world ? s->kv_heads / world : 1);
    for (int32_t rank = 1; rank < world; rank++) {
        assert_int_equal(shard_plan(s, world, rank, &cut, NULL), 0);
        own = shard_shape(&cut, s);
        assert_same(&own, &first);
    }
}

static void all_ranks_have_the_same_shape(void **state)
{
    (void)state;
    for_every_cut(check_equal);
}

static void one_rank_has_the_whole_model(void **state)
{
    (void)state;
    const struct model_shape *s = &published[0].shape;
    struct shard cut;
    assert_int_equal(shard_plan(s, 1, 0, &cut, NULL), 0);
    struct model_shape own = shard_shape(&cut, s);
    assert_same(&own, s);
    assert_int_equal(cut.vocab.count, s->vocab);
}

/* ---- a part by name ------------------------------------------------------------------------- */

/* Divided by hand. The head's rows are a whole number of 64, if each rank has so many. */
static void check_part(const struct model_shape *own, const struct model_shape *s, int32_t world)
{
    int32_t tokens = (s->vocab + world - 1) / world;
    if (s->vocab >= 64 * world)
        tokens = (tokens + 63) / 64 * 64;
    assert_int_equal(own->layers, s->layers);
    assert_int_equal(own->hidden, s->hidden);
    assert_int_equal(own->head_dim, s->head_dim);
    assert_int_equal(own->heads, s->heads / world);
    assert_int_equal(own->kv_heads, world < s->kv_heads ? s->kv_heads / world : 1);
    assert_int_equal(own->ffn, s->ffn / world);
    assert_int_equal(own->vocab, tokens);
    assert_int_equal(own->tied_head, s->tied_head && world == 1);
}

static void check_named(const char *name, const struct model_shape *s, int32_t world)
{
    struct model_shape own, rank;
    struct shard part, cut;
    struct err err = {""}, why = {""};
    char *path = xasprintf("random:%s/%d:q8_0", name, world);
    int rc = model_named_shape(path, &own, &part, &err);
    assert_int_equal(rc, possible(s, world) ? 0 : -1);
    assert_int_equal(rc, shard_plan(s, world, 0, &cut, &why));
    if (rc) {
        char *words = xasprintf("%s: %s", path, why.msg);
        assert_string_equal(err.msg, words);
        free(words);
    } else {
        check_part(&own, s, world);
        rank = shard_shape(&cut, s);
        rank.vocab = shard_part(&cut, s, SHARD_HEAD).rows.count;
        assert_same(&own, &rank);
        assert_int_equal(part.world, world > 1 ? world : 0);
        assert_int_equal(part.rank, 0);
    }
    free(path);
}

static void a_part_by_name_has_the_sizes_of_rank_0(void **state)
{
    (void)state;
    const struct model_shape *s;
    const char *name;
    for (int i = 0; (s = model_shape_at(i, &name)); i++)
        for (int32_t w = 1; w <= SHARD_WORLD_MAX; w++)
            check_named(name, s, w);
}

static void a_number_of_ranks_that_is_none_is_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "", "0", "-1", "x", "2x", " 2", "02", "2/2", "65", "+2", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct model_shape own;
        struct shard part;
        struct err err = {""};
        char *path = xasprintf("random:tiny/%s", wrong[i]);
        char *words = xasprintf("%s: a number of ranks from 1 to 64", path);
        assert_int_equal(model_named_shape(path, &own, &part, &err), -1);
        if (strncmp(err.msg, words, strlen(words)) != 0)
            fail_msg("%s: %s", path, err.msg);
        free(words);
        free(path);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void assert_not_cut(const struct model_shape *s, int32_t world, int32_t rank,
                           const char *words)
{
    struct shard cut;
    struct err err = {""};
    assert_int_equal(shard_plan(s, world, rank, &cut, &err), -1);
    if (!strstr(err.msg, words))
        fail_msg("'%s' is not in: %s", words, err.msg);
}

static void what_does_not_divide_is_named(void **state)
{
    (void)state;
    struct model_shape s = {
        .heads = 9, .kv_heads = 3, .head_dim = 64, .ffn = 1536, .hidden = 576, .vocab = 49152};
    assert_not_cut(&s, 2, 0, "9 attention heads do not divide by them; 3 would do");
    s.ffn = 1537;
    assert_not_cut(&s, 3, 0, "1537 feed-forward columns do not divide");
    assert_not_cut(&s, 3, 0, "no other number would do");
    s = (struct model_shape){.heads = 24, .kv_heads = 6, .head_dim = 64, .ffn = 1536, .vocab = 512};
    assert_not_cut(&s, 4, 0, "6 KV heads neither divide by them nor are shared evenly");
    s.vocab = 3;
    assert_not_cut(&s, 6, 0, "the vocabulary has 3 tokens");
    assert_not_cut(&s, 0, 0, "0 ranks: from 1 to 64");
    assert_not_cut(&s, 65, 0, "65 ranks: from 1 to 64");
    assert_not_cut(&s, 2, 2, "rank 2: of 2 ranks the last is 1");
    assert_not_cut(&s, 2, -1, "rank -1");
}

static const struct model_shape blocks = {ARCH_LLAMA, 2,   256,   4,    2, 64, 512,
                                          512,        256, 1e-5f, 1e4f, 0, 1,  {0}};

static void cuts_through_blocks_are_refused_by_layer_matrix_and_format(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        int32_t world;
        const char *words; /* NULL: no block is cut */
    } row[] = {
        {DTYPE_BF16, 4, NULL},
        {DTYPE_Q8_0, 4, NULL},
        {DTYPE_Q4_K, 1, NULL},
        {DTYPE_Q4_K, 2,
         "2 ranks: layer 0, attn_out: 128 columns each would cut the Q4_K blocks of 256"},
        {DTYPE_Q6_K, 4, "layer 0, attn_out: 64 columns each would cut the Q6_K blocks of 256"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct model *m = model_random(&blocks, row[i].type, 1);
        struct shard cut;
        struct err err = {""};
        assert_int_equal(shard_plan(&m->shape, row[i].world, 0, &cut, NULL), 0);
        int rc = shard_check_blocks(&cut, m, &err);
        if (rc != (row[i].words ? -1 : 0) || (rc && !strstr(err.msg, row[i].words)))
            fail_msg("row %zu: %d, %s", i, rc, err.msg);
        model_close(m);
    }
}

static void a_file_of_several_formats_is_looked_at_matrix_by_matrix(void **state)
{
    (void)state;
    struct model *m = model_random(&blocks, DTYPE_BF16, 1);
    struct shard cut;
    struct err err = {""};
    m->layer[1].down.type = DTYPE_Q4_K;
    assert_int_equal(shard_plan(&m->shape, 4, 3, &cut, NULL), 0);
    assert_int_equal(shard_check_blocks(&cut, m, &err), -1);
    assert_non_null(strstr(err.msg, "layer 1, mlp_down: 128 columns"));
    assert_int_equal(shard_plan(&m->shape, 2, 1, &cut, NULL), 0);
    assert_int_equal(shard_check_blocks(&cut, m, NULL), 0);
    model_close(m);
}

/* 4 heads of 64 and 512 columns in halves, a vocabulary in halves, the embedding whole. */
static void the_bytes_of_a_rank_are_its_part_and_the_embedding(void **state)
{
    (void)state;
    struct model *m = model_random(&blocks, DTYPE_BF16, 1);
    struct shard cut;
    assert_int_equal(shard_plan(&m->shape, 2, 1, &cut, NULL), 0);
    int64_t layer = 128 * 256 + 2 * 64 * 256 + 256 * 128 + 3 * 256 * 256;
    assert_int_equal(shard_bytes(&cut, m), 2 * (2 * layer + 512 * 256 + 256 * 256));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_is_possible_where_heads_and_columns_divide),
        cmocka_unit_test(all_ranks_together_have_every_row_and_column),
        cmocka_unit_test(a_rank_has_the_kv_heads_that_its_heads_read),
        cmocka_unit_test(all_ranks_have_the_same_shape),
        cmocka_unit_test(a_part_by_name_has_the_sizes_of_rank_0),
        cmocka_unit_test(a_number_of_ranks_that_is_none_is_refused),
        cmocka_unit_test(one_rank_has_the_whole_model),
        cmocka_unit_test(what_does_not_divide_is_named),
        cmocka_unit_test(cuts_through_blocks_are_refused_by_layer_matrix_and_format),
        cmocka_unit_test(a_file_of_several_formats_is_looked_at_matrix_by_matrix),
        cmocka_unit_test(the_bytes_of_a_rank_are_its_part_and_the_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
