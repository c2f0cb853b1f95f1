/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_points.c - see adviser_points.h.
 *
 * A model that is shown 48 candidates of which 39 have the same predicted time is told nothing by
 * their order, and may take it for knowledge. So ties are one entry, with the knobs in which they
 * differ, and knobs that no prediction depends on say so.
 */
#include "specializer/adviser/adviser_points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/search/strategy.h"

#define ALIKE 0.002 /* predictions that differ by less are a tie */
enum { LOOKS = 512, GROUPS_MOST = 64 };

static bool alike(double a, double b)
{
    return fabs(a - b) <= ALIKE * fmin(a, b);
}

/* ---- templates ----------------------------------------------------------------------------- */

/* What occurs in the space of one template. */
struct varies {
    bool seen[KNOBS_MAX][KNOB_VALUES];
    bool alone[KNOBS_MAX];   /* it can change while the others stay */
    bool matters[KNOBS_MAX]; /* some prediction changes when it does */
};

static int value_index(const struct knob *k, int32_t value)
{
    int v = 0;
    while (v < k->values && k->value[v] != value)
        v++;
    return v;
}

/* What changes of knob `k` alone do to the prediction of this point. */
static void look_at(const struct space *s, const struct template *t, int32_t id, int k,
                    struct varies *out)
{
    struct point p;
    space_point(s, id, &p);
    for (int v = 0; v < t->knob[k].values && !out->matters[k]; v++) {
        p.value[k] = t->knob[k].value[v];
        int32_t other = space_find(s, t, &p);
        if (other < 0 || other == id)
            continue;
        out->alone[k] = true;
        out->matters[k] = !alike(space_predicted(s, id), space_predicted(s, other));
    }
}

static void look(const struct space *s, const struct template *t, struct varies *out)
{
    int32_t size = space_size(s), step = size / LOOKS + 1;
    struct point p;
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < size; i++) {
        if (space_template(s, i) != t)
            continue;
        space_point(s, i, &p);
        for (int k = 0; k < t->knobs; k++) {
            int v = value_index(&t->knob[k], p.value[k]);
            if (v < t->knob[k].values)
                out->seen[k][v] = true;
            if (i % step == 0)
                look_at(s, t, i, k, out);
        }
    }
}

static void put_knob(const struct knob *k, const struct varies *v, int at, bool help, cJSON *o)
{
    int32_t value[KNOB_VALUES];
    int n = 0;
    for (int i = 0; i < k->values; i++)
        if (v->seen[at][i])
            value[n++] = k->value[i];
    cJSON_AddStringToObject(o, "knob", k->name);
    if (n == 1) {
        adviser_put_number(o, "only", value[0]);
        return;
    }
    cJSON_AddItemToObject(o, "values", cJSON_CreateIntArray((const int *)value, n));
    if (v->alone[at] && !v->matters[at])
        cJSON_AddTrueToObject(o, "blind");
    if (help)
        cJSON_AddStringToObject(o, "what", k->help);
}

bool adviser_has_template(const struct space *s, const struct template *t)
{
    for (int32_t id = 0; id < space_size(s); id++)
        if (space_template(s, id) == t)
            return true;
    return false; /* none of its points is legal: it is for weights of another format, say */
}

void adviser_put_templates(const struct space *s, bool help, cJSON *o)
{
    cJSON *list = cJSON_AddArrayToObject(o, "templates");
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        struct varies varies;
        if (!adviser_has_template(s, t))
            continue;
        look(s, t, &varies);
        cJSON *one = adviser_add_object(list);
        cJSON_AddStringToObject(one, "template", t->id);
        cJSON_AddStringToObject(one, "what", t->help);
        cJSON *knobs = cJSON_AddArrayToObject(one, "knobs");
        for (int k = 0; k < t->knobs; k++)
            put_knob(&t->knob[k], &varies, k, help, adviser_add_object(knobs));
        cJSON *rules = cJSON_AddArrayToObject(one, "rules");
        for (const char *const *rule = t->rule; *rule; rule++)
            cJSON_AddItemToArray(rules, cJSON_CreateString(*rule));
    }
}

/* ---- candidates ---------------------------------------------------------------------------- */

/* Untried points of one family that are predicted alike. */
struct group {
    int32_t id; /* the first */
    int members;
    bool differs[KNOBS_MAX];
};

struct groups {
    const struct space *space;
    struct group group[GROUPS_MOST];
    int n;
};

/* The group that `id` belongs to, or NULL. Ids come in the order of their predictions. */
static struct group *group_of(struct groups *g, int32_t id)
{
    double predicted = space_predicted(g->space, id);
    for (int i = g->n - 1; i >= 0; i--) {
        struct group *at = &g->group[i];
        if (!alike(space_predicted(g->space, at->id), predicted))
            return NULL;
        if (space_family(g->space, at->id) == space_family(g->space, id))
            return at;
    }
    return NULL;
}

static void join(const struct groups *g, struct group *to, int32_t id)
{
    const struct template *t = space_template(g->space, id);
    struct point first, p;
    space_point(g->space, to->id, &first);
    space_point(g->space, id, &p);
    to->members++;
    for (int k = 0; k < t->knobs; k++)
        to->differs[k] |= p.value[k] != first.value[k];
}

static void gather_groups(const struct advice_request *r, const struct advice *ranking, int most,
                          struct groups *g)
{
    for (int i = 0; i < ranking->priorities; i++) {
        int32_t id = ranking->priority[i];
        if (r->trial && r->trial[id] != TRIAL_NONE)
            continue;
        struct group *of = group_of(g, id);
        if (of)
            join(g, of, id);
        else if (g->n < most && g->n < GROUPS_MOST)
            g->group[g->n++] = (struct group){.id = id, .members = 1};
    }
}

void adviser_put_candidates(const struct advice_request *r, const struct advice *ranking, int most,
                            cJSON *region)
{
    struct groups *g = xcalloc(1, sizeof *g);
    g->space = r->space;
    gather_groups(r, ranking, most, g);
    cJSON *list = cJSON_AddArrayToObject(region, "candidates");
    for (int i = 0; i < g->n; i++) {
        const struct group *of = &g->group[i];
        const struct template *t = space_template(r->space, of->id);
        cJSON *o = adviser_add_object(list);
        adviser_put_id(r->space, o, "id", of->id);
        adviser_put_microseconds(o, "predicted_us", space_predicted(r->space, of->id));
        if (of->members == 1)
            continue;
        adviser_put_number(o, "alike", of->members);
        cJSON *in = cJSON_AddArrayToObject(o, "alike_in");
        for (int k = 0; k < t->knobs; k++)
            if (of->differs[k])
                cJSON_AddItemToArray(in, cJSON_CreateString(t->knob[k].name));
    }
    free(g);
}

/* ---- one change away ----------------------------------------------------------------------- */

/* The point with value `v` of knob `k`, or -1: not legal, or the point itself. */
static int32_t step_to(const struct space *s, int32_t id, int k, int v)
{
    const struct template *t = space_template(s, id);
    struct point p;
    space_point(s, id, &p);
    if (p.value[k] == t->knob[k].value[v])
        return -1;
    p.value[k] = t->knob[k].value[v];
    return space_find(s, t, &p);
}

void adviser_put_values(const struct space *s, int32_t id, cJSON *o)
{
    const struct template *t = space_template(s, id);
    cJSON *steps = cJSON_AddObjectToObject(o, "steps");
    for (int k = 0; k < t->knobs; k++) {
        int32_t value[KNOB_VALUES];
        int n = 0;
        for (int v = 0; v < t->knob[k].values; v++)
            if (step_to(s, id, k, v) >= 0)
                value[n++] = t->knob[k].value[v];
        if (n > 0)
            cJSON_AddItemToObject(steps, t->knob[k].name,
                                  cJSON_CreateIntArray((const int *)value, n));
    }
}

void adviser_put_steps(const struct advice_request *r, int32_t id, cJSON *o)
{
    const struct template *t = space_template(r->space, id);
    cJSON *steps = cJSON_AddArrayToObject(o, "steps");
    for (int k = 0; k < t->knobs; k++)
        for (int v = 0; v < t->knob[k].values; v++) {
            char change[48];
            int32_t to = step_to(r->space, id, k, v);
            if (to < 0 || (r->trial && r->trial[to] == TRIAL_REFUSED))
                continue;
            cJSON *step = adviser_add_object(steps);
            snprintf(change, sizeof change, "%s=%d", t->knob[k].name, t->knob[k].value[v]);
            cJSON_AddStringToObject(step, "change", change);
            if (r->trial && r->trial[to] == TRIAL_MEASURED)
                adviser_put_number(step, "speed", (double)r->speed[to]);
            else
                adviser_put_microseconds(step, "predicted_us", space_predicted(r->space, to));
        }
}

/* ---- other slots --------------------------------------------------------------------------- */

void adviser_put_lessons(const struct advice_request *r, int most, cJSON *region)
{
    cJSON *list = cJSON_AddArrayToObject(region, "lessons");
    for (int i = 0; i < r->lessons && i < most; i++) {
        cJSON *o = adviser_add_object(list);
        cJSON_AddStringToObject(o, "region", r->lesson[i].slot);
        cJSON_AddStringToObject(o, "id", r->lesson[i].id);
        adviser_put_number(o, "speed", r->lesson[i].speed);
    }
}
