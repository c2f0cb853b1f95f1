/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - a wrong cost model is a wrong adviser: Spearman's rank correlation of prediction and
 * measurement, for each slot and family, and what the model gets wrong in words.
 *
 * Three numbers a slot. "formula": constants of the machine only, what a cold search begins with.
 * "learned": the same points predicted after LEARN_FROM others were measured, drawn by lot, the
 * mean of several draws. Within a family the formula only has to order tiles and splits; over the
 * slot it also has to order families, which matters more: most of the time is won or lost there.
 */
#include "tune/report.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/config.h"
#include "config/err.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/template_tables.h"
#include "specializer/store/store.h"

enum { LEARN_FROM = 24, DRAWS = 8, WORST = 4, FAMILIES = 32, FAMILY_LEAST = 6 };

/* A slot's measured points with what the formula says. */
struct sample_set {
    const struct table *t;
    int n;
    int32_t *id;
    float *formula, *own; /* seconds */
    double *error;        /* log(own / formula) */
};

static void collect(const struct tables *tables, const struct table *t, struct sample_set *out)
{
    struct cost cost;
    int size = space_size(t->space);
    *out = (struct sample_set){.t = t};
    out->id = xcalloc((size_t)size + 1, sizeof *out->id);
    out->formula = xcalloc((size_t)size + 1, sizeof *out->formula);
    out->own = xcalloc((size_t)size + 1, sizeof *out->own);
    out->error = xcalloc((size_t)size + 1, sizeof *out->error);
    cost_open(&cost, &tables->machine, tables->threads);
    for (int32_t i = 0; i < size; i++) {
        struct point p;
        if (t->row[i].state != POINT_MEASURED)
            continue;
        space_point(t->space, i, &p);
        int at = out->n++;
        out->id[at] = i;
        out->own[at] = t->row[i].own_s;
        out->formula[at] = (float)cost_formula(&cost, space_template(t->space, i), &p, &t->facts);
        out->error[at] = log((double)out->own[at] / (double)out->formula[at]);
    }
    cost_close(&cost);
}

static void release(struct sample_set *s)
{
    free(s->id);
    free(s->formula);
    free(s->own);
    free(s->error);
}

/* ---- correlations -------------------------------------------------------------------------- */

/* Of the points of `family` (-1: all): how many, and their correlation. */
static double correlation_of(const struct sample_set *s, const float *predicted, int family,
                             int *count)
{
    float *a = xcalloc((size_t)s->n + 1, sizeof *a), *b = xcalloc((size_t)s->n + 1, sizeof *b);
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (predicted[i] > 0 && (family < 0 || space_family(s->t->space, s->id[i]) == family)) {
            a[n] = predicted[i];
            b[n++] = s->own[i];
        }
    double r = rank_correlation(a, b, n);
    free(a);
    free(b);
    *count = n;
    return r;
}

/* One representative id of every family that has measured points; how many. */
static int families_of(const struct sample_set *s, int32_t *id, int most)
{
    int n = 0;
    for (int i = 0; i < s->n && n < most; i++) {
        int k = 0;
        while (k < n && space_family(s->t->space, id[k]) != space_family(s->t->space, s->id[i]))
            k++;
        if (k == n)
            id[n++] = s->id[i];
    }
    return n;
}

/* Over a slot, and within families: the mean of theirs, each counted by its points. Families of a
 * few points say nothing. */
struct correlations {
    double slot, within;
};

static struct correlations correlations_of(const struct sample_set *s, const float *predicted)
{
    int32_t id[FAMILIES];
    int families = families_of(s, id, FAMILIES), points = 0, count;
    struct correlations r = {.slot = correlation_of(s, predicted, -1, &count)};
    for (int f = 0; f < families; f++) {
        double of = correlation_of(s, predicted, space_family(s->t->space, id[f]), &count);
        if (count < FAMILY_LEAST || !isfinite(of))
            continue;
        r.within += of * count;
        points += count;
    }
    r.within = points ? r.within / points : NAN;
    return r;
}

/* Over the points that were not learned from, the mean of several draws; NaN if there are few. */
static struct correlations learned_correlations(const struct tables *tables,
                                                const struct sample_set *s)
{
    float *predicted = xcalloc((size_t)s->n + 1, sizeof *predicted);
    struct correlations mean = {NAN, NAN};
    int draws = s->n >= 2 * LEARN_FROM ? DRAWS : 0;
    for (int d = 0; d < draws; d++) {
        struct cost cost;
        struct point p;
        uint64_t random = (uint64_t)d + 1;
        bool *known = xcalloc((size_t)s->n + 1, sizeof *known);
        cost_open(&cost, &tables->machine, tables->threads);
        for (int k = 0; k < LEARN_FROM;) {
            int at = random_below(&random, s->n);
            if (known[at])
                continue;
            known[at] = true;
            k++;
            space_point(s->t->space, s->id[at], &p);
            cost_learn(&cost, space_template(s->t->space, s->id[at]), &p, &s->t->facts,
                       (double)s->own[at]);
        }
        for (int i = 0; i < s->n; i++) {
            space_point(s->t->space, s->id[i], &p);
            predicted[i] = known[i]
                               ? 0
                               : (float)cost_predict(&cost, space_template(s->t->space, s->id[i]),
                                                     &p, &s->t->facts);
        }
        struct correlations of = correlations_of(s, predicted);
        mean.slot = (d ? mean.slot : 0) + of.slot / draws;
        mean.within = (d ? mean.within : 0) + of.within / draws;
        cost_close(&cost);
        free(known);
    }
    free(predicted);
    return mean;
}

/* ---- where it is wrong --------------------------------------------------------------------- */

/* A part of a slot's points and by how much its times are off, against the slot's mean error. */
struct error_of {
    char what[96];
    double log_error;
    int n;
};

static double mean_error(const struct sample_set *s, int family, int knob, int32_t value, int *n)
{
    double sum = 0;
    *n = 0;
    for (int i = 0; i < s->n; i++) {
        struct point p;
        space_point(s->t->space, s->id[i], &p);
        if ((family >= 0 && space_family(s->t->space, s->id[i]) != family) ||
            (knob >= 0 && p.value[knob] != value))
            continue;
        sum += s->error[i];
        ++*n;
    }
    return *n ? sum / *n : 0;
}

static void family_name(const struct space *s, int32_t id, char *out, size_t n)
{
    const struct template *t = space_template(s, id);
    struct point p;
    int families, isa = template_role(t, ROLE_ISA);
    const struct role_family *f = role_families(&families);
    space_point(s, id, &p);
    size_t at = (size_t)snprintf(out, n, "%s%s%s", t->id, isa < 0 ? "" : " ",
                                 isa < 0 ? "" : isa_name(p.value[isa]));
    for (int i = 0; i < families && at < n; i++) {
        int k = template_role(t, f[i].role);
        if (k >= 0 && *f[i].word && role_kind(&f[i], p.value[k]) > 0)
            at += (size_t)snprintf(out + at, n - at, " %s", f[i].word);
    }
}

static int largest_first(const void *a, const void *b)
{
    double x = fabs(((const struct error_of *)a)->log_error);
    double y = fabs(((const struct error_of *)b)->log_error);
    return (x < y) - (x > y);
}

static int gather_errors(const struct sample_set *s, struct error_of *out, int most)
{
    int32_t id[FAMILIES];
    int families = families_of(s, id, FAMILIES), n = 0, count;
    double all = mean_error(s, -1, -1, 0, &count);
    for (int f = 0; f < families; f++) {
        char name[64];
        int family = space_family(s->t->space, id[f]);
        const struct template *t = space_template(s->t->space, id[f]);
        family_name(s->t->space, id[f], name, sizeof name);
        double of = mean_error(s, family, -1, 0, &count);
        if (n < most) {
            out[n] = (struct error_of){.log_error = of - all, .n = count};
            snprintf(out[n++].what, sizeof out->what, "%s", name);
        }
        for (int k = 0; k < t->knobs; k++)
            for (int v = 0; v < t->knob[k].values && n < most; v++) {
                double e = mean_error(s, family, k, t->knob[k].value[v], &count);
                if (count < 3)
                    continue;
                out[n] = (struct error_of){.log_error = e - of, .n = count};
                snprintf(out[n++].what, sizeof out->what, "%s, %s=%d", name, t->knob[k].name,
                         t->knob[k].value[v]);
            }
    }
    qsort(out, (size_t)n, sizeof *out, largest_first);
    return n;
}

/* ---- output -------------------------------------------------------------------------------- */

static void put(cJSON *o, const char *name, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, name, round(v * 1000) / 1000);
    else
        cJSON_AddNullToObject(o, name);
}

/* "+0.83", or "-" of points too few to be ranked. */
static const char *shown(double correlation, char out[16])
{
    if (isfinite(correlation))
        snprintf(out, 16, "%+.2f", correlation);
    else
        snprintf(out, 16, "-");
    return out;
}

static cJSON *report_slot(const struct tables *tables, const struct sample_set *s)
{
    enum { ERRORS = 512 };
    int32_t id[FAMILIES];
    int families = families_of(s, id, FAMILIES), count;
    struct correlations formula = correlations_of(s, s->formula);
    struct correlations learned = learned_correlations(tables, s);
    cJSON *o = cJSON_CreateObject(), *rows = cJSON_CreateArray(), *words = cJSON_CreateArray();
    char first[16], then[16];
    printf("\n%-34s %5d points   formula %s   after %d measurements %s\n", s->t->slot, s->n,
           shown(formula.slot, first), LEARN_FROM, shown(learned.slot, then));
    printf("  %-32s                formula %s   after %d measurements %s\n", "within families",
           shown(formula.within, first), LEARN_FROM, shown(learned.within, then));
    cJSON_AddStringToObject(o, "slot", s->t->slot);
    cJSON_AddNumberToObject(o, "points", s->n);
    put(o, "formula", formula.slot);
    put(o, "learned", learned.slot);
    put(o, "formula_within_families", formula.within);
    put(o, "learned_within_families", learned.within);
    for (int f = 0; f < families; f++) {
        char name[64];
        family_name(s->t->space, id[f], name, sizeof name);
        double r = correlation_of(s, s->formula, space_family(s->t->space, id[f]), &count);
        printf("  %-32s %5d points   formula %s\n", name, count, shown(r, first));
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "family", name);
        cJSON_AddNumberToObject(row, "points", count);
        put(row, "formula", r);
        cJSON_AddItemToArray(rows, row);
    }
    struct error_of *error = xcalloc(ERRORS, sizeof *error);
    int errors = gather_errors(s, error, ERRORS);
    for (int i = 0; i < errors && i < WORST && fabs(error[i].log_error) > 0.05; i++) {
        double factor = exp(fabs(error[i].log_error));
        char *text = xasprintf("%s: %.2fx %s than the formula thinks (%d points)", error[i].what,
                               factor, error[i].log_error > 0 ? "slower" : "faster", error[i].n);
        printf("  wrong: %s\n", text);
        cJSON_AddItemToArray(words, cJSON_CreateString(text));
        free(text);
    }
    free(error);
    cJSON_AddItemToObject(o, "families", rows);
    cJSON_AddItemToObject(o, "wrong", words);
    return o;
}

static int finish(cJSON *slots, const char *json, struct err *err)
{
    int r = 0;
    if (json) {
        char *text = cJSON_Print(slots);
        FILE *f = fopen(json, "w");
        bool bad = !f || fprintf(f, "{\"version\":1,\"slots\":%s}\n", text) < 0;
        bad = (f && fclose(f) != 0) || bad;
        free(text);
        r = bad ? err_set(err, "%s cannot be written: %s", json, strerror(errno)) : 0;
    }
    cJSON_Delete(slots);
    return r;
}

int report_tables(const struct tables *t, const char *json, struct err *err)
{
    cJSON *slots = cJSON_CreateArray();
    printf("Spearman's rank correlation of predicted and measured time; %s\n", t->machine.device);
    for (int i = 0; i < t->n; i++) {
        struct sample_set s;
        collect(t, &t->table[i], &s);
        cJSON_AddItemToArray(slots, report_slot(t, &s));
        release(&s);
    }
    return finish(slots, json, err);
}

/* ---- a store's predictions ----------------------------------------------------------------- */

enum { GROUPS_MOST = 512 };

/* One slot and template. */
struct group {
    char slot[40], template[48];
    float *predicted, *own;
    int n;
};

struct groups {
    struct group group[GROUPS_MOST];
    int n;
};

static void add_row(void *ctx, const struct record *r)
{
    struct groups *g = ctx;
    int i = 0;
    if (!(r->evidence.own_s > 0) || !(r->predicted_s > 0))
        return;
    while (i < g->n &&
           (strcmp(g->group[i].slot, r->slot) || strcmp(g->group[i].template, r->template)))
        i++;
    if (i == GROUPS_MOST)
        return;
    struct group *of = &g->group[i];
    if (i == g->n) {
        g->n++;
        snprintf(of->slot, sizeof of->slot, "%s", r->slot);
        snprintf(of->template, sizeof of->template, "%s", r->template);
    }
    of->predicted = xrealloc(of->predicted, (size_t)(of->n + 1) * sizeof *of->predicted);
    of->own = xrealloc(of->own, (size_t)(of->n + 1) * sizeof *of->own);
    of->predicted[of->n] = (float)r->predicted_s;
    of->own[of->n++] = (float)r->evidence.own_s;
}

int report_store(const struct config *c, const char *json, struct err *err)
{
    char *path = store_default_path(c->specializer_store);
    struct store *store = store_open_read(path, err);
    free(path);
    if (!store)
        return -1;
    struct groups *g = xcalloc(1, sizeof *g);
    struct record_filter all = {0};
    int r = store_each(store, &all, add_row, g, err);
    cJSON *slots = cJSON_CreateArray();
    if (g->n == 0)
        printf("nothing in the store was predicted and measured yet\n");
    for (int i = 0; i < g->n; i++) {
        struct group *of = &g->group[i];
        double rho = rank_correlation(of->predicted, of->own, of->n);
        printf("%-16s %-14s %5d points   as predicted when proposed %+.2f\n", of->slot,
               of->template, of->n, rho);
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "slot", of->slot);
        cJSON_AddStringToObject(o, "template", of->template);
        cJSON_AddNumberToObject(o, "points", of->n);
        put(o, "proposed", rho);
        cJSON_AddItemToArray(slots, o);
        free(of->predicted);
        free(of->own);
    }
    free(g);
    store_close(store);
    if (r != 0)
        cJSON_Delete(slots);
    return r != 0 ? -1 : finish(slots, json, err);
}
