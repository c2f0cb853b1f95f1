/* Tests of specializer/place.c: with which points a search begins. */
#include "tests/unit/unit.h"

#include "specializer/place.c"
#include "tests/unit/specializer/shapes.h"

static void starts_of_families_come_one_a_round(void **state)
{
    (void)state;
    struct facts f = {.REGION = REGION_ATTN_OUT, .M_MAX = 1, .SMS = 132, LLAMA_SHAPE};
    struct place p = {.space = space_open(&f, REGION_ATTN_OUT, 1, NUMERICS_TOLERANCE)};
    static const char *const family[] = {"gemv", "ring"};
    search_open(&p.search, p.space);
    for (int round = 0; round < 2; round++) {
        struct firsts g = {.p = &p};
        add_starts(&g);
        assert_int_equal(g.n, 1);
        assert_string_equal(space_template(p.space, g.found[0].id)->file, family[round]);
        search_learn(&p.search, g.found[0].id, 1.5);
    }
    struct firsts g = {.p = &p};
    add_starts(&g);
    assert_int_equal(g.n, 0);
    search_close(&p.search);
    space_close(p.space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_of_families_come_one_a_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
