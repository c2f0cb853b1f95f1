/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tables.c - any bytes as a file of measured points. What is read of it is a table that can be
 * asked for everything a search asks, and says the same when it is written and read again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A file is in memory here: tens of times as many inputs in a second. */
static const unsigned char *input;
static size_t input_n;

static FILE *open_input(const char *path, const char *mode)
{
    (void)path;
    return mode[0] == 'r' && input_n > 0 ? fmemopen((void *)(size_t)input, input_n, "r") : NULL;
}

#define fopen open_input
#include "tune/table_json.c"
#undef fopen

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* What a search and a report ask of a table. */
static void ask(const struct table *t)
{
    struct err err;
    int32_t best = -1;
    const struct facts none = {0};
    int all = 0;
    for (int s = POINT_NEW; s <= POINT_REFUSED; s++)
        all += table_count(t, (enum point_state)s);
    demand(all == space_size(t->space));
    table_eager_s(t);
    demand(table_best(t, &best) == 0 || (best >= 0 && best < space_size(t->space)));
    demand(table_measures(t, &t->facts, t->numerics, &err) == 0);
    table_measures(t, &none, NUMERICS_TOLERANCE, &err);
    for (int32_t i = 0; i < space_size(t->space); i++) {
        struct point p;
        int32_t near[2 * KNOBS_MAX];
        space_point(t->space, i, &p);
        demand(space_find(t->space, space_template(t->space, i), &p) == i);
        space_neighbours(t->space, i, near);
        table_is_start(t, i);
        measured_noise(&t->row[i]);
        demand(strlen(t->row[i].reason) < sizeof t->row[i].reason);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tables t;
    struct err err;
    input = data;
    input_n = size;
    if (tables_read(&t, "input", &err) != 0)
        return 0;
    for (int i = 0; i < t.n; i++) {
        ask(&t.table[i]);
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);
        demand(print_table(out, &t.table[i], true) == 0);
        fclose(out);
        free(text);
    }
    tables_drop_undecided(&t);
    tables_free(&t);
    return 0;
}
