/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/case: inputs as promised, outputs alone writable, every stray write seen. */
#include "tests/unit/unit.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/err.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/case.h"
#include "engine/cpu/pack.h"
#include "engine/quant.h"

static struct model *model;

static struct kernel_case *open_case(enum region r, int32_t m, enum fill fill, bool random,
                                     bool guard)
{
    struct case_shape s = {.region = r,
                           .layer = 1,
                           .m = m,
                           .sequences = 3,
                           .context = 40,
                           .ragged = true,
                           .permuted_pages = true};
    return case_random(model, &s, fill, random, guard, 42);
}

/* True if a child that runs `touch(p)` dies of SIGSEGV. */
static bool crashes(void (*touch)(char *), void *p)
{
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka catches them */
        signal(SIGBUS, SIG_DFL);
        touch(p);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

static void write_byte(char *p)
{
    *(volatile char *)p = 1;
}

static void read_byte(char *p)
{
    (void)*(volatile char *)p;
}

static void guarded_outputs_end_at_walls(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_MLP_OUT, 4, FILL_NORMAL, true, true);
    const struct out_args *a = case_args(c);
    float *end = a->y + 4 * a->w.rows; /* 4 x 64 floats: no slack before the wall */
    assert_true(crashes(write_byte, end));
    assert_true(crashes(read_byte, end));
    assert_true(crashes(read_byte, (char *)a->y - 4096));
    assert_false(crashes(write_byte, a->y));
    case_free(c);
}

static void guarded_inputs_are_read_only_and_walled(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_MLP_OUT, 4, FILL_NORMAL, true, true);
    const struct out_args *a = case_args(c);
    assert_true(crashes(write_byte, (void *)a->in));
    assert_true(crashes(write_byte, (void *)a->x));
    assert_true(crashes(write_byte, (void *)a->w.data));
    assert_true(crashes(read_byte, (void *)(a->in + 4 * a->w.cols)));
    assert_false(crashes(read_byte, (void *)a->w.data));
    case_free(c);
}

static void damage_names_what_was_written(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_MLP_OUT, 3, FILL_NORMAL, true, true);
    struct out_args *a = case_args(c);
    memset(a->y, 0, 3 * 64 * sizeof(float));
    assert_null(case_damage(c));
    a->y[-1] = 0; /* inside the page, in front of the output */
    assert_string_equal(case_damage(c), "wrote outside its output");
    case_poison(c);
    assert_null(case_damage(c));
    case_free(c);
    c = open_case(REGION_MLP_OUT, 3, FILL_NORMAL, true, false);
    a = case_args(c);
    a->y[3 * 64] = 0; /* no wall here: the band behind */
    assert_string_equal(case_damage(c), "wrote outside its output");
    case_poison(c);
    ((float *)a->x)[5] += 1;
    assert_string_equal(case_damage(c), "changed its input x");
    case_free(c);
}

static void kv_positions_of_others_are_watched(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_ATTN_IN, 5, FILL_NORMAL, true, true);
    struct attn_in_args *a = case_args(c);
    float *v = a->v_pages;
    bool own[64] = {false};
    for (int i = 0; i < 5; i++)
        own[a->kv_at[i] / KV_PAGE] = true;
    for (int i = 0; i < 5; i++)
        for (int h = 0; h < a->kv_heads; h++)
            for (int d = 0; d < a->head_dim; d++)
                v[((a->kv_at[i] / KV_PAGE * a->kv_heads + h) * KV_PAGE + a->kv_at[i] % KV_PAGE) *
                      a->head_dim +
                  d] = 1;
    assert_null(case_damage(c));
    int stray = 0;
    while (own[stray])
        stray++;
    v[stray * a->kv_heads * KV_PAGE * a->head_dim + 7] = 1;
    assert_string_equal(case_damage(c), "wrote v of a position that is not the step's");
    case_free(c);
}

static void outputs_are_nan_until_written_and_kv_is_gathered(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_ATTN_IN, 5, FILL_NORMAL, true, true);
    struct attn_in_args *a = case_args(c);
    int32_t rows, cols;
    float *value, *k = a->k_pages;
    assert_true(case_output(c, 1, &rows, &cols, &value));
    assert_int_equal(rows, 5);
    assert_int_equal(cols, a->kv_heads * a->head_dim);
    for (int i = 0; i < rows * cols; i++)
        assert_true(isnan(value[i]));
    free(value);
    int32_t at = a->kv_at[3];
    k[((at / KV_PAGE * a->kv_heads + 1) * KV_PAGE + at % KV_PAGE) * a->head_dim + 2] = 7;
    assert_true(case_output(c, 1, &rows, &cols, &value));
    assert_true(value[3 * cols + a->head_dim + 2] == 7);
    free(value);
    assert_false(case_output(c, 3, &rows, &cols, &value));
    case_free(c);
}

static void refill_is_repeatable_and_keeps_pointers(void **state)
{
    (void)state;
    for (int r = REGION_ATTN_IN; r < REGION_LOCAL; r++) {
        struct kernel_case *c = open_case((enum region)r, 6, FILL_NORMAL, true, true);
        union region_args before = *(union region_args *)case_args(c);
        const float *in = r == REGION_ATTN                              ? before.attn.q
                          : r == REGION_ATTN_OUT || r == REGION_MLP_OUT ? before.out.in
                          : r == REGION_ATTN_IN                         ? before.attn_in.x
                          : r == REGION_MLP_IN                          ? before.mlp_in.x
                          : r == REGION_MLP                             ? before.mlp.x
                                                                        : before.head.x;
        float first[32];
        memcpy(first, in, sizeof first);
        case_refill(c, FILL_LARGE, 43);
        assert_memory_not_equal(first, in, sizeof first);
        case_refill(c, FILL_NORMAL, 42);
        assert_memory_equal(first, in, sizeof first);
        assert_memory_equal(&before, case_args(c), sizeof before);
        case_free(c);
    }
}

static void fills_are_what_they_say(void **state)
{
    (void)state;
    for (int f = 0; f < FILL_COUNT; f++) {
        struct kernel_case *c = open_case(REGION_MLP_OUT, 8, (enum fill)f, true, true);
        const struct out_args *a = case_args(c);
        double sum = 0, square = 0, top = 0;
        int n = 8 * a->w.cols, whole = 0;
        for (int i = 0; i < n; i++) {
            double v = (double)a->in[i];
            sum += v / n;
            square += v * v / n;
            top = fmax(top, fabs(v));
            whole += v == 0 || v == 1;
        }
        double deviation = sqrt(square - sum * sum);
        assert_true(f != FILL_NORMAL || (fabs(sum) < 0.2 && fabs(deviation - 1) < 0.1));
        assert_true(f != FILL_SHIFTED || (fabs(sum - 50) < 0.1 && fabs(deviation - 0.1) < 0.02));
        assert_true(f != FILL_OUTLIER || (top > 300 && deviation > 30));
        assert_true(f != FILL_ZERO || top == 0);
        assert_true(f != FILL_DENORMAL || (top > 0 && top < 1.2e-38));
        assert_true(f != FILL_BITS || (whole == n && sum > 0.3 && sum < 0.7));
        assert_true(f != FILL_LARGE || (deviation > 90 && deviation < 110));
        case_free(c);
    }
}

static void random_parameters_leave_no_gain_at_one(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_ATTN_IN, 2, FILL_NORMAL, true, true);
    const struct attn_in_args *a = case_args(c);
    int ones = 0, zeros = 0;
    assert_ptr_not_equal(a->norm, model->layer[1].attn_norm);
    assert_ptr_not_equal(a->wq.data, model->layer[1].wq.data);
    for (int i = 0; i < 64; i++)
        ones += a->norm[i] == 1;
    for (int i = 0; i < a->wq.rows; i++)
        zeros += a->bq[i] == 0;
    assert_int_equal(ones + zeros, 0);
    case_free(c);
    c = open_case(REGION_ATTN_IN, 2, FILL_NORMAL, false, true);
    a = case_args(c);
    assert_ptr_equal(a->wq.data, model->layer[1].wq.data);
    assert_memory_equal(a->norm, model->layer[1].attn_norm, 64 * sizeof(float));
    case_free(c);
}

static void random_blocks_of_every_format_are_finite_and_scaled(void **state)
{
    (void)state;
    struct model_shape shape = model->shape;
    shape.hidden = 256; /* whole blocks of the K formats */
    struct model *wide = model_random(&shape, DTYPE_F32, 1);
    for (int t = 0; t < DTYPE_COUNT; t++) {
        wide->layer[0].gate.type = t;
        struct case_shape s = {.region = REGION_MLP_IN, .m = 1};
        struct kernel_case *c = case_random(wide, &s, FILL_NORMAL, true, true, 4);
        const struct mlp_in_args *a = case_args(c);
        float row[256];
        double square = 0;
        dequant_row((enum dtype)t, a->gate.data, row, 256);
        for (int i = 0; i < 256; i++)
            square += (double)row[i] * (double)row[i];
        assert_true(square > 0.1 && square < 10); /* 1 if the deviation is 1/16 */
        case_free(c);
    }
    model_close(wide);
}

static void sequences_cover_the_step_and_share_no_page(void **state)
{
    (void)state;
    struct kernel_case *c = open_case(REGION_ATTN, 8, FILL_NORMAL, true, true);
    const struct attn_args *a = case_args(c);
    int32_t next = 0, longest = 0;
    bool used[64] = {false};
    for (int i = 0; i < a->spans; i++) {
        assert_int_equal(a->span[i].first, next);
        next += a->span[i].count;
        assert_true(a->span[i].context >= a->span[i].count);
        longest = a->span[i].context > longest ? a->span[i].context : longest;
        for (int p = 0; p < (a->span[i].context + 15) / 16; p++) {
            int32_t page = a->page_table[a->span[i].pages_at + p];
            assert_false(used[page]);
            used[page] = true;
        }
    }
    assert_int_equal(next, 8);
    assert_int_equal(longest, 40);
    case_free(c);
}

static void pack_all(const struct weight *w, void *packed, int32_t row0, int32_t row1)
{
    memset((char *)packed + row0, w->rows & 0x7f, (size_t)(row1 - row0));
}

static int64_t pack_bytes(const struct weight *w)
{
    return w->rows;
}

static void weights_are_packed_and_bound(void **state)
{
    (void)state;
    struct cpu_kernel k = {.pack = pack_all, .packed_bytes = pack_bytes};
    struct kernel_case *c = open_case(REGION_ATTN_IN, 2, FILL_NORMAL, true, true);
    struct weight *w[3];
    void *packed[3];
    assert_int_equal(case_weights(c, w), 3);
    int64_t bytes = weights_packed_bytes(&k, w, 3);
    assert_true(bytes >= w[0]->rows + w[1]->rows + w[2]->rows);
    char *arena = xaligned((size_t)bytes);
    assert_ptr_equal(weights_pack(&k, w, 3, arena, packed), arena + bytes);
    case_set_packed(c, (const void *const *)packed);
    const struct attn_in_args *a = case_args(c);
    assert_ptr_equal(a->wk.packed, packed[1]);
    assert_int_equal(((const char *)a->wk.packed)[a->wk.rows - 1], a->wk.rows & 0x7f);
    case_set_packed(c, (const void *const[3]){NULL, NULL, NULL});
    assert_null(a->wq.packed);
    free(arena);
    case_free(c);
}

static int open_model(void **state)
{
    (void)state;
    struct model_shape shape = {.arch = ARCH_QWEN2,
                                .layers = 2,
                                .hidden = 64,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .ffn = 96,
                                .vocab = 50,
                                .max_context = 128,
                                .eps = 1e-6f,
                                .rope_base = 10000};
    model = model_random(&shape, DTYPE_Q4_1, 3);
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guarded_outputs_end_at_walls),
        cmocka_unit_test(guarded_inputs_are_read_only_and_walled),
        cmocka_unit_test(damage_names_what_was_written),
        cmocka_unit_test(kv_positions_of_others_are_watched),
        cmocka_unit_test(outputs_are_nan_until_written_and_kv_is_gathered),
        cmocka_unit_test(refill_is_repeatable_and_keeps_pointers),
        cmocka_unit_test(fills_are_what_they_say),
        cmocka_unit_test(random_parameters_leave_no_gain_at_one),
        cmocka_unit_test(random_blocks_of_every_format_are_finite_and_scaled),
        cmocka_unit_test(sequences_cover_the_step_and_share_no_page),
        cmocka_unit_test(weights_are_packed_and_bound),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
