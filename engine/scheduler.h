/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler.h - which tokens run in the next step.
 *
 * Continuous batching: sequences join and leave between steps. Pure logic on counts: no threads,
 * no clock, no token values beyond prefix lookup. A plan for step n + 1 can therefore be made while
 * step n is under way, before its tokens are known. Whose turn it is between clients is decided by
 * the work that they were served (fair.h). Engine thread only.
 */
#ifndef WHET_ENGINE_SCHEDULER_H
#define WHET_ENGINE_SCHEDULER_H

#include "engine/kvcache.h"
#include "engine/pace.h"
#include "engine/sequence.h"

/* Which sequences may share pages: none; those of one client; all. */
enum prefix_cache { PREFIX_OFF, PREFIX_SALTED, PREFIX_SHARED };

struct scheduler_limits {
    int32_t max_batch;     /* sequences running at most */
    int32_t prefill_chunk; /* tokens of a step with prompts in it, about */
    int32_t max_rows;      /* rows with logits; at least max_batch + 1 */
    enum prefix_cache prefix_cache;
};

/* Largest number of tokens a step may have under these limits. */
int32_t scheduler_max_tokens(const struct scheduler_limits *l);

/* One sequence's share of a step: its positions [first, first + count). */
struct schedule_item {
    struct sequence *seq;
    int32_t first, count;
    int32_t scores;  /* rows that score prompt positions: the targets are scored, scored + 1, ... */
    bool draw;       /* the last row draws the next token */
    int32_t guesses; /* tokens behind the last known one that are guessed: each has a row, too */
    int32_t right;   /* filled when the step has landed: how many of them were drawn */
    uint32_t stay;   /* seq->stays when it was planned */
};

struct schedule {
    struct schedule_item *item; /* [items]; room for max_batch */
    int32_t items, tokens, rows;
    int32_t guesses; /* of all items */
    int32_t decodes; /* items that only decode; the others prefill */
};

struct scheduler;

/* `kv` is the caller's and must live as long. */
struct scheduler *scheduler_open(struct kvcache *kv, const struct scheduler_limits *l);
void scheduler_close(struct scheduler *s); /* sequences must be gone */

/* True if the sequence can be served at all with this many pages. */
bool scheduler_fits(const struct kvcache *kv, int64_t longest);

void scheduler_add(struct scheduler *s, struct sequence *seq);
/* Takes a sequence out wherever it is and gives its pages back. */
void scheduler_remove(struct scheduler *s, struct sequence *seq);

/* Plans a step: decodes first, then prefill chunks, of the client first that was served least; of
 * one client's, the prompt with the least left, and older ones before newer ones that are not
 * much shorter. Every item has its pages. `out` is empty only if there is
 * nothing to run beside what is under way. `admitted` gets the sequences that run for the first
 * time (room for max_batch); its count is returned. */
int32_t scheduler_plan(struct scheduler *s, struct schedule *out, struct sequence **admitted);
/* The step is under way: the next plan begins where it ends. */
void scheduler_started(struct scheduler *s, const struct schedule *started);
/* It ran: full pages can be shared, and what was computed behind a wrong guess never was. The
 * tokens it drew are the caller's to append, before the next plan. */
void scheduler_done(struct scheduler *s, const struct schedule *done);
/* It failed, or the one before it did: as if it had not been started. Newest first. */
void scheduler_undone(struct scheduler *s, const struct schedule *failed);

/* Marks the sequences of a failed step: each runs alone until it has passed a step. */
void scheduler_suspect(struct scheduler *s, const struct schedule *failed);
bool scheduler_suspects(const struct scheduler *s); /* there are some */

/* A kernel that may have written wrong keys and values is out of service. No sequence shares a page
 * that was computed up to now, in steps under way too; those that have some go on with them, and
 * share nothing that they compute behind them until they give up their pages. */
void scheduler_distrust(struct scheduler *s);
/* Pages that left the prefix cache for that. */
uint64_t scheduler_forgotten(const struct scheduler *s);

/* What waits for its first token, and what those that decode in the next step make of it. */
void scheduler_load(const struct scheduler *s, struct step_size *decodes, struct prompt_load *load);
/* The size of a step that was planned. */
void scheduler_size(const struct schedule *s, struct step_size *size);

/* From now on at most `tokens` prompt tokens run beside decoding sequences (or the least there
 * always is), so that reading a prompt slows the others down instead of stopping them. */
void scheduler_pace(struct scheduler *s, int32_t tokens);

/* The running sequences, if every one of them wants one token in the next step (`out`: room for all
 * that run); returns their number, or 0. Each may have guesses added (sequence.guesses): as many as
 * there are rows and pages for run with it. */
int32_t scheduler_decoding(const struct scheduler *s, struct sequence **out);

/* Pages for `more` positions behind a running sequence's tokens, as far as there are pages that
 * nobody else will need soon; returns for how many positions there is room: 0 or less for none. */
int32_t scheduler_reserve(struct scheduler *s, struct sequence *seq, int32_t more);

int32_t scheduler_running(const struct scheduler *s);
int32_t scheduler_waiting(const struct scheduler *s);
uint64_t scheduler_preemptions(const struct scheduler *s);
/* Times a sequence gave up its place in the batch to a client that had fewer. */
uint64_t scheduler_yields(const struct scheduler *s);
/* Prompt tokens that came out of the prefix cache, of sequences before their first token. */
uint64_t scheduler_cached(const struct scheduler *s);
/* Work of all steps so far: tokens that were computed for the first time. */
uint64_t scheduler_work(const struct scheduler *s);
/* The newest waiting sequence of an answer, or NULL. */
struct sequence *scheduler_newest(const struct scheduler *s, const struct backlog_group *answer);
/* The oldest sequence, running ones first; NULL if there is none. */
struct sequence *scheduler_oldest(const struct scheduler *s);
/* The sequence with this id, or NULL. */
struct sequence *scheduler_find(const struct scheduler *s, uint64_t id);

#endif
