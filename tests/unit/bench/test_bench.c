/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of bench/: `whet bench` on a tiny model, from the command line to the JSON. */
#include "tests/unit/unit.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "specializer/store/store.h"
#include "tests/unit/engine/golden.h"

static char folder[] = "/tmp/whet-test-bench-XXXXXX";
static char *model, *store, *json, *points;

/* Runs `whet bench` with words separated by spaces; %M, %S, %J, %P: model, store, JSON file, file
 * of points. */
static int bench(const char *line)
{
    static char buffer[512];
    char *argv[32] = {(char *)"bench"};
    int argc = 1;
    snprintf(buffer, sizeof buffer, "%s", line);
    for (char *w = strtok(buffer, " "); w; w = strtok(NULL, " "))
        argv[argc++] = strcmp(w, "%M") == 0   ? model
                       : strcmp(w, "%S") == 0 ? store
                       : strcmp(w, "%J") == 0 ? json
                       : strcmp(w, "%P") == 0 ? points
                                              : w;
    return bench_main(argc, argv);
}

static cJSON *read_json(void)
{
    char text[1 << 16];
    FILE *f = fopen(json, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    cJSON *o = cJSON_Parse(text);
    assert_non_null(o);
    return o;
}

static double number(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItem(o, key);
    assert_true(cJSON_IsNumber(v));
    return v->valuedouble;
}

static void decode_reports_every_batch_and_context(void **state)
{
    (void)state;
    /* The default prompts are longer than this model's context, and none of decode's business. */
    assert_int_equal(bench("decode --model %M --store %S --json %J --batch 1,3 --context 16,20 "
                           "--pairs 2 --threads 2"),
                     0);
    cJSON *o = read_json();
    const cJSON *results = cJSON_GetObjectItem(o, "results"), *r;
    assert_int_equal(cJSON_GetArraySize(results), 4);
    assert_true(number(o, "read_bytes_per_s") > 0);
    cJSON_ArrayForEach(r, results)
    {
        const cJSON *eager = cJSON_GetObjectItem(r, "eager");
        double s = number(eager, "s");
        assert_true(s > 0);
        assert_true(fabs(number(eager, "tokens_per_s") * s - number(r, "sequences")) < 1e-6);
        assert_true(number(r, "roofline_s") > 0);
        assert_null(cJSON_GetObjectItem(r, "specialized")); /* an empty store has no winners */
    }
    assert_int_equal((int)number(cJSON_GetArrayItem(results, 3), "context"), 20);
    assert_int_equal((int)number(cJSON_GetArrayItem(results, 3), "sequences"), 3);
    cJSON_Delete(o);
}

static void prefill_reports_every_prompt(void **state)
{
    (void)state;
    assert_int_equal(bench("prefill --model %M --store %S --json %J "
                           "--prompt 20,40 --engine-prefill-chunk 16 --pairs 2 --threads 2"),
                     0);
    cJSON *o = read_json();
    const cJSON *results = cJSON_GetObjectItem(o, "results");
    assert_int_equal(cJSON_GetArraySize(results), 2);
    assert_int_equal((int)number(cJSON_GetArrayItem(results, 1), "tokens"), 40);
    cJSON_Delete(o);
}

static void regions_add_up_to_no_more_than_the_step(void **state)
{
    (void)state;
    assert_int_equal(bench("region --model %M --store %S --json %J --batch 2 --context 16 "
                           "--prompt 40 --engine-prefill-chunk 16 --pairs 3 --threads 2"),
                     0);
    cJSON *o = read_json();
    const cJSON *results = cJSON_GetObjectItem(o, "results"), *r, *g;
    assert_int_equal(cJSON_GetArraySize(results), 2); /* a decode step and a prompt */
    cJSON_ArrayForEach(r, results)
    {
        double sum = 0, launches = 0;
        cJSON_ArrayForEach(g, cJSON_GetObjectItem(r, "regions"))
        {
            sum += number(cJSON_GetObjectItem(g, "eager"), "s");
            launches += number(cJSON_GetObjectItem(g, "eager"), "launches");
            assert_true(number(g, "bytes") > 0);
        }
        assert_true(sum > 0);
        assert_true(sum < 2 * number(cJSON_GetObjectItem(r, "eager"), "s"));
        /* embed and 5 regions of each of 2 layers in each of 1 or 3 steps, and one head */
        assert_int_equal((int)launches, number(r, "chunk") > 0 ? 3 * 11 + 1 : 12);
    }
    cJSON_Delete(o);
}

/* Runs it with this descriptor in a file, which is returned, rewound. */
static FILE *caught(int fd, const char *line, int status)
{
    FILE *to = tmpfile();
    fflush(NULL);
    int old = dup(fd), rc;
    assert_non_null(to);
    dup2(fileno(to), fd);
    rc = bench(line);
    fflush(NULL);
    dup2(old, fd);
    close(old);
    assert_int_equal(rc, status);
    rewind(to);
    return to;
}

/* The first line of what a run that ends with this status says. */
static const char *complaint(const char *line, int status)
{
    static char text[300];
    FILE *from = caught(STDERR_FILENO, line, status);
    assert_non_null(fgets(text, sizeof text, from));
    fclose(from);
    return text;
}

#define POINTS_OF "--model %M --store %S --threads 1 --pairs 1 --points %P "

static void points_are_measured_line_by_line(void **state)
{
    static const struct {
        const char *line, *says; /* NULL: it is measured */
    } want[] = {
        {"mlp_in/m1 mlp_in ROWS=2", NULL},
        {"mlp_in/m1 mlp_in ROWS=1 ; mlp_out/m1 mlp_out ROWS=2", NULL}, /* the first may be kept */
        {"mlp_in/m1 mlp_in ROWS=2", NULL},
        {"mlp_in/m1 mlp_in PACK=1", "not legal: only formats of integers have panels"},
        {"mlp_in/m1 mlp_in ROWS=77", "not legal: a knob has a value"},
        {"mlp_in/m1 mlp_out", "the template is none for this slot"},
        {"mlp_in/m1 mlp_in NONE=1", "template mlp_in has no knob NONE"},
        {"mlp_in/m1 mlp_in ROWS", "cannot read \"ROWS\""},
        {"mlp_in/m1 none", "there is no template \"none\""},
        {"mlp_in/m7777 mlp_in", "there is no slot \"mlp_in/m7777\""},
        {"mlp_in/m2 mlp_in", "is no slot of such steps"},
        {"mlp_in/m1 mlp_in ; mlp_in/m1 mlp_in", "mlp_in/m1 is named twice"},
    };
    enum { LINES = sizeof want / sizeof *want };
    int seen = 0;
    char text[1000];
    FILE *f = fopen(points, "w");
    (void)state;
    assert_non_null(f);
    fprintf(f, "# what is to be measured\n\n");
    for (int i = 0; i < LINES; i++)
        fprintf(f, "%s # line %d\n", want[i].line, i);
    fclose(f);
    f = caught(STDOUT_FILENO, "decode --batch 1 --context 16 " POINTS_OF, 0);
    while (fgets(text, sizeof text, f)) {
        if (strncmp(text, "line ", 5) != 0)
            continue;
        assert_true(seen < LINES);
        assert_int_equal(atoi(text + 5), seen + 3); /* behind a comment and an empty line */
        assert_non_null(strstr(text, want[seen].line));
        assert_non_null(strstr(text, want[seen].says ? "skipped: " : " us "));
        assert_true(!want[seen].says || strstr(text, want[seen].says));
        seen++;
    }
    fclose(f);
    assert_int_equal(seen, LINES);
}

/* Of prompts longer than a chunk the slots of whole chunks may be named. */
static void points_are_measured_in_prompts(void **state)
{
    static const char *const want[] = {"mlp_in/m16 mlp_in ROWS=2", "skipped: mlp_in/m1 mlp_in"};
    char text[1000];
    int seen = 0;
    FILE *f = fopen(points, "w");
    (void)state;
    assert_non_null(f);
    fprintf(f, "mlp_in/m16 mlp_in ROWS=2\nmlp_in/m1 mlp_in\n");
    fclose(f);
    f = caught(STDOUT_FILENO, "prefill --prompt 40 --engine-prefill-chunk 16 " POINTS_OF, 0);
    while (fgets(text, sizeof text, f))
        if (strncmp(text, "line ", 5) == 0) {
            assert_true(seen < 2);
            assert_non_null(strstr(text, want[seen]));
            assert_true(seen > 0 || strstr(text, " us "));
            seen++;
        }
    fclose(f);
    assert_int_equal(seen, 2);
}

static void points_are_for_one_kind_of_step(void **state)
{
    (void)state;
    assert_int_equal(bench("decode --batch 1,2 --context 16 " POINTS_OF), 2);
    assert_int_equal(bench("decode --batch 1 --context 16,20 " POINTS_OF), 2);
    assert_int_equal(bench("decode " POINTS_OF), 2);
    assert_int_equal(bench("prefill --prompt 8,16 " POINTS_OF), 2);
    assert_int_equal(bench("prefill " POINTS_OF), 2);
    assert_int_equal(bench("step --batch 1 --context 16 " POINTS_OF), 2);
    assert_int_equal(bench("decode --batch 1 --context 16 --json %J " POINTS_OF), 2);
    assert_non_null(strstr(complaint("decode --model /nowhere.gguf --batch 1 --context 16 "
                                     "--points /nowhere/points",
                                     1),
                           "--points /nowhere/points: cannot be read"));
}

static void wrong_usage_and_failures_have_their_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(bench("--model %M"), 2);
    assert_int_equal(bench("decode --store %S"), 2);
    assert_int_equal(bench("decode --model %M --batch 1,x"), 2);
    assert_int_equal(bench("decode --model %M --pairs 0"), 2);
    assert_int_equal(bench("decode --model %M --json"), 2);
    assert_int_equal(bench("decode --model %M --no-such-option 3"), 2);
    assert_int_equal(bench("decode --model /nowhere.gguf --store %S"), 1);
    assert_int_equal(bench("decode --model %M --store %S --context 100000000"), 2);
    assert_int_equal(bench("decode --model %M --store %S --context 1000000"), 1);
    assert_int_equal(bench("prefill --model %M --store %S --prompt 8 --pairs 1 --json "
                           "/nowhere/x.json"),
                     1);
    /* Said before anything is opened, let alone measured. */
    assert_non_null(strstr(complaint("decode --model /nowhere.gguf --json /nowhere/x.json", 1),
                           "--json /nowhere/x.json"));
}

/* What would be measured are eager kernels alone, where winners were expected. */
static void a_store_that_is_not_there_is_named_and_not_made(void **state)
{
    (void)state;
    char *none = xasprintf("%s/none.db", folder);
    char *line = xasprintf("decode --model %%M --store %s --batch 1 --context 8 --pairs 1", none);
    char text[300], want[200];
    bool said = false;
    snprintf(want, sizeof want, "whet bench: there is no store %s", none);
    FILE *from = caught(STDERR_FILENO, line, 1);
    while (fgets(text, sizeof text, from))
        said |= strstr(text, want) != NULL;
    fclose(from);
    assert_true(said);
    assert_int_not_equal(access(none, F_OK), 0);
    free(line);
    free(none);
}

static void wrong_usage_is_told_which_flag_and_value(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } wrong[] = {
        {"decode --model %M --batch 1,x", "--batch 1,x: "},
        {"decode --model %M --pairs 0 --batch 1", "--pairs 0: "},
        {"decode --model %M --json", "--json wants a value"},
        {"decode --model %M --no-such-option 3", "--no-such-option"},
        {"decode --store %S", "--model"},
        {"decode --model %M --batch 1,", "--batch 1,: "},
        {"decode --model %M --pairs 3,5", "--pairs"},
        {"decode --model %M --prompt 9", "--prompt does nothing in decode"},
        {"step --model %M --prompt 9", "--prompt does nothing in step"},
        {"prefill --model %M --batch 8", "--batch does nothing in prefill"},
        {"prefill --model %M --context 8", "--context does nothing in prefill"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_non_null(strstr(complaint(wrong[i].line, 2), wrong[i].says));
}

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    /* Compilers are most of the time, and take half as long for points without vectors. */
    setenv("WHET_ISA", "portable", 1);
    model = golden_path("tiny-llama.gguf");
    store = xasprintf("%s/store.db", folder);
    json = xasprintf("%s/out.json", folder);
    points = xasprintf("%s/points", folder);
    struct err err;
    struct store *empty = store_open(store, &err);
    store_close(empty);
    return empty ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    char *command = xasprintf("rm -r %s", folder);
    int failed = system(command);
    free(command);
    free(model);
    free(store);
    free(json);
    free(points);
    return failed;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_reports_every_batch_and_context),
        cmocka_unit_test(prefill_reports_every_prompt),
        cmocka_unit_test(regions_add_up_to_no_more_than_the_step),
        cmocka_unit_test(points_are_measured_line_by_line),
        cmocka_unit_test(points_are_measured_in_prompts),
        cmocka_unit_test(points_are_for_one_kind_of_step),
        cmocka_unit_test(wrong_usage_and_failures_have_their_exit_codes),
        cmocka_unit_test(a_store_that_is_not_there_is_named_and_not_made),
        cmocka_unit_test(wrong_usage_is_told_which_flag_and_value),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
