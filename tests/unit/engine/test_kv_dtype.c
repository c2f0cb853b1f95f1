/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/kv_dtype.c: what engine.kv_dtype makes of a model, and what a page then takes. */
#include "tests/unit/unit.h"

#include <string.h>

#include "engine/kv_dtype.h"

static int64_t kv_room(const struct model *m, const struct backend_options *o, int64_t *page)
{
    (void)m;
    (void)o;
    *page = 1;
    return 0;
}

static const struct backend_ops host = {.name = "host"},
                                device = {.name = "device", .kv_room = kv_room};

static void a_cpu_keeps_floats_unless_bf16_is_asked_for(void **state)
{
    (void)state;
    static const char *const wish[] = {"auto", "bf16", "f32", "bf16", "auto"};
    struct model m = {.shape = {.layers = 30, .kv_heads = 3, .head_dim = 64}};
    for (int i = 0; i < 5; i++) {
        struct err err = {""};
        bool bf16 = strcmp(wish[i], "bf16") == 0;
        assert_int_equal(kv_dtype_settle(&m, wish[i], &host, &err), 0);
        assert_int_equal(m.shape.kv_bf16, bf16);
        assert_int_equal(kv_element_bytes(&m.shape), bf16 ? 2 : 4);
        assert_int_equal(kv_page_bytes(&m.shape), 30 * 2 * 3 * 16 * 64 * (bf16 ? 2 : 4));
    }
}

static void a_gpu_has_its_own_type_and_refuses_floats(void **state)
{
    (void)state;
    struct err err = {""};
    struct model m = {.shape = {.kv_bf16 = true}}; /* of a CPU that was tried before */
    assert_int_equal(kv_dtype_settle(&m, "auto", &device, &err), 0);
    assert_false(m.shape.kv_bf16);
    assert_int_equal(kv_dtype_settle(&m, "bf16", &device, &err), 0);
    assert_false(m.shape.kv_bf16); /* which is about a CPU */
    assert_int_equal(kv_dtype_settle(&m, "f32", &device, &err), -1);
    assert_non_null(strstr(err.msg, "engine.kv_dtype = f32"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cpu_keeps_floats_unless_bf16_is_asked_for),
        cmocka_unit_test(a_gpu_has_its_own_type_and_refuses_floats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
