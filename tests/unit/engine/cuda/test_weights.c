/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/weights.c: which row of the file lies where on the device. */
#include "tests/unit/unit.h"

#include "engine/cuda/weights.c"

static struct weight matrix(float *data, int32_t rows, int32_t cols)
{
    return (struct weight){.data = data, .rows = rows, .cols = cols, .type = DTYPE_F32};
}

static struct model model;
static struct backend b = {.model = &model};

static void rope_pairs_become_neighbours(void **state)
{
    (void)state;
    float q[16 * 2], k[8 * 2], v[8 * 2];
    struct weight w[3] = {matrix(q, 16, 2), matrix(k, 8, 2), matrix(v, 8, 2)};
    struct image m = {
        .source = {&w[0], &w[1], &w[2]}, .kind = STACKED, .rows = 32, .cols = 2, .paired = 2};
    /* heads of 8: dimension i and i + 4 turn together */
    const int32_t want[] = {0, 4, 1, 5, 2, 6, 3, 7};
    int32_t at;
    model.shape = (struct model_shape){.head_dim = 8, .rope_interleaved = false};
    for (int32_t i = 0; i < 8; i++) {
        assert_ptr_equal(find_row(&b, &m, i, &at), &w[0]);
        assert_int_equal(at, want[i]);
        assert_ptr_equal(find_row(&b, &m, 8 + i, &at), &w[0]);
        assert_int_equal(at, 8 + want[i]);
        assert_ptr_equal(find_row(&b, &m, 16 + i, &at), &w[1]);
        assert_int_equal(at, want[i]);
        assert_ptr_equal(find_row(&b, &m, 24 + i, &at), &w[2]);
        assert_int_equal(at, i); /* v does not turn */
    }
    model.shape.rope_interleaved = true;
    find_row(&b, &m, 3, &at);
    assert_int_equal(at, 3);
}

static void gate_and_up_rows_alternate(void **state)
{
    (void)state;
    float g[6], u[6];
    struct weight w[2] = {matrix(g, 3, 2), matrix(u, 3, 2)};
    struct image m = {.source = {&w[0], &w[1]}, .kind = ALTERNATING, .rows = 6, .cols = 2};
    int32_t at;
    for (int32_t i = 0; i < 6; i++) {
        assert_ptr_equal(find_row(&b, &m, i, &at), &w[i % 2]);
        assert_int_equal(at, i / 2);
    }
}

static void rows_are_rounded_to_nearest_even(void **state)
{
    (void)state;
    float data[4] = {1.0f, 1.00390625f, 1.01171875f, -3.0e38f}; /* ties go to even */
    struct weight w = matrix(data, 1, 4);
    struct image m = {.source = {&w}, .rows = 1, .cols = 4, .type = DTYPE_BF16};
    float scratch[4];
    uint16_t got[4];
    convert(&b, &m, 0, 1, got, scratch);
    assert_int_equal(got[0], 0x3f80);
    assert_int_equal(got[1], 0x3f80);
    assert_int_equal(got[2], 0x3f82);
    assert_int_equal(got[3], 0xff62);
}

static void stretches_cover_every_row_once(void **state)
{
    (void)state;
    struct image images[3] = {{.rows = 5, .cols = 1 << 20, .type = DTYPE_BF16},
                              {.rows = 1, .cols = 8, .type = DTYPE_BF16},
                              {.rows = 7000, .cols = 1 << 13, .type = DTYPE_Q4_K}};
    struct upload u = {.b = &b, .images = 3, .image = images, .lock = PTHREAD_MUTEX_INITIALIZER};
    int32_t seen[3] = {0}, row, rows;
    struct image *m;
    while (next(&u, &m, &row, &rows)) {
        assert_int_equal(row, seen[m - images]);
        assert_true(rows > 0 && bytes_before(m, rows) <= STRETCH);
        assert_true(m->type == DTYPE_BF16 || row % BRICK_ROWS == 0);
        seen[m - images] += rows;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen[i], images[i].rows);
}

static struct weight drawn(enum dtype t, int32_t rows, int32_t cols, char *to)
{
    float *row = xmalloc((size_t)cols * sizeof *row);
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c++)
            row[c] = (float)((r * 131 + c * 29) % 97 - 40) / 64;
        quant_row(t, row, to + r * dtype_bytes(t, cols), cols);
    }
    free(row);
    return (struct weight){.data = to, .rows = rows, .cols = cols, .type = (int32_t)t};
}

/* q, k and v of 40 rows together: rows in RoPE order, the last row of bricks half empty. */
static void a_kept_format_is_put_row_by_row_where_its_rows_belong(void **state)
{
    (void)state;
    enum { COLS = 288, ROWS = 40, EACH = 2 * 4352 };
    char *data = xmalloc(ROWS * (COLS / 32) * 34);
    struct weight w[3] = {drawn(DTYPE_Q8_0, 16, COLS, data),
                          drawn(DTYPE_Q8_0, 16, COLS, data + 16 * 9 * 34),
                          drawn(DTYPE_Q8_0, 8, COLS, data + 32 * 9 * 34)};
    struct image m = {.source = {&w[0], &w[1], &w[2]},
                      .kind = STACKED,
                      .rows = ROWS,
                      .cols = COLS,
                      .paired = 2,
                      .type = DTYPE_Q8_0};
    uint16_t *got = xmalloc(3 * EACH);
    char *want = xcalloc(3, EACH);
    model.shape = (struct model_shape){.head_dim = 8, .rope_interleaved = false};
    assert_int_equal(bytes_before(&m, ROWS), 3 * EACH);
    assert_int_equal(bytes_before(&m, 16), EACH);
    convert(&b, &m, 0, ROWS, got, NULL);
    for (int32_t r = 0; r < ROWS; r++) {
        int32_t at;
        const struct weight *from = find_row(&b, &m, r, &at);
        bricks_put_row(DTYPE_Q8_0, (const char *)from->data + at * 9 * 34, COLS, r % 16,
                       want + r / 16 * EACH);
    }
    assert_memory_equal(got, want, 3 * EACH);
    free(want);
    free(got);
    free(data);
}

/* A format that a device does not keep: Q2_K, MXFP4 and the others. */
static void rows_of_other_formats_become_the_nearest_bf16(void **state)
{
    (void)state;
    enum { COLS = 512, ROWS = 3 };
    uint16_t got[ROWS * COLS];
    float scratch[COLS], want[COLS];
    int formats = 0;
    for (int t = 0; t < DTYPE_COUNT; t++) {
        if (brick_bytes(t) || t == DTYPE_BF16)
            continue;
        int64_t row = dtype_bytes((enum dtype)t, COLS);
        char *data = xmalloc((size_t)(ROWS * row));
        struct weight w = drawn((enum dtype)t, ROWS, COLS, data);
        struct image m = {.source = {&w}, .rows = ROWS, .cols = COLS, .type = DTYPE_BF16};
        convert(&b, &m, 0, ROWS, got, scratch);
        for (int r = 0; r < ROWS; r++) {
            dequant_row((enum dtype)t, data + r * row, want, COLS);
            for (int c = 0; c < COLS; c++)
                assert_int_equal(got[r * COLS + c], f32_to_bf16(want[c]));
        }
        free(data);
        formats++;
    }
    assert_true(formats >= 7);
}

/* A rank of two: half of every matrix but the embedding, which is whole, and a head of its own. */
static void a_ranks_weights_are_its_part_and_the_embedding(void **state)
{
    (void)state;
    const struct model_shape s = {ARCH_LLAMA, 2,   256,   4,    2, 64, 512,
                                  512,        256, 1e-5f, 1e4f, 0, 1,  {0}};
    struct model *m = model_random(&s, DTYPE_BF16, 1), *part = model_random(&s, DTYPE_BF16, 1);
    int64_t layer = 2 * 256 * (2 * 256 + 2 * 128 + 3 * 512), table = 2 * 512 * 256;
    assert_int_equal(model_take_part(part, 2, 1, NULL, NULL, NULL, NULL), 0);
    int64_t vectors = weights_bytes(m) - table - 2 * layer; /* with slack for their alignment */
    int64_t own = weights_bytes(part) - table - table / 2 - layer;
    assert_in_range(vectors, 0, 100000);
    assert_in_range(own, 0, vectors);
    struct image head = image_of(part, REGION_HEAD, 0);
    assert_int_equal(head.rows, 256);
    assert_ptr_equal(head.source[0]->data, part->head.data);
    model_close(m);
    model_close(part);
}

/* Two layers and a head of its own, or the embedding's matrix as the head: what products read has
 * bf16 beside it, the table of the embedding has not, and no scratch is needed any more. */
static void bf16_beside_bricks_is_counted(void **state)
{
    (void)state;
    struct model_shape s = {ARCH_LLAMA, 2, 256, 4, 2, 64, 512, 512, 256, 1e-5f, 1e4f, 0, 1, {0}};
    for (int tied = 0; tied < 2; tied++) {
        s.tied_head = tied;
        struct model *m = model_random(&s, DTYPE_Q8_0, 1);
        int64_t products = 2 * 256 * (2 * 256 + 2 * 128 + 3 * 512) + 512 * 256;
        m->own_formats = true;
        int64_t own = weights_bytes(m), scratch = weights_expanded(m);
        m->bf16_copies = true;
        assert_int_equal(weights_bytes(m) - own, 2 * products);
        assert_int_equal(scratch, 2 * 256 * 1024); /* gate and up, as large as the head */
        assert_int_equal(weights_expanded(m), 0);
        m->own_formats = false; /* then there is nothing to stand beside */
        assert_false(device_copied(m, REGION_MLP_IN, 0));
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_pairs_become_neighbours),
        cmocka_unit_test(gate_and_up_rows_alternate),
        cmocka_unit_test(rows_are_rounded_to_nearest_even),
        cmocka_unit_test(stretches_cover_every_row_once),
        cmocka_unit_test(rows_of_other_formats_become_the_nearest_bf16),
        cmocka_unit_test(a_ranks_weights_are_its_part_and_the_embedding),
        cmocka_unit_test(bf16_beside_bricks_is_counted),
        cmocka_unit_test(a_kept_format_is_put_row_by_row_where_its_rows_belong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
