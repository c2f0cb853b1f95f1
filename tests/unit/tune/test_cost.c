/* SPDX-License-Identifier: Apache-2.0 */
/* What the cost model learns on spaces measured on real hardware (tests/golden/tune_table*.json):
 * a measured value of a knob tells something about the values beside it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "specializer/candidate/hash.h"
#include "tests/unit/unit.h"
#include "tune/table.h"

enum { LEARN_FROM = 24, DRAWS = 8 };

static int open_named(struct tables *t, const char *name)
{
    struct err err;
    char path[512];
    const char *root = getenv("WHET_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/%s", root ? root : ".", name);
    if (tables_read(t, path, &err) == 0)
        return 0;
    print_error("%s\n", err.msg);
    return -1;
}

/* Learns from points drawn by lot; the mean of log(measured / predicted)^2 over the others. */
static double error_of_draw(const struct tables *tables, const struct table *t, uint64_t draw,
                            double octaves)
{
    struct cost cost;
    struct point p;
    int size = space_size(t->space), n = 0;
    double sum = 0;
    unsigned char *known = calloc((size_t)size + 1, 1);
    cost_open(&cost, &tables->machine, tables->threads);
    if (octaves > 0)
        cost.octaves = octaves;
    for (int left = LEARN_FROM; left > 0;) {
        int32_t id = random_below(&draw, size);
        if (known[id] || t->row[id].state != POINT_MEASURED)
            continue;
        known[id] = 1;
        left--;
        space_point(t->space, id, &p);
        cost_learn(&cost, space_template(t->space, id), &p, &t->facts, (double)t->row[id].own_s);
    }
    for (int32_t id = 0; id < size; id++) {
        if (known[id] || t->row[id].state != POINT_MEASURED)
            continue;
        space_point(t->space, id, &p);
        double e = log((double)t->row[id].own_s /
                       cost_predict(&cost, space_template(t->space, id), &p, &t->facts));
        sum += e * e;
        n++;
    }
    free(known);
    cost_close(&cost);
    return sum / n;
}

/* Against a model that only knows whether two values are the same. */
static void neighbouring_values_tell_of_each_other(void **unused)
{
    (void)unused;
    static const char *const name[] = {"tune_table.json", "tune_table_huge.json",
                                       "tune_table_gpu.json"};
    static const double same_only = 1e-3;
    double all_near = 0, all_same = 0;
    for (int f = 0; f < 3; f++) {
        struct tables tables;
        double near = 0, same = 0;
        assert_int_equal(open_named(&tables, name[f]), 0);
        for (int i = 0; i < tables.n; i++)
            for (uint64_t d = 1; d <= DRAWS; d++) {
                near += error_of_draw(&tables, &tables.table[i], d, 0);
                same += error_of_draw(&tables, &tables.table[i], d, same_only);
            }
        near = sqrt(near / (DRAWS * tables.n));
        same = sqrt(same / (DRAWS * tables.n));
        print_message("%-22s off by %.4f in log, by %.4f without distances\n", name[f], near, same);
        assert_true(near < 1.002 * same); /* nowhere worse, by more than rounding */
        all_near += near;
        all_same += same;
        tables_free(&tables);
    }
    assert_true(all_near < 0.995 * all_same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbouring_values_tell_of_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
