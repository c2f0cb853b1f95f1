/* SPDX-License-Identifier: Apache-2.0 */
/* `whet kernels`: what it carries from store to store, and what it says when it cannot. */
#include "tests/unit/specializer/store_world.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "specializer/search/space.h"
#include "specializer/store/store_json.h"
#include "specializer/transfer/kernels_main.h"
#include "specializer/winners.h"

/* Runs the command with standard output and error in files; the status, and what it complained. */
static int kernels(const char *store, const char *command, const char *word, const char *out,
                   char complaint[400])
{
    char path[120];
    snprintf(path, sizeof path, "%s/complaint", folder);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        struct config c = {.specializer_store = (char *)store};
        char *argv[] = {(char *)command, (char *)word, NULL};
        dup2(open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
        dup2(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
        int rc = kernels_main(&c, word ? 2 : 1, argv);
        fflush(NULL);
        _exit(rc);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    FILE *in = fopen(path, "r");
    size_t n = fread(complaint, 1, 399, in);
    complaint[n] = 0;
    fclose(in);
    return WEXITSTATUS(status);
}

static void count_row(void *ctx, const struct record *r)
{
    (void)r;
    ++*(int *)ctx;
}

static void kernels_go_from_store_to_store(void **state)
{
    (void)state;
    char text[400], file[120], from[120], to[120];
    struct err err = {""};
    snprintf(from, sizeof from, "%s", fresh_path());
    snprintf(to, sizeof to, "%s", fresh_path());
    snprintf(file, sizeof file, "%s/export.json", folder);
    struct store *s = store_open(from, &err);
    struct record r = row_of(1, "mlp_out/m1");
    struct point p = template_defaults(template_find("mlp_out"));
    point_text(template_find("mlp_out"), &p, r.knobs, sizeof r.knobs);
    assert_int_equal(store_move(s, &r, LIFE_ACTIVE, "", NULL, &err), 0);
    store_close(s);
    assert_int_equal(kernels(from, "export", file, "/dev/null", text), 0);
    assert_int_equal(kernels(to, "import", file, "/dev/null", text), 0);
    s = store_open(to, &err);
    struct record_filter imported = {.env = ENV_IMPORTED};
    int rows = 0;
    assert_int_equal(store_each(s, &imported, count_row, &rows, &err), 0);
    assert_int_equal(rows, 1);
    store_close(s);
}

static void what_cannot_be_read_or_written_is_named(void **state)
{
    (void)state;
    char text[400], junk[120];
    const char *store = fresh_path();
    snprintf(junk, sizeof junk, "%s/junk.json", folder);
    FILE *f = fopen(junk, "w");
    assert_true(f && fputs("junk", f) >= 0 && fclose(f) == 0);
    assert_int_equal(kernels(store, "import", junk, "/dev/null", text), 1);
    assert_non_null(strstr(text, junk));
    assert_int_equal(kernels(store, "import", folder, "/dev/null", text), 1);
    assert_non_null(strstr(text, folder));
    assert_non_null(strstr(text, "cannot be read"));
    assert_int_equal(kernels(store, "import", "/no/such/file", "/dev/null", text), 1);
    assert_non_null(strstr(text, "/no/such/file"));
    assert_int_equal(kernels(store, "export", "/no/such/folder/x", "/dev/null", text), 1);
    assert_non_null(strstr(text, "/no/such/folder/x"));
    assert_int_equal(kernels(store, "show", "0123456789abcdef", "/dev/null", text), 1);
    assert_non_null(strstr(text, "0123456789abcdef"));
    /* Whoever redirected it believes that it is there. */
    assert_int_equal(kernels(store, "export", "-", "/dev/full", text), 1);
}

static void wrong_usage_makes_no_store(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"lost", NULL}, {"list", "x"}, {"show", NULL}, {"import", NULL}};
    char text[400];
    const char *store = fresh_path();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(kernels(store, wrong[i][0], wrong[i][1], "/dev/null", text), 2);
        assert_non_null(strstr(text, "usage: whet kernels"));
    }
    assert_int_equal(access(store, F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_go_from_store_to_store),
        cmocka_unit_test(what_cannot_be_read_or_written_is_named),
        cmocka_unit_test(wrong_usage_makes_no_store),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
