/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/device_weights.c: what engine.device_weights makes of a model, with backends that
 * say how much room they have. */
#include "tests/unit/unit.h"

#include "engine/device_weights.h"

enum settled { BF16, OWN, BOTH };

static int64_t room[3]; /* for pages, of a model that is kept so */
static struct kv_wish kv;
static bool may_e4m3, products; /* whether kernels may have it; what came of that */

static bool e4m3(void)
{
    return true;
}

static enum settled kept(const struct model *m)
{
    assert_true(m->own_formats || !m->bf16_copies);
    return m->bf16_copies ? BOTH : m->own_formats ? OWN : BF16;
}

static int64_t kv_room(const struct model *m, const struct backend_options *o, int64_t *page)
{
    (void)o;
    *page = 1000;
    return room[kept(m)];
}

static enum settled settled(const char *wish, enum dtype type, bool device)
{
    struct weight w = {.type = (int32_t)type};
    struct layer layer = {.wq = w, .wk = w, .wv = w, .wo = w, .gate = w, .up = w, .down = w};
    struct model m = {.shape = {.layers = 1}, .layer = &layer, .embed = w, .head = w};
    struct backend_ops ops = {.kv_room = device ? kv_room : NULL, .e4m3 = e4m3};
    struct backend_options o = {.threads = 0};
    device_weights_settle(&m, wish, may_e4m3, &ops, &o, &kv);
    products = m.e4m3_products;
    return kept(&m);
}

static void set_rooms(int64_t own, int64_t bf16, int64_t both)
{
    room[OWN] = own, room[BF16] = bf16, room[BOTH] = both;
}

static void auto_keeps_formats_and_bf16_beside_them_where_that_leaves_pages(void **state)
{
    (void)state;
    kv = (struct kv_wish){.most_pages = 1000};
    set_rooms(900000, 400000, 300000); /* three quarters of bf16's */
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), BOTH);
    set_rooms(900000, 400000, 299999);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
    set_rooms(900000, 0, 0); /* of nothing, too */
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
    set_rooms(0, 0, 0);
    assert_int_equal(settled("auto", DTYPE_F16, true), BF16); /* which is not kept anyway */
}

static void auto_wants_no_more_pages_than_there_is_use_for(void **state)
{
    (void)state;
    kv = (struct kv_wish){.most_pages = 1000};
    set_rooms(9000000, 4000000, 1000000);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), BOTH);
    set_rooms(9000000, 4000000, 999999);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
}

static void auto_leaves_room_for_the_pages_that_were_asked_for(void **state)
{
    (void)state;
    kv = (struct kv_wish){.pages = 200, .most_pages = 1000};
    set_rooms(9000000, 4000000, 200000);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), BOTH);
    set_rooms(9000000, 250000, 199999); /* though three quarters of what bf16 leaves */
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
    kv = (struct kv_wish){.mib = 2, .most_pages = 1000};
    set_rooms(9000000, 2500000, 2 << 20);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), BOTH);
    set_rooms(9000000, 2500000, (2 << 20) - 1);
    assert_int_equal(settled("auto", DTYPE_Q4_K, true), OWN);
}

static void what_is_asked_for_by_name_is_what_it_says(void **state)
{
    (void)state;
    set_rooms(1 << 30, 1 << 30, 1 << 30);
    assert_int_equal(settled("own", DTYPE_Q4_K, true), OWN);
    assert_int_equal(settled("own", DTYPE_BF16, true), BF16);
    assert_int_equal(settled("both", DTYPE_BF16, true), BF16);
    set_rooms(0, 0, 0);
    assert_int_equal(settled("bf16", DTYPE_Q4_K, true), BF16);
    assert_int_equal(settled("both", DTYPE_Q4_K, true), BOTH);
}

static void f8_is_read_beside_its_copies_where_numerics_allow_it(void **state)
{
    (void)state;
    set_rooms(1 << 30, 1 << 30, 1 << 30);
    assert_int_equal(settled("both", DTYPE_F8, true), BOTH);
    assert_false(products);
    may_e4m3 = true;
    assert_int_equal(settled("auto", DTYPE_F8, true), BOTH);
    assert_true(products);
    assert_int_equal(settled("own", DTYPE_F8, true), OWN);
    assert_false(products); /* there are no copies */
    may_e4m3 = false;
}

static void a_backend_in_host_memory_keeps_nothing_elsewhere(void **state)
{
    (void)state;
    set_rooms(0, 0, 0);
    assert_int_equal(settled("own", DTYPE_Q4_K, false), BF16);
    assert_int_equal(settled("both", DTYPE_Q4_K, false), BF16);
    assert_int_equal(settled("auto", DTYPE_Q4_K, false), BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auto_keeps_formats_and_bf16_beside_them_where_that_leaves_pages),
        cmocka_unit_test(auto_wants_no_more_pages_than_there_is_use_for),
        cmocka_unit_test(auto_leaves_room_for_the_pages_that_were_asked_for),
        cmocka_unit_test(what_is_asked_for_by_name_is_what_it_says),
        cmocka_unit_test(f8_is_read_beside_its_copies_where_numerics_allow_it),
        cmocka_unit_test(a_backend_in_host_memory_keeps_nothing_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
