/* SPDX-License-Identifier: Apache-2.0 */
/* cost_learn.c - what measurements say about points that were not measured.
 *
 * The formula's error, log(measured / formula), is taken for a sum of independent parts, each a
 * normal deviate with a variance of its own:
 *
 *   one for the region        the whole scale is off: says nothing about which point is faster
 *   one for each family       an instruction set or a layout is better or worse than thought
 *   one for each knob value,  in a template, and again in each of its families
 *   one for each pair of knob values
 *
 * That is a Gaussian process whose covariance of two points follows from what they share: same
 * family, and how near each other their knobs are. Values of a knob that counts something are the
 * nearer the smaller their ratio, by its role (roles.h): what they share falls from all, where they
 * are the same, to nothing on a straight line over OCTAVES. Values of a category are the same or
 * not. A first measurement therefore moves all families of the region alike and its own a little
 * more, a second family's measurement tells them apart, and a value must be seen in several points
 * before it is credited much. Nothing is fitted but the posterior; variances and OCTAVES are
 * constants, chosen on the measured tables of docs/ablation.md, which says what others are worth.
 * Measurements at another M count less, by 1 / (1 + |log2 of the ratio|).
 *
 * With n measurements of a region a prediction costs n covariances, learning one more costs n^2 (a
 * row of the Cholesky factor), and the doubt about a point n^2. n is at most FIT_MOST: beyond, the
 * older half goes. Invariant: L L' = K + NOISE I and `weight` solves it for `error`.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/search/cost.h"

enum { FIT_MOST = 256 };

/* Variances of log(measured / formula). NOISE is mostly not the clock's: knobs act together in more
 * ways than pairs. */
static const double VAR_REGION = 4, VAR_FAMILY = 0.05, VAR_KNOB = 0.002, VAR_FAMILY_KNOB = 0.001,
                    VAR_PAIR = 0.001, NOISE = 0.03, OCTAVES = 1;

/* A point as far as covariances go. */
struct spot {
    int32_t template, family;
    int32_t knobs;
    float log_m;
    float at[KNOBS_MAX]; /* role_place() of each value; 1 is as far as values tell of each other */
};

struct cost_fit {
    int n;
    struct spot spot[FIT_MOST];
    double error[FIT_MOST];                       /* log(measured / formula) */
    double weight[FIT_MOST];                      /* (K + NOISE I)^-1 error */
    double factor[FIT_MOST * (FIT_MOST + 1) / 2]; /* lower triangle, row by row */
};

void cost_open(struct cost *c, const struct machine *machine, int threads)
{
    *c =
        (struct cost){.machine = machine, .threads = threads > 0 ? threads : 1, .octaves = OCTAVES};
}

void cost_close(struct cost *c)
{
    for (int r = 0; r < REGION_NODES; r++)
        free(c->fit[r]);
    free(c->sample);
    *c = (struct cost){0};
}

/* ---- covariance ---------------------------------------------------------------------------- */

static struct spot spot_of(const struct cost *c, const struct template *t, const struct point *p,
                           const struct facts *f)
{
    struct spot s = {.template = template_index(t),
                     .family = template_family(t, p),
                     .knobs = t->knobs,
                     .log_m = (float)log2(f->M_MAX < 1 ? 1 : f->M_MAX)};
    for (int k = 0; k < t->knobs; k++)
        s.at[k] = (float)(role_place(t->knob[k].role, p->value[k]) / c->octaves);
    return s;
}

static double covariance(const struct spot *a, const struct spot *b)
{
    double near = 1 / (1 + (double)fabsf(a->log_m - b->log_m));
    if (a->template != b->template)
        return near * VAR_REGION;
    float knobs = 0, squares = 0; /* what each knob's values have in common */
    for (int k = 0; k < a->knobs; k++) {
        float common = 1 - fabsf(a->at[k] - b->at[k]);
        common = common > 0 ? common : 0; /* fmaxf() is a call, and a search spends most here */
        knobs += common;
        squares += common * common;
    }
    double pairs = (double)(knobs * knobs - squares) / 2; /* the sum of products of two */
    double shared = VAR_REGION + (double)knobs * VAR_KNOB + pairs * VAR_PAIR;
    if (a->family == b->family)
        shared += VAR_FAMILY + (double)knobs * VAR_FAMILY_KNOB;
    return near * shared;
}

/* ---- the posterior ------------------------------------------------------------------------- */

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

static const double *row_of(const struct cost_fit *f, int i)
{
    return f->factor + (size_t)i * ((size_t)i + 1) / 2;
}

/* L v = covariances of `s` with everything measured. */
static void project(const struct cost_fit *f, const struct spot *s, double *v)
{
    for (int i = 0; i < f->n; i++) {
        const double *row = row_of(f, i);
        v[i] = (covariance(s, &f->spot[i]) - dot(row, v, i)) / row[i];
    }
}

/* weight = L'^-1 L^-1 error */
static void solve(struct cost_fit *f)
{
    for (int i = 0; i < f->n; i++)
        f->weight[i] = (f->error[i] - dot(row_of(f, i), f->weight, i)) / row_of(f, i)[i];
    for (int i = f->n - 1; i >= 0; i--) {
        f->weight[i] /= row_of(f, i)[i];
        for (int k = 0; k < i; k++)
            f->weight[k] -= row_of(f, i)[k] * f->weight[i];
    }
}

/* One row more of the factor. */
static void append(struct cost_fit *f, const struct spot *s, double error)
{
    double *row = f->factor + (size_t)f->n * ((size_t)f->n + 1) / 2;
    project(f, s, row);
    row[f->n] = sqrt(fmax(covariance(s, s) + NOISE - dot(row, row, f->n), NOISE));
    f->spot[f->n] = *s;
    f->error[f->n++] = error;
}

static void forget_older_half(struct cost_fit *f)
{
    int n = f->n, from = n / 2;
    f->n = 0;
    for (int i = from; i < n; i++) {
        struct spot s = f->spot[i];
        append(f, &s, f->error[i]);
    }
}

double cost_predict(const struct cost *c, const struct template *t, const struct point *p,
                    const struct facts *f)
{
    const struct cost_fit *fit = c->fit[t->region];
    double error = 0;
    struct spot s = spot_of(c, t, p, f);
    for (int i = 0; fit && i < fit->n; i++)
        error += fit->weight[i] * covariance(&s, &fit->spot[i]);
    return cost_formula(c, t, p, f) * exp(error);
}

double cost_learn(struct cost *c, const struct template *t, const struct point *p,
                  const struct facts *f, double measured_s)
{
    double predicted = cost_predict(c, t, p, f);
    if (!(measured_s > 0) || !isfinite(measured_s))
        return predicted;
    c->sample = xrealloc(c->sample, (size_t)(c->samples + 1) * sizeof *c->sample);
    c->sample[c->samples++] =
        (struct cost_sample){template_index(t), (float)predicted, (float)measured_s};
    if (!c->fit[t->region])
        c->fit[t->region] = xcalloc(1, sizeof *c->fit[t->region]);
    struct cost_fit *fit = c->fit[t->region];
    struct spot s = spot_of(c, t, p, f);
    if (fit->n == FIT_MOST)
        forget_older_half(fit);
    append(fit, &s, log(measured_s / cost_formula(c, t, p, f)));
    solve(fit);
    return predicted;
}

/* ---- doubt --------------------------------------------------------------------------------- */

struct cost_doubt {
    int n, known, most; /* points; measurements and settled points so far; room for them */
    struct spot *spot;  /* [n] */
    double *left;       /* [n] variance */
    double *told;       /* [n][most] what each measurement tells about each point */
};

struct cost_doubt *cost_doubt_open(const struct cost *c, const struct space *s, const int32_t *id,
                                   int n)
{
    enum { SETTLED_MOST = 256 };
    struct cost_doubt *d = xcalloc(1, sizeof *d);
    const struct cost_fit *fit = c->fit[space_facts(s)->REGION];
    d->n = n;
    d->known = fit ? fit->n : 0;
    d->most = d->known + SETTLED_MOST;
    d->spot = xcalloc((size_t)n + 1, sizeof *d->spot);
    d->left = xcalloc((size_t)n + 1, sizeof *d->left);
    d->told = xcalloc((size_t)n * (size_t)d->most + 1, sizeof *d->told);
    for (int i = 0; i < n; i++) {
        struct point p;
        double *told = d->told + (size_t)i * (size_t)d->most;
        space_point(s, id[i], &p);
        d->spot[i] = spot_of(c, space_template(s, id[i]), &p, space_facts(s));
        if (fit)
            project(fit, &d->spot[i], told);
        d->left[i] = covariance(&d->spot[i], &d->spot[i]) - dot(told, told, d->known);
    }
    return d;
}

void cost_doubt_close(struct cost_doubt *d)
{
    free(d->spot);
    free(d->left);
    free(d->told);
    free(d);
}

double cost_doubt(const struct cost_doubt *d, int i)
{
    return sqrt(fmax(d->left[i], 0));
}

/* One more column: the factor's next row, seen from every point. */
void cost_doubt_settle(struct cost_doubt *d, int i)
{
    if (d->known == d->most)
        return;
    const double *of = d->told + (size_t)i * (size_t)d->most;
    double scale = sqrt(fmax(d->left[i], 0) + NOISE);
    for (int k = 0; k < d->n; k++) {
        double *told = d->told + (size_t)k * (size_t)d->most;
        told[d->known] = (covariance(&d->spot[k], &d->spot[i]) - dot(told, of, d->known)) / scale;
    }
    d->known++;
    for (int k = 0; k < d->n; k++) {
        double last = d->told[(size_t)k * (size_t)d->most + (size_t)d->known - 1];
        d->left[k] -= last * last;
    }
}
