/* SPDX-License-Identifier: Apache-2.0 */
/* test_metrics.c - histograms and the text they become. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "config/metrics.h"

static char *text_of(void (*write)(FILE *))
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    write(f);
    fclose(f);
    return text;
}

static void write_histogram(FILE *f)
{
    static const double bound[] = {0.1, 1};
    struct histogram h;
    histogram_init(&h, bound, 2);
    histogram_observe(&h, 0.1); /* a bound belongs to its own bucket (le) */
    histogram_observe(&h, 0.5);
    histogram_observe(&h, 7);
    metric_histogram(f, "wait_seconds", "kind=\"a\"", &h);
}

static void histogram_text_is_cumulative_and_exact(void **state)
{
    (void)state;
    char *text = text_of(write_histogram);
    assert_string_equal(text, "whet_wait_seconds_bucket{kind=\"a\",le=\"0.1\"} 1\n"
                              "whet_wait_seconds_bucket{kind=\"a\",le=\"1\"} 2\n"
                              "whet_wait_seconds_bucket{kind=\"a\",le=\"+Inf\"} 3\n"
                              "whet_wait_seconds_sum{kind=\"a\"} 7.600000000\n"
                              "whet_wait_seconds_count{kind=\"a\"} 3\n");
    free(text);
}

static void write_tokens(FILE *f)
{
    static const double bound[] = {1000};
    struct histogram h;
    histogram_init(&h, bound, 1);
    for (int i = 0; i < 3; i++)
        histogram_observe(&h, 2e10); /* more than 2^64 / 1e9, one alone and all together */
    metric_histogram(f, "tokens", NULL, &h);
}

/* A server on a GPU computes so many tokens in a week or two. */
static void a_sum_of_many_tokens_goes_on_rising(void **state)
{
    (void)state;
    char *text = text_of(write_tokens);
    assert_non_null(strstr(text, "whet_tokens_sum 60000000000.000000000\n"));
    free(text);
}

static void write_value(FILE *f)
{
    metric_head(f, "things_total", "counter", "Things.");
    metric_value(f, "things_total", NULL, 3);
    metric_value(f, "things_total", "a=\"b\"", 0.5);
}

static void values_carry_the_prefix(void **state)
{
    (void)state;
    char *text = text_of(write_value);
    assert_string_equal(text, "# HELP whet_things_total Things.\n"
                              "# TYPE whet_things_total counter\n"
                              "whet_things_total 3\n"
                              "whet_things_total{a=\"b\"} 0.5\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histogram_text_is_cumulative_and_exact),
        cmocka_unit_test(a_sum_of_many_tokens_goes_on_rising),
        cmocka_unit_test(values_carry_the_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
