/* SPDX-License-Identifier: Apache-2.0 */
/* generation.h - one completion request from body to answer.
 *
 * A generation holds the prompts and choices of one API call; every choice (prompt x n) is one
 * engine request. Its life:
 *
 *   prepare   parse, check, render, tokenize: inline for small bodies, else in a lane
 *   submit    all choices or none
 *   deliver   events come through the inbox; reply.c turns them into JSON or chunks
 *   end       every choice has had its EVENT_END; the last one frees the generation
 *
 * The client may leave at any time: the choices are cancelled, what comes after is dropped.
 * Loop thread, except `prepare`.
 */
#ifndef WHET_SERVER_GENERATION_H
#define WHET_SERVER_GENERATION_H

#include "engine/engine.h"
#include "server/exchange.h"
#include "server/inbox.h"
#include "server/lanes.h"
#include "server/params.h"

struct prompt {
    int32_t *ids;
    int64_t n;
    char *text; /* for echo; NULL otherwise. Whole characters: */
    size_t text_n;
    bool unfinished; /* ids may end within one, with which the answer begins */
};

/* Log-probabilities as they gather: JSON arrays without their brackets. */
struct logprobs {
    struct buf tokens, values, tops, offsets; /* completions: four lists */
    struct buf content;                       /* chat: one */
    bool begun;     /* a token with text has come: the first leaves out SentencePiece's space */
    int64_t at;     /* characters of the text before the next token */
    size_t echo_at; /* bytes of the echoed prompt already accounted for */
};

struct choice {
    struct generation *g;
    int32_t index, prompt;
    uint64_t id; /* engine's */
    bool submitted, ended, role_sent;
    struct buf text;      /* plain: all of it; stream: not yet sent */
    struct buf token_ids; /* with return_token_ids, likewise */
    struct logprobs logprobs;
    struct inbox_event end; /* once ended; strings are not valid */
    char *stop_string;
    int32_t tokens; /* seen so far */
};

struct generation {
    struct work work; /* first: a generation is found by its work */
    struct server *srv;
    struct client *client; /* held */
    int64_t charged;       /* prompt tokens taken from its bucket */
    struct exchange *x;    /* NULL once answered or gone */
    struct generation *next, **link;
    struct params params;
    struct prompt *prompt;
    int32_t prompts;
    struct choice *choice;
    int32_t choices, running; /* running: submitted and not ended */
    bool cancelled, failed;
    bool streaming;        /* the head of the stream is out */
    bool dirty;            /* output was written since the last flush */
    uint64_t answer_bytes; /* text, log-probabilities and ids that have gathered in the choices */
    int64_t quiet_since;   /* clock_ns(): when the stream was last written to */
    char id[48], fingerprint[40];
    int64_t created;
    /* prepare: */
    bool preparing;
    struct buf body;
    uint64_t held; /* of the body, then of the prompts, in server.held_bytes */
    struct api_error error;
    const struct engine_info *info;
};

/* Fills g->prompt from the parsed body: the one thing the routes do differently. Any thread. */
int completions_prompts(struct generation *g, const cJSON *body, struct api_error *e);
int chat_prompts(struct generation *g, const cJSON *body, struct api_error *e);

/* Takes the exchange; it is answered in time. */
void generation_start(struct exchange *x, bool chat);

/* Tokenizes text into the next free prompt; keeps a copy of it with echo. Any thread. */
int generation_prompt(struct generation *g, const char *text, size_t n, bool special,
                      const char *param, struct api_error *e);

/* Body to prompts, or g->error. Any thread: touches only g and what never changes. */
void generation_prepare(struct generation *g);
/* -1: says that an answer is above server.max_answer. */
int generation_above_limit(struct api_error *e, uint64_t max);

/* Answers with an error: as a plain response if nothing was sent, else as the stream's last event.
 * The choices that still run are cancelled. Nothing if it has been answered. */
void generation_fail(struct generation *g, const struct api_error *e);
/* Ends it because its answer, or all of them together, are above a limit of `max` bytes. */
void generation_too_large(struct generation *g, uint64_t max);
/* The client left: what takes long should stop. Any thread. */
bool generation_cancelled(const struct generation *g);

/* All generations of the server, for loop.c: what came from the engine; keep-alives of silent
 * streams; the end of the drain time. */
void generations_deliver(struct server *s);
void generations_sweep(struct server *s, int64_t now);
void generations_cancel(struct server *s);

#endif
