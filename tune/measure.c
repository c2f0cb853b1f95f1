/* SPDX-License-Identifier: Apache-2.0 */
/* measure.c - every point of a slot, built, probed and benched against eager.
 *
 * Two passes, since they want different machines: building and probing may share it with anything,
 * benches want it alone. The bench is the loop's own, A-B-B-A in slices on the engine thread, but
 * with a fixed number of pairs and no verdict, in an order drawn by lot so that a drift of the
 * machine does not look like a knob. The best tenth is measured again, longer, and that counts: the
 * first of two hundred noisy numbers is partly luck.
 *
 * Points are taken by lot, slot after slot in turn, the one to start from first: if the time ends
 * before they do, what is measured is a sample of every slot. Building ends early enough for
 * benches.
 */
#include "tune/measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/cores.h"
#include "specializer/admission/inputs.h"
#include "specializer/candidate/hash.h"
#include "specializer/pipeline/bench.h"
#include "specializer/pipeline/pipeline.h"

enum { PAIRS = 24, PAIRS_AGAIN = 96, LANES_LEAST = 2, LANES_MOST = 16, SAVE_EVERY_S = 10 };
static const double build_share = 0.6; /* of the time, when benches follow */

/* A point of a table. */
struct ref {
    struct table *t;
    int32_t id;
};

struct work {
    struct session *session;
    struct tables *tables;
    const char *path;
    struct ref *order;
    int points, next, lanes;
    int64_t build_until_ns, until_ns, saved_ns;
    struct err *err;
    bool failed; /* a child could not be started: the message is in err */
};

static double seconds_since(int64_t ns)
{
    return (double)(clock_ns() - ns) * 1e-9;
}

static int save(struct work *w, bool now)
{
    if (!now && seconds_since(w->saved_ns) < SAVE_EVERY_S)
        return 0;
    w->saved_ns = clock_ns();
    return tables_write(w->tables, w->path, w->err);
}

static bool over(const struct work *w, int64_t until_ns)
{
    return session_stopped(w->session) || clock_ns() >= until_ns;
}

static int32_t *shuffled(int n, uint64_t seed)
{
    int32_t *id = xcalloc((size_t)n + 1, sizeof *id);
    for (int i = 0; i < n; i++) {
        int at = random_below(&seed, i + 1);
        id[i] = id[at];
        id[at] = i;
    }
    return id;
}

/* The table's points by lot, but first those that START rows name. */
static int32_t *table_order(const struct table *t, uint64_t seed)
{
    int n = space_size(t->space), put = 0;
    int32_t *id = shuffled(n, seed);
    for (int i = 0; i < n; i++)
        if (table_is_start(t, id[i])) {
            int32_t first = id[i];
            memmove(id + put + 1, id + put, (size_t)(i - put) * sizeof *id);
            id[put++] = first;
        }
    return id;
}

static void put_in_order(struct work *w)
{
    int32_t **id = xcalloc((size_t)w->tables->n + 1, sizeof *id);
    int most = 0, all = 0;
    for (int i = 0; i < w->tables->n; i++) {
        const struct table *t = &w->tables->table[i];
        id[i] = table_order(t, w->tables->seed + 1);
        most = space_size(t->space) > most ? space_size(t->space) : most;
        all += space_size(t->space);
    }
    w->order = xcalloc((size_t)all + 1, sizeof *w->order);
    for (int k = 0; k < most; k++)
        for (int i = 0; i < w->tables->n; i++)
            if (k < space_size(w->tables->table[i].space))
                w->order[w->points++] = (struct ref){&w->tables->table[i], id[i][k]};
    for (int i = 0; i < w->tables->n; i++)
        free(id[i]);
    free(id);
}

/* Whether an earlier run measured what this one would: rows of another model or machine would be
 * told apart by nothing. */
static int same_terms(struct session *s, const struct tables *t, struct err *err)
{
    const struct stage_env *env = session_env(s);
    if (t->n > 0 && t->threads != session_threads(s))
        return err_set(err, "the table was measured with %d threads, not %d (engine.threads)",
                       t->threads, session_threads(s));
    if (t->n > 0 && strcmp(t->machine.device, env->machine->device) != 0)
        return err_set(err, "the table was measured on \"%s\", and this is \"%s\"",
                       t->machine.device, env->machine->device);
    for (int i = 0; i < t->n; i++) {
        struct slot *slot = session_slot(s, t->table[i].slot);
        struct facts facts;
        if (!slot)
            return err_set(err, "the table has the slot \"%s\", which this model lacks",
                           t->table[i].slot);
        facts_slot(&facts, env->model, slot, env->numerics);
        facts_machine(&facts, env->machine);
        if (table_measures(&t->table[i], &facts, env->numerics, err) != 0)
            return -1;
    }
    return 0;
}

int measure_prepare(struct session *s, struct tables *t, char **names, int n, int most,
                    struct err *err)
{
    const struct stage_env *env = session_env(s);
    if (same_terms(s, t, err) != 0)
        return -1;
    free(t->cpu); /* of an earlier run that this one goes on with */
    t->cpu = NULL;
    t->machine = *env->machine;
    t->threads = session_threads(s);
    if (target_of(env->machine->kind)->shares_cores) {
        t->cpu = xcalloc(1, sizeof *t->cpu);
        cpu_facts_measure(t->cpu, env->model);
        t->machine.cpu = t->cpu;
    }
    for (int i = 0; i < n; i++) {
        struct slot *slot = session_slot(s, names[i]);
        struct facts facts;
        if (!slot)
            return err_set(err, "there is no slot \"%s\"", names[i]);
        if (tables_find(t, names[i]))
            continue;
        facts_slot(&facts, env->model, slot, env->numerics);
        facts_machine(&facts, env->machine);
        struct table *new =
            tables_add(t, slot->name, slot->region, slot->m, &facts, env->numerics, most);
        if (space_size(new->space) == 0)
            return err_set(err, "no template has a legal point for %s", names[i]);
        printf("%-16s %5d points of %d\n", new->slot, space_size(new->space), new->whole);
    }
    if (t->n == 0)
        return err_set(err, "nothing to measure: no --slot, and no table of an earlier run");
    return 0;
}

static struct candidate *candidate_at(struct work *w, const struct table *t, int32_t id)
{
    struct point p;
    space_point(t->space, id, &p);
    return session_candidate(w->session, space_template(t->space, id), &p, &t->facts,
                             session_slot(w->session, t->slot));
}

static void refuse(struct measured *m, const struct candidate *c)
{
    m->state = POINT_REFUSED;
    snprintf(m->reason, sizeof m->reason, "%s", c->reason);
}

/* ---- building and probing ------------------------------------------------------------------- */

/* One point on its way: no stage has more to say than the row. */
struct lane {
    struct trial trial; /* without a candidate: free */
    struct ref at;
};

static struct measured *row_of(const struct trial *t)
{
    const struct ref *at = &((const struct lane *)t)->at;
    return &at->t->row[at->id];
}

static void lane_end(struct pipeline *p, struct lane *l)
{
    pipeline_stop(p, &l->trial);
    candidate_free(l->trial.c);
    *l = (struct lane){0};
}

static enum stage_result let(struct pipeline *p, struct trial *t)
{
    (void)p;
    (void)t;
    return STAGE_RUNNING;
}

static void child_began(struct pipeline *p, struct trial *t, const struct err *err)
{
    struct work *w = p->ctx;
    (void)t;
    if (!err)
        return;
    *w->err = *err;
    w->failed = true;
}

static bool child_came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    struct measured *m = row_of(t);
    if (r == STAGE_REFUSE)
        refuse(m, t->c);
    m->build_s = (float)t->c->evidence.build_s;
    m->probe_s = (float)t->c->evidence.probe_s;
    if (r == STAGE_PASS && t->at == STAGE_PROBE)
        m->state = POINT_PROBED;
    if (r != STAGE_PASS)
        lane_end(p, (struct lane *)t);
    return r == STAGE_PASS;
}

static const struct pipeline_rules to_probe = {
    .enter = let, .began = child_began, .came = child_came};

static void lane_start(struct work *w, struct lane *l)
{
    *row_of(&l->trial) = (struct measured){.state = POINT_NEW};
    l->trial.c = candidate_at(w, l->at.t, l->at.id);
}

/* The next new point; false: none. Each is tried once: what failed for another's fault stays new.
 */
static bool next_new(struct work *w, struct ref *out)
{
    while (w->next < w->points) {
        *out = w->order[w->next++];
        if (out->t->row[out->id].state == POINT_NEW)
            return true;
    }
    return false;
}

/* A reason why points were refused, of one by lot; "" if this run refused none. */
static const char *a_reason(const struct work *w, const struct table *t)
{
    for (int i = 0; i < w->points; i++) {
        const struct measured *m = &t->row[w->order[i].id];
        if (w->order[i].t == t && m->state == POINT_REFUSED && m->reason[0])
            return m->reason;
    }
    return "";
}

static void say_progress(const struct work *w, const char *what, enum point_state left)
{
    for (int i = 0; i < w->tables->n; i++) {
        const struct table *t = &w->tables->table[i];
        const char *why = a_reason(w, t);
        printf("%s %-16s %4d to do, %d measured, %d refused of %d%s%.90s\n", what, t->slot,
               table_count(t, left), table_count(t, POINT_MEASURED), table_count(t, POINT_REFUSED),
               space_size(t->space), *why ? "; one: " : "", why);
    }
    fflush(stdout);
}

static int build_all(struct work *w)
{
    struct lane lane[LANES_MOST] = {{{0}}};
    struct pipeline p = {
        .rules = &to_probe, .ctx = w, .env = session_env(w->session), .last = STAGE_PROBE};
    bool ok = true, busy = true;
    while (ok && busy && !session_stopped(w->session)) {
        busy = false;
        for (int i = 0; i < w->lanes && !w->failed; i++) {
            struct lane *l = &lane[i];
            pipeline_advance(&p, &l->trial, true);
            if (pipeline_over(&p, &l->trial))
                lane_end(&p, l);
            if (!l->trial.c && !over(w, w->build_until_ns) && next_new(w, &l->at)) {
                lane_start(w, l);
                pipeline_advance(&p, &l->trial, true);
            }
            busy |= l->trial.c != NULL;
        }
        ok = !w->failed && save(w, false) == 0;
        usleep(2000);
    }
    for (int i = 0; i < w->lanes; i++)
        lane_end(&p, &lane[i]);
    say_progress(w, "build", POINT_NEW);
    return ok && save(w, true) == 0 ? 0 : -1;
}

/* ---- benching ------------------------------------------------------------------------------ */

static bool bench_came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    (void)p;
    if (r == STAGE_REFUSE && t->at == STAGE_LOAD)
        refuse(row_of(t), t->c);
    return r == STAGE_PASS;
}

static const struct pipeline_rules to_bench = {.enter = let, .came = bench_came};

/* Without an answer the row stays as it is. */
static void bench_point(struct work *w, struct table *t, int32_t id, const struct capture *inputs,
                        int pairs)
{
    struct measured *m = &t->row[id];
    struct candidate *c = candidate_at(w, t, id);
    struct pipeline p = {.rules = &to_bench,
                         .env = session_env(w->session),
                         .marks = session_store(w->session),
                         .last = STAGE_BENCH};
    struct lane l = {
        .at = {t, id},
        .trial = {.c = c,
                  .at = STAGE_LOAD,
                  .bench = {.against = c->slot->eager, .input = inputs, .pairs = pairs}}};
    int64_t start = clock_ns();
    if (access(c->object, R_OK) != 0)
        m->state = POINT_NEW; /* its object is gone */
    else
        pipeline_block(&p, &l.trial);
    if (pipeline_over(&p, &l.trial)) {
        const struct evidence *e = &c->evidence;
        m->state = POINT_MEASURED;
        m->own_s = (float)e->own_s;
        m->gain = (float)e->bench.mean;
        m->low = (float)e->bench.low;
        m->high = (float)e->bench.high;
        m->pairs = e->bench.pairs;
        if (m->bench_s <= 0)
            m->bench_s = (float)seconds_since(start);
    }
    session_drop(w->session, c);
}

/* The speed that a tenth of the points (at least ten) reach. */
static double tenth(const struct table *t)
{
    int n = space_size(t->space), rank = n / 10 > 10 ? n / 10 : 10, above = 0;
    double speed = table_best(t, NULL);
    while (speed > 0 && above < rank) {
        double next = 0;
        above = 0;
        for (int i = 0; i < n; i++) {
            double of = measured_speed(&t->row[i]);
            above += of >= speed;
            next = of < speed && of > next ? of : next;
        }
        if (above < rank)
            speed = next;
    }
    return speed;
}

/* Every probed point; then, if there was time for all, the fastest once more. */
static int bench_table(struct work *w, struct table *t, int64_t until_ns)
{
    struct slot *slot = session_slot(w->session, t->slot);
    const struct stage_env *env = session_env(w->session);
    struct capture *inputs =
        capture_seeded(env->model, slot, target_of(env->machine->kind)->decodes_most, 1);
    int n = space_size(t->space), r = 0;
    int32_t *order = table_order(t, w->tables->seed + 1);
    for (int i = 0; i < n && r == 0 && !over(w, until_ns); i++)
        if (t->row[order[i]].state == POINT_PROBED) {
            bench_point(w, t, order[i], inputs, PAIRS);
            r = save(w, false);
        }
    double fast = table_count(t, POINT_PROBED) == 0 ? tenth(t) : INFINITY;
    for (int i = 0; i < n && r == 0 && !over(w, until_ns); i++) {
        const struct measured *m = &t->row[order[i]];
        if (measured_speed(m) >= fast && m->pairs < PAIRS_AGAIN) {
            bench_point(w, t, order[i], inputs, PAIRS_AGAIN);
            r = save(w, false);
        }
    }
    free(order);
    capture_free(inputs);
    free(inputs);
    return r;
}

/* Each table its share of the time that is left. */
static int bench_all(struct work *w)
{
    int r = 0;
    for (int i = 0; i < w->tables->n && r == 0; i++) {
        int64_t now = clock_ns(), left = w->until_ns - now;
        r = bench_table(w, &w->tables->table[i], now + left / (w->tables->n - i));
    }
    say_progress(w, "bench", POINT_PROBED);
    return r;
}

int measure_run(struct session *s, struct tables *t, double seconds, bool build_only,
                const char *path, struct err *err)
{
    struct work w = {.session = s, .tables = t, .path = path, .err = err};
    int64_t now = clock_ns(), all = (int64_t)(seconds * 1e9);
    int cores = cores_usable();
    w.lanes = cores < LANES_LEAST ? LANES_LEAST : cores > LANES_MOST ? LANES_MOST : cores;
    w.until_ns = now + all;
    w.build_until_ns = build_only ? w.until_ns : now + (int64_t)((double)all * build_share);
    put_in_order(&w);
    int r = build_all(&w);
    if (r == 0 && !build_only)
        r = bench_all(&w);
    free(w.order);
    return r == 0 ? save(&w, true) : -1;
}
