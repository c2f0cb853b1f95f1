/* SPDX-License-Identifier: Apache-2.0 */
/* test_kvcache.c - pages: holders, sharing of prefixes, what is forgotten first. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "engine/kvcache.h"

enum { OWNER = 7 };

/* n tokens that count up from `first`. */
static void fill(int32_t *tokens, int32_t n, int32_t first)
{
    for (int32_t i = 0; i < n; i++)
        tokens[i] = first + i;
}

/* Takes and seals pages for `n` pages of tokens, as a sequence would. */
static void compute(struct kvcache *kv, const int32_t *tokens, int32_t n, int32_t *page)
{
    for (int32_t i = 0; i < n; i++) {
        page[i] = kvcache_take(kv);
        assert_true(page[i] >= 0);
        page[i] = kvcache_seal(kv, OWNER, page[i], i ? page[i - 1] : -1, tokens + i * KV_PAGE);
    }
}

static void drop_all(struct kvcache *kv, const int32_t *page, int32_t n)
{
    while (n > 0)
        kvcache_drop(kv, page[--n]);
}

static void kvcache_hands_out_every_page_once(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(5);
    bool seen[5] = {false};
    for (int i = 0; i < 5; i++) {
        int32_t page = kvcache_take(kv);
        assert_in_range(page, 0, 4);
        assert_false(seen[page]);
        seen[page] = true;
        assert_true(kvcache_writable(kv, page));
        assert_int_equal(kvcache_used(kv), i + 1);
    }
    assert_int_equal(kvcache_take(kv), -1);
    kvcache_drop(kv, 3);
    assert_int_equal(kvcache_available(kv), 1);
    assert_int_equal(kvcache_take(kv), 3);
    for (int i = 0; i < 5; i++)
        kvcache_drop(kv, i);
    assert_int_equal(kvcache_available(kv), 5);
    kvcache_close(kv);
}

static void kvcache_shares_pages_of_a_common_prefix(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(8);
    int32_t tokens[4 * KV_PAGE], a[4], b[4];
    fill(tokens, 4 * KV_PAGE, 100);
    compute(kv, tokens, 3, a);
    tokens[2 * KV_PAGE + 5] = 7; /* the third page differs */
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 4, b), 2);
    assert_memory_equal(a, b, 2 * sizeof *a);
    assert_int_equal(kvcache_used(kv), 3);
    assert_false(kvcache_writable(kv, a[0]));
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 1, b + 2), 1); /* no more than asked for */
    kvcache_drop(kv, b[2]);
    drop_all(kv, a, 3);
    assert_int_equal(kvcache_used(kv), 2); /* b still holds its two */
    drop_all(kv, b, 2);
    assert_int_equal(kvcache_used(kv), 0);
    kvcache_close(kv);
}

static void kvcache_tells_equal_pages_after_different_beginnings_apart(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(8);
    int32_t one[2 * KV_PAGE], two[2 * KV_PAGE], a[2], b[2];
    fill(one, KV_PAGE, 1);
    fill(two, KV_PAGE, 2);
    fill(one + KV_PAGE, KV_PAGE, 50);
    fill(two + KV_PAGE, KV_PAGE, 50);
    compute(kv, one, 2, a);
    assert_int_equal(kvcache_match(kv, OWNER, two, 2, b), 0);
    assert_int_equal(kvcache_match(kv, OWNER, one + KV_PAGE, 1, b), 0); /* nor is it a beginning */
    compute(kv, two, 2, b);
    assert_int_not_equal(a[1], b[1]);
    int32_t found[2];
    assert_int_equal(kvcache_match(kv, OWNER, two, 2, found), 2);
    assert_memory_equal(found, b, sizeof b);
    kvcache_close(kv);
}

static void kvcache_keeps_one_copy_of_what_two_computed(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(4);
    int32_t tokens[KV_PAGE];
    fill(tokens, KV_PAGE, 9);
    int32_t a = kvcache_take(kv), b = kvcache_take(kv);
    assert_int_equal(kvcache_seal(kv, OWNER, a, -1, tokens), a);
    assert_int_equal(kvcache_seal(kv, OWNER, b, -1, tokens), a);
    assert_int_equal(kvcache_used(kv), 1);
    kvcache_drop(kv, a);
    assert_int_equal(kvcache_used(kv), 1); /* the second holder */
    kvcache_drop(kv, a);
    assert_int_equal(kvcache_used(kv), 0);
    kvcache_close(kv);
}

static void kvcache_forgets_the_longest_unused_prefix_from_its_end(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(4);
    int32_t old[2 * KV_PAGE], new[2 * KV_PAGE], a[2], b[2], found[2];
    fill(old, 2 * KV_PAGE, 1);
    fill(new, 2 * KV_PAGE, 1000);
    compute(kv, old, 2, a);
    compute(kv, new, 2, b);
    drop_all(kv, a, 2);
    drop_all(kv, b, 2);
    assert_int_equal(kvcache_take(kv), a[1]); /* the end of the older one */
    assert_int_equal(kvcache_match(kv, OWNER, old, 2, found), 1);
    kvcache_drop(kv, found[0]); /* used again: now younger than all of `new` */
    assert_int_equal(kvcache_take(kv), b[1]);
    assert_int_equal(kvcache_take(kv), b[0]);
    assert_int_equal(kvcache_match(kv, OWNER, new, 2, found), 0);
    assert_int_equal(kvcache_match(kv, OWNER, old, 2, found), 1);
    assert_int_equal(kvcache_take(kv), -1); /* what is held is never forgotten */
    kvcache_close(kv);
}

static void kvcache_does_not_seal_after_an_unsealed_page(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(4);
    int32_t tokens[2 * KV_PAGE], found[2];
    fill(tokens, 2 * KV_PAGE, 3);
    int32_t a = kvcache_take(kv), b = kvcache_take(kv);
    assert_int_equal(kvcache_seal(kv, OWNER, b, a, tokens + KV_PAGE), b);
    assert_true(kvcache_writable(kv, b));
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 2, found), 0);
    kvcache_close(kv);
}

/* Whose prompt it was must not show: the same tokens are found for their owner alone, kept once for
 * each, and never follow another's page. */
static void kvcache_finds_nothing_of_another_owner(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(8);
    int32_t tokens[2 * KV_PAGE], a[2], b[2], found[2];
    fill(tokens, 2 * KV_PAGE, 100);
    compute(kv, tokens, 2, a);
    assert_int_equal(kvcache_match(kv, OWNER + 1, tokens, 2, found), 0);
    for (int32_t i = 0; i < 2; i++) {
        b[i] = kvcache_take(kv);
        assert_int_equal(kvcache_seal(kv, OWNER + 1, b[i], i ? a[0] : -1, tokens + i * KV_PAGE),
                         b[i]);
    }
    assert_int_equal(kvcache_used(kv), 4);
    assert_int_equal(kvcache_match(kv, OWNER + 1, tokens, 2, found), 1); /* not after a[0] */
    assert_int_equal(found[0], b[0]);
    kvcache_drop(kv, found[0]);
    drop_all(kv, a, 2); /* cached pages are as separate as held ones */
    drop_all(kv, b, 2);
    assert_int_equal(kvcache_match(kv, OWNER + 2, tokens, 2, found), 0);
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 2, found), 2);
    assert_memory_equal(found, a, sizeof a);
    kvcache_close(kv);
}

/* Random sequences over few distinct pages, against an array that knows what each page holds. */
enum { PAGES = 24, HOLDERS = 10, LONGEST = 6 };

struct holder {
    int32_t tokens[LONGEST * KV_PAGE], page[LONGEST], n;
};

static void kvcache_loses_no_page_and_mixes_up_no_prefix(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(PAGES);
    static struct holder h[HOLDERS];
    static int32_t truth[PAGES][LONGEST * KV_PAGE]; /* all tokens up to the end of the page */
    srand(11);
    for (int round = 0; round < 20000; round++) {
        struct holder *me = &h[rand() % HOLDERS];
        drop_all(kv, me->page, me->n);
        me->n = 0;
        for (int32_t p = 0; p < LONGEST; p++)
            fill(me->tokens + p * KV_PAGE, KV_PAGE, rand() % 2);
        int32_t want = 1 + rand() % LONGEST;
        me->n = kvcache_match(kv, OWNER, me->tokens, want, me->page);
        for (int32_t p = 0; p < me->n; p++)
            assert_memory_equal(truth[me->page[p]], me->tokens, (size_t)(p + 1) * KV_PAGE * 4);
        for (int32_t page; me->n < want && (page = kvcache_take(kv)) >= 0; me->n++) {
            assert_true(kvcache_writable(kv, page));
            memcpy(truth[page], me->tokens, sizeof me->tokens);
            me->page[me->n] = kvcache_seal(kv, OWNER, page, me->n ? me->page[me->n - 1] : -1,
                                           me->tokens + me->n * KV_PAGE);
        }
        bool held[PAGES] = {false};
        int32_t used = 0;
        for (int i = 0; i < HOLDERS; i++)
            for (int32_t p = 0; p < h[i].n; p++)
                if (!held[h[i].page[p]])
                    held[h[i].page[p]] = ++used;
        assert_int_equal(kvcache_used(kv), used);
        assert_int_equal(kvcache_available(kv), PAGES - used);
    }
    kvcache_close(kv);
}

static void kvcache_forgets_what_is_in_doubt(void **state)
{
    (void)state;
    struct kvcache *kv = kvcache_open(8);
    int32_t tokens[4 * KV_PAGE], held[2], cached[2], found[4];
    fill(tokens, 4 * KV_PAGE, 100);
    compute(kv, tokens, 2, held);
    compute(kv, tokens + 2 * KV_PAGE, 2, cached);
    drop_all(kv, cached, 2);
    assert_int_equal(kvcache_forget(kv), 4);
    assert_int_equal(kvcache_used(kv), 2);
    assert_int_equal(kvcache_available(kv), 6);
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 2, found), 0);
    assert_int_equal(kvcache_match(kv, OWNER, tokens + 2 * KV_PAGE, 2, found), 0);
    int32_t behind = kvcache_take(kv); /* nobody finds what is behind a doubtful page either */
    assert_int_equal(kvcache_seal(kv, OWNER, behind, held[1], tokens), behind);
    assert_true(kvcache_writable(kv, behind));
    assert_int_equal(kvcache_forget(kv), 0);
    kvcache_drop(kv, behind);
    drop_all(kv, held, 2);
    assert_int_equal(kvcache_available(kv), 8);
    compute(kv, tokens, 4, found); /* as good as new */
    drop_all(kv, found, 4);
    assert_int_equal(kvcache_match(kv, OWNER, tokens, 4, found), 4);
    drop_all(kv, found, 4);
    kvcache_close(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kvcache_hands_out_every_page_once),
        cmocka_unit_test(kvcache_shares_pages_of_a_common_prefix),
        cmocka_unit_test(kvcache_tells_equal_pages_after_different_beginnings_apart),
        cmocka_unit_test(kvcache_keeps_one_copy_of_what_two_computed),
        cmocka_unit_test(kvcache_forgets_the_longest_unused_prefix_from_its_end),
        cmocka_unit_test(kvcache_finds_nothing_of_another_owner),
        cmocka_unit_test(kvcache_does_not_seal_after_an_unsealed_page),
        cmocka_unit_test(kvcache_loses_no_page_and_mixes_up_no_prefix),
        cmocka_unit_test(kvcache_forgets_what_is_in_doubt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
