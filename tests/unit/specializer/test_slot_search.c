/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/slot_search.c: with which points a search begins. */
#include "tests/unit/unit.h"

#include "specializer/slot_search.c"
#include "tests/unit/specializer/shapes.h"

static void starts_of_families_come_one_a_round(void **state)
{
    (void)state;
    struct facts f = {
        .REGION = REGION_ATTN_OUT, .M_MAX = 1, .SMS = 132, .HAS_CLUSTERS = 1, LLAMA_SHAPE};
    struct slot_search p = {.space = space_open(&f, REGION_ATTN_OUT, 1, NUMERICS_TOLERANCE)};
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

/* It came second to a kernel that is gone; but what whole steps said of it here still holds. */
static void a_runner_up_does_not_come_back_beside_those_it_lost_with(void **state)
{
    (void)state;
    struct facts f = {
        .REGION = REGION_ATTN_OUT, .M_MAX = 1, .SMS = 132, .HAS_CLUSTERS = 1, LLAMA_SHAPE};
    struct kernel eager = {.id = "eager"},
                  fast = {.id = "0123456789abcdef", .origin = ORIGIN_TEMPLATE};
    struct slot own = {.name = "attn_out/m1", .region = REGION_ATTN_OUT, .kernel = &eager},
                other = {.name = "mlp_in/m1", .region = REGION_MLP_IN, .kernel = &eager};
    struct slot_search slot_search[2] = {
        {.slot = &own, .space = space_open(&f, REGION_ATTN_OUT, 1, NUMERICS_TOLERANCE)},
        {.slot = &other}};
    struct specializer s = {.slot_search = slot_search, .slot_searches = 2};
    struct slot_search *p = &slot_search[0];
    struct firsts g = {.s = &s, .p = p, .speed_to_beat = 1.02};
    struct point point;
    search_open(&p->search, p->space);
    search_learn(&p->search, 0, 1.5);
    space_point(p->space, 0, &point);
    struct record r = {.state = LIFE_SHADOWED, .evidence = {.speed = 1.5, .lost = {.n = 1}}};
    snprintf(r.template, sizeof r.template, "%s", space_template(p->space, 0)->id);
    point_text(space_template(p->space, 0), &point, r.knobs, sizeof r.knobs);
    comeback_row(&g, &r);
    assert_int_equal(g.n, 0);
    atomic_store(&other.kernel, &fast);
    comeback_row(&g, &r);
    assert_int_equal(g.n, 1);
    assert_int_equal(g.found[0].id, 0);
    search_close(&p->search);
    space_close(p->space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_of_families_come_one_a_round),
        cmocka_unit_test(a_runner_up_does_not_come_back_beside_those_it_lost_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
