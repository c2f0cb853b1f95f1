/* SPDX-License-Identifier: Apache-2.0 */
/* test_admission.c - what we ship must pass what we demand: templates through the real admission.
 *
 *   test_admission [TEMPLATE]     WHET_ADMISSION_POINTS=n: further legal points, defaults at each m
 *
 * For each template its defaults (where they are legal for the model) and a point drawn at random,
 * one at the least m and the other at four tokens, in turn, and its START are built by the build
 * stage and put before every check of the probe, with the numerics they declare (BITEQ points under
 * bit_equal), and before the whole model's logits. So is its START for a model in one of a
 * few other formats. A false refusal here is a kernel that would never serve, so all must pass.
 * test_templates looks at more points and models, with fewer checks each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/cpu/eager.h"
#include "specializer/admission/check.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/space.h"
#include "tests/kernels/sample.h"
#include "tests/kernels/shop.h"

static char *references; /* folder of the whole model's eager run, once for all candidates */

/* The tokens of a slot lie on one side of the border where eager sums otherwise. */
static int least_tokens(int m)
{
    return m > 1 && m - 1 != EAGER_NARROW ? m - 1 : m;
}

static void admit(struct shop *s, const struct template *t, const struct point *p,
                  const struct facts *f, int m)
{
    char knobs[400];
    bool ok;
    point_text(t, p, knobs, sizeof knobs);
    int64_t start = clock_ns();
    struct candidate *c = shop_build_point(s, t, p, f, &ok);
    double built = (double)(clock_ns() - start) / 1e9;
    struct check_request q = {
        .model = s->model,
        .object = c->object,
        .range = {t->region, least_tokens(m), m, t->region == REGION_ATTN ? 256 : 0},
        .threads = 2,
        .ranks = 3,
        .full = true,
        .rule = {.factor = 2, .bit_equal = t->bit_equal(p, f)},
        .seed = 11,
    };
    struct check_result r = {0};
    struct end_result end;
    struct err err = {""};
    if (!ok)
        snprintf(err.msg, sizeof err.msg, "%s", c->reason);
    else
        ok = check_kernel(&q, &r, &err) == 0 &&
             (t->region == REGION_REDUCE || /* no rank's logits say anything of it */
              end_check(s->model, c->object, NULL, m, false, 0, NUMERICS_TOLERANCE, references,
                        &end, &err) == 0);
    /* Eager's run was another candidate's, and step by step. */
    if (ok && q.rule.bit_equal && t->region != REGION_REDUCE && !end.bit_equal)
        ok = err_set(&err, "the whole model's logits have other bits than eager's") == 0;
    printf("%-4s %-9s m=%-4d %s%s  build %.1f s, %d runs %.1f s, %.0f %% of the limit %s\n",
           ok ? "ok" : "FAIL", t->id, m, knobs, q.rule.bit_equal ? " (bits)" : "", built, r.runs,
           (double)(clock_ns() - start) / 1e9 - built, r.comparison.ratio * 100, err.msg);
    fflush(stdout);
    s->right += ok;
    s->wrong += !ok;
    shop_drop(c);
}

static void admit_template(struct shop *s, const struct template *t, int m, bool defaults,
                           int points)
{
    struct facts f;
    facts_fill(&f, s->model, t->region, m, NUMERICS_TOLERANCE);
    struct space *space = space_open(&f, t->region, m, NUMERICS_TOLERANCE);
    struct point p = template_defaults(t);
    uint64_t seed = (uint64_t)m;
    if (defaults && !template_illegal(t, &p, &f))
        admit(s, t, &p, &f, m);
    int n = space_size(space);
    for (int tries = 0; n > 0 && points > 0 && tries < 10000; tries++) {
        int32_t id = random_below(&seed, n);
        if (space_template(space, id) != t)
            continue;
        space_point(space, id, &p);
        admit(s, t, &p, &f, m);
        points--;
    }
    space_close(space);
}

/* What a search on this machine begins with: one token, or 32 where a template is for many. */
static void admit_start(struct shop *s, const struct template *t)
{
    struct facts f;
    struct point p;
    int m = t->m_min > 1 ? 32 : 1;
    facts_fill(&f, s->model, t->region, m, NUMERICS_TOLERANCE);
    if (template_start(t, &f, &p) && !template_illegal(t, &p, &f))
        admit(s, t, &p, &f, m);
}

static int keep_references(const struct shop *s, struct err *err)
{
    free(references);
    references = xasprintf("%s/references", s->dir);
    return reference_cache_clear(references, err);
}

/* Starts of models in other formats, of all these in turn. */
static int admit_others(struct shop *s, const char *only, struct err *err)
{
    static const enum dtype formats[] = {DTYPE_Q4_K,  DTYPE_Q6_K, DTYPE_Q5_0,
                                         DTYPE_MXFP4, DTYPE_Q2_K, DTYPE_IQ4_XS};
    enum { FORMATS = sizeof formats / sizeof *formats };
    for (int k = 0; k < FORMATS; k++) {
        shop_model(s, formats[k]);
        if (keep_references(s, err) != 0)
            return -1;
        for (int i = 0; i < template_count(); i++) {
            const struct template *t = template_at(i);
            if (t->machine == MACHINE_CPU && i % FORMATS == k &&
                (!only || strcmp(only, t->id) == 0))
                admit_start(s, t);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct shop s;
    struct err err = {""};
    int points = sample_size("WHET_ADMISSION_POINTS", 1);
    bool all = getenv("WHET_ADMISSION_POINTS") || sample_more() > 1;
    if (shop_open(&s, &err) != 0 || keep_references(&s, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (t->machine != MACHINE_CPU || (argc > 1 && strcmp(argv[1], t->id) != 0))
            continue;
        int low = t->m_min > 1 ? t->m_min : 1, high = t->m_max < 4 ? t->m_max : 4;
        bool both = all || high <= low, even = i % 2 == 0;
        admit_template(&s, t, low, both || even, both || !even ? points : 0);
        if (high > low)
            admit_template(&s, t, high, both || !even, both || even ? points : 0);
        admit_start(&s, t);
    }
    if (admit_others(&s, argc > 1 ? argv[1] : NULL, &err) != 0)
        printf("%s\n", err.msg);
    if (argc > 1 && !template_find(argv[1]))
        printf("there is no template %s: it is named by its id in kernels/templates.def\n",
               argv[1]);
    int status = shop_verdict(&s);
    reference_cache_shrink(references, -1);
    rmdir(references);
    free(references);
    shop_close(&s);
    return status;
}
