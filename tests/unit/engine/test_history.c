/* SPDX-License-Identifier: Apache-2.0 */
/* The seconds that the dashboard draws: what goes into which, and what comes out when. */
#include "tests/unit/unit.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>

#include "engine/history.h"

#define SECOND INT64_C(1000000000)
enum { START = 5000, WALL = 1700000000 };

static struct history *h;

static int open_history(void **unused)
{
    (void)unused;
    h = calloc(1, sizeof *h);
    history_init(h, START * SECOND, WALL);
    return 0;
}

static int close_history(void **unused)
{
    (void)unused;
    free(h);
    return 0;
}

static int64_t at(double second)
{
    return START * SECOND + (int64_t)(second * 1e9);
}

/* The JSON at a moment; `series` may be NULL. Checks that all series are equally long. */
static cJSON *json(double now, int seconds, int *n)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    history_json(h, at(now), seconds, out);
    fclose(out);
    cJSON *o = cJSON_Parse(text);
    assert_non_null(o);
    free(text);
    *n = cJSON_GetArraySize(cJSON_GetObjectItem(o, "generated"));
    const cJSON *series;
    cJSON_ArrayForEach(series, o)
    {
        if (cJSON_IsArray(series))
            assert_int_equal(cJSON_GetArraySize(series), *n);
    }
    return o;
}

static double value(const cJSON *o, const char *series, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(o, series), i)->valuedouble;
}

static void history_gives_each_second_what_happened_in_it(void **unused)
{
    (void)unused;
    int n;
    history_prompt(h, at(0.1), 30);
    history_first(h, at(0.2), 0.05);
    history_step(h, at(0.2), 1, 1);
    history_step(h, at(0.9), 3, 3);
    history_step(h, at(2.5), 2, 2); /* nothing in second 1 */
    cJSON *o = json(4.5, 60, &n);
    assert_int_equal(n, 4); /* seconds 0 to 3: the one under way is left out */
    assert_int_equal((int64_t)cJSON_GetObjectItem(o, "to")->valuedouble, WALL + 3);
    static const int generated[] = {4, 0, 2, 0}, running[] = {3, 0, 2, 0}, steps[] = {2, 0, 1, 0};
    for (int i = 0; i < 4; i++) {
        assert_int_equal((int)value(o, "generated", i), generated[i]);
        assert_int_equal((int)value(o, "running", i), running[i]);
        assert_int_equal((int)value(o, "steps", i), steps[i]);
    }
    assert_int_equal((int)value(o, "prompt", 0), 30);
    assert_int_equal((int)value(o, "requests", 0), 1);
    cJSON_Delete(o);
    o = json(4.5, 2, &n);
    assert_int_equal(n, 2);
    assert_int_equal((int)value(o, "generated", 0), 2);
    cJSON_Delete(o);
}

static void history_knows_nothing_before_its_start(void **unused)
{
    (void)unused;
    int n;
    cJSON *o = json(0.5, 900, &n);
    assert_int_equal(n, 0);
    cJSON_Delete(o);
    struct history_latency l = history_latency(h, at(30), 10);
    assert_true(l.gap_p50 == 0 && l.gap_p99 == 0 && l.first_p50 == 0 && l.first_p99 == 0);
}

static void history_percentiles_are_good_to_a_tenth(void **unused)
{
    (void)unused;
    static const double scales[] = {0.0004, 0.007, 0.3, 20};
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
        double base = 20.0 * (double)s;
        for (int i = 1; i <= 1000; i++) { /* even between scale and twice scale */
            history_gap(h, at(base + 0.5), scales[s] * (1 + i / 1000.0));
            history_first(h, at(base + 0.5), 2 * scales[s] * (1 + i / 1000.0));
        }
        struct history_latency l = history_latency(h, at(base + 1.5), 5);
        assert_true(fabs(l.gap_p50 / (1.5 * scales[s]) - 1) < 0.1);
        assert_true(fabs(l.gap_p99 / (1.99 * scales[s]) - 1) < 0.1);
        assert_true(fabs(l.first_p50 / (3 * scales[s]) - 1) < 0.1);
        assert_true(fabs(l.first_p99 / (3.98 * scales[s]) - 1) < 0.1);
    }
}

static void history_takes_what_no_bucket_was_made_for(void **unused)
{
    (void)unused;
    static const double odd[] = {0, -1, 1e-9, 1e9, INFINITY, NAN};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        history_gap(h, at(0.5), odd[i]);
    for (int i = 0; i < 100000; i++) /* more than a count can hold */
        history_gap(h, at(0.5), 0.01);
    struct history_latency l = history_latency(h, at(1.5), 5);
    assert_true(fabs(l.gap_p50 / 0.01 - 1) < 0.15);
}

static void history_forgets_what_is_older_than_its_ring(void **unused)
{
    (void)unused;
    int n;
    for (int second = 0; second < 2 * HISTORY_SECONDS; second++)
        history_step(h, at(second + 0.5), second, 1);
    cJSON *o = json(2 * HISTORY_SECONDS + 0.5, 5000, &n);
    assert_true(n >= HISTORY_SECONDS - 2);
    for (int i = 0; i < n; i++) /* no entry of the first lap among them */
        assert_int_equal((int)value(o, "generated", i), 2 * HISTORY_SECONDS - n + i);
    cJSON_Delete(o);
    /* A silent lap is zeros, not what was there before. */
    o = json(3 * HISTORY_SECONDS + 10.5, 100, &n);
    for (int i = 0; i < n; i++)
        assert_int_equal((int)value(o, "generated", i), 0);
    cJSON_Delete(o);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_history, close_history)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(history_gives_each_second_what_happened_in_it),
        TEST(history_knows_nothing_before_its_start),
        TEST(history_percentiles_are_good_to_a_tenth),
        TEST(history_takes_what_no_bucket_was_made_for),
        TEST(history_forgets_what_is_older_than_its_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
