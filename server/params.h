/* SPDX-License-Identifier: Apache-2.0 */
/* params.h - what a completion request asks for, checked field by field before any work.
 *
 * Every field of docs/http.md that both completion routes share. Unknown members are ignored
 * and null means absent; a known member of the wrong type or out of range is a 400 that names it.
 * Members that would change the result in a way this server cannot deliver are refused, never
 * dropped. Pure: any thread.
 */
#ifndef WHET_SERVER_PARAMS_H
#define WHET_SERVER_PARAMS_H

#include "engine/engine.h"
#include "server/json.h"

struct params {
    bool chat;
    bool stream, include_usage;
    bool echo;
    int32_t n;
    int64_t max_tokens;          /* -1: not given */
    const char *max_tokens_name; /* the member that gave it, for errors; static */
    int64_t min_tokens;
    bool seeded; /* the request named a seed, in sampling.seed */
    struct sampling sampling;
    struct logit_bias *bias; /* owned; sampling.bias */
    char **stop;             /* owned strings */
    int32_t stops;
    int32_t *stop_token;
    int32_t stop_tokens;
    bool include_stop, ignore_eos, keep_special, return_token_ids;
    bool logprobs;                         /* sampling.top_logprobs >= 0 */
    bool speculates, undrafted, bit_equal; /* struct engine_request says what they ask for */
    char *predicted_text;                  /* what the answer is expected to be, or NULL; UTF-8 */
    int32_t *predicted;                    /* [predicted_n] its tokens, once it was tokenized */
    int32_t predicted_n;
};

/* Which ids exist, which model is served. */
struct params_model {
    const char *name;
    int32_t vocab;
    bool speculates; /* requests that do not say */
    bool drafts;     /* there is a draft model */
};

/* 0, or -1 with a 400 or 404 in `e`. Free in either case. */
int params_read(struct params *p, const cJSON *body, bool chat, const struct params_model *m,
                struct api_error *e);
void params_free(struct params *p);

/* 0 if the request is for the model `served` or names none, else -1 with a 400 or 404 in `e`. */
int params_served(const cJSON *body, const char *served, struct api_error *e);

/* `item` as a list of token ids below `vocab`; count or -1. `where` names it in errors. */
int64_t params_ids(const cJSON *item, int32_t vocab, const char *param, int32_t **ids,
                   struct api_error *e);

#endif
