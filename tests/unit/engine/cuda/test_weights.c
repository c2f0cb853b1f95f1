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
    struct image m = {.source = {&w}, .rows = 1, .cols = 4};
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
    struct image images[3] = {
        {.rows = 5, .cols = 1 << 20}, {.rows = 1, .cols = 8}, {.rows = 700, .cols = 1 << 13}};
    struct upload u = {.b = &b, .images = 3, .image = images, .lock = PTHREAD_MUTEX_INITIALIZER};
    int32_t seen[3] = {0}, row, rows;
    struct image *m;
    while (next(&u, &m, &row, &rows)) {
        assert_int_equal(row, seen[m - images]);
        assert_true(rows > 0 && 2LL * rows * m->cols <= STRETCH);
        seen[m - images] += rows;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(seen[i], images[i].rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_pairs_become_neighbours),
        cmocka_unit_test(gate_and_up_rows_alternate),
        cmocka_unit_test(rows_are_rounded_to_nearest_even),
        cmocka_unit_test(stretches_cover_every_row_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
