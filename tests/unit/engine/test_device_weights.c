/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/device_weights.c: what engine.device_weights makes of a model, with backends that
 * say how much room they have. */
#include "tests/unit/unit.h"

#include "engine/device_weights.h"

static int64_t room;

static int64_t kv_room(const struct model *m, const struct backend_options *o, int64_t *page)
{
    (void)o;
    assert_false(m->own_formats || m->bf16_copies); /* asked for bf16 */
    *page = 1000;
    return room;
}

enum settled { BF16, OWN, BOTH };

static enum settled settled(const char *wish, enum dtype type, bool device)
{
    struct weight w = {.type = (int32_t)type};
    struct layer layer = {.wq = w, .wk = w, .wv = w, .wo = w, .gate = w, .up = w, .down = w};
    struct model m = {.shape = {.layers = 1}, .layer = &layer, .embed = w, .head = w};
    struct backend_ops ops = {.kv_room = device ? kv_room : NULL};
    struct backend_options o = {.threads = 0};
    device_weights_settle(&m, wish, &ops, &o, 16);
    assert_true(m.own_formats || !m.bf16_copies);
    return m.bf16_copies ? BOTH : m.own_formats ? OWN : BF16;
}

static void auto_keeps_formats_only_where_bf16_has_no_room(void **state)
{
    (void)state;
    room = 16000;
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), BF16);
    room = 15999;
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
    room = 0;
    assert_int_equal(settled("auto", DTYPE_F16, true), BF16); /* which is not kept anyway */
}

static void what_is_asked_for_by_name_is_what_it_says(void **state)
{
    (void)state;
    room = 1 << 30;
    assert_int_equal(settled("own", DTYPE_Q4_K, true), OWN);
    assert_int_equal(settled("own", DTYPE_BF16, true), BF16);
    assert_int_equal(settled("both", DTYPE_BF16, true), BF16);
    room = 0;
    assert_int_equal(settled("bf16", DTYPE_Q4_K, true), BF16);
    assert_int_equal(settled("both", DTYPE_Q4_K, true), BOTH);
}

static void a_backend_in_host_memory_keeps_nothing_elsewhere(void **state)
{
    (void)state;
    room = 0;
    assert_int_equal(settled("own", DTYPE_Q4_K, false), BF16);
    assert_int_equal(settled("both", DTYPE_Q4_K, false), BF16);
    assert_int_equal(settled("auto", DTYPE_Q4_K, false), BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_keeps_formats_only_where_bf16_has_no_room),
        cmocka_unit_test(what_is_asked_for_by_name_is_what_it_says),
        cmocka_unit_test(a_backend_in_host_memory_keeps_nothing_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
