/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.h - one request's state: its tokens, its pages, its text, its events.
 *
 * The scheduler moves `pages`, `computed` and `place`; everything else belongs to sequence.c.
 * Created by the submitting thread, then used by the engine thread only.
 */
#ifndef WHET_ENGINE_SEQUENCE_H
#define WHET_ENGINE_SEQUENCE_H

#include "engine/engine.h"
#include "engine/stop.h"

struct backlog_group;
struct flow;
struct lookup;

/* Guesses of a sequence that were put to the test, fading, and those that were right. */
struct guess_record {
    double tried, right;
};

enum place { PLACE_NONE, PLACE_WAITING, PLACE_RUNNING };

struct sequence {
    uint64_t id; /* order of arrival */
    uint64_t client;
    struct backlog_group *group; /* of its answer, with its other requests; engine_submit.c */
    /* tokens [n]: prompt_n of the prompt, then what was generated */
    int32_t *tokens;
    int32_t n, prompt_n, tokens_size;
    int32_t max_tokens, min_tokens;
    bool ignore_eos, prompt_logprobs, keep_special;
    struct sampling sampling; /* arrays owned; for the draw that sequence_aim() named last */
    int32_t *stop_token; /* ids that end the request: its own and the model's, unless ignored */
    int32_t stop_tokens;

    /* scheduler: */
    enum place place;
    int32_t *page; /* [pages] */
    int32_t pages, pages_size;
    int32_t sealed;        /* pages known to the prefix index */
    int32_t computed;      /* positions whose keys and values are in the pages */
    int32_t scored;        /* prompt positions already reported, with prompt_logprobs */
    int32_t cached_tokens; /* prompt tokens found in the cache before the first was drawn */
    int32_t counted;       /* positions in front of which those are */
    int32_t planned;       /* within a plan: prompt tokens that the step computes */
    int32_t charged;       /* positions whose work was charged to the client */
    int32_t max_running;   /* of its client; 0: any number */
    bool admitted, suspect;
    bool doubted; /* scheduler_distrust() came while it had computed pages, which it still has */
    int32_t failures;
    int32_t in_flight; /* steps under way that it is in */
    int32_t ahead;     /* tokens that they draw: they exist, and only their number is known */
    int32_t drawn_row; /* row of the step started last in which it drew */
    uint32_t stays;    /* times it has given up its pages */
    struct sequence *older, *newer;           /* in the scheduler's list */
    struct flow *flow;                        /* its client's, while the scheduler has it */
    struct sequence *flow_older, *flow_newer; /* there, while it waits */

    /* speculation (speculate.h): */
    bool speculates, bit_equal; /* struct engine_request says what they ask for */
    bool other_bits;            /* what EVENT_END says */
    int32_t *predicted;         /* [predicted_n] what its client expects the answer to be */
    int32_t predicted_n;
    struct lookup *lookup;         /* NULL until the first guess */
    int32_t guesses;               /* for the next step: the tokens behind tokens [n] */
    int32_t match;                 /* how far the place they come from matches */
    struct guess_record record[3]; /* of short and of long matches, and of the draft model */
    double likely, chance;         /* of one guess; within a plan, of the next one and all before */
    int32_t taken;                 /* within a plan */
    int32_t drafted;           /* known positions that the draft model has computed in the pages */
    int32_t draft_beyond;      /* and behind all known ones, of its guesses */
    int32_t draft_seen;        /* tokens looked at: all are in the draft model's vocabulary */
    bool undraftable;          /* one was not, or its client wants no such guesses */
    bool drafts;               /* within a plan: the draft model may guess for it */
    int32_t found;             /* within a plan: guesses found by lookup, ... */
    double found_likely;       /* ... and how likely one is right */
    int32_t guessed, accepted; /* over its life */

    /* text: */
    const struct tokenizer *tokenizer;
    struct utf8_stream utf8;
    bool begun;         /* a token with text has come, in the prompt or since */
    int32_t unfinished; /* bytes of the prompt in there that go if no token continues them */
    struct stop *stop;  /* NULL: no stop strings */
    char *text;
    size_t text_size;

    engine_event_fn *on_event;
    void *user;
    enum finish finish; /* not FINISH_NONE: its end is decided */
    const char *stop_string;
    int32_t stop_token_hit;
    bool ended;                       /* EVENT_END was sent: freed when nothing is under way */
    int64_t submit_ns, last_token_ns; /* last_token_ns 0: none yet */
    uint64_t submit_work;             /* scheduler_work() when it came */
};

/* What a request needs of the model. */
struct sequence_model {
    const struct tokenizer *tokenizer; /* NULL: it will have no text (tests of schedules) */
    const int32_t *stop;               /* the model's own end-of-generation ids */
    int32_t stops;
};

/* Copies the request; the caller sets id, sampling.seed and submit_ns. Never fails: the request
 * was checked. */
struct sequence *sequence_new(const struct engine_request *r, const struct sequence_model *m);
void sequence_free(struct sequence *s);

int32_t sequence_output(const struct sequence *s); /* tokens generated and known so far */
/* Tokens it has, those under way included, and of these how many are still to be computed. */
int32_t sequence_length(const struct sequence *s);
int32_t sequence_pending(const struct sequence *s);
/* The longest it can get. */
int32_t sequence_longest(const struct sequence *s);

/* Room for `more` tokens behind those there are. */
void sequence_room(struct sequence *s, int32_t more);

/* Makes s->sampling what the draw of output token `index` (from 0) needs. */
void sequence_aim(struct sequence *s, int32_t index);
/* Prompt position `index` was scored: EVENT_PROMPT. Positions come in order, each once; position
 * 0 has nothing before it and is reported first, with a NaN. */
void sequence_scored(struct sequence *s, int32_t index, const struct sampled *sampled);
/* A token was drawn: EVENT_TOKEN; decides whether it was the last (s->finish). */
void sequence_token(struct sequence *s, const struct sampled *sampled);
/* EVENT_END with all text still held. `finish` and `error` say why, unless the end was already
 * decided by a token. Does nothing the second time. */
void sequence_end(struct sequence *s, enum finish finish, const char *error);

#endif
