/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/device_weights.c: what engine.device_weights makes of a model, with backends that
 * say how much room they have. */
#include "tests/unit/unit.h"

#include "engine/device_weights.h"

static int64_t room;

static int64_t kv_room(const struct model *m, const struct backend_options *o, int64_t *page)
{
    (void)o;
    assert_false(m->own_formats); /* asked for bf16 */
    *page = 1000;
    return room;
}

static bool settled(const char *wish, enum dtype type, bool device)
{
    struct weight w = {.type = (int32_t)type};
    struct layer layer = {.wq = w, .wk = w, .wv = w, .wo = w, .gate = w, .up = w, .down = w};
    struct model m = {.shape = {.layers = 1}, .layer = &layer, .embed = w, .head = w};
    struct backend_ops ops = {.kv_room = device ? kv_room : NULL};
    struct backend_options o = {.threads = 0};
    device_weights_settle(&m, wish, &ops, &o, 16);
    return m.own_formats;
}

static void auto_keeps_formats_only_where_bf16_has_no_room(void **state)
{
    (void)state;
    room = 16000;
    assert_false(settled("auto", DTYPE_Q4_K, true));
    room = 15999;
    assert_true(settled("auto", DTYPE_Q4_K, true));
    room = 0;
    assert_false(settled("auto", DTYPE_F16, true)); /* which is not kept anyway */
}

static void own_and_bf16_are_what_they_say(void **state)
{
    (void)state;
    room = 1 << 30;
    assert_true(settled("own", DTYPE_Q4_K, true));
    assert_false(settled("own", DTYPE_BF16, true));
    room = 0;
    assert_false(settled("bf16", DTYPE_Q4_K, true));
}

static void a_backend_in_host_memory_keeps_nothing_elsewhere(void **state)
{
    (void)state;
    room = 0;
    assert_false(settled("own", DTYPE_Q4_K, false));
    assert_false(settled("auto", DTYPE_Q4_K, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_keeps_formats_only_where_bf16_has_no_room),
        cmocka_unit_test(own_and_bf16_are_what_they_say),
        cmocka_unit_test(a_backend_in_host_memory_keeps_nothing_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
