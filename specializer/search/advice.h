/* SPDX-License-Identifier: Apache-2.0 */
/* advice.h - where to look first in a space, whoever says so, and what they are told about it.
 *
 * Advice is data: it orders a space, prefers knob values and marks risks. It cannot add a point,
 * skip a check or change a tolerance: ids and values outside the space do not exist here. The
 * built-in heuristic (heuristic.c) and language models (adviser/) fill the same structure, so there
 * is one code path behind it. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_SEARCH_ADVICE_H
#define WHET_SPECIALIZER_SEARCH_ADVICE_H

#include "specializer/candidate/candidate.h"
#include "specializer/search/cost.h"
#include "specializer/search/space.h"

/* One region's advice (docs/adviser.md). Ids are of the space it was made for. */
struct advice {
    char label[96];    /* short semantic label, for the trace */
    char source[32];   /* "heuristic", or the model's name */
    int32_t *priority; /* ids, best first; a prefix of the space or all of it */
    int priorities;
    struct hint {
        char template[32]; /* the id of whose knob it is; "": of every template that has it */
        char knob[32];
        int32_t value[KNOB_VALUES]; /* in order of preference */
        int values;
    } * hint;
    int hints;
    struct risk_note {
        enum risk kind;
        int32_t *id;
        int ids;
        char note[801]; /* 200 characters */
    } * risk;
    int risks;
    int advised, hinted, warned; /* how many, the first ones, of priority, hint and risk a language
                                    model named */
};
void advice_free(struct advice *a);
/* enum risk bits that the advice attaches to a point. They say which checks come first; and what a
 * language model takes for a risk of resources is measured after the rest of its batch, since that
 * is what may spill, not fit or take long: advice_defer() puts it last, in the order it had. */
unsigned advice_risk(const struct advice *a, int32_t id);
void advice_defer(const struct advice *a, int32_t *id, int n);

/* One bucket of a region's live traffic. */
struct live_shape {
    int32_t m, context; /* the bucket's values; context 0 where it does not matter */
    double share;       /* of the region's time */
};

/* A point that admission refused or that was rolled back, and why. */
struct dead_end {
    int32_t id;
    char reason[160];
};

/* What was measured in another slot of this machine: a point there, by the name that language
 * models are told, and its speed relative to that slot's eager kernel. */
enum { LESSON_ID = 160 };
struct lesson {
    char slot[40], id[LESSON_ID];
    double speed;
};

/* What an adviser is told about one slot. */
struct advice_request {
    struct space *space;
    const struct cost *cost;
    /* Of step time; of the incumbent; of the machine, and of eager. 0: not known. */
    double share, run_s, roofline_s, eager_s;
    double m, context;          /* live means */
    const float *speed;         /* [size] results so far, eager = 1; 0: none */
    const unsigned char *trial; /* [size] enum trial_status */
    /* The rest is for language models; may be zero. */
    const char *slot;        /* "mlp_in/m1": names the region in requests and replies */
    const char *incumbent;   /* name of the kernel in it */
    double incumbent_speed;  /* as it was measured, eager = 1; 0: not known */
    struct region_cost work; /* of one run at the live means */
    const struct live_shape *live;
    int lives;
    const struct dead_end *dead;
    int deads;
    const struct lesson *lesson; /* slot by slot, the most like this one first */
    int lessons;
};

/* ---- moves: what strategy mcts asks besides -------------------------------------------------- */

enum { CHANGES_MOST = 8, MOVES_MOST = 4, LINEAGE = 3 };

/* One knob of a point put to another value. */
struct change {
    char knob[32];
    int32_t value;
};

/* A node of the search tree, its parent and its grandparent (-1: none), with their scores: speed
 * over the fastest known, measured or predicted. */
struct lineage {
    int32_t id[LINEAGE];
    double score[LINEAGE];
    bool measured[LINEAGE];
};

/* Changes proposed for a node, in the order in which they are to be applied. */
struct moves {
    int32_t node;
    struct change change[CHANGES_MOST];
    int n;
    int dropped; /* words of the reply that were no change of a knob of the space */
};

/* The heuristic by itself, and its word on a node of a search tree. */
void advise_heuristic(const struct advice_request *r, struct advice *out);
void advise_moves(const struct space *s, int32_t node, struct moves *out);
/* What the model said comes first, what it left out is the heuristic's: points, knobs, kinds of
 * risk. That one is used up. */
void advice_add_heuristic(struct advice *out, struct advice *heuristic);
void advice_copy(struct advice *out, const struct advice *from);

#endif
