/* SPDX-License-Identifier: Apache-2.0 */
/* strategy_mcts.c - tree search over knob changes, guided by the adviser.
 *
 * After Reasoning Compiler (arXiv 2506.01374): a node is a point, an edge a legal change of one
 * knob. UCT with c = sqrt(2) descends to a node that has fewer than two children; the adviser
 * proposes a sequence of changes there; what is illegal in it is dropped, and if nothing new is
 * left one random change is made. A short random rollout scored by the cost model says how
 * promising the new leaf is. Before every batch all rewards are counted anew: measurements replace
 * what the model said, and scores are shares of the fastest speed known now. A batch is half of
 * what looks fastest in the tree, half of what grew where the tree has done best.
 *
 * A language model takes longer to answer than a tree takes to grow, so it is asked after a batch
 * about the nodes that will probably be expanded next, and its moves are played when the next
 * batch begins, and measured first. Without one the heuristic's moves are played: downhill along
 * the prediction.
 *
 * One change of a knob cannot reach every point from every other (some knobs only change
 * together), so the tree has a root without a point, whose children are the best point of every
 * family, winners of neighbouring slots, and the fastest points known. No point is in the tree
 * twice. What no tree reaches comes last, by rank.
 */
#include <math.h>
#include <stdlib.h>

#include "config/err.h"
#include "specializer/search/mcts_tree.h"

enum { GROWTH = 8, WANTS_MOST = 64 };

static void *open_tree(const struct search *s, uint64_t seed, int width)
{
    struct mcts_tree *t = xcalloc(1, sizeof *t);
    int size = space_size(s->space);
    t->random = seed;
    t->width = width;
    t->node = xcalloc(MCTS_NODES_MOST, sizeof *t->node);
    t->node[MCTS_ROOT] = (struct mcts_node){.id = -1, .parent = -1, .first = -1, .next = -1};
    t->nodes = 1;
    t->of = xmalloc(((size_t)size + 1) * sizeof *t->of);
    for (int i = 0; i < size; i++)
        t->of[i] = -1;
    return t;
}

static void *mcts_open(const struct search *s, uint64_t seed)
{
    return open_tree(s, seed, MCTS_CHILDREN);
}

static void *mcts4_open(const struct search *s, uint64_t seed)
{
    return open_tree(s, seed, MCTS_WIDE);
}

static void mcts_close(void *state)
{
    struct mcts_tree *t = state;
    free(t->node);
    free(t->of);
    free(t);
}

/* ---- a batch ------------------------------------------------------------------------------- */

struct batch {
    int32_t *id;
    int n, want;
};

static bool in_batch(const struct batch *b, int32_t id)
{
    for (int i = 0; i < b->n; i++)
        if (b->id[i] == id)
            return true;
    return false;
}

static bool take(struct batch *b, const struct search *s, int32_t id)
{
    if (b->n == b->want || s->trial[id] != TRIAL_NONE || in_batch(b, id))
        return false;
    b->id[b->n++] = id;
    return true;
}

typedef bool budget_fn(const struct advice_budget *t, const struct search *s, int32_t id);

/* Takes a point that a language model named, if its budget allows it. */
static bool take_told(struct mcts_tree *t, const struct search *s, struct batch *b, int32_t id,
                      budget_fn *may)
{
    if (!may(&t->budget, s, id) || !take(b, s, id))
        return false;
    advice_budget_took(&t->budget, s, id);
    return true;
}

/* ---- what was advised ---------------------------------------------------------------------- */

/* What the language model proposed for nodes it was asked about. It is asked for what the cost
 * model cannot see, so some of its leaves are measured whatever they are predicted to do, as far as
 * its budget goes. */
static void play_advice(struct mcts_tree *t, const struct search *s, struct batch *b)
{
    int nodes = t->nodes;
    for (int i = 1; s->mover && i < nodes; i++) {
        struct moves m;
        if (t->node[i].wanted == 0 || !s->mover->moves(s->mover->ctx, t->node[i].id, &m))
            continue;
        int leaf = mcts_play(t, s, i, &m);
        if (leaf < 0)
            continue;
        mcts_score_leaf(t, s, leaf);
        take_told(t, s, b, t->node[leaf].id, advice_budget_near);
    }
}

/* ---- where it begins ----------------------------------------------------------------------- */

static void plant(struct mcts_tree *t, const struct search *s, int32_t id)
{
    if (t->of[id] >= 0)
        return;
    int node = mcts_grow(t, MCTS_ROOT, id);
    if (node >= 0)
        mcts_score_leaf(t, s, node);
    t->node[MCTS_ROOT].dead = false;
}

/* The best point of every family by prediction, the best family first, none without hope. Who named
 * a point does not matter here: what a language model named that is not trusted is still as good a
 * beginning as the formula thinks. */
static void plant_families(struct mcts_tree *t, const struct search *s)
{
    int families = space_families();
    int32_t *leader = xmalloc(((size_t)families + 1) * sizeof *leader);
    double first = 0;
    for (int f = 0; f < families; f++)
        leader[f] = -1;
    for (int i = 0; i < s->advice->priorities; i++) {
        int32_t id = s->advice->priority[i], *of = &leader[space_family(s->space, id)];
        if (*of < 0 || space_predicted(s->space, id) < space_predicted(s->space, *of))
            *of = id;
    }
    for (;;) {
        int32_t *next = NULL;
        for (int f = 0; f < families; f++)
            if (leader[f] >= 0 &&
                (!next || space_predicted(s->space, leader[f]) < space_predicted(s->space, *next)))
                next = &leader[f];
        double predicted = next ? space_predicted(s->space, *next) : 0;
        first = first > 0 ? first : predicted;
        if (!next || predicted > FAMILY_HOPELESS * first)
            break;
        plant(t, s, *next);
        *next = -1;
    }
    free(leader);
}

/* Adds the best point of every family, winners of similar slots, and the fastest known points. */
static void plant_all(struct mcts_tree *t, const struct search *s)
{
    int32_t best[MCTS_CHILDREN];
    if (t->batch == 1)
        plant_families(t, s);
    for (int i = 0; i < s->firsts; i++)
        plant(t, s, s->first[i]);
    int n = search_best(s, best, MCTS_CHILDREN);
    for (int i = 0; i < n; i++)
        plant(t, s, best[i]);
}

/* Points that the language model named first, or that its hints lead to: planted, and measured as
 * far as its budget goes. */
static void take_advised(struct mcts_tree *t, const struct search *s, struct batch *b,
                         budget_fn *may)
{
    for (int i = 0, looks = 0; i < s->advice->advised && looks < ADVICE_LOOKS; i++) {
        int32_t id = s->advice->priority[i];
        looks += s->trial[id] == TRIAL_NONE;
        if (take_told(t, s, b, id, may))
            plant(t, s, id);
    }
    for (int tries = 0; s->advice->hinted > 0 && tries < ADVICE_LOOKS; tries++) {
        int32_t id = search_draw(s, &t->random);
        if (id >= 0 && take_told(t, s, b, id, may))
            plant(t, s, id);
    }
}

/* ---- filling it ---------------------------------------------------------------------------- */

/* Three reasons to measure a node: it looks fastest; it grew now where the tree has done best; it
 * is one change away from what was measured fastest, whatever is predicted. */
enum reason { LOOKS_FAST, GREW_WELL, IS_NEAR, REASONS };

static double worth(const struct mcts_tree *t, const struct search *s, const struct mcts_node *n,
                    enum reason why)
{
    const struct mcts_node *p = &t->node[n->parent];
    double score = mcts_score(t, s, n->id);
    if (why == LOOKS_FAST)
        return score;
    if (why == GREW_WELL)
        return n->batch == t->batch && p->visits > 0 ? p->value / p->visits : -1;
    return n->parent != MCTS_ROOT && s->trial[p->id] >= TRIAL_MEASURED
               ? mcts_score(t, s, p->id) + 0.01 * score
               : -1;
}

/* The untried node that is most worth measuring; false: none. */
static bool take_best(struct mcts_tree *t, const struct search *s, struct batch *b, enum reason why)
{
    int best = -1;
    double most = -1;
    for (int i = 1; i < t->nodes; i++) {
        const struct mcts_node *n = &t->node[i];
        if (s->trial[n->id] != TRIAL_NONE || in_batch(b, n->id))
            continue;
        double w = worth(t, s, n, why);
        if (w > most) {
            most = w;
            best = i;
        }
    }
    if (best >= 0)
        take(b, s, t->node[best].id);
    return best >= 0;
}

static void take_grown(struct mcts_tree *t, const struct search *s, struct batch *b)
{
    for (bool some = true; some && b->n < b->want;) {
        some = false;
        for (int why = 0; why < REASONS; why++)
            some |= take_best(t, s, b, (enum reason)why);
    }
}

/* Where it began is measured early, in up to half of a batch: a prediction that is wrong about a
 * family is wrong about all of it. The first planted come first. */
static void take_starts(const struct mcts_tree *t, const struct search *s, struct batch *b)
{
    for (int i = 1; i < t->nodes && 2 * b->n < b->want; i++)
        if (t->node[i].parent == MCTS_ROOT)
            take(b, s, t->node[i].id);
}

static void take_rest(const struct search *s, struct batch *b)
{
    for (int i = 0; i < s->advice->priorities && b->n < b->want; i++)
        take(b, s, s->advice->priority[i]);
    for (int32_t i = 0; i < space_size(s->space) && b->n < b->want; i++)
        take(b, s, i);
}

/* ---- asking about the next ----------------------------------------------------------------- */

static void fill_lineage(const struct mcts_tree *t, const struct search *s, int node,
                         struct lineage *l)
{
    for (int i = 0; i < LINEAGE; i++) {
        l->id[i] = node >= 0 ? t->node[node].id : -1;
        if (l->id[i] < 0) {
            node = -1;
            continue;
        }
        l->score[i] = mcts_score(t, s, l->id[i]);
        l->measured[i] = s->trial[l->id[i]] == TRIAL_MEASURED;
        node = t->node[node].parent;
    }
}

static bool is_near_wanted(const struct search *s, const struct lineage *l, int n, int32_t id)
{
    for (int i = 0; i < n; i++)
        if (space_distance(s->space, l[i].id[0], id) <= 1)
            return true;
    return false;
}

/* The node with the best standing that can still grow and was not asked about, more than one change
 * from those of `l`; -1: none. */
static int next_wanted(const struct mcts_tree *t, const struct search *s, const struct lineage *l,
                       int n)
{
    int best = -1;
    double most = -1;
    for (int i = 1; i < t->nodes; i++) {
        const struct mcts_node *at = &t->node[i];
        double score = mcts_score(t, s, at->id);
        if (!at->closed && at->wanted == 0 && score > most && !is_near_wanted(s, l, n, at->id)) {
            most = score;
            best = i;
        }
    }
    return best;
}

/* A few nodes that differ: of near ones the same can be said, and a question costs as much. */
static void want_moves(struct mcts_tree *t, const struct search *s)
{
    struct lineage l[MOVES_MOST];
    int n = 0;
    if (!s->mover || t->wants == WANTS_MOST)
        return;
    while (n < MOVES_MOST) {
        int best = next_wanted(t, s, l, n);
        if (best < 0)
            break;
        t->node[best].wanted++;
        fill_lineage(t, s, best, &l[n++]);
    }
    if (n > 0 && s->mover->want(s->mover->ctx, l, n)) {
        t->wants++;
        return;
    }
    for (int i = 0; i < n; i++) /* nothing was asked: the next batch may */
        t->node[t->of[l[i].id[0]]].wanted--;
}

static int mcts_propose(void *state, const struct search *s, int32_t *id, int n)
{
    struct mcts_tree *t = state;
    struct batch b = {id, 0, n};
    bool told = s->advice->advised > 0 || s->advice->hinted > 0;
    t->batch++;
    mcts_calibrate(t, s);
    mcts_learn(t, s);
    plant_all(t, s);
    for (int i = 0; i < s->firsts; i++)
        take(&b, s, s->first[i]);
    if (told || s->mover)
        advice_budget_batch(&t->budget, s, n);
    take_advised(t, s, &b, advice_budget_near);
    play_advice(t, s, &b);
    b.want -= told && t->budget.far_left > 0 && b.n < n; /* far ones are last */
    take_starts(t, s, &b);
    for (int i = 0; i < n * GROWTH && mcts_simulate(t, s); i++)
        ;
    take_grown(t, s, &b);
    b.want = n;
    take_advised(t, s, &b, advice_budget_far);
    take_grown(t, s, &b);
    take_rest(s, &b);
    want_moves(t, s);
    return b.n;
}

const struct strategy strategy_mcts = {"mcts", mcts_open, mcts_propose, mcts_close};
/* Four children for each node instead of two, for measurements; no option selects it. */
const struct strategy strategy_mcts4 = {"mcts4", mcts4_open, mcts_propose, mcts_close};
