/* SPDX-License-Identifier: Apache-2.0 */
/* why.c - why a slot is on eager, in a few words.
 *
 * Of all that was tried in a slot the candidate that came farthest says most: one that whole steps
 * turned down is nearer than one that a probe found wrong, and of two at the same stage the faster
 * one. Every slot remembers that one; operators read it in /specializer, in /admin/slots, on the
 * dashboard and in the tables of `whet tune`. After a start it is read back from the store. What
 * took a kernel out again (an audit, an operator) counts for more than any refusal. Where no
 * candidate has met a verdict, what kept the last one from it is told instead.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/table.h"
#include "specializer/agent/agent_source.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/why.h"

enum { ROWS_MOST = 5000 };

/* ---- a reason made short --------------------------------------------------------------------- */

static void gain_words(const char *of, const struct gain *g, char out[WHY_TEXT])
{
    snprintf(out, WHY_TEXT, "%s%+.1f %% [%+.1f, %+.1f]", of, g->mean * 100, g->low * 100,
             g->high * 100);
}

/* The reason itself, or its figures where it is known what they are. */
static void brief(const char *reason, const struct evidence *e, char out[WHY_TEXT])
{
    const struct refusal *r = &e->refusal;
    if (r->cause == CAUSE_GAIN && r->stage == STAGE_CANARY && e->canary.pairs > 0)
        gain_words("canary: whole steps ", &e->canary, out);
    else if (r->cause == CAUSE_GAIN && r->stage == STAGE_BENCH && e->bench.pairs > 0)
        gain_words("bench: ", &e->bench, out);
    else if (r->cause == CAUSE_ERROR)
        snprintf(out, WHY_TEXT, "probe: error %.3gx eager's%s%s", r->value,
                 r->in_case[0] ? " in case " : "", r->in_case);
    else if (snprintf(out, WHY_TEXT, "%s", reason) >= WHY_TEXT)
        memcpy(out + WHY_TEXT - 4, "...", 4);
}

/* ---- remembering ----------------------------------------------------------------------------- */

/* The stage whose word it is; STAGES: it had been admitted and was taken out. */
static int rank_of(enum life state, const struct refusal *r)
{
    bool served = state == LIFE_ROLLED_BACK || state == LIFE_DISABLED;
    bool withdrawn = r->cause == CAUSE_WITHDRAWN || r->cause == CAUSE_AUDIT;
    return served || withdrawn ? STAGES : (int)r->stage;
}

static double gain_at(int stage, const struct evidence *e)
{
    return stage == STAGE_CANARY                           ? e->canary.mean
           : stage == STAGE_BENCH || stage == STAGE_SHADOW ? e->bench.mean
                                                           : 0;
}

static void note(struct slot_search *p, enum life state, const char *reason,
                 const struct evidence *e)
{
    int rank = rank_of(state, &e->refusal);
    double gain = gain_at(rank, e);
    char words[WHY_TEXT];
    bool better =
        rank > p->locked.why.rank || (rank == p->locked.why.rank && gain >= p->locked.why.gain);
    if (!reason[0] || (p->locked.why.words[0] && !better))
        return;
    brief(reason, e, words);
    p->locked.why.rank = rank;
    p->locked.why.gain = gain;
    if (rank == STAGES)
        snprintf(p->locked.why.words, WHY_TEXT, "%s: %.*s",
                 state == LIFE_DISABLED ? "disabled" : "rolled back", WHY_TEXT - 14, words);
    else
        memcpy(p->locked.why.words, words, WHY_TEXT);
}

void why_note_locked(struct slot_search *p, enum life left, const struct candidate *c)
{
    if (c->reason[0])
        brief(c->reason, &c->evidence, p->locked.why.last);
    note(p, left, c->reason, &c->evidence);
}

void why_undecided_locked(struct slot_search *p, const struct candidate *c)
{
    if (c->reason[0])
        brief(c->reason, &c->evidence, p->locked.why.undecided);
}

void why_no_point_locked(struct slot_search *p)
{
    if (!p->locked.why.words[0])
        snprintf(p->locked.why.words, WHY_TEXT, "no point of its templates is legal here");
}

struct recalling {
    struct specializer *s;
    char (*source)[17]; /* [templates] hashes of their texts as they are now */
};

static void recall_row(void *ctx, const struct record *r)
{
    const struct recalling *g = ctx;
    struct slot_search *p = slot_search_find(g->s, r->slot);
    bool known = agent_template_find(r->template) != NULL; /* a text is its own source */
    for (int i = 0; i < template_count() && !known; i++)
        known =
            strcmp(template_at(i)->id, r->template) == 0 && strcmp(g->source[i], r->source) == 0;
    if (p && known)
        note(p, r->state, r->reason, &r->evidence);
}

void why_recall(struct specializer *s)
{
    struct recalling g = {s, xcalloc((size_t)template_count() + 1, sizeof *g.source)};
    struct record_filter f = {.env = s->keys.env,
                              .states = 1u << LIFE_REFUSED | 1u << LIFE_DEFERRED |
                                        1u << LIFE_ROLLED_BACK | 1u << LIFE_DISABLED,
                              .limit = ROWS_MOST};
    for (int i = 0; i < template_count(); i++)
        template_source_hash(template_at(i), g.source[i]);
    pthread_mutex_lock(&s->lock);
    store_each(s->store, &f, recall_row, &g, NULL);
    pthread_mutex_unlock(&s->lock);
    free(g.source);
}

/* ---- saying ---------------------------------------------------------------------------------- */

/* Whether templates take the slot, and an operator lets them; says what is missing. */
static bool has_template_locked(struct specializer *s, const struct slot *slot, char out[WHY_TEXT])
{
    int takes = 0, allowed = 0;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        if (!template_fits(t, s->env.machine->kind, slot->region, slot->m))
            continue;
        takes++;
        allowed += !is_disabled_locked(s, "", t->id);
    }
    if (takes == 0)
        snprintf(out, WHY_TEXT, "no template takes %d token%s", slot->m, slot->m == 1 ? "" : "s");
    else if (allowed == 0)
        snprintf(out, WHY_TEXT, "its templates are disabled");
    return allowed > 0;
}

static const char *const waiting[] = {
    [SLOT_WAITS_FOR_NOTHING] = "nothing was decided yet",
    [SLOT_WAITS_FOR_VERDICT] = "a candidate is before live steps",
    [SLOT_WAITS_FOR_STEPS] = "a candidate waits for live steps of the slot",
    [SLOT_WAITS_FOR_INPUTS] = "live steps gave no inputs to search on"};
EVERY_ROW(waiting, SLOT_WAITS);

void why_eager_locked(struct specializer *s, const struct slot_search *p, char out[WHY_TEXT])
{
    if (p->locked.pinned[0])
        snprintf(out, WHY_TEXT, "%s",
                 strcmp(p->locked.pinned, "eager") == 0 ? "pinned to it"
                                                        : "the pinned kernel is not here");
    else if (p->unequal)
        snprintf(out, WHY_TEXT, "rank %d has another shape or machine there", p->unequal);
    else if (!has_template_locked(s, p->slot, out))
        return;
    else if (p->locked.why.words[0])
        snprintf(out, WHY_TEXT, "%s", p->locked.why.words);
    else if (p->left_out)
        snprintf(out, WHY_TEXT, "left out by specializer.slots");
    else if (p->locked.why.undecided[0])
        snprintf(out, WHY_TEXT, "undecided; %.*s", WHY_TEXT - 12, p->locked.why.undecided);
    else
        snprintf(out, WHY_TEXT, "%s",
                 p->locked.candidates > 0 || p->locked.waits ? waiting[p->locked.waits]
                                                             : "not searched yet");
}
