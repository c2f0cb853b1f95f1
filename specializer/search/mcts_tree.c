/* SPDX-License-Identifier: Apache-2.0 */
/* mcts_tree.c - see mcts_tree.h.
 *
 * UCT with c = sqrt(2) descends to a node that has fewer than two children. There the heuristic's
 * moves are played, downhill along the prediction; what is illegal in them is dropped, and if
 * nothing new is left one random change is made. A short random rollout scored by the cost model
 * says how promising the new leaf is. Before every batch all rewards are counted
 * anew, since the fastest speed and the cost model are no longer what they were.
 */
#include "specializer/search/mcts_tree.h"

#include <math.h>

#include "specializer/candidate/hash.h"

enum { ROLLOUT = 4 };
#define UCT_C 1.4142135623730951

/* ---- scores -------------------------------------------------------------------------------- */

/* Speed of a point, and its share of the fastest speed: what is measured, else what is predicted.
 */
static double speed_of(const struct mcts_tree *t, const struct search *s, int32_t id)
{
    if (s->trial[id] == TRIAL_MEASURED)
        return (double)s->speed[id];
    double predicted = space_predicted(s->space, id);
    return s->trial[id] == TRIAL_REFUSED || predicted <= 0 ? 0 : t->scale / predicted;
}

double mcts_score(const struct mcts_tree *t, const struct search *s, int32_t id)
{
    return fmin(1, speed_of(t, s, id) / t->fastest);
}

/* The yardstick: what a second predicted is worth in speed, and the fastest speed there is. */
void mcts_calibrate(struct mcts_tree *t, const struct search *s)
{
    double sum = 0, shortest = INFINITY, best = 0;
    int n = 0;
    for (int32_t i = 0; i < space_size(s->space); i++) {
        double predicted = space_predicted(s->space, i);
        if (predicted <= 0)
            continue;
        shortest = fmin(shortest, predicted);
        if (s->trial[i] == TRIAL_MEASURED) {
            sum += log((double)s->speed[i] * predicted);
            best = fmax(best, (double)s->speed[i]);
            n++;
        }
    }
    t->scale = n > 0 ? exp(sum / n) : isfinite(shortest) ? shortest : 1;
    t->fastest = fmax(best, isfinite(shortest) ? t->scale / shortest : 1);
    if (!(t->fastest > 0))
        t->fastest = 1;
}

static void reward(struct mcts_tree *t, int node, double by, int visits)
{
    for (; node >= 0; node = t->node[node].parent) {
        t->node[node].value += by;
        t->node[node].visits += visits;
    }
}

/* What a node is worth by itself: its measured score, or else the best that its rollout met. */
static double reward_of(const struct mcts_tree *t, const struct search *s,
                        const struct mcts_node *n)
{
    double own = mcts_score(t, s, n->id);
    return s->trial[n->id] >= TRIAL_MEASURED ? own : fmax(own, mcts_score(t, s, n->walk));
}

/* A node that a sequence only passed has no reward before it is measured; then it is a visit too.
 * Children have higher indices than their parents, so one walk from the back adds up the tree. */
void mcts_learn(struct mcts_tree *t, const struct search *s)
{
    for (int i = 0; i < t->nodes; i++)
        t->node[i].value = 0;
    for (int i = t->nodes - 1; i > 0; i--) {
        struct mcts_node *n = &t->node[i];
        if (!n->scored && s->trial[n->id] >= TRIAL_MEASURED) {
            n->scored = true;
            reward(t, i, 0, 1);
        }
        n->reward = n->scored ? reward_of(t, s, n) : 0;
        n->value += n->reward;
        t->node[n->parent].value += n->value;
    }
}

/* ---- growing ------------------------------------------------------------------------------- */

/* A new node for a point that has none; its index, or -1 when there is no room. */
int mcts_grow(struct mcts_tree *t, int parent, int32_t id)
{
    struct mcts_node *p = &t->node[parent];
    if (t->nodes == MCTS_NODES_MOST || (parent != MCTS_ROOT && p->children == t->width))
        return -1;
    int i = t->nodes++;
    t->node[i] = (struct mcts_node){
        .id = id, .parent = parent, .first = -1, .next = p->first, .walk = id, .batch = t->batch};
    p->first = i;
    p->closed = ++p->children == t->width;
    t->of[id] = i;
    return i;
}

static int32_t changed(const struct search *s, int32_t id, int knob, int32_t value)
{
    struct point p;
    space_point(s->space, id, &p);
    p.value[knob] = value;
    return space_find(s->space, space_template(s->space, id), &p);
}

/* The next number from `n` on without a common divisor with `of`: stepping by it meets all. */
static int coprime(int n, int of)
{
    for (;; n++) {
        int a = n, b = of;
        while (b) {
            int rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1)
            return n;
    }
}

/* A legal change of one knob, drawn at random; with `fresh` one that leads out of the tree. -1:
 * there is none. */
static int32_t random_change(struct mcts_tree *t, const struct search *s, int32_t id, bool fresh)
{
    const struct template *of = space_template(s->space, id);
    int moves = of->knobs * KNOB_VALUES, from = random_below(&t->random, moves);
    int step = coprime(1 + random_below(&t->random, moves - 1), moves);
    for (int i = 0; i < moves; i++) {
        int at = (int)(((int64_t)i * step + from) % moves), knob = at / KNOB_VALUES;
        if (at % KNOB_VALUES >= of->knob[knob].values)
            continue;
        int32_t to = changed(s, id, knob, of->knob[knob].value[at % KNOB_VALUES]);
        if (to >= 0 && to != id && (!fresh || t->of[to] < 0))
            return to;
    }
    return -1;
}

/* Plays changes from a node; the last node that was new, or -1. An edge may lead through a point
 * that has its place elsewhere: then the play goes on from there. */
int mcts_play(struct mcts_tree *t, const struct search *s, int node, const struct moves *m)
{
    int grown = -1;
    for (int i = 0; i < m->n && node >= 0; i++) {
        int32_t id = t->node[node].id;
        int knob = template_knob(space_template(s->space, id), m->change[i].knob);
        int32_t to = knob < 0 ? -1 : changed(s, id, knob, m->change[i].value);
        if (to < 0 || to == id) /* illegal here, or nothing: dropped */
            continue;
        if (t->of[to] >= 0) {
            node = t->of[to];
            continue;
        }
        node = mcts_grow(t, node, to);
        grown = node >= 0 ? node : grown;
    }
    return grown;
}

/* The point with the best score on a short random walk from a leaf, itself included. */
static int32_t rollout(struct mcts_tree *t, const struct search *s, int32_t id)
{
    int32_t best = id;
    for (int i = 0; i < ROLLOUT && id >= 0; i++) {
        id = random_change(t, s, id, false);
        if (id >= 0 && mcts_score(t, s, id) > mcts_score(t, s, best))
            best = id;
    }
    return best;
}

/* A leaf's first reward. Nodes that a sequence passed on the way get theirs from it, as visits. */
void mcts_score_leaf(struct mcts_tree *t, const struct search *s, int leaf)
{
    struct mcts_node *n = &t->node[leaf];
    n->scored = true;
    if (s->trial[n->id] < TRIAL_MEASURED)
        n->walk = rollout(t, s, n->id);
    n->reward = reward_of(t, s, n);
    reward(t, leaf, n->reward, 1);
}

static double uct(const struct mcts_tree *t, int node)
{
    const struct mcts_node *n = &t->node[node], *p = &t->node[n->parent];
    if (n->visits == 0)
        return INFINITY;
    return n->value / n->visits + UCT_C * sqrt(log(fmax(p->visits, 1)) / n->visits);
}

/* Down to a node that can have another child; -1: nothing can grow any more. */
static int descend(struct mcts_tree *t)
{
    int at = MCTS_ROOT;
    for (;;) {
        if (at != MCTS_ROOT && !t->node[at].closed)
            return at;
        int best = -1;
        for (int c = t->node[at].first; c >= 0; c = t->node[c].next)
            if (!t->node[c].dead && (best < 0 || uct(t, c) > uct(t, best)))
                best = c;
        if (best >= 0) {
            at = best;
            continue;
        }
        t->node[at].dead = true;
        if (at == MCTS_ROOT)
            return -1;
        at = t->node[at].parent; /* look again, without it */
    }
}

/* One round of the tree: select, expand, roll out, back up. False: the tree is complete. */
bool mcts_simulate(struct mcts_tree *t, const struct search *s)
{
    int node = descend(t);
    if (node < 0)
        return false;
    struct moves m = {0};
    int leaf = -1;
    if (!t->node[node].advised) {
        advise_moves(s->space, t->node[node].id, &m);
        t->node[node].advised = true;
        leaf = mcts_play(t, s, node, &m);
    }
    if (leaf < 0) {
        int32_t to = random_change(t, s, t->node[node].id, true);
        leaf = to >= 0 ? mcts_grow(t, node, to) : -1;
    }
    if (leaf >= 0)
        mcts_score_leaf(t, s, leaf);
    else
        t->node[node].closed = true;
    return true;
}
