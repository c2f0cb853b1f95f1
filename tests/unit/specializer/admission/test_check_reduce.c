/* SPDX-License-Identifier: Apache-2.0 */
/* test_check_reduce.c - the teams that kernels of reduce are tried with. The kernels themselves,
 * good and bad ones, are in tests/kernels. */
#include "tests/unit/unit.h"

#include "specializer/admission/check_reduce.c"

/* What is to serve with a team is tried with it, however large, and with small ones beside. */
static void ranks_are_tried_with_the_team_that_serves(void **state)
{
    (void)state;
    const int32_t threads[] = {1, 2, 8, 9, 64, RUNNER_TEAM_MAX};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        const struct check_request q = {.threads = threads[i]};
        struct party p = {.q = &q};
        struct rank first = {.number = 0}, second = {.number = 1};
        bool real = false, one = false, three = false, differ = false;
        for (p.round = 0; p.round < ROUNDS; p.round++) {
            int32_t a = team_of(&p, &first), b = team_of(&p, &second);
            assert_true(a >= 1 && a <= team_most(&p)); /* the runner has threads for it */
            real |= a == threads[i];
            one |= a == 1;
            three |= a == 3;
            differ |= a != b;
        }
        assert_true(real && one && three && differ);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_are_tried_with_the_team_that_serves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
