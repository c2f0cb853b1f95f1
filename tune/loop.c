/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c - `whet tune`: batches for chosen slots, one after the other, as the server would do them.
 *
 * Every stage is the server's own: proposals by the strategy and the adviser, build, probe, bench,
 * then shadow and canary on live steps, which here are replayed ones (replay.c). They run only when
 * a stage needs them, so benches have the machine to themselves. What wins is written to the store
 * as a server would: the next `whet serve` on this store validates it once more and begins with it.
 */
#include "tune/loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config/clock.h"
#include "specializer/candidate/hash.h"
#include "specializer/store/store.h"
#include "tune/interrupt.h"
#include "tune/order.h"
#include "tune/replay.h"

/* A slot is left alone after this many candidates without a gain. */
enum { DRY_MOST = 30, TRIES_MOST = 3, CPU_DECODES = 16 };
/* Live steps that a candidate gets which won its batch when the time was nearly over. */
#define LIVE_LEAST_S 10.0
#define SECONDS_MOST 600.0

struct tuner {
    struct session *session;
    struct replay *replay; /* what a promoted candidate's live steps are to be */
    int turn;              /* promoted candidates so far */
    const struct slot *slot[SLOTS_MOST];
    int slots;
    int64_t start_ns;
    double seconds;
    bool writes; /* a language model may (specializer.agentic) */
};

static double left_s(const struct tuner *t)
{
    return t->seconds - (double)(clock_ns() - t->start_ns) * 1e-9;
}

static bool over(const struct tuner *t)
{
    return session_stopped(t->session) || left_s(t) <= 0;
}

/* ---- what whoever waits is told -------------------------------------------------------------
 *
 * To stdout. A line is as wide as a kernel's name makes it; why a slot is on eager is never longer
 * than that. */

/* "mlp_out avx512 PACK=0 ..." or "eager; bench: +0.4 % [-0.2, +1.0]". */
static void say_kernel(const struct session_slot *now)
{
    if (now->kernel[0])
        printf("%s", now->kernel);
    else
        printf("eager; %s",
               now->promoted && !now->pinned ? "a promoted candidate waits for steps" : now->why);
}

/* What a slot has after a batch that ended `seconds` after the start: the kernel and its gain, or
 * eager and why; of a text or a retrial that lost to that kernel, by what. */
static void say_batch(struct tuner *t, const struct slot *slot, double seconds, int candidates,
                      enum session_source source)
{
    struct session_slot now;
    session_look(t->session, slot, &now);
    printf("%4.0f s  %-14s %2d %s, %3d tried; ", seconds, slot->name, candidates,
           source == SESSION_RETRIALS ? "retrial"
           : source == SESSION_TEXTS  ? "text"
                                      : "candidates",
           now.tried);
    say_kernel(&now);
    if (now.kernel[0])
        printf(" %+.1f %%", 100 * now.gain);
    if (now.kernel[0] && now.lost[0] && source != SESSION_POINTS) /* the one that was tried */
        printf("; %s", now.lost);
    printf("\n");
    fflush(stdout);
}

static void interval(const struct gain *g, char out[40])
{
    out[0] = 0;
    if (g->pairs)
        snprintf(out, 40, "[%+.1f, %+.1f] %%", 100 * g->low, 100 * g->high);
}

/* The table at the end, a line a slot. */
static void say_summary(struct tuner *t, double seconds)
{
    int width = 16; /* of the longest name: a format class's has its formats */
    for (int i = 0; i < t->slots; i++)
        width = strlen(t->slot[i]->name) > (size_t)width ? (int)strlen(t->slot[i]->name) : width;
    printf("\n%-*s %6s %8s %-20s %-20s  %s\n", width, "slot", "tried", "speed", "bench, 95 %",
           "whole step, 95 %", "kernel");
    for (int i = 0; i < t->slots; i++) {
        struct session_slot now;
        char bench[40], step[40];
        session_look(t->session, t->slot[i], &now);
        interval(&now.bench, bench);
        interval(&now.step, step);
        printf("%-*s %6d %7.2fx %-20s %-20s  ", width, t->slot[i]->name, now.tried, 1 + now.gain,
               bench, step);
        say_kernel(&now);
        printf("\n");
    }
    printf("%.0f s; winners are in %s\n", seconds, store_path(session_store(t->session)));
}

/* ---- slots --------------------------------------------------------------------------------- */

/* All that have the name: without formats it stands for those of every format class. */
static int add_slots(struct tuner *t, const char *name, struct err *err)
{
    struct dispatch *d = session_env(t->session)->dispatch;
    bool some = false;
    for (int i = 0; i < dispatch_slots(d); i++) {
        const struct slot *slot = dispatch_slot_at(d, i);
        if (!slot_named(slot, name))
            continue;
        some = true;
        if (t->slots < SLOTS_MOST)
            t->slot[t->slots++] = slot;
    }
    return some ? 0 : err_set(err, "there is no slot \"%s\"", name);
}

/* Takes the slots that were given; without any, those of decoding one sequence and four. */
static int choose_slots(struct tuner *t, struct tune_options *o, struct err *err)
{
    static const char *const usual[] = {
        "mlp_in/m1", "mlp_out/m1", "head/m1", "attn_in/m1", "attn_out/m1", "attn/m1/c256",
        "mlp_in/m4", "mlp_out/m4", "head/m4", "attn_in/m4", "attn_out/m4", "attn/m4/c256"};
    const struct stage_env *env = session_env(t->session);
    int n = o->slots ? o->slots : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < n; i++)
        if (add_slots(t, o->slots ? o->slot[i] : usual[i], err) != 0)
            return -1;
    for (int i = 0; i < t->slots; i++)
        session_set_share(t->session, t->slot[i], 1.0 / t->slots);
    order_slots(env->model, env->machine, t->slot, t->slots);
    return 0;
}

/* Decodes of how many sequences stand in for a slot's steps; wider slots are met by prompts. A GPU
 * decodes as many as the engine takes, and hardly knows prompts of 64 tokens. */
static int decoded_together(const struct tuner *t)
{
    const struct stage_env *env = session_env(t->session);
    int most = engine_info(env->engine)->max_batch;
    if (target_of(env->machine->kind)->shares_cores && most > CPU_DECODES)
        most = CPU_DECODES;
    return most;
}

/* ---- one batch ----------------------------------------------------------------------------- */

static struct replay *replay_of(const struct tuner *t, const struct slot *slot, uint64_t seed,
                                struct err *err)
{
    struct engine *e = session_env(t->session)->engine;
    int longest = engine_info(e)->max_context;
    int context = order_context(t->slot, t->slots, slot, longest, t->turn);
    return replay_new(e, slot, decoded_together(t), context, seed, err);
}

/* Inputs of replayed steps; seeded ones if the slot's steps do not come. */
static bool take_inputs(struct tuner *t, const struct slot *slot)
{
    struct err err;
    struct replay *r = replay_of(t, slot, hash_text(HASH_START, slot->name), &err);
    session_until(t->session, fmax(left_s(t), 1));
    if (r && replay_run(r, &err) == 0)
        session_capture(t->session, slot);
    replay_stop(r);
    session_until(t->session, 0);
    return session_inputs(t->session, slot, true);
}

/* A stage wants live steps. Not before: a check of the whole model has an idle engine, or the
 * processor, to itself. */
static void on_live(void *ctx)
{
    struct tuner *t = ctx;
    struct err err;
    if (t->replay && replay_run(t->replay, &err) != 0)
        printf("%s\n", err.msg);
}

static void try_promoted(struct tuner *t, const struct slot *slot)
{
    struct err err;
    t->replay = replay_of(t, slot, (uint64_t)clock_ns(), &err);
    t->turn++;
    if (!t->replay) {
        printf("%-16s %s\n", slot->name, err.msg);
        return;
    }
    bool waits = true;
    double left = left_s(t), share = left / t->slots;
    session_until(t->session, fmax(left, LIVE_LEAST_S));
    for (int i = 0; i < TRIES_MOST && waits; i++) {
        if (i > 0 && (over(t) || left - left_s(t) >= share))
            break;
        waits = session_promote(t->session, slot); /* once, however short the time */
    }
    replay_stop(t->replay);
    session_until(t->session, 0);
    t->replay = NULL;
}

/* Live steps could not decide a slot's candidate when the slot had its turn: they may again. */
static bool try_waiting(struct tuner *t, const struct slot *slot)
{
    struct session_slot now;
    session_look(t->session, slot, &now);
    if (!now.promoted || now.pinned)
        return false;
    try_promoted(t, slot);
    say_batch(t, slot, t->seconds - left_s(t), 1, SESSION_RETRIALS);
    return true;
}

/* What was proposed to its bench, then live steps for the best. */
static void hold_batch(struct tuner *t, const struct slot *slot, int candidates,
                       enum session_source source)
{
    struct session_slot now;
    while (!over(t) && session_work(t->session))
        ;
    session_settle(t->session, slot);
    session_look(t->session, slot, &now);
    if (now.promoted && !session_stopped(t->session))
        try_promoted(t, slot);
    session_upkeep(t->session);
    say_batch(t, slot, t->seconds - left_s(t), candidates, source);
}

static bool has_turn(const struct session_slot *now)
{
    return !now->exhausted && now->dry < DRY_MOST;
}

/* The slot whose turn comes after this one's; NULL: no other has one. */
static const struct slot *slot_after(struct tuner *t, const struct slot *slot)
{
    const struct slot *after = NULL;
    int at = 0;
    while (at < t->slots && t->slot[at] != slot)
        at++;
    for (int i = 1; i < t->slots && !after; i++) {
        struct session_slot now;
        session_look(t->session, t->slot[(at + i) % t->slots], &now);
        if (has_turn(&now))
            after = t->slot[(at + i) % t->slots];
    }
    return after;
}

/* False: the source has nothing for the slot. */
static bool propose(struct tuner *t, const struct slot *slot, const struct session_slot *now,
                    enum session_source source)
{
    bool searched = session_search(t->session, slot) || source == SESSION_TEXTS;
    bool ready = !now->pinned && searched &&
                 (session_inputs(t->session, slot, false) || take_inputs(t, slot));
    int candidates = ready ? session_propose(t->session, slot, source) : -1;
    bool goes_on = candidates >= 0 && source == SESSION_POINTS;
    const struct slot *after = goes_on ? slot_after(t, slot) : NULL;
    if (after)
        session_ask_ahead(t->session, after);
    if (candidates >= 0)
        hold_batch(t, slot, candidates, source);
    return candidates >= 0;
}

/* Tries a candidate again that lost whole steps before the kernels around it changed. */
static bool try_again(struct tuner *t, const struct slot *slot)
{
    struct session_slot now;
    session_look(t->session, slot, &now);
    return session_retrial_due(t->session, slot) && propose(t, slot, &now, SESSION_RETRIALS);
}

/* New candidates. False: the slot needs no more. */
static bool one_turn(struct tuner *t, const struct slot *slot)
{
    struct session_slot now;
    session_look(t->session, slot, &now);
    return has_turn(&now) && propose(t, slot, &now, SESSION_POINTS);
}

/* The text that waits, through all stages; then the writer goes on. False: nothing is under way
 * there. A question is about what steps were seen to take, so all slots have theirs first. */
static bool texts_turn(struct tuner *t)
{
    if (!t->writes)
        return false;
    const struct slot *ready = session_text(t->session);
    struct session_slot now;
    for (int i = 0; i < t->slots; i++)
        if (!session_inputs(t->session, t->slot[i], false))
            take_inputs(t, t->slot[i]);
    if (ready) {
        session_look(t->session, ready, &now);
        if (!propose(t, ready, &now, SESSION_TEXTS))
            session_text_later(t->session);
    }
    return session_write(t->session, t->slot, t->slots);
}

/* Retrials come first once every slot has had its turn: they are of kernels that are known to be
 * fast by themselves, and the kernels beside them have changed most by then. */
static void search(struct tuner *t)
{
    bool some = true;
    while (some && !over(t)) {
        some = false;
        for (int i = 0; i < t->slots && !over(t); i++)
            some |= try_again(t, t->slot[i]);
        for (int i = 0; i < t->slots && !over(t); i++)
            some |= try_waiting(t, t->slot[i]) || one_turn(t, t->slot[i]);
        bool writing = !over(t) && texts_turn(t);
        if (writing && !some)
            session_wait(t->session);
        some |= writing;
    }
}

int tune_loop(struct tune_options *o, struct err *err)
{
    struct tuner t = {.seconds = o->seconds > 0 ? o->seconds : SECONDS_MOST,
                      .start_ns = clock_ns(),
                      .writes = strcmp(o->config.specializer_agentic, "on") == 0,
                      .session = session_open(&o->config, err)};
    if (!t.session)
        return -1;
    interrupt_stops(t.session);
    session_on_live(t.session, on_live, &t);
    int r = choose_slots(&t, o, err);
    if (r == 0) {
        session_restore(t.session);
        search(&t);
        say_summary(&t, t.seconds - left_s(&t));
    }
    interrupt_done();
    session_close(t.session);
    return r;
}
