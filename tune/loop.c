/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c - `whet tune`: rounds for chosen slots, one after the other, as the server would do them.
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
#include "specializer/admission/inputs.h"
#include "specializer/retrial.h"
#include "specializer/swap.h"
#include "specializer/why.h"
#include "tune/lab.h"
#include "tune/order.h"
#include "tune/replay.h"

/* A slot is left alone after this many candidates without a gain. */
enum { DRY_MOST = 30, TRIES_MOST = 3, CPU_DECODES = 16 };
#define SECONDS_MOST 600.0

struct tuner {
    struct lab lab;
    struct replay *replay; /* what a promoted candidate's live steps are to be */
    int turn;              /* promoted candidates so far */
    struct place *place[SLOTS_MOST];
    int places;
    int64_t start_ns;
    double seconds;
};

static double left_s(const struct tuner *t)
{
    return t->seconds - (double)(clock_ns() - t->start_ns) * 1e-9;
}

static bool over(const struct tuner *t)
{
    return lab_stopped(&t->lab) || left_s(t) <= 0;
}

/* ---- what whoever waits is told -------------------------------------------------------------
 *
 * To stdout. A line is as wide as a kernel's name makes it; why a slot is on eager is never longer
 * than that (WHY_TEXT). */

/* "mlp_out avx512 PACK=0 ..." or "eager; bench: +0.4 % [-0.2, +1.0]"; lock held. */
static void say_kernel(struct specializer *s, const struct place *p)
{
    char why[WHY_TEXT];
    if (p->active) {
        printf("%s", p->active->name);
        return;
    }
    why_eager(s, p, why);
    printf("eager; %s",
           p->promoted.c && !p->pinned[0] ? "a promoted candidate waits for steps" : why);
}

/* What a slot has after a round that ended `seconds` after the start: the kernel and its gain, or
 * eager and why. `again`: the round was a retrial. */
static void say_round(struct specializer *s, const struct place *p, double seconds, int candidates,
                      bool again)
{
    pthread_mutex_lock(&s->lock);
    printf("%4.0f s  %-14s %2d %s, %3d tried; ", seconds, p->slot->name, candidates,
           again ? "retrial" : "candidates", p->search.tried);
    say_kernel(s, p);
    if (p->active)
        printf(" %+.1f %%", 100 * p->gain_eager);
    printf("\n");
    pthread_mutex_unlock(&s->lock);
    fflush(stdout);
}

static void interval(const struct gain *g, char out[40])
{
    out[0] = 0;
    if (g->pairs)
        snprintf(out, 40, "[%+.1f, %+.1f] %%", 100 * g->low, 100 * g->high);
}

/* The table at the end, a line a slot. */
static void say_summary(struct specializer *s, struct place *const *place, int n, double seconds)
{
    printf("\n%-16s %6s %8s %-20s %-20s  %s\n", "slot", "tried", "speed", "bench, 95 %",
           "whole step, 95 %", "kernel");
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const struct place *p = place[i];
        static const struct evidence none;
        const struct evidence *e = p->active ? &p->active->evidence : &none;
        char bench[40], step[40];
        interval(&e->bench, bench);
        interval(&e->canary, step);
        printf("%-16s %6d %7.2fx %-20s %-20s  ", p->slot->name, p->search.tried, 1 + p->gain_eager,
               bench, step);
        say_kernel(s, p);
        printf("\n");
    }
    pthread_mutex_unlock(&s->lock);
    printf("%.0f s; winners are in %s\n", seconds, store_path(s->store));
}

/* ---- slots --------------------------------------------------------------------------------- */

static int add_slot(struct tuner *t, const char *name, struct err *err)
{
    struct place *p = place_find(t->lab.s, name);
    if (!p)
        return err_set(err, "there is no slot \"%s\"", name);
    if (t->places < SLOTS_MOST)
        t->place[t->places++] = p;
    return 0;
}

/* Those given; without any, decoding of one sequence and of four. */
static int choose_slots(struct tuner *t, struct tune_options *o, struct err *err)
{
    static const char *const usual[] = {
        "mlp_in/m1", "mlp_out/m1", "head/m1", "attn_in/m1", "attn_out/m1", "attn/m1/c256",
        "mlp_in/m4", "mlp_out/m4", "head/m4", "attn_in/m4", "attn_out/m4", "attn/m4/c256"};
    int n = o->slots ? o->slots : (int)(sizeof usual / sizeof *usual);
    for (int i = 0; i < n; i++)
        if (add_slot(t, o->slots ? o->slot[i] : usual[i], err) != 0)
            return -1;
    for (int i = 0; i < t->places; i++)
        t->place[i]->share = 1.0 / t->places; /* the order of a restart */
    order_places(t->lab.s->env.model, t->lab.s->env.machine, t->place, t->places);
    return 0;
}

/* Decodes of how many sequences stand in for a slot's steps; wider slots are met by prompts. A GPU
 * decodes as many as the engine takes, and hardly knows prompts of 64 tokens. */
static int decoded_together(const struct tuner *t)
{
    int most = (int)t->lab.s->config->engine_max_batch;
    if (t->lab.s->env.machine->kind != MACHINE_CUDA && most > CPU_DECODES)
        most = CPU_DECODES;
    return most;
}

/* ---- one round ----------------------------------------------------------------------------- */

static struct replay *replay_of(const struct tuner *t, const struct place *p, uint64_t seed,
                                struct err *err)
{
    int longest = engine_info(t->lab.engine)->max_context;
    int context = order_context(t->place, t->places, p->slot, longest, t->turn);
    return replay_new(t->lab.engine, p->slot, decoded_together(t), context, seed, err);
}

/* Inputs of replayed steps; seeded ones if the slot's steps do not come. */
static bool take_inputs(struct tuner *t, struct place *p)
{
    struct specializer *s = t->lab.s;
    struct err err;
    struct replay *r = replay_of(t, p, (uint64_t)p->index + 1, &err);
    bool some = r && replay_run(r, &err) == 0 && place_inputs(s, p);
    replay_stop(r);
    if (!some) {
        p->input[0] = capture_seeded(s->env.model, p->slot, 1);
        p->inputs = p->input[0] != NULL;
    }
    return p->inputs > 0;
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

static void try_promoted(struct tuner *t, struct place *p)
{
    struct specializer *s = t->lab.s;
    struct err err;
    t->replay = replay_of(t, p, (uint64_t)clock_ns(), &err);
    t->turn++;
    if (!t->replay) {
        printf("%-16s %s\n", p->slot->name, err.msg);
        return;
    }
    for (int i = 0; i < TRIES_MOST && p->promoted.c && (i == 0 || !over(t)); i++)
        promotion_try(s, p); /* one look at live steps, however short the time */
    replay_stop(t->replay);
    t->replay = NULL;
}

/* The round under way to its bench, then live steps for the best. */
static void hold_round(struct tuner *t, struct place *p, bool again)
{
    struct specializer *s = t->lab.s;
    int candidates = s->round.n;
    while (!round_over(s) && !over(t)) {
        specializer_observe(s);
        round_children(s);
        if (!round_bench(s) && !round_over(s))
            specializer_wait(s, 0.005);
    }
    if (round_over(s))
        round_close(s);
    else
        round_abandon(s);
    if (clock_ns() < p->not_before_ns) /* the disk is full, or the builds of the hour are used up */
        specializer_wait(s, 0.5);
    if (p->promoted.c)
        try_promoted(t, p);
    retire_poll(s, false);
    adviser_poll(s->adviser);
    say_round(s, p, t->seconds - left_s(t), candidates, again);
}

static bool ready(struct tuner *t, struct place *p)
{
    return !p->pinned[0] && place_open(t->lab.s, p) && (p->inputs > 0 || take_inputs(t, p));
}

/* One who lost whole steps before the kernels around it changed. */
static bool try_again(struct tuner *t, struct place *p)
{
    struct specializer *s = t->lab.s;
    bool tried = retrial_due(s, p) && ready(t, p) && proposer_retrials.next(s, p) == NEXT_ROUND;
    if (tried)
        hold_round(t, p, true);
    return tried;
}

/* New candidates. False: the slot needs no more. */
static bool one_turn(struct tuner *t, struct place *p)
{
    struct specializer *s = t->lab.s;
    bool some = !p->exhausted && p->dry < DRY_MOST && ready(t, p) &&
                proposer_points.next(s, p) == NEXT_ROUND;
    if (some)
        hold_round(t, p, false);
    return some;
}

/* Retrials come first once every slot has had its turn: they are of kernels that are known to be
 * fast by themselves, and the kernels beside them have changed most by then. */
static void search(struct tuner *t)
{
    bool some = true;
    while (some && !over(t)) {
        some = false;
        for (int i = 0; i < t->places && !over(t); i++)
            some |= try_again(t, t->place[i]);
        for (int i = 0; i < t->places && !over(t); i++)
            some |= one_turn(t, t->place[i]);
    }
}

int tune_loop(struct tune_options *o, struct err *err)
{
    struct tuner t = {.seconds = o->seconds > 0 ? o->seconds : SECONDS_MOST,
                      .start_ns = clock_ns()};
    if (lab_open(&t.lab, &o->config, err) != 0)
        return -1;
    lab_stop_on_signals(&t.lab);
    t.lab.s->env.live = on_live;
    t.lab.s->env.live_ctx = &t;
    int r = choose_slots(&t, o, err);
    if (r == 0) {
        restore_winners(t.lab.s);
        retrials_recall(t.lab.s);
        why_recall(t.lab.s);
        search(&t);
        say_summary(t.lab.s, t.place, t.places, t.seconds - left_s(&t));
    }
    lab_close(&t.lab);
    return r;
}
