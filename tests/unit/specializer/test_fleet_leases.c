/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/fleet_leases.c: which slots a server asks to search. With a real PostgreSQL:
 * tests/e2e/test_fleet.py. */
#include "tests/unit/unit.h"

#include "specializer/fleet_leases.c"

static void a_server_wishes_for_the_worthiest_slots(void **unused)
{
    (void)unused;
    struct wish best[SLOTS_MOST];
    int n = 0;
    n = add(best, n, (struct wish){"little", 0.1});
    n = add(best, n, (struct wish){"most", 0.3});
    n = add(best, n, (struct wish){"more", 0.2});
    assert_int_equal(n, 3);
    assert_string_equal(best[0].slot, "most");
    assert_string_equal(best[1].slot, "more");
    assert_string_equal(best[2].slot, "little");
    while (n < SLOTS_MOST)
        n = add(best, n, (struct wish){"others", 0.15});
    assert_int_equal(add(best, n, (struct wish){"too little", 0.01}), SLOTS_MOST);
    assert_string_equal(best[SLOTS_MOST - 1].slot, "little");
    assert_int_equal(add(best, n, (struct wish){"enough", 0.12}), SLOTS_MOST);
    assert_string_equal(best[SLOTS_MOST - 1].slot, "enough");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_wishes_for_the_worthiest_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
