/* SPDX-License-Identifier: Apache-2.0 */
/* sim_adviser.h - the advisers of an ablation: somebody who is right, wrong, late, dead, makes no
 * sense, or a recorded language model. Time is the simulation's: a reply is there when the search's
 * clock has passed the moment of the question by the adviser's latency, and nobody waits for it, as
 * in adviser.h. Replies are text and go through the real parser.
 */
#ifndef WHET_TUNE_SIM_ADVISER_H
#define WHET_TUNE_SIM_ADVISER_H

#include "specializer/search/strategy.h"
#include "tune/live.h"
#include "tune/table.h"

/* Constant, name, seconds of a reply, what it is. */
#define SIM_LIST(C)                                                                           \
    C(HEURISTIC, "heuristic", 0, "no language model: the cost model's order")                 \
    C(CHANCE, "chance", 0, "no knowledge either: the formula is replaced by lot")             \
    C(RIGHT, "right", 2, "names up to four points within 5 % of the fastest")                 \
    C(FAIR, "fair", 2, "names four points drawn from the fastest tenth")                      \
    C(SLOW, "slow", 60, "right, but a minute late")                                           \
    C(ANY, "any", 2, "names four points drawn by lot")                                        \
    C(WRONG, "wrong", 2, "valid replies that name points drawn from the slowest tenth")       \
    C(INVERTED, "inverted", 2, "ranks all points, the slowest first")                         \
    C(SLY, "sly", 2, "names slow points that the cost model likes")                           \
    C(HINTS, "hints", 2, "names no point, but each knob's values in fast points, best first") \
    C(TIES, "ties", 2, "names four of those that the cost model likes alike best, by lot")    \
    C(GARBAGE, "garbage", 2, "text that is no reply: rejected whole")                         \
    C(DEAD, "dead", 1e30, "never answers")                                                    \
    C(REPLAY, "llm", 0, "a language model, recorded or asked")

enum sim_adviser_kind {
#define C(id, name, seconds, help) SIM_##id,
    SIM_LIST(C)
#undef C
        SIM_KINDS
};
const char *sim_adviser_name(enum sim_adviser_kind k);

/* The language model behind SIM_REPLAY, and how it is consulted. */
struct consulted {
    const char
        *recording;    /* exchanges that answer, as in adviser.url = replay:<file>; or NULL and */
    struct live *live; /* a model to ask. Both are NULL: there is none */
    int questions;     /* in one search, at most; 0: as many as it wants */
    int history;       /* points of a node's lineage that it is shown, itself included; 0: all */
    bool at_once; /* the search's clock stands still while it thinks, as if a slot that is searched
                     next had been asked about before (adviser_prepare()); else it goes on by the
                     seconds that the reply took */
};

/* What a language model was asked, and what it took. */
enum sim_question { SIM_ASKS_ADVICE, SIM_ASKS_MOVES, SIM_ASKS_QUESTIONS };
struct sim_adviser_use {
    int asked[SIM_ASKS_QUESTIONS], rejected[SIM_ASKS_QUESTIONS];
    int in_order; /* recorded replies that were given in another state than that of the question */
    int64_t tokens_in, tokens_out;
    double seconds;
};

struct sim_adviser;
/* `llm`, borrowed, is for SIM_REPLAY alone. NULL with a message. */
struct sim_adviser *sim_adviser_open(enum sim_adviser_kind k, const struct table *t, uint64_t seed,
                                     const struct consulted *llm, struct err *err);
/* The search has what it looks for: a language model is asked no more, since nothing that is
 * counted can change, and its replies are paid for. */
void sim_adviser_enough(struct sim_adviser *c);
const struct sim_adviser_use *sim_adviser_use(const struct sim_adviser *c);
void sim_adviser_close(struct sim_adviser *c);
/* What is known at time `now_s`; asks again if nothing is under way. Fills `out`. */
void sim_adviser_ask(struct sim_adviser *c, const struct advice_request *r, double now_s,
                     struct advice *out);
/* For strategy mcts; NULL: nobody to ask. */
const struct mover *sim_adviser_mover(struct sim_adviser *c);

#endif
