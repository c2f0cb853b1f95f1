/* SPDX-License-Identifier: Apache-2.0 */
/* vocab.h - a golden tokenizer.json as the vocabulary of a GGUF file, for tests to change. */
#ifndef WHET_TESTS_UNIT_ENGINE_VOCAB_H
#define WHET_TESTS_UNIT_ENGINE_VOCAB_H

#include "config/err.h"
#include "engine/tokenizer.h"
#include "tests/unit/engine/golden.h"

/* A vocabulary as a GGUF file has it: texts by id, merges as "left right", a name for the rest. */
struct vocab {
    struct vocab_source src;
    cJSON *json;
    const char **text, *merge[4096];
    int32_t *length, merge_length[4096];
    uint8_t *kind;
    char *joined[4096];
};

static inline void vocab_put(struct vocab *v, int32_t id, const char *text, enum token_kind kind)
{
    v->text[id] = text;
    v->length[id] = (int32_t)strlen(text);
    v->kind[id] = (uint8_t)kind;
}

static inline void vocab_read(struct vocab *v, const char *name)
{
    char *file = xasprintf("tokenizer/%s.json", name);
    v->json = golden_json(file);
    free(file);
    const cJSON *model = cJSON_GetObjectItem(v->json, "model"), *item;
    const cJSON *vocab = cJSON_GetObjectItem(model, "vocab");
    const cJSON *added = cJSON_GetObjectItem(v->json, "added_tokens");
    int32_t n = cJSON_GetArraySize(vocab) + cJSON_GetArraySize(added);
    v->text = xcalloc((size_t)n, sizeof *v->text);
    v->length = xcalloc((size_t)n, sizeof *v->length);
    v->kind = xcalloc((size_t)n, 1);
    cJSON_ArrayForEach(item, vocab)
    {
        vocab_put(v, item->valueint, item->string, TOKEN_NORMAL);
    }
    cJSON_ArrayForEach(item, added)
    {
        bool special = cJSON_IsTrue(cJSON_GetObjectItem(item, "special"));
        vocab_put(v, cJSON_GetObjectItem(item, "id")->valueint, golden_string(item, "content"),
                  special ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    }
    v->src = (struct vocab_source){.tokens = n, .bos = -1, .eos = -1, .add_bos = -1, .add_eos = -1};
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(model, "merges"))
    {
        int64_t i = v->src.merges++;
        v->joined[i] = cJSON_IsString(item) ? xstrdup(item->valuestring)
                                            : xasprintf("%s %s", item->child->valuestring,
                                                        item->child->next->valuestring);
        v->merge[i] = v->joined[i];
        v->merge_length[i] = (int32_t)strlen(v->joined[i]);
    }
    v->src.text = v->text;
    v->src.length = v->length;
    v->src.kind = v->kind;
    v->src.merge = v->merge;
    v->src.merge_length = v->merge_length;
}

static inline struct vocab *vocab_open(const char *name)
{
    struct vocab *v = xcalloc(1, sizeof *v);
    vocab_read(v, name);
    return v;
}

static inline void vocab_close(struct vocab *v)
{
    for (int64_t i = 0; i < v->src.merges; i++)
        free(v->joined[i]);
    free(v->text);
    free(v->length);
    free(v->kind);
    cJSON_Delete(v->json);
    free(v);
}

#endif
