/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_words.c - what a server has to tell its fleet is there until it was told, whatever
 * ends the server, and in the file that is there after it. */
#include "tests/unit/specializer/store_world.h"

#include "specializer/store/store_words.h"

static struct err err;

static const char mine[] = "1111111111111111", other[] = "2222222222222222";

static struct store_word word_of(int key, const char *server)
{
    struct store_word w = {.verdict = false};
    snprintf(w.env, sizeof w.env, "eeeeeeeeeeeeeeee");
    snprintf(w.key, sizeof w.key, "%016x", key);
    snprintf(w.slot, sizeof w.slot, "mlp_out/m1");
    snprintf(w.words, sizeof w.words, "wrong by %d", key);
    snprintf(w.server, sizeof w.server, "%s", server);
    snprintf(w.name, sizeof w.name, "host:8080");
    return w;
}

static void keep(struct store *s, int key, const char *server)
{
    struct store_word w = word_of(key, server);
    assert_int_equal(store_word_keep(s, &w, &err), 0);
}

struct list {
    struct store_word word[8];
    int n;
};

static void append(void *ctx, const struct store_word *w)
{
    struct list *l = ctx;
    if (l->n < 8)
        l->word[l->n] = *w;
    l->n++;
}

/* Those of this server, and of others that have waited for a minute. */
static struct list list_of(struct store *s, bool told)
{
    struct list l = {.n = 0};
    assert_int_equal(store_words(s, told, mine, 60, 0, 9999, append, &l, &err), 0);
    return l;
}

static void word_is_there_after_the_process(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    bool taken;
    struct store *s = store_open_alone(path, &taken, &err);
    assert_non_null(s);
    keep(s, 7, mine);
    store_close(s);

    s = store_open_alone(path, &taken, &err);
    assert_non_null(s);
    struct list l = list_of(s, false);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.word[0].key, "0000000000000007");
    assert_string_equal(l.word[0].env, "eeeeeeeeeeeeeeee");
    assert_string_equal(l.word[0].slot, "mlp_out/m1");
    assert_string_equal(l.word[0].words, "wrong by 7");
    assert_string_equal(l.word[0].server, mine);
    assert_string_equal(l.word[0].name, "host:8080");
    assert_int_equal(store_words_untold(s), 1);

    assert_int_equal(store_word_told(s, l.word[0].id, &err), 0);
    assert_int_equal(list_of(s, false).n, 0);
    assert_int_equal(list_of(s, true).n, 1); /* to tell it to a database that has lost it */
    assert_int_equal(store_words_untold(s), 0);
    keep(s, 7, mine); /* found wrong once more: it is to be told once more */
    assert_int_equal(list_of(s, false).n, 1);
    assert_int_equal(list_of(s, true).n, 0);

    assert_int_equal(store_words_allow(s, "0000000000000007", &err), 0);
    assert_int_equal(list_of(s, false).n, 0);
    store_close(s);
}

static void retraction_and_verdict_on_a_kernel_are_two_words(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    struct store_word v = word_of(1, mine);
    v.verdict = v.upheld = true;
    keep(s, 1, mine);
    assert_int_equal(store_word_keep(s, &v, &err), 0);
    struct list l = list_of(s, false);
    assert_int_equal(l.n, 2);
    assert_true(!l.word[0].verdict && l.word[1].verdict && l.word[1].upheld);
    assert_int_equal(store_word_forget(s, l.word[0].id, &err), 0);
    assert_int_equal(list_of(s, false).n, 1);
    store_close(s);
}

/* The other server may be gone; if it is not, it tells what it found itself. */
static void words_of_others_wait_a_minute_for_their_server(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    keep(s, 1, other);
    assert_int_equal(list_of(s, false).n, 0);
    assert_int_equal(store_run(s, &err, "UPDATE fleet_word SET at=at-61", ""), 0);
    struct list l = list_of(s, false);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.word[0].server, other);
    store_close(s);
}

static void of_too_many_those_go_that_were_told(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    struct store_word v = word_of(5, mine);
    keep(s, 1, mine);
    keep(s, 2, mine);
    assert_int_equal(store_word_told(s, list_of(s, false).word[1].id, &err), 0);
    v.verdict = true;
    assert_int_equal(store_word_keep(s, &v, &err), 0);
    for (int i = 0; i < STORE_WORDS_MOST - 3; i++)
        keep(s, 100 + i, mine);
    assert_int_equal(list_of(s, true).n, 1);
    keep(s, 5000, mine);
    assert_int_equal(list_of(s, true).n, 0);
    assert_int_equal(list_of(s, false).n, STORE_WORDS_MOST);
    assert_true(list_of(s, false).word[1].verdict);
    keep(s, 5001, mine);
    assert_int_equal(list_of(s, false).n, STORE_WORDS_MOST);
    assert_string_equal(list_of(s, false).word[0].key, "0000000000000001"); /* oldest, no verdict */
    assert_false(list_of(s, false).word[1].verdict);
    keep(s, 5002, mine);
    assert_string_equal(list_of(s, false).word[0].key, "0000000000000064");
    store_close(s);
}

static void told_words_go_after_a_month(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    keep(s, 1, mine);
    keep(s, 2, mine);
    struct list l = list_of(s, false);
    assert_int_equal(store_word_told(s, l.word[0].id, &err), 0);
    assert_int_equal(store_word_told(s, l.word[1].id, &err), 0);
    assert_int_equal(store_run(s, &err, "UPDATE fleet_word SET told=told-86400*31 WHERE id=?", "i",
                               l.word[0].id),
                     0);
    keep(s, 3, mine);
    l = list_of(s, true);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.word[0].key, "0000000000000002");
    store_close(s);
}

/* A copy goes with its process; a retraction must not. */
static void words_of_a_copy_are_in_what_it_was_copied_from(void **unused)
{
    (void)unused;
    char path[120];
    snprintf(path, sizeof path, "%s", fresh_path());
    bool taken;
    struct store *s = store_open_alone(path, &taken, &err);
    assert_non_null(s);
    struct store *copy = store_open_copy(path, &err);
    assert_non_null(copy);
    assert_string_not_equal(store_path(copy), path);
    keep(copy, 9, mine);
    assert_int_equal(store_words_untold(copy), 1);
    store_close(copy);
    struct list l = list_of(s, false);
    assert_int_equal(l.n, 1);
    assert_string_equal(l.word[0].key, "0000000000000009");
    store_close(s);
}

/* A file of the program before gets the table and stays one that the program before reads. */
static void file_of_the_program_before_is_brought_up(void **unused)
{
    (void)unused;
    char path[120];
    snprintf(path, sizeof path, "%s", fresh_path());
    struct store *s = store_open(path, &err);
    assert_int_equal(store_set(s, "mode", "pause", &err), 0);
    assert_int_equal(store_run(s, &err, "DROP TABLE fleet_word", ""), 0);
    store_close(s);
    s = store_open_read(path, &err);
    assert_non_null(s);
    assert_int_equal(list_of(s, false).n, 0);
    store_close(s);
    s = store_open(path, &err);
    char value[8] = "";
    assert_true(store_value(s, "mode", value, sizeof value));
    assert_string_equal(value, "pause");
    keep(s, 1, mine);
    sqlite3_stmt *q = store_query(s, &err, "PRAGMA user_version", "");
    assert_non_null(q);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(q, 0), 2); /* the version that the program before knows */
    sqlite3_finalize(q);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(word_is_there_after_the_process),
        cmocka_unit_test(retraction_and_verdict_on_a_kernel_are_two_words),
        cmocka_unit_test(words_of_others_wait_a_minute_for_their_server),
        cmocka_unit_test(of_too_many_those_go_that_were_told),
        cmocka_unit_test(told_words_go_after_a_month),
        cmocka_unit_test(words_of_a_copy_are_in_what_it_was_copied_from),
        cmocka_unit_test(file_of_the_program_before_is_brought_up),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
