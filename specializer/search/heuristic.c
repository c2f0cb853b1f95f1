/* SPDX-License-Identifier: Apache-2.0 */
/* heuristic.c - the built-in adviser.
 *
 * The heuristic knows what the cost model knows. Its priority is the order of predicted times;
 * its hints rank each knob's values by the mean prediction of the points that have them; its risks
 * are what can be told from a point and the shape alone; its moves go down the prediction, knob by
 * knob. Whatever a language model leaves unsaid is filled in from here.
 */
#include "specializer/search/advice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/plan.h"

/* ---- the heuristic -------------------------------------------------------------------------- */

static void rank_all(const struct advice_request *r, struct advice *out)
{
    int n = space_size(r->space);
    out->priority = xmalloc(((size_t)n + 1) * sizeof *out->priority);
    for (int32_t i = 0; i < n; i++)
        out->priority[i] = i;
    out->priorities = n;
    space_sort(r->space, out->priority, n);
}

/* Means of the predicted time by value of one knob over the space's points of `t`. */
struct mean {
    int32_t value;
    double sum;
    int n;
};

static int by_mean(const void *a, const void *b)
{
    const struct mean *x = a, *y = b;
    double mx = x->n ? x->sum / x->n : 1e30, my = y->n ? y->sum / y->n : 1e30;
    return (mx > my) - (mx < my);
}

/* Values of each knob of the template that the best point belongs to, best mean first. Only the
 * fastest eighth of its points is asked: how a value does beside hopeless ones says little. */
static void hint_all(const struct advice_request *r, struct advice *out)
{
    if (out->priorities == 0)
        return;
    const struct template *t = space_template(r->space, out->priority[0]);
    struct mean mean[KNOBS_MAX][KNOB_VALUES] = {{{0}}};
    int limit = out->priorities / 8 + 1;
    for (int i = 0; i < limit; i++) {
        struct point p;
        if (space_template(r->space, out->priority[i]) != t)
            continue;
        space_point(r->space, out->priority[i], &p);
        for (int k = 0; k < t->knobs; k++)
            for (int v = 0; v < t->knob[k].values; v++)
                if (t->knob[k].value[v] == p.value[k]) {
                    mean[k][v].sum += space_predicted(r->space, out->priority[i]);
                    mean[k][v].n++;
                }
    }
    out->hint = xcalloc((size_t)t->knobs + 1, sizeof *out->hint);
    for (int k = 0; k < t->knobs; k++) {
        struct hint *h = &out->hint[out->hints++];
        snprintf(h->template, sizeof h->template, "%s", t->id);
        snprintf(h->knob, sizeof h->knob, "%s", t->knob[k].name);
        for (int v = 0; v < t->knob[k].values; v++)
            mean[k][v].value = t->knob[k].value[v];
        qsort(mean[k], (size_t)t->knob[k].values, sizeof mean[k][0], by_mean);
        for (int v = 0; v < t->knob[k].values; v++)
            if (mean[k][v].n > 0)
                h->value[h->values++] = mean[k][v].value;
    }
}

static bool is_risky(const struct advice_request *r, int32_t id, enum risk kind)
{
    const struct template *t = space_template(r->space, id);
    const struct facts *f = space_facts(r->space);
    struct point p;
    space_point(r->space, id, &p);
    int tokens = template_role(t, ROLE_TOKENS), rows = template_role(t, ROLE_ROWS);
    switch (kind) {
    case RISK_NUMERIC:
        return !t->bit_equal(&p, f);
    case RISK_BOUNDARY:
        return (rows >= 0 && f->HIDDEN % p.value[rows] != 0) ||
               (tokens >= 0 && p.value[tokens] > 0 && f->M_MAX % p.value[tokens] != 0);
    case RISK_RESOURCE:
        return role_value(t, &p, ROLE_PACK) != 0;
    case RISK_DYNAMIC_SHAPE:
        return f->REGION == REGION_ATTN;
    }
    return false;
}

static void note_risk(const struct advice_request *r, struct advice *out, enum risk kind,
                      const char *note)
{
    struct risk_note *risk = &out->risk[out->risks];
    *risk = (struct risk_note){.kind = kind};
    for (int32_t i = 0; i < out->priorities; i++)
        if (is_risky(r, i, kind)) {
            if ((risk->ids & (risk->ids - 1)) == 0) /* room grows by doubling */
                risk->id = xrealloc(risk->id, ((size_t)risk->ids * 2 + 1) * sizeof *risk->id);
            risk->id[risk->ids++] = i;
        }
    snprintf(risk->note, sizeof risk->note, "%s", note);
    if (risk->ids > 0)
        out->risks++;
    else
        free(risk->id);
}

void advise_heuristic(const struct advice_request *r, struct advice *out)
{
    *out = (struct advice){0};
    snprintf(out->source, sizeof out->source, "heuristic");
    const struct facts *f = space_facts(r->space);
    bool memory = r->run_s > 0 && r->roofline_s > 0.5 * r->run_s;
    snprintf(out->label, sizeof out->label, "%s, m up to %d, %s",
             region_name((enum region)f->REGION), f->M_MAX,
             memory ? "near the roofline" : "far from the roofline");
    rank_all(r, out);
    hint_all(r, out);
    out->risk = xcalloc(4, sizeof *out->risk);
    note_risk(r, out, RISK_NUMERIC, "does not keep the eager kernel's order of arithmetic");
    note_risk(r, out, RISK_BOUNDARY, "rows or tokens are not a whole number of tiles");
    note_risk(r, out, RISK_RESOURCE, "needs a repacked copy of the weights");
    note_risk(r, out, RISK_DYNAMIC_SHAPE, "context and number of sequences vary from step to step");
}

/* ---- moves --------------------------------------------------------------------------------- */

/* The one change of `from` that leads to the shortest predicted time below `least`; -1: none. */
static int32_t best_step(const struct space *s, const struct point *from, const struct template *t,
                         double least, struct change *out)
{
    int32_t best = -1;
    for (int k = 0; k < t->knobs; k++)
        for (int v = 0; v < t->knob[k].values; v++) {
            struct point p = *from;
            p.value[k] = t->knob[k].value[v];
            int32_t id = space_find(s, t, &p);
            if (id < 0 || space_predicted(s, id) >= least)
                continue;
            least = space_predicted(s, id);
            best = id;
            out->value = p.value[k];
            snprintf(out->knob, sizeof out->knob, "%s", t->knob[k].name);
        }
    return best;
}

void advise_moves(const struct space *s, int32_t node, struct moves *out)
{
    enum { STEPS = 3 };
    const struct template *t = space_template(s, node);
    *out = (struct moves){.node = node};
    for (int32_t at = node; out->n < STEPS;) {
        struct point p;
        space_point(s, at, &p);
        at = best_step(s, &p, t, space_predicted(s, at), &out->change[out->n]);
        if (at < 0)
            break;
        out->n++;
    }
}
