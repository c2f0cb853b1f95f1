/* SPDX-License-Identifier: Apache-2.0 */
/* mcts_tree.h - the tree of strategy mcts: nodes, what they are worth, and how it grows.
 *
 * A node is a point, an edge a legal change of one knob. The root has no point and any number of
 * children; other nodes have two at most. No point is in the tree twice. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_SEARCH_MCTS_TREE_H
#define WHET_SPECIALIZER_SEARCH_MCTS_TREE_H

#include "specializer/search/advice_budget.h"
#include "specializer/search/strategy.h"

enum { MCTS_CHILDREN = 2, MCTS_WIDE = 4, MCTS_NODES_MOST = 16384, MCTS_ROOT = 0 };

struct mcts_node {
    int32_t id; /* -1: the root */
    int parent, first, next, children;
    int visits;
    double value;  /* sum of the rewards below and here */
    double reward; /* its own share in that */
    int32_t walk;  /* the best point that its rollout met; its own until there was one */
    bool scored;   /* it has a reward of its own: a rollout, or a measurement */
    bool closed;   /* no child more: two, or no new point one change away */
    bool dead;     /* nothing can grow below */
    bool advised;  /* the heuristic's moves were played */
    int wanted;    /* times the language model was asked about it */
    int batch;     /* in which it was made */
};

struct mcts_tree {
    struct mcts_node *node;
    int nodes, width; /* width: children of a node at most, MCTS_CHILDREN or MCTS_WIDE */
    int *of;          /* [size] node of a point, or -1 */
    uint64_t random;
    double scale;     /* speed x predicted seconds, as measured */
    double fastest;   /* speed, measured or predicted */
    int batch, wants; /* batches so far; questions to a language model */
    struct advice_budget budget;
};

/* The yardstick for scores, anew: what a second predicted is worth in speed, and the fastest speed.
 */
void mcts_calibrate(struct mcts_tree *t, const struct search *s);
/* All rewards anew, by the yardstick of now: what was measured takes the place of what had been
 * thought, and what is still thought is what the cost model thinks today. */
void mcts_learn(struct mcts_tree *t, const struct search *s);
/* Share of the fastest speed that a point has, as measured or else as predicted. */
double mcts_score(const struct mcts_tree *t, const struct search *s, int32_t id);

/* A new node for a point that has none; its index, or -1 when there is no room. */
int mcts_grow(struct mcts_tree *t, int parent, int32_t id);
/* Plays changes from a node; the last node that was new, or -1. */
int mcts_play(struct mcts_tree *t, const struct search *s, int node, const struct moves *m);
/* A leaf's first reward, by a rollout if it is not measured. */
void mcts_score_leaf(struct mcts_tree *t, const struct search *s, int leaf);
/* Select, expand, roll out, back up. False: the tree is complete. */
bool mcts_simulate(struct mcts_tree *t, const struct search *s);

#endif
