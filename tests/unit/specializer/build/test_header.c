/* SPDX-License-Identifier: Apache-2.0 */
/* test_header.c - precompiled intrinsics: the same objects sooner, and never a reason to fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/err.h"
#include "specializer/build/build.h"
#include "specializer/build/header.h"
#include "specializer/build/header_work.h"

struct shop {
    char dir[40], source[80], object[80];
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct candidate c;
};

static char *narrow[] = {(char *)"-mavx2", (char *)"-DISA=1", NULL};
static char *wide[] = {(char *)"-mavx2", (char *)"-mfma", (char *)"-mavx512f", (char *)"-DISA=2",
                       NULL};

/* Does not compile where the intrinsics are missing. */
static const char kernel[] =
    "#include <immintrin.h>\n"
    "void whet_kernel(float *a, const float *b, long n) {\n"
    "    for (long i = 0; i < n; i += 8)\n"
    "        _mm256_storeu_ps(a + i, _mm256_add_ps(_mm256_loadu_ps(a + i),\n"
    "                                              _mm256_set1_ps(b[i] * ISA)));\n"
    "}\n";

static int shop_open(void **state)
{
    struct shop *s = calloc(1, sizeof *s);
    char *argv[] = {(char *)"test"};
    struct err err = {""};
    strcpy(s->dir, "/tmp/whet-header-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    assert_int_equal(config_parse(&s->config, 1, argv, &err), 0);
    assert_int_equal(compiler_find(&s->config, &s->compiler, &err), 0);
    s->env = (struct stage_env){
        .config = &s->config, .compiler = &s->compiler, .kernel_dir = s->dir, .alone = true};
    sprintf(s->source, "%s/k.c", s->dir);
    sprintf(s->object, "%s/k.so", s->dir);
    s->c = (struct candidate){.source = s->source, .object = s->object, .define = narrow};
    *state = s;
    return 0;
}

static int shop_close(void **state)
{
    struct shop *s = *state;
    struct compiler none = {.path = "none"};
    unlink(s->source);
    unlink(s->object);
    header_prune(&none, s->dir);
    int rc = rmdir(s->dir); /* fails if a temporary file was left behind */
    config_free(&s->config);
    free(s->c.log);
    free(s);
    return rc;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static enum stage_result build(struct shop *s, const char *text)
{
    struct err err = {""};
    enum stage_result r;
    put(s->source, text);
    unlink(s->object);
    struct build *b = build_start(&s->env, &s->c, &err);
    assert_non_null(b);
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    return r;
}

/* Builds; the checksum of the object. */
static const char *sum_of(struct shop *s)
{
    if (build(s, kernel) != STAGE_PASS)
        fail_msg("%s", s->c.reason);
    return s->c.object_sum;
}

static struct header look(const struct shop *s)
{
    return header_look(&s->compiler, s->env.kernel_dir, s->c.define);
}

static off_t compiled_bytes(const struct header *h)
{
    char path[600];
    struct stat st;
    snprintf(path, sizeof path, "%s.gch", h->path);
    return stat(path, &st) == 0 ? st.st_size : -1;
}

/* What a build gives that has no folder for headers. */
static void sum_without(struct shop *s, char out[17])
{
    const char *dir = s->env.kernel_dir;
    s->env.kernel_dir = NULL;
    memcpy(out, sum_of(s), 17);
    s->env.kernel_dir = dir;
}

/* Once it is made the compiler does not read the text any more: it would not compile. */
static void read_once_for_each_instruction_set_and_objects_stay_the_same(void **state)
{
    struct shop *s = *state;
    char plain[17];
    assert_int_equal(look(s).state, HEADER_MISSING);
    sum_without(s, plain);
    assert_string_equal(sum_of(s), plain);
    struct header h = look(s);
    assert_int_equal(h.state, HEADER_READY);
    if (!strstr(s->compiler.version, "clang"))
        put(h.path, "#error the text was read\n");
    assert_string_equal(sum_of(s), plain);
    assert_true(compiled_bytes(&h) > 0);
    assert_null(strstr(s->c.log, "-include")); /* it makes the object without the header, too */
    s->c.define = wide;
    assert_int_equal(look(s).state, HEADER_MISSING);
    sum_without(s, plain);
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_READY);
    assert_string_not_equal(look(s).path, h.path);
}

static void portable_kernels_have_no_use_for_it(void **state)
{
    struct shop *s = *state;
    char *portable[] = {(char *)"-DISA=0", NULL};
    s->c.define = portable;
    assert_int_equal(look(s).state, HEADER_NONE);
    s->c.define = NULL;
    assert_int_equal(look(s).state, HEADER_NONE);
}

/* The file of another instruction set under this one's name. */
static void stale_header_changes_nothing(void **state)
{
    struct shop *s = *state;
    char plain[17], from[600], to[600];
    s->c.define = wide;
    sum_of(s);
    snprintf(from, sizeof from, "%s.gch", look(s).path);
    s->c.define = narrow;
    sum_without(s, plain);
    struct header h = look(s);
    snprintf(to, sizeof to, "%s.gch", h.path);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(look(s).state, HEADER_READY);
    assert_string_equal(sum_of(s), plain);
    assert_string_equal(sum_of(s), plain);
}

static void damaged_header_is_given_up_or_passed_over(void **state)
{
    struct shop *s = *state;
    char plain[17], path[600];
    sum_without(s, plain);
    sum_of(s);
    struct header h = look(s);
    snprintf(path, sizeof path, "%s.gch", h.path);
    off_t whole = compiled_bytes(&h);
    assert_int_equal(truncate(path, whole / 2), 0);
    assert_string_equal(sum_of(s), plain);
    put(path, "not a header at all");
    assert_string_equal(sum_of(s), plain);
    assert_string_equal(sum_of(s), plain);
}

static void text_without_header_or_header_without_text_is_built_all_the_same(void **state)
{
    struct shop *s = *state;
    char plain[17], path[600];
    sum_without(s, plain);
    sum_of(s);
    struct header h = look(s);
    unlink(h.path);
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(access(h.path, R_OK), 0);
    snprintf(path, sizeof path, "%s.gch", h.path);
    unlink(path);
    assert_int_equal(look(s).state, HEADER_MISSING);
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_READY);
}

static void folder_that_takes_no_files_is_done_without(void **state)
{
    struct shop *s = *state;
    char plain[17];
    sum_without(s, plain);
    s->env.kernel_dir = "/proc/self"; /* not even by root */
    assert_int_equal(look(s).state, HEADER_NONE);
    assert_string_equal(sum_of(s), plain);
    s->env.kernel_dir = s->dir;
}

static void mistake_in_a_kernel_is_the_kernels_and_the_header_stays(void **state)
{
    struct shop *s = *state;
    sum_of(s);
    assert_int_equal(build(s, "int whet_kernel = no_such_thing;\n"), STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "no_such_thing"));
    assert_int_equal(look(s).state, HEADER_READY);
}

/* Runs, but makes no header: an empty one says so, and the next start asks again. */
static void compiler_that_cannot_make_one_is_asked_once(void **state)
{
    struct shop *s = *state;
    char plain[17], script[80], text[700];
    sum_without(s, plain);
    sprintf(script, "%s/cc", s->dir);
    snprintf(text, sizeof text,
             "#!/bin/sh\nfor a; do [ \"$a\" = c-header ] && echo no >>%s/asked && exit 1; done\n"
             "exec cc \"$@\"\n",
             s->dir);
    put(script, text);
    chmod(script, 0700);
    strcpy(s->compiler.path, script);
    for (int i = 0; i < 3; i++)
        assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_NONE);
    snprintf(text, sizeof text, "%s/asked", s->dir);
    struct stat st;
    assert_int_equal(stat(text, &st), 0);
    assert_int_equal(st.st_size, 3);
    header_prune(&s->compiler, s->dir);
    assert_int_equal(look(s).state, HEADER_MISSING);
    unlink(text);
    unlink(script);
}

static enum stage_result make_header(struct shop *s)
{
    struct err err = {""};
    struct header_work *w = header_work_start(&s->env, s->c.define, &err);
    enum stage_result r;
    assert_non_null(w);
    while ((r = header_work_poll(w)) == STAGE_RUNNING)
        usleep(1000);
    header_work_end(w);
    return r;
}

/* The build that is waited for does not make it; whoever makes it beside may be interrupted. */
static void made_beside_builds_that_go_without(void **state)
{
    struct shop *s = *state;
    struct err err = {""};
    char plain[17];
    sum_without(s, plain);
    s->env.headers_apart = true;
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_MISSING);
    header_work_end(header_work_start(&s->env, s->c.define, &err));
    assert_true(header_work_wanted(&s->env, s->c.define));
    assert_int_equal(make_header(s), STAGE_PASS);
    assert_int_equal(look(s).state, HEADER_READY);
    assert_false(header_work_wanted(&s->env, s->c.define));
    if (!strstr(s->compiler.version, "clang"))
        put(look(s).path, "#error the text was read\n");
    assert_string_equal(sum_of(s), plain);
}

static void compiler_that_refuses_is_not_asked_beside_builds_again(void **state)
{
    struct shop *s = *state;
    strcpy(s->compiler.path, "/bin/false");
    assert_int_equal(make_header(s), STAGE_REFUSE);
    assert_false(header_work_wanted(&s->env, s->c.define));
}

static void another_compiler_has_its_own_and_prunes_the_others(void **state)
{
    struct shop *s = *state;
    struct err err = {""};
    struct header first;
    char *mine = s->config.specializer_compiler, plain[17];
    sum_of(s);
    first = look(s);
    s->config.specializer_compiler =
        strstr(s->compiler.version, "clang") ? (char *)"gcc" : (char *)"clang";
    int rc = compiler_find(&s->config, &s->compiler, &err);
    s->config.specializer_compiler = mine;
    if (rc != 0)
        skip();
    assert_int_equal(look(s).state, HEADER_MISSING);
    sum_without(s, plain);
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_READY);
    assert_string_equal(sum_of(s), plain);
    assert_int_equal(look(s).state, HEADER_READY); /* it was not given up: it was of use */
    assert_true(compiled_bytes(&first) > 0);
    header_prune(&s->compiler, s->dir);
    assert_int_equal(compiled_bytes(&first), -1);
    assert_int_equal(look(s).state, HEADER_READY);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, shop_open, shop_close)
    const struct CMUnitTest tests[] = {
        TEST(read_once_for_each_instruction_set_and_objects_stay_the_same),
        TEST(portable_kernels_have_no_use_for_it),
        TEST(stale_header_changes_nothing),
        TEST(damaged_header_is_given_up_or_passed_over),
        TEST(text_without_header_or_header_without_text_is_built_all_the_same),
        TEST(folder_that_takes_no_files_is_done_without),
        TEST(mistake_in_a_kernel_is_the_kernels_and_the_header_stays),
        TEST(compiler_that_cannot_make_one_is_asked_once),
        TEST(made_beside_builds_that_go_without),
        TEST(compiler_that_refuses_is_not_asked_beside_builds_again),
        TEST(another_compiler_has_its_own_and_prunes_the_others),
    };
#undef TEST
#if defined(__x86_64__)
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    (void)tests;
    return 77; /* no intrinsics, no header */
#endif
}
