/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/pack.c: where repacked weights go, and when. */
#include "tests/unit/unit.h"

#include "engine/cuda/pack.c"

static void packs_fill_the_gaps_of_the_arena(void **state)
{
    (void)state;
    struct backend b = {0};
    struct pack second = {.at = 300, .bytes = 100},
                first = {.next = &second, .at = 0, .bytes = 100};
    b.packs.bytes = 1000;
    assert_int_equal(find_room(&b, 1000), 0);
    b.packs_list = &first;
    assert_int_equal(find_room(&b, 200), 100);
    assert_int_equal(find_room(&b, 201), 400);
    assert_int_equal(find_room(&b, 600), 400);
    assert_int_equal(find_room(&b, 601), -1);
}

static void a_pack_goes_with_its_last_user(void **state)
{
    (void)state;
    struct backend b = {0};
    struct pack *p = xcalloc(1, sizeof *p);
    p->users = 2;
    b.packs_list = p;
    pack_drop(&b, p);
    assert_ptr_equal(b.packs_list, p);
    pack_drop(&b, p);
    assert_null(b.packs_list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packs_fill_the_gaps_of_the_arena),
        cmocka_unit_test(a_pack_goes_with_its_last_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
