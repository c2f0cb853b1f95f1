/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - measured points in memory; see table.h.
 *
 * Thinning by lattice and not by lot: of 200 points drawn from 5000, hardly two differ in one knob
 * only, and a strategy that changes one knob at a time would have nowhere to go. Leaving out whole
 * values keeps the space what it is, only with shorter lists.
 */
#include "tune/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"

/* ---- thinning ------------------------------------------------------------------------------ */

/* Values that are left in, by template and knob. */
struct lattice {
    bool in[KNOBS_MAX][KNOB_VALUES];
};

static bool is_kept(const struct lattice *l, const struct space *s, int32_t id)
{
    const struct template *t = space_template(s, id);
    const struct lattice *of = &l[template_index(t)];
    struct point p;
    space_point(s, id, &p);
    for (int k = 0; k < t->knobs; k++)
        for (int v = 0; v < t->knob[k].values; v++)
            if (t->knob[k].value[v] == p.value[k] && !of->in[k][v])
                return false;
    return true;
}

/* Marks what is left; how many points, and in *families how many families have any. */
static int mark_kept(const struct lattice *l, const struct space *s, unsigned char *keep,
                     int *families)
{
    int n = 0;
    unsigned char *has = xcalloc((size_t)space_families() + 1, 1);
    *families = 0;
    for (int32_t i = 0; i < space_size(s); i++) {
        n += keep[i] = (unsigned char)is_kept(l, s, i);
        *families += keep[i] && !has[space_family(s, i)];
        has[space_family(s, i)] |= keep[i];
    }
    free(has);
    return n;
}

/* A value of a knob. */
struct value {
    int template, knob, value;
};

/* All values of all templates of the space in an order drawn by lot. */
static int list_values(const struct space *s, uint64_t *random, struct value *out, int most)
{
    int n = 0;
    bool *used = xcalloc((size_t)template_count() + 1, sizeof *used);
    for (int32_t i = 0; i < space_size(s); i++)
        used[template_index(space_template(s, i))] = true;
    for (int t = 0; t < template_count(); t++)
        for (int k = 0; used[t] && k < template_at(t)->knobs; k++) {
            const struct knob *knob = &template_at(t)->knob[k];
            if (knob->role == ROLE_ISA || knob->role == ROLE_PACK)
                continue;
            struct point start;
            bool has = template_start(template_at(t), space_facts(s), &start);
            for (int v = 0; v < knob->values && n < most; v++)
                if (!has || start.value[k] != knob->value[v])
                    out[n++] = (struct value){t, k, v};
        }
    for (int i = n - 1; i > 0; i--) {
        int at = random_below(random, i + 1);
        struct value swapped = out[i];
        out[i] = out[at];
        out[at] = swapped;
    }
    free(used);
    return n;
}

/* Values go one after the other, as long as every family keeps points and no step takes the space
 * below half of what was asked for. */
static void thin(struct space *s, uint64_t seed, int most)
{
    enum { VALUES_MOST = 1024 };
    struct value value[VALUES_MOST];
    struct lattice *lattice = xcalloc((size_t)template_count(), sizeof *lattice);
    unsigned char *keep = xcalloc((size_t)space_size(s) + 1, 1);
    memset(lattice, 1, (size_t)template_count() * sizeof *lattice);
    int families, all, values = list_values(s, &seed, value, VALUES_MOST);
    int left = mark_kept(lattice, s, keep, &all);
    for (int i = 0; i < values && left > most; i++) {
        bool *in = &lattice[value[i].template].in[value[i].knob][value[i].value];
        *in = false;
        int now = mark_kept(lattice, s, keep, &families);
        if (families < all || now < most / 2)
            *in = true;
        else
            left = now;
    }
    mark_kept(lattice, s, keep, &families);
    space_keep(s, keep);
    free(keep);
    free(lattice);
}

/* ---- tables -------------------------------------------------------------------------------- */

struct table *tables_add_empty(struct tables *t, const char *slot, enum region region, int m,
                               const struct facts *facts, enum numerics numerics)
{
    t->table = xrealloc(t->table, (size_t)(t->n + 1) * sizeof *t->table);
    struct table *new = &t->table[t->n++];
    *new = (struct table){.region = region, .m = m, .numerics = numerics, .facts = *facts};
    snprintf(new->slot, sizeof new->slot, "%s", slot);
    return new;
}

struct table *tables_add(struct tables *t, const char *slot, enum region region, int m,
                         const struct facts *facts, enum numerics numerics, int most)
{
    struct table *new = tables_add_empty(t, slot, region, m, facts, numerics);
    new->space = space_open(facts, region, m, numerics);
    new->whole = space_size(new->space);
    if (most > 0 && new->whole > most)
        thin(new->space, t->seed, most);
    new->row = xcalloc((size_t)space_size(new->space) + 1, sizeof *new->row);
    return new;
}

struct table *tables_find(const struct tables *t, const char *slot)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->table[i].slot, slot) == 0)
            return &t->table[i];
    return NULL;
}

void tables_free(struct tables *t)
{
    for (int i = 0; i < t->n; i++) {
        space_close(t->table[i].space);
        free(t->table[i].row);
    }
    free(t->table);
    free(t->cpu);
    *t = (struct tables){0};
}

struct table *table_part(const struct table *from, double drop, uint64_t seed)
{
    struct table *part = xcalloc(1, sizeof *part);
    int size = space_size(from->space), left = 0;
    unsigned char *keep = xcalloc((size_t)size + 1, 1);
    *part = *from;
    part->space = space_copy(from->space);
    part->row = xcalloc((size_t)size + 1, sizeof *part->row);
    for (int i = 0; i < size; i++)
        if ((double)(random_next(&seed) >> 11) * 0x1p-53 >= drop) {
            keep[i] = 1;
            part->row[left++] = from->row[i];
        }
    space_keep(part->space, keep);
    free(keep);
    return part;
}

void table_free(struct table *t)
{
    space_close(t->space);
    free(t->row);
    free(t);
}

double measured_speed(const struct measured *m)
{
    return m->state == POINT_MEASURED ? 1 + (double)m->gain : 0;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double table_eager_s(const struct table *t)
{
    int size = space_size(t->space), n = 0;
    double *eager = xcalloc((size_t)size + 1, sizeof *eager);
    for (int i = 0; i < size; i++)
        if (t->row[i].state == POINT_MEASURED)
            eager[n++] = (double)t->row[i].own_s * measured_speed(&t->row[i]);
    qsort(eager, (size_t)n, sizeof *eager, ascending);
    double median = n > 0 ? eager[n / 2] : 0;
    free(eager);
    return median;
}

double measured_noise(const struct measured *m)
{
    double sd = ((double)m->high - (double)m->low) / (2 * 1.96 * (1 + (double)m->gain));
    return fmin(fmax(sd, 0.001), 0.1);
}

double measured_deviate(uint64_t seed, int32_t id)
{
    uint64_t state = hash_mix(seed * 1000003u + (uint64_t)id);
    double sum = 0;
    for (int i = 0; i < 12; i++) /* Irwin-Hall */
        sum += (double)(random_next(&state) >> 11) * 0x1p-53;
    return sum - 6;
}

double table_best(const struct table *t, int32_t *id)
{
    double best = 0;
    for (int32_t i = 0; i < space_size(t->space); i++)
        if (measured_speed(&t->row[i]) > best) {
            best = measured_speed(&t->row[i]);
            if (id)
                *id = i;
        }
    return best;
}

int table_count(const struct table *t, enum point_state state)
{
    int n = 0;
    for (int32_t i = 0; i < space_size(t->space); i++)
        n += t->row[i].state == state;
    return n;
}

bool table_is_start(const struct table *t, int32_t id)
{
    const struct template *of = space_template(t->space, id);
    struct point start, p;
    space_point(t->space, id, &p);
    return template_start(of, &t->facts, &start) &&
           memcmp(start.value, p.value, (size_t)of->knobs * sizeof *p.value) == 0;
}

static int drop_undecided(struct table *t)
{
    int size = space_size(t->space), left = 0;
    unsigned char *keep = xcalloc((size_t)size + 1, 1);
    for (int i = 0; i < size; i++)
        if (t->row[i].state == POINT_MEASURED || t->row[i].state == POINT_REFUSED) {
            keep[i] = 1;
            t->row[left++] = t->row[i];
        }
    if (left < size)
        space_keep(t->space, keep);
    free(keep);
    return size - left;
}

int tables_drop_undecided(struct tables *t)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        n += drop_undecided(&t->table[i]);
    return n;
}

int table_measures(const struct table *t, const struct facts *now, enum numerics numerics,
                   struct err *err)
{
    const struct {
        const char *name;
        int32_t then, now;
    } fact[] = {
#define FACT(name, help) {#name, t->facts.name, now->name},
#define SHAPE(name, value, help) {#name, t->facts.name, now->name},
#include "kernels/templates.def"
        {"SMS", t->facts.SMS, now->SMS},
#define FACT(name, help) {#name, t->facts.name, now->name},
#include "kernels/templates_cuda.def"
    };
    if (t->numerics != numerics)
        return err_set(err, "%s was measured under numerics %s, not %s", t->slot,
                       numerics_name(t->numerics), numerics_name(numerics));
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++)
        if (fact[i].then != fact[i].now)
            return err_set(err, "%s was measured with %s = %d, which is %d now", t->slot,
                           fact[i].name, fact[i].then, fact[i].now);
    return 0;
}
