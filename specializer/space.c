/* space.c - one slot's space: the legal points of its templates, in the order of their tables.
 *
 * Points are kept as indices into the knobs' value lists, one byte a knob, in lexicographic order
 * within a template, so a point is found again by bisection. A space of 60,000 points takes under
 * 2 MB and about 10 ms to enumerate (300,000 raw points on a 2.1 GHz Xeon, 2026-11).
 */
#include "specializer/space.h"

#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/cost.h"
#include "specializer/hash.h"

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

/* Appends the template's legal points to the space, or with s == NULL only counts them. `keep_of`:
 * one point in this many is kept, chosen by its hash. */
static int enumerate(struct space *s, const struct template *t, const struct facts *f,
                     bool bit_equal, int keep_of)
{
    uint8_t index[KNOBS_MAX] = {0};
    struct point p;
    int found = 0;
    do {
        spot_point(t, index, &p);
        if (t->legal(&p, f) || (bit_equal && !t->bit_equal(&p, f)))
            continue;
        if (keep_of > 1 &&
            hash_mix(hash_bytes(HASH_START, index, sizeof index)) % (uint64_t)keep_of != 0)
            continue;
        found++;
        if (s) {
            struct spot *spot = &s->spot[s->size++];
            spot->template = (uint8_t)template_index(t);
            memcpy(spot->index, index, sizeof index);
        }
    } while (next(t, index));
    return found;
}

struct space *space_open(const struct facts *f, enum region region, int m, enum numerics numerics)
{
    struct space *s = xcalloc(1, sizeof *s);
    s->owners = 1;
    s->facts = *f;
    int templates = template_count(), total = 0;
    bool bit_equal = numerics == NUMERICS_BIT_EQUAL;
    for (int t = 0; t < templates; t++)
        if (template_fits(template_at(t), region, m))
            total += enumerate(NULL, template_at(t), f, bit_equal, 1);
    int keep_of = (total + SPACE_MOST - 1) / SPACE_MOST;
    if (keep_of > 1)
        log_info("specializer", "%s/m%d has %d legal points: one in %d is considered",
                 region_name(region), m, total, keep_of);
    s->spot = xcalloc((size_t)total + 1, sizeof *s->spot);
    s->first = xcalloc((size_t)templates + 1, sizeof *s->first);
    for (int t = 0; t < templates; t++) {
        s->first[t] = s->size;
        if (template_fits(template_at(t), region, m))
            enumerate(s, template_at(t), f, bit_equal, keep_of);
    }
    s->first[templates] = s->size;
    s->predicted_s = xcalloc((size_t)s->size + 1, sizeof *s->predicted_s);
    return s;
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

enum { ISA_VALUES = 8, PACK_VALUES = 4 };

int space_families(void)
{
    return template_count() * ISA_VALUES * PACK_VALUES;
}

int space_family(const struct space *s, int32_t id)
{
    const struct spot *spot = &s->spot[id];
    const struct template *t = template_at(spot->template);
    int isa = template_knob(t, "ISA"), pack = template_knob(t, "PACK");
    int kind = (isa < 0 ? 0 : spot->index[isa] % ISA_VALUES) * PACK_VALUES +
               (pack < 0 ? 0 : spot->index[pack] % PACK_VALUES);
    return spot->template * ISA_VALUES * PACK_VALUES + kind;
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
    uint8_t index[KNOBS_MAX] = {0};
    for (int k = 0; k < t->knobs; k++) {
        int v = 0;
        while (v < t->knob[k].values && t->knob[k].value[v] != p->value[k])
            v++;
        if (v == t->knob[k].values)
            return -1;
        index[k] = (uint8_t)v;
    }
    return find_index(s, template_index(t), index);
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
