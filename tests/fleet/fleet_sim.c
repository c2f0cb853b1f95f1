/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sim.c - how soon all servers of a fleet run kernels within 5 % of the best known.
 *
 *   fleet_sim URI TABLE SERVERS SEEDS [PARTS [DEAD]]
 *
 * SERVERS searches over the measured points of TABLE (tests/golden/tune_table.json), sharing the
 * PostgreSQL at URI through the statements that servers use; strategy, cost model and the reader of
 * rows are the program's own, and so are the rules by which winners of others are gathered and
 * judged together. Only time is made up: a candidate costs the seconds that its build, probe and
 * bench took when the table was measured, one after the other; live steps cost SHADOW_S for each
 * candidate that they are to judge and CANARY_S for all that can be judged together, and once more
 * for each half of what did not pass; events happen in the order of that clock. What a
 * server measures has noise of its own of the size that its bench had; whole steps see the truth:
 * kernels of one M bucket pass unless they are slower together than what serves. Each table makes
 * PARTS slots: itself, and parts of it with 40 % of the points left out by lot, which are other
 * landscapes of the same machine. DEAD servers die in the middle of their first leases and tell
 * nobody. Prints one line of JSON a seed.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/dispatch.h"
#include "engine/plan.h"
#include "specializer/candidate/hash.h"
#include "specializer/fleet/fleet_offer.h"
#include "specializer/fleet/fleet_row.h"
#include "specializer/fleet/fleet_schema.h"
#include "specializer/fleet/fleet_sql.h"
#include "specializer/pipeline/canary.h"
#include "specializer/search/strategy.h"
#include "tune/table.h"

enum { BATCH = 6, SLOTS_MOST = 32, SERVERS_MOST = 64 };
#define MIN_GAIN 0.02
#define NEAR 0.95
/* Means of live servers (docs/fleet.md): the whole model and eight comparisons under load; whole
 * steps of all M at the same time. */
#define SHADOW_S 0.7
#define CANARY_S 1.9
#define HARMLESS 0.995 /* as specializer/pipeline/canary.c has it */
#define HEAR_S 1.0     /* until a server told of what it did */
#define BUDGET_S 3600.0
#define DROP 0.4
#define DRY_SCALE 24.0 /* as specializer/observe.c judges what a slot is worth */
#define MEASURED_SCALE 12.0

/* One slot of all servers. */
struct landscape {
    char slot[40];
    struct table *table;
    double best;
};

/* One slot of one server. */
struct looking {
    struct space *space; /* predictions are a server's own */
    struct search search;
    struct advice advice;
    void *strategy;
    double seen, truth; /* of the kernel that serves: as measured here, as it is */
    double near_s;      /* when it came within 5 %; below 0: not yet */
    int measured, dry;
    struct {
        int32_t id;
        double trial_s; /* since when it is on trial elsewhere; below 0: something came of it */
    } * behind;
    int behinds;
    struct said {
        struct fleet_word word;
        char server[KEY_HEX + 1];
    } * said; /* [sayings] the last word of each server on each point */
    int sayings;
    int *trials;     /* [space_size] */
    double *own;     /* [space_size] as measured here */
    int32_t serving; /* -1: eager */
    int32_t offer;   /* -1: none */
    double gain;     /* of the offer */
    double offer_s;  /* since when there is one */
    int32_t passed;  /* benched, and waits for live steps; -1: none */
    double passed_gain, passed_s;
    double top;    /* the fastest that was told of */
    bool *counted; /* [space_size] as measured, by another server */
};

struct member {
    struct fleet_self self;
    struct cost cost;
    struct looking look[SLOTS_MOST];
    int64_t seq;
    double at_s;
    enum { BEGINS, BENCHES, JUDGES } next;
    bool dead, gathers; /* gathers: the batch is one of winners of others */
    struct {
        int slot;
        int32_t id;
    } batch[BATCH];
    int n, tried;
    int set[OVERRIDES_MOST], sets; /* the slots whose candidates are judged */
    int canaries;
};

struct world {
    struct fleet_db *db;
    struct dispatch *names;
    const struct tables *tables;
    struct landscape land[SLOTS_MOST];
    int slots;
    struct member *member;
    int members;
    uint64_t seed;
    char env[17];
};

static void fail(const struct err *err)
{
    fprintf(stderr, "fleet_sim: %s\n", err->msg);
    exit(1);
}

/* ---- the landscapes -------------------------------------------------------------------------- */

/* Slots of the region that the machine might as well have: other M, or another context. */
static void name_slot(struct world *w, struct landscape *l, const struct table *t, int part)
{
    struct slot *own = dispatch_find(w->names, t->slot);
    int skip = part;
    for (int i = 0; i < dispatch_slots(w->names); i++) {
        const struct slot *s = dispatch_slot_at(w->names, i);
        bool alike = s->region == own->region &&
                     (own->context ? s->m == own->m && s->context >= own->context : s->m >= own->m);
        if (alike && skip-- == 0) {
            snprintf(l->slot, sizeof l->slot, "%s", s->name);
            return;
        }
    }
    fprintf(stderr, "fleet_sim: no slot for part %d of %s\n", part, t->slot);
    exit(1);
}

static void make_land(struct world *w, int parts)
{
    for (int i = 0; i < w->tables->n; i++)
        for (int part = 0; part < parts && w->slots < SLOTS_MOST; part++) {
            const struct table *whole = &w->tables->table[i];
            struct landscape *l = &w->land[w->slots++];
            name_slot(w, l, whole, part);
            l->table = table_part(whole, part ? DROP : 0, w->seed * 100 + (uint64_t)part);
            l->best = fmax(1, table_best(l->table, NULL));
        }
}

/* ---- what a server says and hears ------------------------------------------------------------ */

static void fill_record(const struct world *w, int slot, int32_t id, struct record *r)
{
    const struct landscape *l = &w->land[slot];
    const struct template *t = space_template(l->table->space, id);
    struct point p;
    memset(r, 0, sizeof *r);
    space_point(l->table->space, id, &p);
    point_text(t, &p, r->knobs, sizeof r->knobs);
    snprintf(r->slot, sizeof r->slot, "%s", l->slot);
    snprintf(r->template, sizeof r->template, "%s", t->id);
    snprintf(r->source, sizeof r->source, "%016x", (unsigned)template_index(t));
    hash_hex(hash_text(hash_text(hash_text(HASH_START, l->slot), t->id), r->knobs), r->key);
}

static void tell(struct world *w, struct member *m, cJSON *rows)
{
    struct err err;
    if (cJSON_GetArraySize(rows) > 0 && fleet_publish(w->db, &m->self, rows, false, &err) != 0)
        fail(&err);
    cJSON_Delete(rows);
}

static bool is_behind(const struct looking *k, int32_t id)
{
    for (int i = 0; i < k->behinds; i++)
        if (k->behind[i].id == id)
            return true;
    return false;
}

static void hear_word(struct looking *k, const struct fleet_row *r, int32_t id)
{
    int at = 0;
    while (at < k->sayings &&
           (k->said[at].word.id != id || strcmp(k->said[at].server, r->server) != 0))
        at++;
    if (at == k->sayings)
        k->said = realloc(k->said, (size_t)++k->sayings * sizeof *k->said);
    struct said *x = &k->said[at];
    if (r->own_s > 0 && !k->counted[id] && k->trials[id] == 0) {
        k->counted[id] = true;
        k->measured++;
        k->dry++;
    }
    x->word = (struct fleet_word){id, r->speed, fleet_row_offered(r)};
    memcpy(x->server, r->server, sizeof x->server);
    if (fleet_row_won(r) && r->speed > k->top) {
        k->top = r->speed;
        k->dry = 0;
    }
}

static void hear_row(struct world *w, struct member *m, const struct fleet_row *r, int slot)
{
    int at = 0;
    const char *name = dispatch_slot_at(w->names, slot)->name;
    while (at < w->slots && strcmp(w->land[at].slot, name) != 0)
        at++;
    if (at == w->slots)
        return;
    struct looking *k = &m->look[at];
    int32_t id = space_find(k->space, r->template, &r->point);
    if (id < 0)
        return;
    if (r->own_s > 0)
        cost_learn(&m->cost, r->template, &r->point, space_facts(k->space), r->own_s);
    if (k->search.trial[id] == TRIAL_NONE) {
        search_pending(&k->search, &id, 1);
        k->behind = realloc(k->behind, (size_t)(k->behinds + 1) * sizeof *k->behind);
        k->behind[k->behinds].trial_s = m->at_s;
        k->behind[k->behinds++].id = id;
    }
    for (int i = 0; i < k->behinds && !fleet_row_on_trial(r); i++)
        if (k->behind[i].id == id)
            k->behind[i].trial_s = -1;
    hear_word(k, r, id);
}

static void hear(struct world *w, struct member *m)
{
    struct fleet_rows rows;
    struct err err;
    int n;
    do {
        if (fleet_pull(w->db, &m->self, m->seq, &rows, &err) != 0)
            fail(&err);
        n = rows.n;
        for (int i = 0; i < n; i++) {
            const char *value[FLEET_COLUMNS];
            struct fleet_row r;
            int slot;
            for (int c = 0; c < FLEET_COLUMNS; c++)
                value[c] = fleet_value(&rows, i, c);
            m->seq = atoll(value[FLEET_SEQ]);
            if (fleet_row_read(value, w->names, &r, &slot, &err) != 0)
                fail(&err);
            hear_row(w, m, &r, slot);
        }
        fleet_rows_free(&rows);
    } while (n == FLEET_PAGE);
}

/* ---- what to do ------------------------------------------------------------------------------ */

static double worth(const struct looking *k)
{
    return exp(-k->dry / DRY_SCALE) / (1 + k->measured / MEASURED_SCALE);
}

static int trials(void *ctx, int32_t id, double *speed)
{
    const struct looking *k = ctx;
    *speed = k->own[id];
    return k->search.trial[id] == TRIAL_REFUSED ? -1 : k->trials[id];
}

/* Of each slot the best kernel of others, if it is worth its proof now. How many there are. */
static int look_for_offers(const struct world *w, struct member *m)
{
    int some = 0;
    for (int i = 0; i < w->slots; i++) {
        struct looking *k = &m->look[i];
        struct fleet_word *word = malloc((size_t)(k->sayings + 1) * sizeof *word);
        bool had = k->offer >= 0;
        for (int n = 0; n < k->sayings; n++)
            word[n] = k->said[n].word;
        const struct fleet_offer_ask ask = {word, k->sayings, k->serving, k->seen, trials, k};
        k->offer = k->passed >= 0 ? -1 : fleet_offer_best(&ask, &k->gain);
        k->offer_s = had ? k->offer_s : m->at_s;
        some += k->offer >= 0;
        free(word);
    }
    return some;
}

static bool due(const struct world *w, const struct member *m)
{
    double gain[2 * SLOTS_MOST], wait_s[2 * SLOTS_MOST];
    int n = 0;
    for (int i = 0; i < w->slots; i++) {
        const struct looking *k = &m->look[i];
        if (k->offer < 0 && k->passed < 0)
            continue;
        gain[n] = k->offer >= 0 ? k->gain : k->passed_gain;
        wait_s[n++] = m->at_s - (k->offer >= 0 ? k->offer_s : k->passed_s);
    }
    return fleet_offers_due(gain, wait_s, n);
}

/* The worthiest slot that nobody else searches and that waits for nothing here. */
static int lease(struct world *w, struct member *m)
{
    const char *wish[SLOTS_MOST];
    double value[SLOTS_MOST];
    char got[40];
    struct err err;
    int n = 0;
    for (int i = 0; i < w->slots; i++) {
        double v = worth(&m->look[i]);
        if (m->look[i].offer >= 0 || m->look[i].passed >= 0)
            continue;
        int at = n++;
        for (; at > 0 && value[at - 1] < v; at--) {
            value[at] = value[at - 1];
            wish[at] = wish[at - 1];
        }
        value[at] = v;
        wish[at] = w->land[i].slot;
    }
    if (fleet_take_lease(w->db, &m->self, wish, n, got, &err) != 0)
        fail(&err);
    for (int i = 0; i < w->slots; i++)
        if (strcmp(w->land[i].slot, got) == 0)
            return i;
    return -1;
}

/* ---- a batch --------------------------------------------------------------------------------- */

/* Points of which nothing was heard for long may be tried. */
static void lapse(const struct member *m, struct looking *k)
{
    int kept = 0;
    for (int i = 0; i < k->behinds; i++)
        if (k->behind[i].trial_s >= 0 && m->at_s - k->behind[i].trial_s > FLEET_TRIAL_S)
            search_forget(&k->search, k->behind[i].id);
        else
            k->behind[kept++] = k->behind[i];
    k->behinds = kept;
}

static void propose(struct member *m, int slot, int want)
{
    struct looking *k = &m->look[slot];
    lapse(m, k);
    int32_t id[BATCH];
    space_predict(k->space, &m->cost);
    k->search.advice = &k->advice;
    m->n = strategy_template.propose(k->strategy, &k->search, id, want);
    for (int i = 0; m->n == 0 && i < k->behinds; i++)
        search_forget(&k->search, k->behind[i].id);
    if (m->n == 0) {
        k->behinds = 0;
        m->n = strategy_template.propose(k->strategy, &k->search, id, want);
    }
    search_pending(&k->search, id, m->n);
    for (int i = 0; i < m->n; i++) {
        m->batch[i].slot = slot;
        m->batch[i].id = id[i];
    }
    if (m->n == 0)
        k->dry += 1000; /* nothing is left there */
}

/* Those offers that gain most. */
static void gather(const struct world *w, struct member *m)
{
    for (m->n = 0; m->n < BATCH; m->n++) {
        int best = -1;
        for (int i = 0; i < w->slots; i++)
            if (m->look[i].offer >= 0 && (best < 0 || m->look[i].gain > m->look[best].gain))
                best = i;
        if (best < 0)
            return;
        struct looking *k = &m->look[best];
        m->batch[m->n].slot = best;
        m->batch[m->n].id = k->offer;
        if (is_behind(k, k->offer))
            search_forget(&k->search, k->offer);
        search_pending(&k->search, &k->offer, 1);
        k->offer = -1;
    }
}

/* With $FLEET_SIM_TRACE: a line for what a server does, and for how long. */
static void trace(const struct world *w, const struct member *m, const char *does, double took)
{
    if (getenv("FLEET_SIM_TRACE"))
        fprintf(stderr, "%7.1f server %d %s %d for %.1f s\n", m->at_s - took, (int)(m - w->member),
                does, m->next == JUDGES ? m->sets : m->n, took);
}

/* What a server does next, and how long that takes. */
static void begin(struct world *w, struct member *m)
{
    struct record r;
    cJSON *rows = cJSON_CreateArray();
    int slot;
    double took = 0;
    hear(w, m);
    int offers = look_for_offers(w, m);
    m->gathers = offers > 0 && due(w, m);
    m->n = 0;
    if (!m->gathers && (slot = lease(w, m)) >= 0)
        propose(m, slot, m->look[slot].sayings > 0 ? FLEET_BATCH : BATCH);
    m->gathers |= m->n == 0 && offers > 0;
    if (m->gathers)
        gather(w, m);
    for (int i = 0; i < m->n; i++) {
        const struct measured *row = &w->land[m->batch[i].slot].table->row[m->batch[i].id];
        took += (double)row->build_s + (double)row->probe_s + (double)row->bench_s;
        fill_record(w, m->batch[i].slot, m->batch[i].id, &r);
        r.state = LIFE_PROPOSED;
        cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
    }
    tell(w, m, rows);
    took += m->n == 0 ? 10 : 0;
    m->at_s += took;
    m->next = m->n > 0 ? BENCHES : BEGINS;
    trace(w, m, m->gathers ? "gathers" : m->n > 0 ? "searches" : "waits", took);
}

/* As measured here. True if it is better than what serves, and than the best so far. */
static bool measure(struct world *w, struct member *m, int slot, int32_t id, struct record *r)
{
    struct looking *k = &m->look[slot];
    const struct measured *row = &w->land[slot].table->row[id];
    uint64_t lot = w->seed * 4099 + (uint64_t)(m - w->member) * 131 + (uint64_t)slot +
                   (uint64_t)(k->truth * 1e6) + (uint64_t)k->trials[id] * 7919;
    double truth = measured_speed(row);
    double wrong = exp(measured_noise(row) * measured_deviate(lot, id));
    double ratio = truth / k->truth * wrong, speed = k->seen * ratio;
    fill_record(w, slot, id, r);
    r->state = truth > 0 ? LIFE_BENCHED : LIFE_REFUSED;
    r->evidence.speed = speed;
    r->evidence.own_s = truth > 0 ? (double)row->own_s / wrong : 0;
    search_learn(&k->search, id, speed);
    k->trials[id]++;
    k->own[id] = speed;
    if (truth > 0) {
        struct point p;
        space_point(k->space, id, &p);
        cost_learn(&m->cost, space_template(k->space, id), &p, space_facts(k->space),
                   r->evidence.own_s);
    }
    m->tried++;
    k->measured++;
    k->dry++;
    if (ratio < 1 + MIN_GAIN || (k->passed >= 0 && ratio <= k->passed_gain))
        return false;
    k->passed = id;
    k->passed_gain = ratio;
    k->passed_s = m->at_s;
    return true;
}

/* Those who wait for live steps and can share them, which begin now. */
static void go_live(struct world *w, struct member *m)
{
    struct candidate c[OVERRIDES_MOST], *of[OVERRIDES_MOST];
    m->sets = 0;
    for (int i = 0; i < w->slots && m->sets < OVERRIDES_MOST; i++) {
        struct candidate *next = &c[m->sets];
        next->slot = dispatch_find(w->names, w->land[i].slot);
        if (m->look[i].passed < 0 || !canary_may_join(of, m->sets, next))
            continue;
        of[m->sets] = next;
        m->set[m->sets++] = i;
    }
    m->next = m->sets > 0 ? JUDGES : BEGINS;
    m->at_s += m->sets > 0 ? m->sets * SHADOW_S + CANARY_S : HEAR_S;
    if (m->sets > 0)
        trace(w, m, "proves", m->sets * SHADOW_S + CANARY_S);
}

/* The end of a batch. The best goes on to live steps, with what others found if that waits. */
static void bench(struct world *w, struct member *m)
{
    cJSON *rows = cJSON_CreateArray();
    struct record r;
    for (int i = 0; i < m->n; i++) {
        if (measure(w, m, m->batch[i].slot, m->batch[i].id, &r))
            m->look[m->batch[i].slot].dry = 0;
        cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
    }
    tell(w, m, rows);
    hear(w, m);
    if (!m->gathers && look_for_offers(w, m) > 0) {
        m->next = BEGINS; /* it waits for the set */
        m->at_s += HEAR_S;
        return;
    }
    go_live(w, m);
}

/* ---- live steps ------------------------------------------------------------------------------ */

static void conclude(struct world *w, struct member *m, int slot, bool passed, cJSON *rows)
{
    struct looking *k = &m->look[slot];
    const struct landscape *l = &w->land[slot];
    struct record r;
    fill_record(w, slot, k->passed, &r);
    r.state = passed ? LIFE_ACTIVE : LIFE_REFUSED;
    r.evidence.own_s = (double)l->table->row[k->passed].own_s;
    if (passed) {
        k->seen *= k->passed_gain;
        k->serving = k->passed;
        k->truth = measured_speed(&l->table->row[k->passed]);
        r.evidence.speed = k->seen;
        if (k->truth >= NEAR * l->best && k->near_s < 0)
            k->near_s = m->at_s;
    } else {
        search_learn(&k->search, k->passed, 0);
        k->own[k->passed] = 0;
    }
    k->passed = -1;
    cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
}

/* Whether whole steps with all of them are no slower, in whichever context. */
static bool pass_together(const struct world *w, const struct member *m, const int *slot, int n)
{
    double shared = 1, worst = HUGE_VAL;
    for (int i = 0; i < n; i++) {
        const struct looking *k = &m->look[slot[i]];
        double gain = measured_speed(&w->land[slot[i]].table->row[k->passed]) / k->truth;
        if (w->land[slot[i]].table->region == REGION_ATTN)
            worst = fmin(worst, gain); /* a step has one of them */
        else
            shared *= gain;
    }
    return shared * (isfinite(worst) ? worst : 1) >= HARMLESS;
}

/* Those of one M bucket: all of them, or halves as long as it takes; each half has a canary of its
 * own. */
static void judge(struct world *w, struct member *m, const int *slot, int n, cJSON *rows)
{
    bool pass = pass_together(w, m, slot, n);
    if (!pass && n > 1) {
        m->at_s += 2 * CANARY_S;
        m->canaries += 2;
        judge(w, m, slot, n / 2, rows);
        judge(w, m, slot + n / 2, n - n / 2, rows);
        return;
    }
    for (int i = 0; i < n; i++)
        conclude(w, m, slot[i], pass, rows);
}

static void prove(struct world *w, struct member *m)
{
    cJSON *rows = cJSON_CreateArray();
    bool done[OVERRIDES_MOST] = {false};
    m->canaries++;
    for (int i = 0; i < m->sets; i++) {
        int group[OVERRIDES_MOST], n = 0;
        int at = dispatch_find(w->names, w->land[m->set[i]].slot)->m_index;
        for (int k = i; k < m->sets; k++)
            if (!done[k] && dispatch_find(w->names, w->land[m->set[k]].slot)->m_index == at) {
                group[n++] = m->set[k];
                done[k] = true;
            }
        if (n > 0)
            judge(w, m, group, n, rows);
    }
    tell(w, m, rows);
    go_live(w, m); /* who could not share these steps */
}

/* ---- the run --------------------------------------------------------------------------------- */

static void open_member(struct world *w, struct member *m, int number)
{
    struct err err;
    *m = (struct member){0};
    hash_hex(w->seed * 1000 + (uint64_t)number, m->self.server);
    snprintf(m->self.env, sizeof m->self.env, "%s", w->env);
    snprintf(m->self.name, sizeof m->self.name, "simulated/%d", number);
    snprintf(m->self.version, sizeof m->self.version, "0");
    cost_open(&m->cost, &w->tables->machine, w->tables->threads);
    for (int i = 0; i < w->slots; i++) {
        struct looking *k = &m->look[i];
        /* The same points with the same ids, and predictions of its own. */
        k->space = table_part(w->land[i].table, 0, 1)->space;
        search_open(&k->search, k->space);
        k->strategy = strategy_template.open(&k->search, w->seed * 64 + (uint64_t)number);
        k->seen = k->truth = k->top = 1;
        k->trials = calloc((size_t)space_size(k->space), sizeof *k->trials);
        k->counted = calloc((size_t)space_size(k->space), sizeof *k->counted);
        k->own = calloc((size_t)space_size(k->space), sizeof *k->own);
        k->near_s = w->land[i].best * NEAR <= 1 ? 0 : -1;
        k->offer = k->serving = k->passed = -1;
    }
    m->at_s = number * 0.01;
    bool entered;
    if (fleet_beat(w->db, &m->self, true, 0, &entered, &err) != 0)
        fail(&err);
}

static bool is_near(const struct world *w, const struct member *m, double *when)
{
    for (int i = 0; i < w->slots; i++) {
        if (m->look[i].near_s < 0)
            return false;
        *when = fmax(*when, m->look[i].near_s);
    }
    return true;
}

static struct member *next_event(struct world *w)
{
    struct member *next = NULL;
    for (int i = 0; i < w->members; i++)
        if (!w->member[i].dead && (!next || w->member[i].at_s < next->at_s))
            next = &w->member[i];
    return next;
}

/* It tells nobody; its lease is over half a minute later, which is now where nobody waits. */
static void die(struct world *w, struct member *m)
{
    const char *v[] = {w->env, m->self.server};
    struct err err;
    m->dead = true;
    if (fleet_db_run(w->db, FLEET_STATEMENT_S,
                     "UPDATE whet_lease SET until=now() WHERE env=$1 AND server=$2", v, 2, NULL,
                     &err) != 0)
        fail(&err);
}

static void run(struct world *w, int members, int dead)
{
    double all_s = 0, first_s = HUGE_VAL;
    int tried = 0, canaries = 0, left = members - dead;
    bool done[SERVERS_MOST] = {false};
    w->members = members;
    w->member = calloc((size_t)members, sizeof *w->member);
    for (int i = 0; i < members; i++)
        open_member(w, &w->member[i], i);
    while (left > 0) {
        struct member *m = next_event(w);
        int number = (int)(m - w->member);
        double when = 0;
        if (m->at_s > BUDGET_S)
            break;
        if (m->next == BEGINS)
            begin(w, m);
        else if (number >= members - dead)
            die(w, m); /* in the middle of its first batch */
        else if (m->next == BENCHES)
            bench(w, m);
        else
            prove(w, m);
        if (!done[number] && number < members - dead && is_near(w, m, &when)) {
            done[number] = true;
            left--;
            all_s = fmax(all_s, when);
            first_s = fmin(first_s, when);
        }
    }
    for (int i = 0; i < members; i++) {
        tried += w->member[i].tried;
        canaries += w->member[i].canaries;
    }
    for (int i = 0; getenv("FLEET_SIM_TRACE") && i < w->slots; i++) {
        fprintf(stderr, "%s: near at", w->land[i].slot);
        for (int k = 0; k < members; k++)
            fprintf(stderr, " %.0f", w->member[k].look[i].near_s);
        fputc('\n', stderr);
    }
    printf("{\"servers\": %d, \"dead\": %d, \"slots\": %d, \"seed\": %llu, \"all_s\": %.1f,"
           " \"first_s\": %.1f, \"left\": %d, \"tried\": %d, \"canaries\": %d}\n",
           members, dead, w->slots, (unsigned long long)w->seed, left ? -1 : all_s,
           isfinite(first_s) ? first_s : -1, left, tried, canaries);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct tables tables = {0};
    struct err err;
    int version;
    if (argc < 5 || atoi(argv[3]) < 1 || atoi(argv[3]) > SERVERS_MOST) {
        fputs("usage: fleet_sim URI TABLE SERVERS SEEDS [PARTS [DEAD]]\n", stderr);
        return 2;
    }
    const struct fleet_address a = {argv[1], ""};
    struct fleet_db *db = fleet_db_open(&a, 10, NULL, &err);
    if (!db || fleet_schema_ready(db, &version, &err) != 0 ||
        tables_read(&tables, argv[2], &err) != 0)
        fail(&err);
    for (int seed = 1; seed <= atoi(argv[4]); seed++) {
        struct world w = {.db = db, .names = dispatch_open_names(), .tables = &tables};
        w.seed = (uint64_t)seed;
        hash_hex((uint64_t)clock() * 1000003 + (uint64_t)seed * 64 + (uint64_t)atoi(argv[3]),
                 w.env);
        make_land(&w, argc > 5 ? atoi(argv[5]) : 1);
        run(&w, atoi(argv[3]), argc > 6 ? atoi(argv[6]) : 0);
        dispatch_close(w.names); /* the rest goes with the process */
    }
    tables_free(&tables);
    fleet_db_close(db);
    return 0;
}
