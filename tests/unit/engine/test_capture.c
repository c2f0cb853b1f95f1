/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/capture.c: pages of a capture when there is not room for all. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/capture.h"

enum { SPANS = 3, EACH = 8, MOST = 10 };

/* Sequences of EACH pages of their own; the last one's newest tokens lie in two pages. */
static struct capture crowd(void)
{
    struct capture c = {.spans = SPANS, .pages = SPANS * EACH};
    c.span = calloc(SPANS, sizeof *c.span);
    c.page_table = calloc(SPANS * EACH, sizeof *c.page_table);
    for (int32_t i = 0; i < SPANS; i++)
        c.span[i] = (struct span){i, i == SPANS - 1 ? 3 : 1, EACH * KV_PAGE - 14, i * EACH};
    for (int32_t i = 0; i < SPANS * EACH; i++)
        c.page_table[i] = (i * 7) % (SPANS * EACH);
    return c;
}

static void pages_that_the_step_writes_are_nobody_elses(void **state)
{
    (void)state;
    struct capture c = crowd();
    int32_t old[SPANS * EACH], users[MOST] = {0};
    memcpy(old, c.page_table, sizeof old);
    int32_t *place = capture_fold(&c, MOST);
    assert_int_equal(c.pages, MOST);
    for (int32_t i = 0; i < SPANS * EACH; i++) {
        assert_int_equal(c.page_table[i], place[old[i]]);
        assert_in_range(c.page_table[i], 0, MOST - 1);
        users[c.page_table[i]]++;
    }
    for (int32_t i = 0; i < SPANS; i++)
        assert_int_equal(users[c.page_table[(i + 1) * EACH - 1]], 1);
    assert_int_equal(users[c.page_table[SPANS * EACH - 2]], 1);
    free(place);
    capture_free(&c);
}

static void with_room_for_all_no_page_is_shared(void **state)
{
    (void)state;
    struct capture c = crowd();
    bool taken[SPANS * EACH] = {false};
    int32_t *place = capture_fold(&c, 1000);
    assert_int_equal(c.pages, SPANS * EACH);
    for (int32_t i = 0; i < SPANS * EACH; i++) {
        assert_in_range(c.page_table[i], 0, SPANS * EACH - 1);
        assert_false(taken[c.page_table[i]]);
        taken[c.page_table[i]] = true;
    }
    free(place);
    capture_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_the_step_writes_are_nobody_elses),
        cmocka_unit_test(with_room_for_all_no_page_is_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
