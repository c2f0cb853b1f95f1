/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - see observe.h.
 *
 * The chance that one more candidate helps is not known, but it falls with every one that was
 * measured, as 1 / (1 + measured / 12): the first dozen finds most of what there is, so slots take
 * turns by what is left rather than by size alone. And it falls faster with every one since the
 * last gain: exp(-dry / 24). The least is reached after about a hundred barren candidates in a slot
 * that takes 30 % of the time at half the roofline, and after a dozen in one that takes 1 %.
 */
#include "specializer/observe.h"

#include <math.h>
#include <stdlib.h>

#include "config/err.h"
#include "config/table.h"

enum { DRY_SCALE = 24, MEASURED_SCALE = 12 };

void observe_open(struct observe *o, struct dispatch *d, const struct model *model,
                  const struct machine *machine)
{
    *o = (struct observe){.dispatch = d, .model = model, .machine = machine};
    o->slots = dispatch_slots(d);
    o->slot = xcalloc((size_t)o->slots, sizeof *o->slot);
    o->gain_eager = xcalloc((size_t)o->slots, sizeof *o->gain_eager);
}

void observe_close(struct observe *o)
{
    free(o->slot);
    free(o->gain_eager);
    *o = (struct observe){0};
}

/* Bytes and operations of one run at these mean sizes. */
static struct region_cost run_work(const struct observe *o, const struct slot *s, double m,
                                   double sequences, double context)
{
    int tokens = m < 1 ? 1 : (int)lround(m), seqs = sequences < 1 ? 1 : (int)lround(sequences);
    return plan_cost(o->model, s->region, slot_layer(s), tokens, seqs, (int64_t)context, tokens);
}

/* What a fused region would have counted where its parts ran: their runs, and the time of all. The
 * slots of fused regions come after all others, whose counters have been read by then. */
static void take_parts(struct observe *o, const struct slot *s, double delta[SEEN])
{
    const struct region_info *fused = region_info(s->region);
    for (int k = 0; k < o->slots; k++) {
        const struct slot *part = dispatch_slot_at(o->dispatch, k);
        for (int i = 0; i < fused->parts && part->m_index == s->m_index; i++)
            if (part->region == fused->part[i]) {
                for (int c = 0; c < SEEN_NS && i == 0; c++)
                    delta[c] = o->slot[k].delta[c];
                delta[SEEN_NS] += o->slot[k].delta[SEEN_NS];
            }
    }
}

/* Adds what the counters of one slot gained since the last call; returns the seconds that no other
 * slot counts. */
static double take(struct observe *o, int i)
{
    struct slot *s = dispatch_slot_at(o->dispatch, i);
    struct observed *seen = &o->slot[i];
    struct slot_counters *c = &s->counters;
    _Atomic uint64_t *const counter[] = {
        [SEEN_STEPS] = &c->steps,     [SEEN_RUNS] = &c->runs,           [SEEN_TOKENS] = &c->tokens,
        [SEEN_CONTEXT] = &c->context, [SEEN_SEQUENCES] = &c->sequences, [SEEN_NS] = &c->ns};
    EVERY_ROW(counter, SEEN);
    double *delta = seen->delta;
    for (int k = 0; k < SEEN; k++) {
        uint64_t now = atomic_load_explicit(counter[k], memory_order_relaxed);
        delta[k] = (double)(now - seen->raw[k]);
        seen->raw[k] = now;
    }
    bool lent = region_info(s->region)->parts > 0 && delta[SEEN_RUNS] <= 0;
    if (lent)
        take_parts(o, s, delta);
    double runs = delta[SEEN_RUNS], seconds = delta[SEEN_NS] * 1e-9;
    if (runs <= 0)
        return 0;
    seen->steps += delta[SEEN_STEPS];
    seen->runs += runs;
    seen->tokens += delta[SEEN_TOKENS];
    seen->context += delta[SEEN_CONTEXT];
    seen->sequences += delta[SEEN_SEQUENCES];
    seen->seconds += seconds;
    if (lent) {
        seen->lent += seconds;
        return 0; /* counters since the start belong to one thread */
    }
    const struct kernel *k = atomic_load_explicit(&s->kernel, memory_order_acquire);
    seen->total_s += seconds;
    /* What a pinned kernel loses is not counted: this is a counter, which may not fall. */
    seen->saved_s += k->origin == ORIGIN_EAGER ? 0 : seconds * fmax(o->gain_eager[i], 0);
    struct region_cost work = run_work(o, s, delta[SEEN_TOKENS] / runs,
                                       delta[SEEN_SEQUENCES] / runs, delta[SEEN_CONTEXT] / runs);
    seen->roofline_s += runs * roofline_s(o->machine, &work);
    return seconds;
}

double observe_update(struct observe *o)
{
    double busy = 0, total = 0;
    for (int i = 0; i < o->slots; i++)
        busy += take(o, i);
    double keep = exp2(-busy / OBSERVE_HALF_LIFE_S);
    for (int i = 0; i < o->slots; i++) {
        struct observed *s = &o->slot[i];
        s->steps *= keep;
        s->runs *= keep;
        s->tokens *= keep;
        s->context *= keep;
        s->sequences *= keep;
        s->seconds *= keep;
        s->lent *= keep;
        total += s->seconds - s->lent;
    }
    for (int i = 0; i < o->slots; i++) {
        struct observed *s = &o->slot[i];
        s->share = total > 0 ? s->seconds / total : 0;
        s->own = total > 0 && s->seconds > s->lent ? (s->seconds - s->lent) / total : 0;
    }
    o->busy_s += busy;
    return busy;
}

double observe_run_s(const struct observe *o, int slot)
{
    const struct observed *s = &o->slot[slot];
    return s->runs > 0 ? s->seconds / s->runs : 0;
}

double observe_m(const struct observe *o, int slot)
{
    const struct observed *s = &o->slot[slot];
    return s->runs > 0 ? s->tokens / s->runs : 0;
}

double observe_context(const struct observe *o, int slot)
{
    const struct observed *s = &o->slot[slot];
    return s->runs > 0 ? s->context / s->runs : 0;
}

struct region_cost observe_work(const struct observe *o, int slot)
{
    const struct observed *s = &o->slot[slot];
    if (s->runs <= 0)
        return (struct region_cost){0};
    return run_work(o, dispatch_slot_at(o->dispatch, slot), s->tokens / s->runs,
                    s->sequences / s->runs, s->context / s->runs);
}

double observe_bytes(const struct observe *o, int slot)
{
    struct region_cost work = observe_work(o, slot);
    return machine_bytes(o->machine, &work);
}

double observe_roofline_s(const struct observe *o, int slot)
{
    struct region_cost work = observe_work(o, slot);
    return o->slot[slot].runs > 0 ? roofline_s(o->machine, &work) : 0;
}

double observe_worth(const struct observe *o, int slot, int measured, int dry)
{
    double run = observe_run_s(o, slot);
    if (run <= 0)
        return 0;
    /* A little headroom is left even at the roofline: the model of it is only a model. */
    double headroom = 1 - observe_roofline_s(o, slot) / run;
    if (headroom < 0.02)
        headroom = 0.02;
    double chance = exp(-(double)dry / DRY_SCALE) / (1 + (double)measured / MEASURED_SCALE);
    return o->slot[slot].share * headroom * chance;
}
