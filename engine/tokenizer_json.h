/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.h - what the parts of the tokenizer.json reader share. */
#ifndef WHET_ENGINE_TOKENIZER_JSON_H
#define WHET_ENGINE_TOKENIZER_JSON_H

#include <cjson/cJSON.h>

#include "config/err.h"
#include "engine/tokenizer.h"

enum { JSON_STEPS_MAX = 16 };

/* A tokenizer.json as it is read. The arrays of `src` that are not const belong to it. */
struct tokenizer_json {
    const cJSON *root;
    struct vocab_source src;
    const char **text, **merge;
    int32_t *length, *merge_length, *stop;
    uint8_t *kind, *added;
    char *joined; /* merges given as pairs, put together */
    struct pre_step step[JSON_STEPS_MAX];
    char *literal[JSON_STEPS_MAX]; /* patterns made here */
    struct vocab_pieces pieces;    /* of SentencePiece */
    bool marks_spaces;             /* ... a stage writes U+2581 for them */
    int32_t rows;                  /* added tokens with higher ids are left out */
    int32_t prefix, suffix;        /* ids the post-processor puts around a text; -1: none */
};

/* The id of a token by its text; -1 if the file has none. */
int32_t tokenizer_json_find(const struct tokenizer_json *j, const char *text);

/* Reads normalizer, pre_tokenizer, post_processor and decoder. -1 with a message naming whatever
 * is not supported. */
int tokenizer_json_stages(struct tokenizer_json *j, struct err *err);

/* Stages of a SentencePiece vocabulary: normalizers Prepend and Replace, pre-tokenizer Metaspace
 * and the decoder. Then what the model says of it, and that all of it goes together. */
int tokenizer_json_prepend(struct tokenizer_json *j, const cJSON *stage, struct err *err);
int tokenizer_json_replace(struct tokenizer_json *j, const cJSON *stage, struct err *err);
int tokenizer_json_metaspace(struct tokenizer_json *j, const cJSON *stage, struct err *err);
int tokenizer_json_pieces_decoder(struct tokenizer_json *j, const cJSON *stage, struct err *err);
int tokenizer_json_pieces(struct tokenizer_json *j, struct err *err);

/* Member of an object that must be a string or a boolean; `fallback` if it is not there. */
const char *json_text(const cJSON *object, const char *name, const char *fallback);
bool json_flag(const cJSON *object, const char *name, bool fallback);

#endif
