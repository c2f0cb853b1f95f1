/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - the only header of engine/ that server/ may include.
 *
 * An engine owns one model, one backend and one thread that schedules, runs steps and samples.
 * The server hands it token ids and sampling parameters and gets events back: pieces of text with
 * their tokens, then exactly one end. It never sees a tensor.
 *
 *   engine_start -> ENGINE_LOADING -> ENGINE_READY -> engine_submit, engine_cancel -> engine_stop
 *
 * Threads: every function here may be called from any thread unless it says otherwise. Events are
 * delivered on the engine thread: the callback copies what it needs and returns at once.
 */
#ifndef WHET_ENGINE_ENGINE_H
#define WHET_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/config.h"
#include "config/err.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"

struct engine;

/* Starts the engine thread, which loads the model named in `c`; returns at once. What it needs of
 * `c` is copied. NULL with a message when no model is named or there is no thread; what is wrong
 * with the model is said by engine_state(). */
struct engine *engine_start(const struct config *c, struct err *err);
/* The same as rank 0 of place->world processes, which compute the model together (launcher.h): the
 * engine waits for the others before it loads anything. A rank that is gone later is a lost device,
 * since nothing can be computed without it. */
struct rank_place;
struct engine *engine_start_ranks(const struct config *c, const struct rank_place *place,
                                  struct err *err);
/* Another rank: loads its part, and runs what rank 0 sends until that one ends. 0: in good order;
 * -1 with a message. On the calling thread. */
int engine_follow(const struct config *c, const struct rank_place *place, struct err *err);
/* `fn` is called once when the engine becomes ENGINE_LOST, or at once if it is: on its thread or
 * the caller's. */
typedef void engine_lost_fn(void *ctx);
void engine_on_lost(struct engine *e, engine_lost_fn *fn, void *ctx);
/* Ends the thread and frees the engine; running requests end with FINISH_CANCELLED before it
 * returns. NULL is fine. Not from an event. A model that is still loading is waited for. */
void engine_stop(struct engine *e);
/* The first half of that: ends the thread. Before engine_stop(), by whoever calls it, where another
 * thread is to see meanwhile whether it does end: engine_stalled_s(). */
void engine_quit(struct engine *e);

/* FAILED: the model could not be loaded. LOST: it was ready, but the device will never run a step
 * again; all requests have ended and no new one is taken. */
enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_FAILED, ENGINE_LOST };
/* `progress` 0..1 while loading; `message` says what is being done or why it failed. */
enum engine_state engine_state(const struct engine *e, double *progress, char *message, size_t n);

/* What the server shows and checks. Valid once ready, constant after. */
struct engine_info {
    const char *model_name; /* id in /v1/models */
    const char *description;
    const char *model_hash;
    const char *backend; /* "cpu", "cuda" */
    const char *device;
    const char *chat_template; /* the model's template text, or NULL */
    const struct tokenizer *tokenizer;
    int32_t max_context; /* longest prompt + output */
    int32_t max_batch;   /* sequences decoded together at most */
    int64_t created;     /* unix seconds */
};
const struct engine_info *engine_info(const struct engine *e);

/* "fp_" + model hash + hash of the active kernel set, NUL-terminated into out[40]. Once ready. */
void engine_fingerprint(const struct engine *e, char out[40]);

/* ---- requests ----------------------------------------------------------------------------- */

/* DISPLACED: it waited in a full queue, neither it nor another that was submitted with it had run
 * yet, and its client had most waiting. All that were submitted with it end so. */
enum finish {
    FINISH_NONE,
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_DISPLACED,
    FINISH_ERROR
};

struct engine_event {
    enum { EVENT_PROMPT, EVENT_TOKEN, EVENT_END } kind;
    /* EVENT_PROMPT, only with prompt_logprobs: position `index` of the prompt was scored; the token
     * and its log-probability are in `sampled`. In order from 0, each once, before any EVENT_TOKEN.
     * Position 0 has nothing before it: its logprob is NaN and it has no alternatives. */
    int32_t index;
    /* EVENT_TOKEN: one generated token. `text` holds the whole characters that became certain with
     * it: possibly none (half a character, or held back for a stop string), possibly several. The
     * token that ends a request (end of generation, stop id) is counted and has its event too; it
     * adds no text unless keep_special. */
    const char *text;
    size_t text_n;
    const struct sampled *sampled; /* token, logprob, alternatives */
    bool is_end;                   /* EVENT_TOKEN: it ends the request and is no part of the text */
    /* EVENT_END: remaining text is in `text`; why it ended; totals. */
    enum finish finish;
    const char *stop_string; /* the stop string that matched, or NULL */
    int32_t stop_token;      /* the id that ended it, or -1 */
    int32_t prompt_tokens, output_tokens, cached_tokens;
    int32_t guessed_tokens, accepted_tokens; /* by speculation; those accepted are output, too */
    bool other_bits;   /* a guess was checked by kernels that may round differently than without */
    const char *error; /* FINISH_ERROR */
};
typedef void engine_event_fn(void *user, const struct engine_event *event);

/* How much of the engine one client may have. */
struct request_limits {
    int32_t running; /* requests at once; 0: any number */
    int32_t waiting; /* requests beside those; below 0: any number */
};

struct engine_request {
    /* The client: a number that is never given to another. Clients get the same share of the work,
     * and (engine.prefix_cache = salted) do not find each other's prompts in the cache. */
    uint64_t client;
    const struct request_limits *limits; /* of the client, or NULL */
    const int32_t *prompt;               /* at least one id */
    int32_t prompt_n;
    int32_t max_tokens; /* 0: only score the prompt */
    int32_t min_tokens;
    struct sampling sampling; /* copied, arrays included */
    const char *const *stop;  /* stop strings, not part of the text unless include_stop */
    int32_t stops;
    const int32_t *stop_token; /* further stop ids */
    int32_t stop_tokens;
    bool include_stop, ignore_eos;
    bool prompt_logprobs;
    /* The client gets the prompt's text, too: a character that the prompt's last token leaves
     * unfinished and nothing completes is shown (U+FFFD), where it is dropped otherwise. */
    bool echo;
    bool keep_special; /* special tokens appear in the text */
    /* Guess tokens and check several in one step (speculate.h): the same answer, sooner. */
    bool speculates;
    bool undrafted;           /* but none of the draft model's guesses */
    bool bit_equal;           /* and only where that cannot change a bit of what is computed */
    const int32_t *predicted; /* [predicted_n] what the answer may be, or NULL */
    int32_t predicted_n;
    engine_event_fn *on_event;
    void *user;
};

/* FULL: the queue, and no other client has more waiting that could give way. LIMITED: the client's
 * own limits. */
enum submit_result {
    SUBMIT_OK,
    SUBMIT_FULL,
    SUBMIT_LIMITED,
    SUBMIT_NOT_READY,
    SUBMIT_TOO_LONG,
    SUBMIT_BAD
};
/* Queues a request; everything is copied. `id` (or NULL) names it for engine_cancel. Its first
 * event may come before this returns. But for SUBMIT_OK `err` says why, and no event will come. */
enum submit_result engine_submit(struct engine *e, const struct engine_request *r, uint64_t *id,
                                 struct err *err);
/* All of `r` [n] or none: what one client wants for one answer, with the limits of the first. `id`
 * [n] or NULL. */
enum submit_result engine_submit_all(struct engine *e, const struct engine_request *r, int32_t n,
                                     uint64_t *id, struct err *err);
/* Ends a request wherever it is (queued too); its EVENT_END follows unless it already came. */
void engine_cancel(struct engine *e, uint64_t id);
/* Whether a request of this client submitted now would find room (asked before tokenizing):
 * SUBMIT_OK, or SUBMIT_FULL or SUBMIT_LIMITED with the reason in `err`. */
enum submit_result engine_room(struct engine *e, uint64_t client,
                               const struct request_limits *limits, struct err *err);

/* What to tell whoever was refused with SUBMIT_FULL, or displaced: seconds until the requests that
 * wait now will have begun, by how fast others ended lately; 1 to 60 (drain.h). Any thread. */
int32_t engine_retry_s(struct engine *e);

/* Requests not yet ended. */
int32_t engine_active(const struct engine *e);
/* Seconds since the engine thread last made progress while it had work, was lent to the specializer
 * (from one second on), or was told to end; 0 when idle. Any thread, until engine_stop(). */
double engine_stalled_s(const struct engine *e);

/* Prometheus text of the engine's metrics (queue, KV pages, steps, latencies, regions); nothing
 * before it is ready. The JSON below is {} then. */
void engine_metrics(const struct engine *e, FILE *out);

/* A JSON object of what the dashboard shows of the engine: tokens/s, running, waiting, step time
 * p50/p99 of the last seconds, regions with time, bytes and roofline share. Caller frees. */
char *engine_json(const struct engine *e);
/* The last `seconds` (at most about 900) seconds, one value each: history.h. Caller frees. */
char *engine_history_json(const struct engine *e, int seconds);

#endif
