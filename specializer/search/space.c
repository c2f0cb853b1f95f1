/* SPDX-License-Identifier: Apache-2.0 */
/* space.c - one slot's space: the legal points of its templates, in the order of their tables.
 *
 * Points are kept as indices into the knobs' value lists, one byte a knob, in lexicographic order
 * within a template, so a point is found again by bisection. A space of 60,000 points takes under
 * 2 MB and about 10 ms to enumerate (300,000 raw points on a 2.1 GHz Xeon, 2026-11).
 *
 * A template may have more combinations of knob values than anybody can look at (gemv.def: 480
 * million, one in some hundreds legal). Of such a one the space has what a search can reach and
 * what it could not have guessed: everything within three knobs of the point it starts from and of
 * its default, and as many points again drawn evenly from the rest.
 */
#include "specializer/search/space.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/cost.h"

struct spot {
    uint8_t template;
    uint8_t index[KNOBS_MAX]; /* of the value in the knob's list */
};

struct space {
    int owners;
    struct facts facts;
    int size;
    struct spot *spot;  /* [size] */
    float *predicted_s; /* [size] */
    const struct cost *cost;
    int *first; /* [templates + 1] id of the template's first point */
};

/* ---- enumeration ---------------------------------------------------------------------------- */

static void spot_point(const struct template *t, const uint8_t *index, struct point *p)
{
    *p = (struct point){{0}};
    for (int k = 0; k < t->knobs; k++)
        p->value[k] = t->knob[k].value[index[k]];
}

/* The next combination of value indices; false after the last. */
static bool next(const struct template *t, uint8_t *index)
{
    for (int k = t->knobs - 1; k >= 0; k--) {
        if (++index[k] < t->knob[k].values)
            return true;
        index[k] = 0;
    }
    return false;
}

/* Points on their way into a space. */
struct listing {
    const struct facts *facts;
    const struct template *template;
    bool bit_equal;
    int keep_of; /* one point in this many is kept, chosen by its hash */
    bool near;   /* or, where there is a point to start from, those around it and a sample */
    bool starts; /* START rows count */
    struct spot *spot;
    int n, room; /* spot NULL: only counted */
};

static bool belongs(const struct listing *l, const uint8_t *index)
{
    struct point p;
    spot_point(l->template, index, &p);
    if (l->template->legal(&p, l->facts) || (l->bit_equal && !l->template->bit_equal(&p, l->facts)))
        return false;
    return l->keep_of <= 1 ||
           hash_mix(hash_bytes(HASH_START, index, KNOBS_MAX)) % (uint64_t)l->keep_of == 0;
}

static void keep(struct listing *l, const uint8_t *index)
{
    if (l->spot && l->n == l->room) {
        l->room *= 2;
        l->spot = xrealloc(l->spot, (size_t)l->room * sizeof *l->spot);
    }
    if (l->spot) {
        l->spot[l->n].template = (uint8_t)template_index(l->template);
        memcpy(l->spot[l->n].index, index, KNOBS_MAX);
    }
    l->n++;
}

static void list_all(struct listing *l)
{
    uint8_t index[KNOBS_MAX] = {0};
    do
        if (belongs(l, index))
            keep(l, index);
    while (next(l->template, index));
}

/* ---- templates too large to enumerate ------------------------------------------------------- */

enum { NEAR = 3, NEAR_MOST = SPACE_MOST / 3, DRAWS = 1500000 };

static bool too_large(const struct template *t)
{
    int64_t raw = 1;
    for (int k = 0; k < t->knobs && raw <= RAW_MOST; k++)
        raw *= t->knob[k].values;
    return raw > RAW_MOST;
}

/* Points that differ from `index` in up to `left` of the knobs from `knob` on. */
static void list_near(struct listing *l, uint8_t *index, int knob, int left)
{
    if (l->n < l->room && belongs(l, index))
        keep(l, index);
    for (int k = knob; left > 0 && k < l->template->knobs; k++) {
        uint8_t was = index[k];
        for (int v = 0; v < l->template->knob[k].values; v++)
            if (v != was) {
                index[k] = (uint8_t)v;
                list_near(l, index, k + 1, left - 1);
            }
        index[k] = was;
    }
}

static void list_drawn(struct listing *l, uint64_t seed)
{
    for (int i = 0; i < DRAWS && l->n < l->room; i++) {
        uint8_t index[KNOBS_MAX] = {0};
        uint64_t bits = hash_mix(seed + (uint64_t)i);
        for (int k = 0; k < l->template->knobs; k++, bits = hash_mix(bits)) {
            uint64_t values = (uint64_t)l->template->knob[k].values;
            bool power = (values & (values - 1)) == 0; /* mostly; and a division is dear */
            index[k] = (uint8_t)(power ? bits & (values - 1) : bits % values);
        }
        if (belongs(l, index))
            keep(l, index);
    }
}

/* Value indices of a point; false if a knob has no such value. */
static bool index_of(const struct template *t, const struct point *p, uint8_t *index)
{
    memset(index, 0, KNOBS_MAX);
    for (int k = 0; k < t->knobs; k++) {
        int v = 0;
        while (v < t->knob[k].values && t->knob[k].value[v] != p->value[k])
            v++;
        if (v == t->knob[k].values)
            return false;
        index[k] = (uint8_t)v;
    }
    return true;
}

static int by_index(const void *a, const void *b)
{
    return memcmp(((const struct spot *)a)->index, ((const struct spot *)b)->index, KNOBS_MAX);
}

/* Appends what a search will look at of a template too large for list_all(), each point once. */
static void list_some(struct listing *l)
{
    struct listing some = *l;
    struct point start, fallback = template_defaults(l->template);
    uint8_t index[KNOBS_MAX];
    some.room = NEAR_MOST;
    some.n = 0;
    some.spot = xcalloc(2 * NEAR_MOST, sizeof *some.spot);
    if (l->starts && template_start(l->template, l->facts, &start) &&
        index_of(l->template, &start, index))
        list_near(&some, index, 0, NEAR);
    if (index_of(l->template, &fallback, index))
        list_near(&some, index, 0, NEAR);
    some.room = 2 * NEAR_MOST;
    list_drawn(&some, 1);
    qsort(some.spot, (size_t)some.n, sizeof *some.spot, by_index);
    for (int i = 0; i < some.n; i++)
        if (i == 0 || by_index(&some.spot[i - 1], &some.spot[i]) != 0)
            keep(l, some.spot[i].index);
    free(some.spot);
}

static void list_template(struct listing *l)
{
    if (l->near || too_large(l->template))
        list_some(l);
    else
        list_all(l);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Points of all templates that could be enumerated: too many are thinned. */
static int count_all(struct listing l, enum region region, int m)
{
    for (int t = 0; t < template_count(); t++) {
        l.template = template_at(t);
        if (template_fits(l.template, facts_kind(l.facts), region, m) &&
            template_reads(l.template, l.facts) && !too_large(l.template))
            list_all(&l);
    }
    return l.n;
}

struct space *space_open_starts(const struct facts *f, enum region region, int m,
                                enum numerics numerics, bool starts)
{
    struct space *s = xcalloc(1, sizeof *s);
    s->owners = 1;
    s->facts = *f;
    int templates = template_count();
    struct listing l = {.facts = f, .bit_equal = numerics == NUMERICS_BIT_EQUAL, .starts = starts};
    int total = count_all(l, region, m);
    l.keep_of = (total + SPACE_MOST - 1) / SPACE_MOST;
    l.near = l.keep_of > 1 && target_of(facts_kind(f))->space_near_starts;
    if (l.near)
        l.keep_of = 1;
    else if (l.keep_of > 1)
        log_info("specializer", "%s/m%d has %d legal points: one in %d is considered",
                 region_name(region), m, total, l.keep_of);
    l.room = total + 1;
    l.spot = xcalloc((size_t)l.room, sizeof *l.spot);
    s->first = xcalloc((size_t)templates + 1, sizeof *s->first);
    for (int t = 0; t < templates; t++) {
        s->first[t] = l.n;
        l.template = template_at(t);
        if (template_fits(l.template, facts_kind(f), region, m) && template_reads(l.template, f))
            list_template(&l);
    }
    s->first[templates] = s->size = l.n;
    s->spot = l.spot;
    s->predicted_s = xcalloc((size_t)s->size + 1, sizeof *s->predicted_s);
    return s;
}

struct space *space_open(const struct facts *f, enum region region, int m, enum numerics numerics)
{
    return space_open_starts(f, region, m, numerics, true);
}

static int by_spot(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;
    return x->template != y->template ? x->template - y->template : by_index(a, b);
}

struct space *space_listed(const struct facts *f, const struct template *const *t,
                           const struct point *p, int n)
{
    struct space *s = xcalloc(1, sizeof *s);
    bool good = true;
    s->owners = 1;
    s->facts = *f;
    s->size = n;
    s->spot = xcalloc((size_t)n + 1, sizeof *s->spot);
    s->predicted_s = xcalloc((size_t)n + 1, sizeof *s->predicted_s);
    s->first = xcalloc((size_t)template_count() + 1, sizeof *s->first);
    for (int i = 0; i < n; i++) {
        s->spot[i].template = (uint8_t)template_index(t[i]);
        good = good && index_of(t[i], &p[i], s->spot[i].index) && !t[i]->legal(&p[i], f);
    }
    qsort(s->spot, (size_t)n, sizeof *s->spot, by_spot);
    for (int i = 1; i < n; i++)
        good = good && by_spot(&s->spot[i - 1], &s->spot[i]) != 0;
    for (int k = 0, i = 0; k <= template_count(); k++) {
        while (i < n && s->spot[i].template <k)
            i++;
        s->first[k] = i;
    }
    if (good)
        return s;
    space_close(s);
    return NULL;
}

void space_keep(struct space *s, const unsigned char *keep)
{
    int kept = 0, templates = template_count();
    for (int i = 0, t = 0; i <= s->size; i++) {
        for (; t <= templates && s->first[t] == i; t++)
            s->first[t] = kept;
        if (i < s->size && keep[i])
            s->spot[kept++] = s->spot[i];
    }
    s->size = kept;
}

struct space *space_copy(const struct space *s)
{
    struct space *new = xcalloc(1, sizeof *new);
    size_t size = (size_t)s->size, firsts = (size_t)template_count() + 1;
    *new = (struct space){.owners = 1, .facts = s->facts, .size = s->size};
    new->spot = xcalloc(size + 1, sizeof *new->spot);
    new->predicted_s = xcalloc(size + 1, sizeof *new->predicted_s);
    new->first = xcalloc(firsts, sizeof *new->first);
    memcpy(new->spot, s->spot, size * sizeof *new->spot);
    memcpy(new->first, s->first, firsts * sizeof *new->first);
    return new;
}

struct space *space_share(struct space *s)
{
    s->owners++;
    return s;
}

void space_close(struct space *s)
{
    if (!s || --s->owners > 0)
        return;
    free(s->spot);
    free(s->predicted_s);
    free(s->first);
    free(s);
}

/* ---- looking things up ---------------------------------------------------------------------- */

int space_size(const struct space *s)
{
    return s->size;
}

const struct facts *space_facts(const struct space *s)
{
    return &s->facts;
}

const struct template *space_template(const struct space *s, int32_t id)
{
    return template_at(s->spot[id].template);
}

void space_point(const struct space *s, int32_t id, struct point *out)
{
    spot_point(space_template(s, id), s->spot[id].index, out);
}

enum { KINDS = 32 };

int space_families(void)
{
    return template_count() * KINDS;
}

int template_family(const struct template *t, const struct point *p)
{
    int kind = 0, families;
    const struct role_family *f = role_families(&families);
    for (int i = 0; i < families; i++) {
        int k = template_role(t, f[i].role);
        if (k >= 0)
            kind = kind * f[i].kinds + role_kind(&f[i], p->value[k]);
    }
    return template_index(t) * KINDS + kind % KINDS;
}

int space_family(const struct space *s, int32_t id)
{
    struct point p;
    space_point(s, id, &p);
    return template_family(space_template(s, id), &p);
}

static int32_t find_index(const struct space *s, int template, const uint8_t *index)
{
    int low = s->first[template], high = s->first[template + 1] - 1;
    while (low <= high) {
        int mid = low + (high - low) / 2;
        int order = memcmp(s->spot[mid].index, index, KNOBS_MAX);
        if (order == 0)
            return mid;
        if (order < 0)
            low = mid + 1;
        else
            high = mid - 1;
    }
    return -1;
}

int32_t space_find(const struct space *s, const struct template *t, const struct point *p)
{
    uint8_t index[KNOBS_MAX];
    const int template = template_index(t);
    return template >= 0 && index_of(t, p, index) ? find_index(s, template, index) : -1;
}

int space_distance(const struct space *s, int32_t a, int32_t b)
{
    if (s->spot[a].template != s->spot[b].template)
        return KNOBS_MAX + 1;
    int different = 0;
    for (int k = 0; k < KNOBS_MAX; k++)
        different += s->spot[a].index[k] != s->spot[b].index[k];
    return different;
}

int space_neighbours(const struct space *s, int32_t id, int32_t *out)
{
    const struct spot *from = &s->spot[id];
    const struct template *t = template_at(from->template);
    int n = 0;
    for (int k = 0; k < t->knobs; k++)
        for (int step = -1; step <= 1; step += 2) {
            uint8_t index[KNOBS_MAX];
            memcpy(index, from->index, sizeof index);
            int32_t found = -1;
            for (int v = from->index[k] + step; found < 0 && v >= 0 && v < t->knob[k].values;
                 v += step) {
                index[k] = (uint8_t)v;
                found = find_index(s, from->template, index);
            }
            if (found >= 0)
                out[n++] = found;
        }
    return n;
}

/* ---- predictions ---------------------------------------------------------------------------- */

double space_predicted(const struct space *s, int32_t id)
{
    return (double)s->predicted_s[id];
}

void space_predict(struct space *s, const struct cost *cost)
{
    struct point p;
    s->cost = cost;
    for (int32_t i = 0; i < s->size; i++) {
        space_point(s, i, &p);
        s->predicted_s[i] = (float)cost_predict(cost, space_template(s, i), &p, &s->facts);
    }
}

const struct cost *space_cost(const struct space *s)
{
    return s->cost;
}

/* qsort_r with the id as tie-break: the order never depends on the sort. */
static int by_prediction(const void *a, const void *b, void *predicted)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const float *p = predicted;
    if (p[x] != p[y])
        return p[x] < p[y] ? -1 : 1;
    return (x > y) - (x < y);
}

void space_sort(const struct space *s, int32_t *id, int n)
{
    qsort_r(id, (size_t)n, sizeof *id, by_prediction, s->predicted_s);
}
