/* SPDX-License-Identifier: Apache-2.0 */
/* ablate_report.c - an ablation as tables for people and as JSON for scripts. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "tune/ablate.h"

enum { GRID = 13, SECONDS_GRID = 9 };
static const int grid[GRID] = {1, 2, 3, 6, 9, 12, 18, 24, 36, 48, 72, 96, 144};
static const double seconds_grid[SECONDS_GRID] = {2, 5, 10, 20, 40, 80, 160, 320, 640};

/* ---- text ---------------------------------------------------------------------------------- */

static void print_to_95(struct band b)
{
    char mid[16], low[16], high[16], *text[] = {mid, low, high};
    const double value[] = {b.mean, b.low, b.high};
    for (int i = 0; i < 3; i++)
        snprintf(text[i], 16, !isfinite(value[i]) ? "-" : "%.0f", value[i]);
    char range[40];
    snprintf(range, sizeof range, "[%s, %s]", low, high);
    printf(" %6s %-12s", mid, range);
}

/* The fastest of the points that a server would begin with, 0 if the table has none. */
static double start_speed(const struct table *t)
{
    double best = 0;
    for (int32_t i = 0; i < space_size(t->space); i++)
        if (table_is_start(t, i) && measured_speed(&t->row[i]) > best)
            best = measured_speed(&t->row[i]);
    return best;
}

static void print_table(const struct ablation *a, const struct table *t)
{
    double best = table_best(t, NULL);
    printf("\n%s: %d points of %d (%d measured, %d refused), the best %.2fx eager\n", t->slot,
           space_size(t->space), t->whole, table_count(t, POINT_MEASURED),
           table_count(t, POINT_REFUSED), best);
    if (start_speed(t) > 0)
        printf("  a server begins at %.2fx eager, %.1f %% of the best\n", start_speed(t),
               100 * start_speed(t) / best);
    printf("  %-11s %-10s %19s %19s   regret after 6, 12, 24, 48 samples\n", "strategy", "adviser",
           "samples to 95 %", "seconds to 95 %");
    for (int i = 0; i < a->variants; i++) {
        const struct variant *v = &a->variant[i];
        if (v->table != t)
            continue;
        printf("  %-11s %-10s", v->strategy, sim_adviser_name(v->adviser));
        print_to_95(variant_to_95(a, v, false));
        print_to_95(variant_to_95(a, v, true));
        printf("  ");
        for (int s = 6; s <= 48; s *= 2)
            printf(" %5.1f %%", 100 * variant_regret(a, v, s, -1).mean);
        printf("\n");
    }
}

/* The geometric mean over slots of the median samples to 95 %: one number a variant, and how many
 * medians are searches that never got there; with some the mean is a least. */
static double over_slots(const struct ablation *a, const struct variant *like, int *never)
{
    double sum = 0;
    int n = 0;
    *never = 0;
    for (int i = 0; i < a->variants; i++)
        if (strcmp(a->variant[i].strategy, like->strategy) == 0 &&
            a->variant[i].adviser == like->adviser) {
            sum += log(variant_to_95_least(a, &a->variant[i]));
            *never += !isfinite(variant_to_95(a, &a->variant[i], false).mean);
            n++;
        }
    return exp(sum / n);
}

static void print_over_slots(const struct ablation *a, const struct variant *v)
{
    int never;
    double mean = over_slots(a, v, &never);
    printf("  %-11s %-10s %s%6.1f", v->strategy, sim_adviser_name(v->adviser), never ? ">" : " ",
           mean);
    if (never > 0)
        printf("; the median of %d slot%s never got there", never, never == 1 ? "" : "s");
    printf("\n");
}

/* What advisers cost or save; the first table's variants name them. */
static void print_costs(const struct ablation *a)
{
    printf("\nsamples to 95 %% over those of the heuristic alone, mean over slots [95 %% interval "
           "over seeds]\n");
    for (int i = 0; i < a->variants && a->variant[i].table == a->variant[0].table; i++) {
        const struct variant *v = &a->variant[i];
        if (v->adviser == SIM_HEURISTIC)
            continue;
        int never;
        struct band b = variant_cost(a, v->strategy, v->adviser, &never);
        printf("  %-11s %-10s ", v->strategy, sim_adviser_name(v->adviser));
        if (isnan(b.mean))
            printf("%6s", "-");
        else
            printf("%6.3f [%.3f, %.3f]", b.mean, b.low, b.high);
        if (never > 0)
            printf("; %d searches never got there, which counts against it", never);
        printf("\n");
    }
}

/* What a language model was asked in one search, on the mean. */
static struct sim_adviser_use mean_use(const struct ablation *a, const struct variant *v,
                                       double *rejected)
{
    struct sim_adviser_use sum = {0};
    int asked = 0, refused = 0;
    for (int i = 0; i < a->seeds; i++) {
        const struct sim_adviser_use *u = &v->run[i].use;
        for (int q = 0; q < SIM_ASKS_QUESTIONS; q++) {
            sum.asked[q] += u->asked[q];
            asked += u->asked[q];
            refused += u->rejected[q];
        }
        sum.in_order += u->in_order;
        sum.tokens_in += u->tokens_in;
        sum.tokens_out += u->tokens_out;
        sum.seconds += u->seconds;
    }
    *rejected = asked > 0 ? (double)refused / asked : 0;
    return sum;
}

static void print_use(const struct ablation *a)
{
    for (int i = 0; i < a->variants; i++) {
        const struct variant *v = &a->variant[i];
        double rejected, n = a->seeds;
        if (v->adviser != SIM_REPLAY)
            continue;
        struct sim_adviser_use u = mean_use(a, v, &rejected);
        printf("llm %-10s %-14s a search: %.1f questions for advice, %.1f for moves, %.0f s, %.0f "
               "tokens in, %.0f out; %.0f %% of the replies rejected, %.1f in another state\n",
               v->strategy, v->table->slot, u.asked[SIM_ASKS_ADVICE] / n,
               u.asked[SIM_ASKS_MOVES] / n, u.seconds / n, (double)u.tokens_in / n,
               (double)u.tokens_out / n, 100 * rejected, u.in_order / n);
    }
}

void ablation_print(const struct ablation *a)
{
    printf("%s; %d seeds, budget %.0f s; median [10 %%, 90 %%] over seeds; -: not within it\n",
           a->tables->machine.device, a->seeds, a->budget_s);
    if (a->before > 0)
        printf("seeds %d to %d\n", a->before + 1, a->before + a->seeds);
    if (a->drop > 0)
        printf("every seed without another %.0f %% of the points\n", 100 * a->drop);
    for (int i = 0; i < a->tables->n; i++)
        print_table(a, &a->tables->table[i]);
    printf("\nall slots: geometric mean of the median samples to 95 %%\n");
    for (int i = 0; i < a->variants && a->variant[i].table == a->variant[0].table; i++)
        print_over_slots(a, &a->variant[i]);
    print_costs(a);
    if (!a->llm.recording && !a->llm.live)
        printf("adviser llm: open, no endpoint or recorded exchanges given (--adviser-url URL)\n");
    print_use(a);
    printf("strategy agentic: open, it writes kernels and searches no space\n");
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static void add_number(cJSON *o, const char *name, double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", v);
    if (isfinite(v))
        cJSON_AddNumberToObject(o, name, strtod(text, NULL));
    else
        cJSON_AddNullToObject(o, name);
}

static cJSON *band_json(struct band b, const char *middle)
{
    cJSON *o = cJSON_CreateObject();
    add_number(o, middle, b.mean);
    add_number(o, "p10", b.low);
    add_number(o, "p90", b.high);
    return o;
}

/* As print_costs(). */
static cJSON *costs_json(const struct ablation *a)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < a->variants && a->variant[i].table == a->variant[0].table; i++) {
        const struct variant *v = &a->variant[i];
        if (v->adviser == SIM_HEURISTIC)
            continue;
        int never;
        struct band b = variant_cost(a, v->strategy, v->adviser, &never);
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "strategy", v->strategy);
        cJSON_AddStringToObject(o, "adviser", sim_adviser_name(v->adviser));
        add_number(o, "ratio", b.mean);
        add_number(o, "low", b.low);
        add_number(o, "high", b.high);
        cJSON_AddNumberToObject(o, "never", never);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *use_json(const struct ablation *a, const struct variant *v)
{
    double rejected, n = a->seeds;
    struct sim_adviser_use u = mean_use(a, v, &rejected);
    cJSON *o = cJSON_CreateObject();
    add_number(o, "advice", u.asked[SIM_ASKS_ADVICE] / n);
    add_number(o, "moves", u.asked[SIM_ASKS_MOVES] / n);
    add_number(o, "rejected", rejected);
    add_number(o, "of_another_state", u.in_order / n);
    add_number(o, "tokens_in", (double)u.tokens_in / n);
    add_number(o, "tokens_out", (double)u.tokens_out / n);
    add_number(o, "seconds", u.seconds / n);
    return o;
}

static cJSON *variant_json(const struct ablation *a, const struct variant *v)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "slot", v->table->slot);
    cJSON_AddStringToObject(o, "strategy", v->strategy);
    cJSON_AddStringToObject(o, "adviser", sim_adviser_name(v->adviser));
    cJSON *samples_to_95 = band_json(variant_to_95(a, v, false), "median");
    add_number(samples_to_95, "median_at_least", variant_to_95_least(a, v));
    cJSON_AddNumberToObject(samples_to_95, "never", variant_never(a, v));
    cJSON_AddItemToObject(o, "samples_to_95", samples_to_95);
    cJSON_AddItemToObject(o, "seconds_to_95", band_json(variant_to_95(a, v, true), "median"));
    if (v->adviser == SIM_REPLAY)
        cJSON_AddItemToObject(o, "llm", use_json(a, v));
    cJSON *all = cJSON_AddArrayToObject(o, "samples_by_seed");   /* null: never got there, ... */
    cJSON *tried = cJSON_AddArrayToObject(o, "tried_by_seed");   /* ... with so many, ... */
    cJSON *points = cJSON_AddArrayToObject(o, "points_by_seed"); /* ... of these */
    for (int i = 0; i < a->seeds; i++) {
        const struct trial_run *r = &v->run[i];
        cJSON_AddItemToArray(all, r->to_95 > 0 ? cJSON_CreateNumber(r->to_95) : cJSON_CreateNull());
        cJSON_AddItemToArray(tried, cJSON_CreateNumber(r->samples));
        cJSON_AddItemToArray(points, cJSON_CreateNumber(r->points));
    }
    cJSON *samples = cJSON_AddArrayToObject(o, "regret_by_samples");
    for (int i = 0; i < GRID && grid[i] <= space_size(v->table->space); i++) {
        cJSON *at = band_json(variant_regret(a, v, grid[i], -1), "mean");
        cJSON_AddNumberToObject(at, "samples", grid[i]);
        cJSON_AddItemToArray(samples, at);
    }
    cJSON *seconds = cJSON_AddArrayToObject(o, "regret_by_seconds");
    for (int i = 0; i < SECONDS_GRID && seconds_grid[i] <= a->budget_s; i++) {
        cJSON *at = band_json(variant_regret(a, v, -1, seconds_grid[i]), "mean");
        cJSON_AddNumberToObject(at, "seconds", seconds_grid[i]);
        cJSON_AddItemToArray(seconds, at);
    }
    return o;
}

static cJSON *slot_json(const struct table *t)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "slot", t->slot);
    cJSON_AddNumberToObject(o, "points", space_size(t->space));
    cJSON_AddNumberToObject(o, "points_of_the_whole_space", t->whole);
    cJSON_AddNumberToObject(o, "measured", table_count(t, POINT_MEASURED));
    cJSON_AddNumberToObject(o, "refused", table_count(t, POINT_REFUSED));
    add_number(o, "best_speed", table_best(t, NULL));
    if (start_speed(t) > 0)
        add_number(o, "start_speed", start_speed(t));
    return o;
}

int ablation_write_json(const struct ablation *a, const char *path, struct err *err)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "version", 1);
    cJSON_AddStringToObject(o, "device", a->tables->machine.device);
    cJSON_AddNumberToObject(o, "seeds", a->seeds);
    cJSON_AddNumberToObject(o, "first_seed", a->before + 1);
    cJSON_AddNumberToObject(o, "budget_s", a->budget_s);
    cJSON_AddNumberToObject(o, "dropped", a->drop);
    cJSON_AddItemToObject(o, "advice_costs", costs_json(a));
    cJSON *slots = cJSON_AddArrayToObject(o, "slots");
    for (int i = 0; i < a->tables->n; i++)
        cJSON_AddItemToArray(slots, slot_json(&a->tables->table[i]));
    cJSON *rows = cJSON_AddArrayToObject(o, "variants");
    for (int i = 0; i < a->variants; i++)
        cJSON_AddItemToArray(rows, variant_json(a, &a->variant[i]));
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    FILE *f = fopen(path, "w");
    bool bad = !f || fprintf(f, "%s\n", text) < 0;
    bad = (f && fclose(f) != 0) || bad;
    free(text);
    return bad ? err_set(err, "%s cannot be written: %s", path, strerror(errno)) : 0;
}
