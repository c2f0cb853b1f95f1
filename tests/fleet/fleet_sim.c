/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_sim.c - how soon all servers of a fleet run kernels within 5 % of the best known.
 *
 *   fleet_sim URI TABLE SERVERS SEEDS [PARTS [DEAD]]
 *
 * SERVERS searches over the measured points of TABLE (tests/golden/tune_table.json), sharing the
 * PostgreSQL at URI through the statements that servers use; strategy, cost model and the reader of
 * rows are the program's own. Only time is made up: a candidate costs the seconds that its build,
 * probe and bench took when the table was measured, a promotion PROMOTE_S more, and events happen
 * in the order of that clock. What a server measures has noise of its own of the size that its
 * bench had. Each table makes PARTS slots: itself, and parts of it with 40 % of the points left out
 * by lot, which are other landscapes of the same machine. DEAD servers die in the middle of their
 * first leases and tell nobody. Prints one line of JSON a seed.
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
#include "specializer/search/strategy.h"
#include "tune/table.h"

enum { BATCH = 6, SLOTS_MOST = 32, SERVERS_MOST = 64 };
#define MIN_GAIN 0.02
#define NEAR 0.95
#define PROMOTE_S 6.0 /* shadow and canary, under load */
#define HEAR_S 1.0    /* until a server told of what it did */
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
    int32_t *behind;
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
    double top;      /* the fastest that was told of */
    bool *counted;   /* [space_size] as measured, by another server */
};

struct member {
    struct fleet_self self;
    struct cost cost;
    struct looking look[SLOTS_MOST];
    int64_t seq;
    double at_s;
    bool ending; /* the next event is the end of a batch */
    bool dead;
    int slot; /* of the batch */
    bool adopts;
    int32_t id[BATCH];
    int n, tried;
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
        if (k->behind[i] == id)
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
    x->word = (struct fleet_word){id, r->speed, fleet_row_won(r)};
    memcpy(x->server, r->server, sizeof x->server);
    if (x->word.won && r->speed > k->top) {
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
        k->behind[k->behinds++] = id;
    }
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

/* ---- a batch --------------------------------------------------------------------------------- */

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

/* The slot where a winner of others gains most; -1: none that is worth its proof now. */
static int offered(const struct world *w, struct member *m)
{
    int best = -1;
    for (int i = 0; i < w->slots; i++) {
        struct looking *k = &m->look[i];
        struct fleet_word *word = malloc((size_t)(k->sayings + 1) * sizeof *word);
        for (int n = 0; n < k->sayings; n++)
            word[n] = k->said[n].word;
        const struct fleet_offer_ask ask = {word, k->sayings, k->serving, k->seen, trials, k};
        k->offer = fleet_offer_best(&ask, &k->gain);
        free(word);
        if (k->offer >= 0 && (best < 0 || k->gain > m->look[best].gain))
            best = i;
    }
    return best;
}

static int lease(struct world *w, struct member *m)
{
    const char *wish[SLOTS_MOST];
    double value[SLOTS_MOST];
    char got[40];
    struct err err;
    int n = 0;
    for (int i = 0; i < w->slots; i++) {
        double v = worth(&m->look[i]);
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

static void propose(struct member *m)
{
    struct looking *k = &m->look[m->slot];
    space_predict(k->space, &m->cost);
    k->search.advice = &k->advice;
    m->n = strategy_template.propose(k->strategy, &k->search, m->id, BATCH);
    for (int i = 0; m->n == 0 && i < k->behinds; i++)
        search_forget(&k->search, k->behind[i]);
    if (m->n == 0) {
        k->behinds = 0;
        m->n = strategy_template.propose(k->strategy, &k->search, m->id, BATCH);
    }
    search_pending(&k->search, m->id, m->n);
    if (m->n == 0)
        k->dry += 1000; /* nothing is left there */
}

/* With $FLEET_SIM_TRACE: a line a batch, and of the slot how far it is. */
static void trace(const struct world *w, const struct member *m, double took)
{
    static const char *const doing[] = {"waits", "searches", "proves"};
    int what = m->n == 0 ? 0 : m->adopts ? 2 : 1;
    if (!getenv("FLEET_SIM_TRACE"))
        return;
    fprintf(stderr, "%7.1f server %d %s for %.1f s", m->at_s - took, (int)(m - w->member),
            doing[what], took);
    if (m->slot >= 0)
        fprintf(stderr, ": %s, serves %.3f of the best, holds it for %.3f", w->land[m->slot].slot,
                m->look[m->slot].truth / w->land[m->slot].best,
                m->look[m->slot].seen / w->land[m->slot].best);
    fputc('\n', stderr);
}

/* What a server does next, and how long that takes. */
static void begin(struct world *w, struct member *m)
{
    struct record r;
    cJSON *rows = cJSON_CreateArray();
    hear(w, m);
    m->slot = offered(w, m);
    m->adopts = m->slot >= 0;
    m->n = 0;
    if (!m->adopts && (m->slot = lease(w, m)) >= 0)
        propose(m);
    if (m->adopts) {
        struct looking *k = &m->look[m->slot];
        m->id[0] = k->offer;
        m->n = 1;
        if (is_behind(k, m->id[0]))
            search_forget(&k->search, m->id[0]);
        search_pending(&k->search, m->id, 1);
    }
    double took = m->n == 0 ? 10 : 0;
    for (int i = 0; i < m->n; i++) {
        const struct measured *row = &w->land[m->slot].table->row[m->id[i]];
        took += (double)row->build_s + (double)row->probe_s + (double)row->bench_s;
        fill_record(w, m->slot, m->id[i], &r);
        r.state = LIFE_PROPOSED;
        cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
    }
    tell(w, m, rows);
    m->at_s += took;
    m->ending = m->n > 0;
    trace(w, m, took);
}

/* The best of the batch goes on to live steps, if it is better than what serves. */
static void end(struct world *w, struct member *m)
{
    struct looking *k = &m->look[m->slot];
    const struct landscape *l = &w->land[m->slot];
    uint64_t lot = w->seed * 4099 + (uint64_t)(m - w->member) * 131 + (uint64_t)m->slot;
    cJSON *rows = cJSON_CreateArray();
    struct record r;
    double gain = 1 + MIN_GAIN, before = k->seen, served = k->truth;
    int32_t winner = -1;
    for (int i = 0; i < m->n; i++) {
        const struct measured *row = &l->table->row[m->id[i]];
        double truth = measured_speed(row);
        double wrong =
            exp(measured_noise(row) * measured_deviate(lot + (uint64_t)(served * 1e6) +
                                                           (uint64_t)k->trials[m->id[i]] * 7919,
                                                       m->id[i]));
        double ratio = truth / served * wrong;
        fill_record(w, m->slot, m->id[i], &r);
        r.state = truth > 0 ? LIFE_BENCHED : LIFE_REFUSED;
        r.evidence.speed = before * ratio;
        r.evidence.own_s = truth > 0 ? (double)row->own_s / wrong : 0;
        search_learn(&k->search, m->id[i], before * ratio);
        k->trials[m->id[i]]++;
        k->own[m->id[i]] = before * ratio;
        if (truth > 0) {
            struct point p;
            space_point(k->space, m->id[i], &p);
            cost_learn(&m->cost, space_template(k->space, m->id[i]), &p, space_facts(k->space),
                       r.evidence.own_s);
        }
        if (ratio >= gain) {
            gain = ratio;
            winner = m->id[i];
        }
        cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
    }
    m->tried += m->n;
    k->measured += m->n;
    k->dry = winner >= 0 ? 0 : k->dry + m->n;
    if (winner >= 0) {
        m->at_s += PROMOTE_S;
        k->seen = before * gain;
        k->serving = winner;
        k->truth = measured_speed(&l->table->row[winner]);
        if (k->truth >= NEAR * l->best && k->near_s < 0)
            k->near_s = m->at_s;
        fill_record(w, m->slot, winner, &r);
        r.state = LIFE_ACTIVE;
        r.evidence.speed = k->seen;
        r.evidence.own_s = (double)l->table->row[winner].own_s;
        cJSON_AddItemToArray(rows, fleet_kernel_json(&r));
    }
    /* An active row replaces the one that says it was benched. */
    for (int i = cJSON_GetArraySize(rows) - 2; winner >= 0 && i >= 0; i--)
        if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(cJSON_GetArrayItem(rows, i), "key")),
                   r.key) == 0)
            cJSON_DeleteItemFromArray(rows, i);
    tell(w, m, rows);
    m->ending = false;
    m->at_s += HEAR_S;
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
        k->offer = k->serving = -1;
    }
    m->at_s = number * 0.01;
    if (fleet_hello(w->db, &m->self, &err) != 0)
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
    int tried = 0, left = members - dead;
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
        if (m->ending && number >= members - dead) {
            die(w, m); /* in the middle of its first batch */
        } else if (m->ending) {
            end(w, m);
        } else {
            begin(w, m);
        }
        if (!done[number] && number < members - dead && is_near(w, m, &when)) {
            done[number] = true;
            left--;
            all_s = fmax(all_s, when);
            first_s = fmin(first_s, when);
        }
    }
    for (int i = 0; i < members; i++)
        tried += w->member[i].tried;
    for (int i = 0; getenv("FLEET_SIM_TRACE") && i < w->slots; i++) {
        fprintf(stderr, "%s: near at", w->land[i].slot);
        for (int k = 0; k < members; k++)
            fprintf(stderr, " %.0f", w->member[k].look[i].near_s);
        fputc('\n', stderr);
    }
    printf("{\"servers\": %d, \"dead\": %d, \"slots\": %d, \"seed\": %llu, \"all_s\": %.1f,"
           " \"first_s\": %.1f, \"left\": %d, \"tried\": %d}\n",
           members, dead, w->slots, (unsigned long long)w->seed, left ? -1 : all_s,
           isfinite(first_s) ? first_s : -1, left, tried);
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
