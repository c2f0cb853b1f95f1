/* SPDX-License-Identifier: Apache-2.0 */
/* promotion_world.h - promotion.c with stages that answer what a test says, and without a loop, an
 * engine or a fleet around it. Linked with --wrap of what is __wrap_ here (tests/meson.build). */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_PROMOTION_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_PROMOTION_WORLD_H

#include "tests/unit/specializer/slot_world.h"

#include "specializer/promotion.c"

/* ---- stages that answer as they are told ------------------------------------------------------
 */

static struct {
    /* Of candidates in this slot; of all others: pass. */
    const char *slot;
    enum stage_result shadow, canary;
    enum steps_say steps;
    /* Who is not judged in a set of more than `alone` members of its bucket, and who is refused. */
    const char *drags, *wrong;
    int alone;
    /* Done once, while a stage runs, and not before so many shadows have. */
    int after_shadows;
    void (*meanwhile)(void);
    enum stage meanwhile_at;
    int shadows, canaries, sets;
    int set_size[8];
    char tried[200]; /* slots in the order of their canaries */
    /* Of what promotion.c asks others. */
    int ranks;
    bool gathers, turns, ready;
    const char *retracted;
    void (*at_publish)(void);
    /* What a proposer hears. */
    int learned, forgotten;
    double speed;
} play;

static void meanwhile(enum stage at)
{
    void (*f)(void) = play.meanwhile;
    if (!f || play.meanwhile_at != at || play.shadows < play.after_shadows)
        return;
    play.meanwhile = NULL;
    f();
}

static bool told(const struct candidate *c)
{
    return play.slot && strcmp(c->slot->name, play.slot) == 0;
}

enum stage_result __wrap_shadow_run(const struct stage_env *env, struct candidate *c, double s);
enum stage_result __wrap_shadow_run(const struct stage_env *env, struct candidate *c, double s)
{
    (void)env, (void)s;
    play.shadows++;
    meanwhile(STAGE_SHADOW);
    return told(c) && play.shadow ? play.shadow : STAGE_PASS;
}

static void note_try(const struct candidate *c)
{
    size_t n = strlen(play.tried);
    snprintf(play.tried + n, sizeof play.tried - n, "%s%s", n ? " " : "", c->slot->name);
}

enum stage_result __wrap_canary_run(const struct stage_env *env, struct candidate *c, double s);
enum stage_result __wrap_canary_run(const struct stage_env *env, struct candidate *c, double s)
{
    (void)env, (void)s;
    play.canaries++;
    note_try(c);
    c->steps = STEPS_UNSEEN;
    meanwhile(STAGE_CANARY);
    if (!told(c) || !play.canary)
        return STAGE_PASS;
    c->steps = play.steps;
    candidate_explain(c, STAGE_CANARY, CAUSE_GAIN, -0.01, "whole steps -1.00 %%");
    return play.canary;
}

void __wrap_canary_run_set(const struct stage_env *env, struct candidate *const *c, int n, double s,
                           enum stage_result *r);
void __wrap_canary_run_set(const struct stage_env *env, struct candidate *const *c, int n, double s,
                           enum stage_result *r)
{
    (void)env, (void)s;
    assert_true(n > 1 && n <= OVERRIDES_MOST && play.sets < 8);
    play.set_size[play.sets++] = n;
    meanwhile(STAGE_CANARY);
    for (int i = 0; i < n; i++) {
        c[i]->steps = STEPS_UNSEEN;
        c[i]->evidence.together = n;
        r[i] = STAGE_PASS;
        for (int k = 0; k < n; k++)
            if (play.drags && c[k]->slot->m_index == c[i]->slot->m_index &&
                strcmp(c[k]->slot->name, play.drags) == 0)
                r[i] = STAGE_RUNNING;
        for (int k = 0; k < n; k++)
            if (play.wrong && strcmp(c[k]->slot->name, play.wrong) == 0 &&
                c[k]->slot->m_index == c[i]->slot->m_index)
                r[i] = k == i ? STAGE_REFUSE : STAGE_RUNNING;
    }
}

int32_t __wrap_engine_ranks(const struct engine *e);
int32_t __wrap_engine_ranks(const struct engine *e)
{
    (void)e;
    return play.ranks;
}

bool __wrap_fleet_set_gathers(struct specializer *s);
bool __wrap_fleet_set_gathers(struct specializer *s)
{
    (void)s;
    return play.gathers;
}

bool __wrap_turns_left(struct specializer *s);
bool __wrap_turns_left(struct specializer *s)
{
    (void)s;
    return play.turns;
}

bool __wrap_search_batch_has_ready(struct specializer *s);
bool __wrap_search_batch_has_ready(struct specializer *s)
{
    (void)s;
    return play.ready;
}

/* What another server found wrong. Asked before a try, and last before a candidate is published. */
bool __wrap_fleet_retracted(struct fleet *f, const char *key, int64_t since_ns);
bool __wrap_fleet_retracted(struct fleet *f, const char *key, int64_t since_ns)
{
    (void)f;
    assert_int_equal(since_ns, 77);
    if (play.at_publish && play.canaries + play.sets > 0)
        play.at_publish();
    return play.retracted && strcmp(key, play.retracted) == 0;
}

static void learned(struct specializer *s, struct slot_search *p, int32_t id,
                    const struct candidate *c, double speed)
{
    (void)s, (void)p;
    assert_int_equal(id, 5);
    assert_non_null(c);
    play.learned++;
    play.speed = speed;
}

static void forgotten(struct specializer *s, struct slot_search *p, int32_t id)
{
    (void)s, (void)p;
    assert_int_equal(id, 5);
    play.forgotten++;
}

static const struct proposer proposer = {.name = "test", .learn = learned, .forget = forgotten};

/* ---- the world --------------------------------------------------------------------------------
 */

static const struct candidate
    *first; /* of the slot that a test is about; gone when it was dropped */

/* Benched, and clearly faster; live steps read its slot. */
static struct slot_search *promote(const char *slot, int key)
{
    struct slot_search *p = at(slot);
    struct candidate *c = candidate_for(slot, key);
    c->state = LIFE_BENCHED;
    c->evidence.bench = (struct gain){50, 0.25, 0.2, 0.3};
    c->evidence.speed = 1.25;
    p->promoted = (struct trial){
        .c = c, .at = STAGE_SHADOW, .slot_search = p, .from = {&proposer, 5}, .since_ns = 77};
    p->ran_ns = clock_ns();
    p->locked.share = 0.3;
    p->dry = 3;
    first = c;
    return p;
}

static int open_rules(void **state)
{
    memset(&play, 0, sizeof play);
    play.ranks = 1;
    return open_world(state);
}

static int close_rules(void **state)
{
    for (int i = 0; i < w.s.slot_searches; i++)
        candidate_drop(&w.s, w.s.slot_search[i].promoted.c);
    free(w.s.locked.disabled);
    return close_world(state);
}

static inline void disable(const char *what)
{
    struct specializer *s = &w.s;
    s->locked.disabled = xcalloc(1, sizeof *s->locked.disabled);
    snprintf(s->locked.disabled[0].what, sizeof s->locked.disabled[0].what, "%s", what);
    s->locked.disables = 1;
}

static inline bool published(const struct slot_search *p)
{
    return p->locked.active != NULL;
}

static inline bool due_in(const struct slot_search *p, double seconds)
{
    double left = (double)(p->not_before_ns - clock_ns()) * 1e-9;
    return left > seconds - 0.9 && left <= seconds;
}

static inline int64_t count(enum stage stage, enum stage_result r)
{
    return (int64_t)atomic_load(&w.s.counts.stage[stage][r]);
}

static void take_row(void *ctx, const struct trace_row *row)
{
    snprintf(ctx, 200, "%s", row->text);
}

/* The last text of an event, or "". */
static inline const char *last(const char *event)
{
    static char text[200];
    text[0] = 0;
    store_events(w.s.store, event, 0, 1, take_row, text, NULL);
    return text;
}

#define RULE(f) cmocka_unit_test_setup_teardown(f, open_rules, close_rules)

#endif
