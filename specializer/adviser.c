/* adviser.c - the seam for advisers, and the built-in one.
 *
 * The heuristic knows what the cost model knows. Its priority is the order of predicted times;
 * its hints rank each knob's values by the mean prediction of the points that have them; its risks
 * are what can be told from a point and the shape alone. A language model gets the same request
 * as JSON (SPECIALIZER.md section 4) and its reply is checked into the same structure.
 */
#include "specializer/adviser.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/plan.h"
#include "specializer/strategy.h"

struct adviser {
    _Atomic uint64_t accepted, rejected, failed, heuristic, ns; /* read by the metrics */
};

void advice_free(struct advice *a)
{
    if (!a)
        return;
    free(a->priority);
    free(a->hint);
    for (int i = 0; i < a->risks; i++)
        free(a->risk[i].id);
    free(a->risk);
    *a = (struct advice){0};
}

unsigned advice_risk(const struct advice *a, int32_t id)
{
    unsigned bits = 0;
    for (int i = 0; i < a->risks; i++)
        for (int k = 0; k < a->risk[i].ids; k++)
            if (a->risk[i].id[k] == id)
                bits |= a->risk[i].kind;
    return bits;
}

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
 * fastest eighth of its points is asked: how a value does in hopeless company says little. */
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
    int tokens = template_knob(t, "TOKENS"), rows = template_knob(t, "ROWS");
    int pack = template_knob(t, "PACK");
    switch (kind) {
    case RISK_NUMERIC:
        return !t->bit_equal(&p, f);
    case RISK_BOUNDARY:
        return (rows >= 0 && f->HIDDEN % p.value[rows] != 0) ||
               (tokens >= 0 && p.value[tokens] > 0 && f->M_MAX % p.value[tokens] != 0);
    case RISK_RESOURCE:
        return pack >= 0 && p.value[pack] != 0;
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

/* ---- the adviser ---------------------------------------------------------------------------- */

struct adviser *adviser_open(const struct config *c, struct store *store)
{
    (void)c;
    (void)store;
    return xcalloc(1, sizeof(struct adviser));
}

void adviser_close(struct adviser *a)
{
    free(a);
}

void adviser_ask(struct adviser *a, const struct advice_request *r, struct advice *out)
{
    int64_t start = clock_ns();
    advise_heuristic(r, out);
    atomic_fetch_add(&a->heuristic, 1);
    atomic_fetch_add(&a->ns, (uint64_t)(clock_ns() - start));
}

void adviser_count(const struct adviser *a, struct adviser_counts *out)
{
    out->accepted = atomic_load(&a->accepted);
    out->rejected = atomic_load(&a->rejected);
    out->failed = atomic_load(&a->failed);
    out->heuristic = atomic_load(&a->heuristic);
    out->seconds = (double)atomic_load(&a->ns) * 1e-9;
}
