/* SPDX-License-Identifier: Apache-2.0 */
/* test_reference.c - answers that are kept: the same as computed ones, or not believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "specializer/admission/reference.h"
#include "specializer/admission/reference_cache.h"

static char dir[40];

static int folder_open(void **state)
{
    (void)state;
    struct err err;
    strcpy(dir, "/tmp/whet-kept-XXXXXX");
    return mkdtemp(dir) ? reference_cache_clear(dir, &err) : -1;
}

static int folder_close(void **state)
{
    (void)state;
    reference_cache_shrink(dir, -1);
    return rmdir(dir); /* fails if a temporary file was left behind */
}

/* Calls `f` for the path of everything in the folder; how many those are. */
static int each(void (*f)(const char *path))
{
    int n = 0;
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d)) != NULL) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.')
            continue;
        if (f)
            f(path);
        n++;
    }
    closedir(d);
    return n;
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    fclose(f);
}

/* ---- reference_cache.c
 * --------------------------------------------------------------------------------- */

static void only_file(char *path, size_t n)
{
    struct dirent *e;
    DIR *d = opendir(dir);
    while ((e = readdir(d)) != NULL && e->d_name[0] == '.')
        ;
    assert_non_null(e);
    snprintf(path, n, "%s/%s", dir, e->d_name);
    closedir(d);
}

static void what_was_kept_is_read_back_under_its_key_alone(void **state)
{
    (void)state;
    size_t n = 0;
    reference_cache_write(dir, 7, "seven bytes", 11);
    reference_cache_write(dir, 8, "", 0);
    char *data = reference_cache_read(dir, 7, &n);
    assert_int_equal(n, 11);
    assert_memory_equal(data, "seven bytes", 11);
    free(data);
    data = reference_cache_read(dir, 8, &n);
    assert_non_null(data);
    assert_int_equal(n, 0);
    free(data);
    assert_null(reference_cache_read(dir, 9, &n));
    assert_null(reference_cache_read(NULL, 7, &n));
    reference_cache_write(NULL, 7, "", 0);
}

static void damage_anywhere_is_noticed(void **state)
{
    (void)state;
    char path[400], other[400];
    size_t n;
    reference_cache_write(dir, 7, "eleven more", 11);
    only_file(path, sizeof path);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    for (long at = 0; at < st.st_size; at++) {
        flip(path, at);
        assert_null(reference_cache_read(dir, 7, &n));
        flip(path, at);
    }
    free(reference_cache_read(dir, 7, &n));
    assert_int_equal(n, 11);
    /* one file under another's name */
    reference_cache_write(dir, 8, "eleven less", 11);
    snprintf(other, sizeof other, "%s/%016x.ref", dir, 8);
    assert_int_equal(rename(path, other), 0);
    assert_null(reference_cache_read(dir, 8, &n));
    reference_cache_write(dir, 7, "eleven more", 11);
    for (off_t cut = 1; cut < st.st_size; cut += 3) {
        assert_int_equal(truncate(path, st.st_size - cut), 0);
        assert_null(reference_cache_read(dir, 7, &n));
    }
}

static void folder_that_takes_nothing_keeps_nothing(void **state)
{
    (void)state;
    struct err err;
    size_t n;
    reference_cache_write("/proc/self", 7, "x", 1); /* not even by root */
    assert_null(reference_cache_read("/proc/self", 7, &n));
    assert_int_equal(reference_cache_clear("/proc/self/kept", &err), -1);
    assert_non_null(strstr(err.msg, "/proc/self/kept"));
}

static void what_was_not_used_for_longest_goes_first(void **state)
{
    (void)state;
    static char data[1000];
    size_t n;
    for (uint64_t key = 1; key <= 4; key++) {
        char path[400];
        reference_cache_write(dir, key, data, sizeof data);
        snprintf(path, sizeof path, "%s/%016x.ref", dir, (unsigned)key);
        struct timeval when[2] = {{1000 + (time_t)key, 0}, {1000 + (time_t)key, 0}};
        assert_int_equal(utimes(path, when), 0);
    }
    free(reference_cache_read(dir, 1, &n)); /* the oldest, and just used */
    reference_cache_shrink(dir, 2500);
    assert_int_equal(each(NULL), 2);
    for (uint64_t key = 1; key <= 4; key++) {
        void *found = reference_cache_read(dir, key, &n);
        assert_int_equal(found != NULL, key == 1 || key == 4);
        free(found);
    }
    struct err err;
    assert_int_equal(reference_cache_clear(dir, &err), 0);
    assert_int_equal(each(NULL), 0);
}

/* ---- reference.c ---------------------------------------------------------------------------- */

static struct model *small_model(void)
{
    static const struct model_shape shape = {.arch = ARCH_LLAMA,
                                             .layers = 2,
                                             .hidden = 64,
                                             .heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 16,
                                             .ffn = 96,
                                             .vocab = 200,
                                             .max_context = 512,
                                             .eps = 1e-5f,
                                             .rope_base = 1e4f};
    return model_random(&shape, DTYPE_Q8_0, 3);
}

struct stand {
    struct model *model;
    struct check_request q;
    struct planned plan;
    struct test_case s;
};

static void stand_open(struct stand *t, enum region r, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->model = small_model();
    t->q = (struct check_request){.model = t->model, .seed = seed, .references = dir};
    t->plan = (struct planned){
        .shape = {.region = r, .layer = 1, .m = 5, .sequences = 2, .context = 40, .ragged = true},
        .fill = FILL_NORMAL};
    test_case_open(&t->s, &t->q, &t->plan, 0);
    test_case_read(&t->s, &t->s.run[t->s.runs++]); /* learns the outputs' sizes */
}

static void stand_close(struct stand *t)
{
    test_case_close(&t->s);
    model_close(t->model);
}

static void assert_same(const struct stand *t, const struct reference *a, const struct reference *b)
{
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->truth.outputs, b->truth.outputs);
    for (int i = 0; i < a->truth.outputs; i++) {
        size_t few = (size_t)a->rows * (size_t)t->s.cols[i];
        size_t all = (size_t)t->s.rows[i] * (size_t)t->s.cols[i];
        assert_int_equal(a->truth.output[i].rows, b->truth.output[i].rows);
        assert_int_equal(a->truth.output[i].cols, b->truth.output[i].cols);
        assert_memory_equal(a->truth.output[i].value, b->truth.output[i].value, few * 8);
        assert_memory_equal(a->eager[i], b->eager[i], few * 4);
        assert_memory_equal(a->eager_all[i], b->eager_all[i], all * 4);
    }
}

static void damage(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    flip(path, st.st_size / 2);
}

static void references_that_were_found_are_those_that_were_computed(void **state)
{
    (void)state;
    for (int r = REGION_ATTN_IN; r < REGION_LOCAL; r++) {
        struct stand t;
        struct reference computed, found, again;
        stand_open(&t, (enum region)r, 11);
        t.q.references = NULL;
        reference_open(&t.q, &t.s, 0, &computed);
        assert_int_equal(each(NULL), 0);
        t.q.references = dir;
        reference_open(&t.q, &t.s, 0, &found); /* keeps it */
        assert_int_equal(each(NULL), 1);
        assert_same(&t, &computed, &found);
        reference_close(&found);
        reference_open(&t.q, &t.s, 0, &found);
        assert_int_equal(each(NULL), 1);
        assert_same(&t, &computed, &found);
        /* poisoned: computed anew, and kept anew */
        each(damage);
        reference_open(&t.q, &t.s, 0, &again);
        assert_same(&t, &computed, &again);
        reference_close(&again);
        reference_open(&t.q, &t.s, 0, &again);
        assert_same(&t, &computed, &again);
        reference_close(&computed);
        reference_close(&found);
        reference_close(&again);
        stand_close(&t);
        reference_cache_shrink(dir, -1);
    }
}

static void other_inputs_layers_and_seeds_have_their_own(void **state)
{
    (void)state;
    struct stand t;
    struct reference ref;
    int n = 0;
    for (int layer = 0; layer < 2; layer++)
        for (uint64_t seed = 1; seed <= 11; seed += 10)
            for (int content = 0; content < 2; content++) {
                stand_open(&t, REGION_MLP_IN, seed);
                t.plan.shape.layer = layer;
                test_case_close(&t.s);
                test_case_open(&t.s, &t.q, &t.plan, 0);
                test_case_read(&t.s, &t.s.run[t.s.runs++]);
                reference_open(&t.q, &t.s, content, &ref);
                assert_int_equal(each(NULL), ++n);
                reference_close(&ref);
                stand_close(&t);
            }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_open, folder_close)
    const struct CMUnitTest tests[] = {
        TEST(what_was_kept_is_read_back_under_its_key_alone),
        TEST(damage_anywhere_is_noticed),
        TEST(folder_that_takes_nothing_keeps_nothing),
        TEST(what_was_not_used_for_longest_goes_first),
        TEST(references_that_were_found_are_those_that_were_computed),
        TEST(other_inputs_layers_and_seeds_have_their_own),
    };
#undef TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
