/* SPDX-License-Identifier: Apache-2.0 */
/* order.c - see order.h.
 *
 * A pass visits every slot once, so a budget that is too short for two passes is spent on breadth:
 * each slot's first batch, which on a GPU is one candidate, the best known to be good. And one too
 * short for a single pass must not end with all of one batch size and nothing of the next. Offline
 * nobody knows yet what a slot will gain, nor how often it will run; what is known is how large a
 * part of its step it cannot help being. So the regions come by that, whatever their M: gate and up
 * of one sequence, of eight, of thirty-two, then the next region.
 *
 * What whole steps say of a kernel they say of it beside the others, above all on a GPU, where a
 * kernel begins while the one before it drains: attn_out of Qwen3-4B at eight tokens lost 1 % of a
 * step beside eager's attention and gained 6 % after attention was published
 * (docs/lab/2026-11-22-gpu-templates.md).
 * Attention gains most there, so it comes first; and the others' steps are replayed in a context
 * whose attention is searched.
 */
#include "tune/order.h"

#include <stdlib.h>

#include "config/err.h"
#include "specializer/candidate/target.h"

enum { USUAL_CONTEXT = 512, DECODED_MOST = 64 };

/* Of a region in the layers of a format class; NULL: in all. */
static double region_least_s(const struct model *model, const struct machine *machine,
                             enum region r, const struct format_class *formats, int m, int context)
{
    /* What is wider than a decode is a prompt. */
    int sequences = m <= DECODED_MOST ? m : 1;
    double sum = 0;
    for (int32_t i = 0; i < class_layers(formats, r, model->shape.layers); i++) {
        struct region_cost cost =
            plan_cost(model, r, class_layer(formats, i), m, sequences, context, sequences);
        sum += roofline_s(machine, &cost);
    }
    return sum;
}

double order_share(const struct model *model, const struct machine *machine,
                   const struct slot *slot)
{
    int context = slot->context > 0 ? slot->context : USUAL_CONTEXT;
    double step = 0;
    for (int r = 0; r < REGION_COUNT; r++)
        step += region_least_s(model, machine, (enum region)r, NULL, slot->m, context);
    double own = region_least_s(model, machine, slot->region, slot->formats, slot->m, context);
    return step > 0 ? own / step : 0;
}

void order_slots(const struct model *model, const struct machine *machine, const struct slot **slot,
                 int n)
{
    double *share = xcalloc((size_t)n + 1, sizeof *share);
    for (int i = 0; i < n; i++) {
        const struct slot *s = slot[i];
        bool first = target_of(machine->kind)->attention_first && s->region == REGION_ATTN;
        bool fused = region_info(s->region)->parts > 0;
        double own = fused ? -1 : order_share(model, machine, s) + first;
        int at = i;
        for (; at > 0 && share[at - 1] < own; at--) {
            slot[at] = slot[at - 1];
            share[at] = share[at - 1];
        }
        slot[at] = s;
        share[at] = own;
    }
    free(share);
}

/* Attention beside a slot in steps that the model can take. */
static bool beside(const struct slot *attn, const struct slot *slot, int longest)
{
    int begin = attn->context_index > 0 ? context_bucket[attn->context_index - 1] : 0;
    return attn->region == REGION_ATTN && attn->m == slot->m && begin + 1 < longest;
}

int order_context(const struct slot *const *searched, int n, const struct slot *slot, int longest,
                  int turn)
{
    int some = 0, at = 0;
    for (int i = 0; i < n; i++)
        some += beside(searched[i], slot, longest);
    for (int i = 0; i < n && some > 0; i++)
        if (beside(searched[i], slot, longest) && at++ == turn % some)
            return searched[i]->context;
    return context_bucket[0];
}
