/* SPDX-License-Identifier: Apache-2.0 */
/* test_lookup.c - guesses against a search that looks at every place. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/lookup.h"
#include "engine/sampler.h"

enum { ROOM = 64 };

static void what_followed_the_longest_match_is_guessed(void **state)
{
    (void)state;
    int32_t t[16 + ROOM] = {1, 2, 3, 4, 9, 2, 3, 5, 8, 7, 1, 2, 3}, match;
    struct lookup *l = lookup_open(NULL, 0);
    assert_int_equal(lookup_guess(l, t, 13, 0, 3, &match), 3);
    assert_int_equal(match, 3);
    assert_int_equal(t[13], 4);
    assert_int_equal(t[14], 9);
    assert_int_equal(t[15], 2);
    t[13] = 6; /* it went on otherwise: 3, 6 was never seen */
    assert_int_equal(lookup_guess(l, t, 14, 0, 3, &match), 0);
    assert_int_equal(match, 0);
    lookup_close(l);
}

static void a_guess_may_reach_into_itself(void **state)
{
    (void)state;
    int32_t t[8 + ROOM] = {5, 1, 2, 1, 2}, match;
    struct lookup *l = lookup_open(NULL, 0);
    assert_int_equal(lookup_guess(l, t, 5, 0, 7, &match), 7);
    for (int i = 0; i < 7; i++)
        assert_int_equal(t[5 + i], 1 + i % 2);
    lookup_close(l);
}

static void a_prediction_comes_first_and_is_found_again(void **state)
{
    (void)state;
    const int32_t predicted[] = {10, 11, 12, 13, 14, 15, 16};
    int32_t t[16 + ROOM] = {1, 2, 3}, match;
    struct lookup *l = lookup_open(predicted, 7);
    assert_int_equal(lookup_guess(l, t, 3, 3, 4, &match), 4);
    assert_memory_equal(t + 3, predicted, 4 * sizeof *t);
    t[3] = 10; /* as predicted: one token is enough to go on */
    assert_int_equal(lookup_guess(l, t, 4, 3, 4, &match), 4);
    assert_memory_equal(t + 4, predicted + 1, 4 * sizeof *t);
    /* The answer leaves it and comes back. */
    memcpy(t + 3, (int32_t[]){10, 99, 98, 13, 14}, 5 * sizeof *t);
    assert_int_equal(lookup_guess(l, t, 8, 3, 4, &match), 2);
    assert_int_equal(match, 2);
    assert_int_equal(t[8], 15);
    assert_int_equal(t[9], 16);
    /* At its end nothing follows, and the prompt's first token is not what follows it. */
    memcpy(t + 8, (int32_t[]){15, 16}, 2 * sizeof *t);
    assert_int_equal(lookup_guess(l, t, 10, 3, 4, &match), 0);
    lookup_close(l);
}

/* The longest that any earlier place of the two texts has in common with the end. */
static int32_t longest(const int32_t *predicted, int32_t predicted_n, const int32_t *t, int32_t n)
{
    int32_t most = 0;
    for (int32_t from = 0; from < 2; from++) {
        const int32_t *text = from ? t : predicted;
        int32_t places = from ? n - 1 : predicted_n - 1;
        for (int32_t p = 0; p < places; p++) {
            int32_t same = 0;
            while (same <= p && same < n && same < LOOKUP_MATCH &&
                   text[p - same] == t[n - 1 - same])
                same++;
            most = same > most ? same : most;
        }
    }
    return most;
}

/* Texts over few ids, so that chains are long; with more ids all places are looked at. */
static void guesses_are_those_of_a_full_search(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 200; seed++) {
        int32_t ids = seed % 2 ? 40 : 200, t[700 + ROOM], predicted[100], match;
        int32_t predicted_n = seed % 3 ? 0 : 100;
        uint32_t w[4];
        for (int32_t i = 0; i < 800; i++) {
            philox(seed, (uint64_t)i, 0, w);
            int32_t *to = i < 700 ? &t[i] : &predicted[i - 700];
            *to = (int32_t)(w[0] % (uint32_t)ids);
            if (i > 50 && i < 700 && w[1] % 4) /* mostly a copy */
                *to = t[i - 1 - (int32_t)(seed % 41)];
        }
        struct lookup *l = lookup_open(predicted, predicted_n);
        for (int32_t n = 2; n < 700; n += 1 + (int32_t)(seed % 5)) {
            int32_t next[ROOM];
            memcpy(next, t + n, sizeof next);
            int32_t made = lookup_guess(l, t, n, 0, 5, &match);
            int32_t most = longest(predicted, predicted_n, t, n);
            assert_true(made == 0 ? most < LOOKUP_LEAST : match <= most && match >= LOOKUP_LEAST);
            if (ids == 200)
                assert_int_equal(made == 0 ? 0 : match, most < LOOKUP_LEAST ? 0 : most);
            memcpy(t + n, next, sizeof next);
        }
        lookup_close(l);
    }
}

/* One pair for ever: the search is bounded, and memory is linear. */
static void a_text_of_one_token_is_no_work(void **state)
{
    (void)state;
    enum { LONG = 200000 };
    int32_t *t = calloc(LONG + ROOM, sizeof *t), match;
    struct lookup *l = lookup_open(NULL, 0);
    for (int32_t n = 3; n < LONG; n++) /* quadratic would be 10^10 */
        assert_int_equal(lookup_guess(l, t, n, 0, 15, &match), 15);
    assert_true(lookup_bytes(l) < 32L * LONG);
    lookup_close(l);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_longest_match_is_guessed),
        cmocka_unit_test(a_guess_may_reach_into_itself),
        cmocka_unit_test(a_prediction_comes_first_and_is_found_again),
        cmocka_unit_test(guesses_are_those_of_a_full_search),
        cmocka_unit_test(a_text_of_one_token_is_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
