/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of measured points for a GPU's slots, without a GPU: thinning keeps where a server begins
 * and what is beside it, points that were never decided leave a table whole, and files bring it
 * back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/specializer/shapes.h"
#include "tune/table.h"

static const struct machine h200 = {H200};

static struct table *add(struct tables *t, const char *slot, enum region region, int m, int most)
{
    struct facts f = {.REGION = (int32_t)region, .M_MAX = m, LLAMA_SHAPE};
    t->machine = h200;
    t->seed = 1;
    facts_machine(&f, &h200);
    return tables_add(t, slot, region, m, &f, NUMERICS_TOLERANCE, most);
}

/* Templates of the slot that name a point to start from. */
static int starts_of(const struct table *t)
{
    int n = 0;
    for (int i = 0; i < template_count(); i++) {
        const struct template *of = template_at(i);
        struct point p;
        n += template_fits(of, MACHINE_CUDA, (enum region)t->facts.REGION, t->facts.M_MAX) &&
             template_start(of, &t->facts, &p) && !template_illegal(of, &p, &t->facts);
    }
    assert_true(n > 0);
    return n;
}

static void thinning_keeps_the_point_to_start_from_and_its_neighbours(void **state)
{
    (void)state;
    static const struct {
        enum region region;
        int m;
    } slot[] = {{REGION_MLP_IN, 1}, {REGION_ATTN_OUT, 1}, {REGION_MLP_OUT, 8}, {REGION_ATTN, 1}};
    for (size_t i = 0; i < sizeof slot / sizeof *slot; i++) {
        struct tables tables = {0};
        struct table *t = add(&tables, "x/m1", slot[i].region, slot[i].m, 120);
        int starts = 0, lonely = 0, n = space_size(t->space);
        int32_t near[2 * KNOBS_MAX];
        assert_in_range(n, 60, 120);
        assert_true(t->whole > 120);
        for (int32_t id = 0; id < n; id++) {
            starts += table_is_start(t, id);
            lonely += space_neighbours(t->space, id, near) == 0;
        }
        assert_int_equal(starts, starts_of(t));
        assert_true(lonely < n / 10);
        tables_free(&tables);
    }
}

static void points_that_were_never_decided_are_left_out(void **state)
{
    (void)state;
    struct tables tables = {0};
    struct table *t = add(&tables, "mlp_in/m1", REGION_MLP_IN, 1, 100);
    int n = space_size(t->space), decided = 0;
    struct point kept[2];
    for (int i = 0; i < n; i++) {
        t->row[i].state = i % 3 == 0 ? POINT_MEASURED : i % 3 == 1 ? POINT_NEW : POINT_REFUSED;
        t->row[i].gain = (float)i;
        decided += i % 3 != 1;
    }
    space_point(t->space, 0, &kept[0]);
    space_point(t->space, 3, &kept[1]);
    assert_int_equal(tables_drop_undecided(&tables), n - decided);
    assert_int_equal(space_size(t->space), decided);
    assert_true(t->row[0].gain == 0 && t->row[1].gain == 2 && t->row[2].gain == 3);
    for (int i = 0; i < 2; i++) {
        struct point p;
        space_point(t->space, i * 2, &p);
        assert_memory_equal(&p, &kept[i], sizeof p);
    }
    assert_int_equal(tables_drop_undecided(&tables), 0);
    tables_free(&tables);
}

static void a_file_brings_a_gpus_table_back(void **state)
{
    (void)state;
    char path[] = "/tmp/whet-test-table-XXXXXX";
    struct err err = {""};
    struct tables tables = {0}, again = {0};
    struct table *t = add(&tables, "mlp_out/m8", REGION_MLP_OUT, 8, 80);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int i = 0; i < space_size(t->space); i++) {
        t->row[i].state = i % 2 ? POINT_MEASURED : POINT_REFUSED;
        t->row[i].gain = 0.25f * (float)i;
        t->row[i].own_s = 1e-5f;
    }
    assert_int_equal(tables_write(&tables, path, &err), 0);
    if (tables_read(&again, path, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(again.machine.kind, MACHINE_CUDA);
    assert_int_equal(again.table[0].facts.SMS, 132);
    assert_int_equal(space_size(again.table[0].space), space_size(t->space));
    for (int i = 0; i < space_size(t->space); i++) {
        struct point a, b;
        space_point(t->space, i, &a);
        space_point(again.table[0].space, i, &b);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(again.table[0].row[i].state, t->row[i].state);
        assert_true(again.table[0].row[i].gain == t->row[i].gain);
    }
    tables_free(&tables);
    tables_free(&again);
    close(fd);
    unlink(path);
}

/* The first table is older than the even dealing of rows in mma.cu: with PERSIST it measured
 * kernels that are no more. */
static bool of_another_kernel(const struct template *t, const struct point *p)
{
    return strcmp(t->file, "mma") == 0 && p->value[template_knob(t, "PERSIST")] > 0;
}

/* Rank correlation of the formula with a table's measured points; *n: how many. */
static double ranked(const struct cost *cost, const struct table *of,
                     bool (*left_out)(const struct template *, const struct point *), int *n)
{
    int size = space_size(of->space);
    float *predicted = calloc((size_t)size, sizeof *predicted);
    float *own = calloc((size_t)size, sizeof *own);
    *n = 0;
    for (int32_t id = 0; id < size; id++) {
        struct point p;
        const struct template *t = space_template(of->space, id);
        space_point(of->space, id, &p);
        if (of->row[id].state != POINT_MEASURED || (left_out && left_out(t, &p)))
            continue;
        predicted[*n] = (float)cost_formula(cost, t, &p, &of->facts);
        own[(*n)++] = of->row[id].own_s;
    }
    double r = rank_correlation(predicted, own, *n);
    free(predicted);
    free(own);
    return r;
}

static void read_golden(const char *name, struct tables *t)
{
    char path[4096];
    const char *root = getenv("WHET_SOURCE_ROOT");
    struct err err = {""};
    assert_non_null(root);
    snprintf(path, sizeof path, "%s/tests/golden/%s", root, name);
    if (tables_read(t, path, &err) != 0)
        fail_msg("%s", err.msg);
}

/* The claim of docs/ablation.md: the formula ranks what an H200 measured later. */
static void the_formula_ranks_the_points_of_a_gpu(void **state)
{
    (void)state;
    static const struct {
        const char *slot;
        double least;
    } claim[] = {
        {"mlp_in/m1", 0.69}, {"attn_out/m1", 0.85}, {"mlp_out/m8", 0.45}, {"mlp_in/m32", 0.81}};
    struct tables t;
    struct cost cost;
    read_golden("tune_table_gpu.json", &t);
    assert_int_equal(t.n, 4);
    cost_open(&cost, &t.machine, t.threads);
    for (int i = 0; i < t.n; i++) {
        int n;
        double r = ranked(&cost, &t.table[i], NULL, &n);
        assert_string_equal(t.table[i].slot, claim[i].slot);
        assert_in_range(n, 50, 120); /* fewer when a knob has lost a value since */
        assert_true(r > claim[i].least);
    }
    cost_close(&cost);
    tables_free(&t);
}

static void the_formula_ranks_the_points_that_it_was_made_from(void **state)
{
    (void)state;
    struct tables t;
    struct cost cost;
    read_golden("tune_table_gpu_first.json", &t);
    assert_int_equal(t.n, 3);
    cost_open(&cost, &t.machine, t.threads);
    for (int i = 0; i < t.n; i++) {
        int n;
        assert_true(ranked(&cost, &t.table[i], of_another_kernel, &n) > 0.7);
        assert_in_range(n, 22, 43); /* of 43: some used a knob that is gone */
    }
    cost_close(&cost);
    tables_free(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinning_keeps_the_point_to_start_from_and_its_neighbours),
        cmocka_unit_test(points_that_were_never_decided_are_left_out),
        cmocka_unit_test(a_file_brings_a_gpus_table_back),
        cmocka_unit_test(the_formula_ranks_the_points_of_a_gpu),
        cmocka_unit_test(the_formula_ranks_the_points_that_it_was_made_from),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
