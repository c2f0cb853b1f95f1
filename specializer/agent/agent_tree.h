/* SPDX-License-Identifier: Apache-2.0 */
/* agent_tree.h - what was written for one slot, as a tree: policy and nothing else.
 *
 * The root is the seed, every other node a text made from its parent's by a plan. Which text to
 * work on next follows STARK (arXiv 2510.16996): with odds epsilon any living node (but the seed,
 * where a text is faster), else the fastest; the root has at most five children; a node is dead
 * that has at least three children, all of which failed: one that was right keeps it alive. A text
 * that failed may be repaired twice before it counts as a failing child. Pure but for the random
 * state; one thread.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_TREE_H
#define WHET_SPECIALIZER_AGENT_AGENT_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum { ROOT_CHILDREN_MOST = 5, FAILING_CHILDREN_MOST = 3, DEBUGS_MOST = 2 };
#define AGENT_EPSILON 0.35

/* Where a node stands. */
enum agent_state {
    AGENT_PLANNED,  /* spans are marked in the parent's text; nothing is written yet */
    AGENT_READY,    /* its text obeys the rules and waits to be built and proved */
    AGENT_MEASURED, /* it was right, and `speed` is known */
    AGENT_BROKEN,   /* refused with a reason; may be repaired */
    AGENT_FAILED,   /* refused for good */
    AGENT_STATES
};
const char *agent_state_name(enum agent_state s);
int agent_state_parse(const char *name); /* -1: none */

/* All strings malloc'ed; NULL where there is none. */
struct agent_node {
    int32_t id, parent; /* index in the tree; -1 for the root's parent */
    enum agent_state state;
    int32_t attempts; /* texts and plans asked for */
    int32_t debugs;   /* of them, repairs */
    double speed;     /* relative to eager */
    char *label;      /* the plan in a few words */
    char *plan;
    char *text;       /* with the markers of its spans */
    char source[17];  /* hash of what is compiled; "" before there is any */
    char prompts[17]; /* of the prompts it was asked for with */
    char *reason;     /* of the last refusal; MEASURED: what the bench said besides the speed */
    char *log;        /* the compiler's or checker's words */
    bool unstored;    /* the store does not have it as it is here */
};

struct agent_tree {
    struct agent_node *node;
    int nodes;
    uint64_t random;
};

/* What to do next, and with which node (for PLAN the parent-to-be). */
enum agent_move { AGENT_NOTHING, AGENT_TRY, AGENT_CODE, AGENT_DEBUG, AGENT_PLAN };
enum agent_move tree_next(struct agent_tree *t, int32_t *node);

/* A new child of `parent` (-1: the root) in state PLANNED; its id. */
int32_t tree_add(struct agent_tree *t, int32_t parent);
void tree_node_free(struct agent_node *n);
void tree_free(struct agent_tree *t);
/* Texts and plans asked for, of all nodes. */
int tree_attempts(const struct agent_tree *t);
/* Nodes measured, and of them those since the fastest. */
void tree_progress(const struct agent_tree *t, int *measured, int *dry);
/* No more children: it has three or more and all failed, or it is a root with five. */
bool tree_closed(const struct agent_tree *t, int32_t node);
/* The measured nodes, fastest first; how many (at most n). */
int tree_leaders(const struct agent_tree *t, int32_t *id, int n);
/* A node whose compiled text has this hash, other than `but`; -1: none. */
int32_t tree_same(const struct agent_tree *t, const char *source, int32_t but);
/* It was refused: broken, or failed if it was repaired often enough or cannot be. */
void tree_refuse(struct agent_tree *t, int32_t node, bool repairable);

#endif
