/* SPDX-License-Identifier: Apache-2.0 */
/* test_ranks_wire.c - a step to bytes and back, and what is refused of bytes that are none. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/ranks_wire.h"

static const struct wire_limits limits = {
    .max_tokens = 16, .max_rows = 3, .kv_pages = 9, .vocab = 50, .max_context = 48, .slots = 20};
static struct wire_change change[] = {{2, 7}, {19, 0}};
static struct wire_table table = {.step = 5000000000,
                                  .version = 3,
                                  .trial_slot = 4,
                                  .trial = 9,
                                  .beside_run = 5,
                                  .beside = 6,
                                  .changes = 2,
                                  .change = change};

static int32_t tokens[] = {4, 49, 0, 7}, position[] = {16, 17, 18, 40}, kv_at[] = {48, 49, 50, 24};
static int32_t row[] = {2, 3}, page_table[] = {1, 3, 8, 0, 1};
static struct span span[] = {{0, 3, 19, 0}, {3, 1, 41, 2}};

static struct step good(void)
{
    return (struct step){.m = 4,
                         .tokens = tokens,
                         .position = position,
                         .kv_at = kv_at,
                         .spans = 2,
                         .span = span,
                         .page_table = page_table,
                         .pages = 5,
                         .context = 41,
                         .rows = 2,
                         .row = row};
}

/* As it would lie in a message. */
static char *packed(const struct step *s, size_t *n)
{
    struct wire_buffer b = {0};
    wire_pack(s, &table, &b);
    char *data = memcpy(xaligned(b.n + 1), b.data, b.n);
    *n = b.n;
    wire_buffer_free(&b);
    return data;
}

static void a_step_comes_back_as_it_was(void **state)
{
    (void)state;
    struct step s = good(), t;
    struct wire_table k;
    size_t n;
    char *data = packed(&s, &n);
    assert_true(n <= wire_most(&limits));
    assert_int_equal(wire_unpack(data, n, &limits, &t, &k, NULL), 0);
    assert_int_equal(t.m, 4);
    assert_int_equal(t.spans, 2);
    assert_int_equal(t.pages, 5);
    assert_int_equal(t.context, 41);
    assert_int_equal(t.rows, 2);
    assert_memory_equal(t.tokens, tokens, sizeof tokens);
    assert_memory_equal(t.position, position, sizeof position);
    assert_memory_equal(t.kv_at, kv_at, sizeof kv_at);
    assert_memory_equal(t.row, row, sizeof row);
    assert_memory_equal(t.page_table, page_table, sizeof page_table);
    assert_memory_equal(t.span, span, sizeof span);
    assert_null(t.sample);
    assert_int_equal(k.step, table.step);
    assert_int_equal(k.version, 3);
    assert_int_equal(k.trial_slot, 4);
    assert_int_equal(k.trial, 9);
    assert_int_equal(k.beside_run, 5);
    assert_int_equal(k.beside, 6);
    assert_int_equal(k.changes, 2);
    assert_memory_equal(k.change, change, sizeof change);
    free(data);
}

static void assert_refused(const struct step *s, const char *words)
{
    struct step t;
    struct wire_table k;
    struct err e = {""};
    size_t n;
    char *data = packed(s, &n);
    assert_int_equal(wire_unpack(data, n, &limits, &t, &k, &e), -1);
    if (!strstr(e.msg, words))
        fail_msg("'%s' is not in: %s", words, e.msg);
    free(data);
}

static void what_a_rank_was_not_opened_for_is_refused(void **state)
{
    (void)state;
    static int32_t token[] = {4, 50, 0, 7}, at[] = {48, 49, 144, 24}, far[] = {16, 17, 48, 40};
    static int32_t page[] = {1, 3, 9, 0, 1}, rows[] = {2, 4};
    static struct span gap[] = {{0, 2, 19, 0}, {3, 1, 41, 2}},
                       late[] = {{0, 3, 19, 0}, {3, 1, 41, 3}};
    struct step s = good();
    s.tokens = token;
    assert_refused(&s, "token 50; they end at 50");
    token[1] = -1; /* a row of the step before it: rank 0 must know the token */
    assert_refused(&s, "token -1");
    s = good(), s.kv_at = at;
    assert_refused(&s, "cache position 144; they end at 144");
    s = good(), s.position = far;
    assert_refused(&s, "position 48");
    s = good(), s.page_table = page;
    assert_refused(&s, "page 9");
    s = good(), s.row = rows;
    assert_refused(&s, "row 4");
    s = good(), s.span = gap;
    assert_refused(&s, "sequence 1 of a step");
    s = good(), s.span = late;
    assert_refused(&s, "sequence 1 of a step");
    s = good(), s.spans = 1;
    assert_refused(&s, "tokens that are no sequence's");
    s = good(), s.context = 49;
    assert_refused(&s, "49 positions; from 1 to 48");
    s = good(), s.context = 40;
    assert_refused(&s, "sequence 1 of a step");
}

/* What would leave ranks with different tables, or reach behind them. */
static void tables_that_are_none_are_refused(void **state)
{
    (void)state;
    struct step s = good();
    struct wire_table right = table;
    change[1].slot = 20;
    assert_refused(&s, "puts kernel 0 into slot 20 of 20");
    change[1].slot = 2; /* twice */
    assert_refused(&s, "puts kernel 0 into slot 2 of 20");
    change[1].slot = 19, change[0].slot = -1;
    assert_refused(&s, "into slot -1");
    change[0].slot = 2, change[0].kernel = -7;
    assert_refused(&s, "kernel -7");
    change[0].kernel = 7, table.trial_slot = 20;
    assert_refused(&s, "slots for a canary");
    table = right, table.trial = 0;
    assert_refused(&s, "kernels of a canary");
    table = right, table.beside_run = -1;
    assert_refused(&s, "kernels beside reduce");
    table = right, table.trial_slot = -1;
    assert_refused(&s, "kernels of a canary");
    table = right;
}

static void assert_kernel_refused(const struct wire_kernel *k, size_t n, const char *words)
{
    struct wire_kernel out;
    struct err e = {""};
    const char *bytes;
    char *data = xaligned(sizeof *k + 8);
    memset(data, 0, sizeof *k + 8);
    memcpy(data, k, sizeof *k);
    assert_int_equal(wire_read_kernel(data, n, &out, &bytes, &e), -1);
    if (!strstr(e.msg, words))
        fail_msg("'%s' is not in: %s", words, e.msg);
    free(data);
}

static void a_timing_is_of_so_many_tokens_and_calls(void **state)
{
    (void)state;
    struct wire_timing t = {3, 16, 8}, out;
    struct err e = {""};
    assert_int_equal(wire_read_timing((const char *)&t, sizeof t, &limits, &out, &e), 0);
    assert_int_equal(out.kernel, 3);
    assert_int_equal(out.m, 16);
    assert_int_equal(out.calls, 8);
    assert_int_equal(wire_read_timing((const char *)&t, sizeof t - 1, &limits, &out, &e), -1);
    const struct wire_timing bad[] = {
        {-1, 1, 1}, {0, 0, 1}, {0, 17, 1}, {0, 1, 0}, {0, 1, 1 << 20}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(wire_read_timing((const char *)&bad[i], sizeof bad[i], &limits, &out, &e),
                         -1);
    assert_non_null(strstr(e.msg, "1048576 times"));
}

static void a_kernel_comes_with_its_bytes(void **state)
{
    (void)state;
    struct wire_kernel k = {.number = 3, .region = REGION_HEAD, .origin = ORIGIN_TEMPLATE}, out;
    const char *bytes;
    size_t n = sizeof k + 8;
    char *data = xaligned(n);
    k.bytes = 8;
    memcpy(data, &k, sizeof k);
    memcpy(data + sizeof k, "12345678", 8);
    assert_int_equal(wire_read_kernel(data, n, &out, &bytes, NULL), 0);
    assert_memory_equal(bytes, "12345678", 8);
    assert_kernel_refused(&k, n - 1, "7 bytes instead of 8");
    assert_kernel_refused(&k, 100, "a kernel of 100 bytes");
    k.bytes = 0;
    assert_kernel_refused(&k, sizeof k, "0 bytes instead of 0");
    struct wire_kernel bad = k;
    memset(bad.name, 'x', sizeof bad.name);
    assert_kernel_refused(&bad, sizeof k, "a text without an end");
    bad = k, bad.region = REGION_NODES;
    assert_kernel_refused(&bad, sizeof k, "of region 9");
    bad = k, bad.layers = -1;
    assert_kernel_refused(&bad, sizeof k, "kernel 3");
    bad = k, bad.number = 0;
    assert_kernel_refused(&bad, sizeof k, "kernel 0");
    free(data);
}

/* Every count that a head may claim, and every length that a message may be cut to. */
static void bytes_that_are_no_step_are_refused(void **state)
{
    (void)state;
    struct step s = good(), t;
    struct wire_table table_of;
    size_t n;
    char *data = packed(&s, &n);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(wire_unpack(data, cut, &limits, &t, &table_of, NULL), -1);
    for (int field = 0; field < 6; field++)
        for (int k = 0; k < 32; k++) {
            char *copy = memcpy(xaligned(n), data, n);
            int32_t *count = (int32_t *)(void *)copy + field;
            *count ^= (int32_t)(1u << k);
            int rc = wire_unpack(copy, n, &limits, &t, &table_of, NULL);
            bool same_bytes = field == 3; /* a longer context may be one */
            assert_true(rc == -1 || same_bytes);
            free(copy);
        }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_comes_back_as_it_was),
        cmocka_unit_test(what_a_rank_was_not_opened_for_is_refused),
        cmocka_unit_test(tables_that_are_none_are_refused),
        cmocka_unit_test(a_timing_is_of_so_many_tokens_and_calls),
        cmocka_unit_test(a_kernel_comes_with_its_bytes),
        cmocka_unit_test(bytes_that_are_no_step_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
