/* SPDX-License-Identifier: Apache-2.0 */
/* model_gguf_vocab.c - the vocabulary in a GGUF file's metadata (tokenizer.ggml.*).
 *
 * tokenizer.ggml.model is "gpt2" for byte-level BPE, with merges and a name for how text is cut
 * before, or "llama" for SentencePiece's BPE, with a score for each token.
 */
#include "engine/model_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/tokenizer.h"

struct vocab {
    struct gguf_string *token, *merge;
    int64_t tokens, merges;
    int32_t *type;
    float *score;
    int64_t types, scores;
    const char **text, **merge_text;
    int32_t *length, *merge_length;
    uint8_t *kind;
    char *pre;
    int32_t stop[2];
    struct vocab_pieces pieces;
};

static void vocab_free(struct vocab *v)
{
    void *all[] = {v->token,  v->merge,        v->type, v->text, v->merge_text,
                   v->length, v->merge_length, v->kind, v->pre,  v->score};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static char *copy_string(struct gguf_string s)
{
    char *copy = xmalloc(s.n + 1);
    memcpy(copy, s.s, s.n);
    copy[s.n] = 0;
    return copy;
}

static int split_strings(const struct gguf_string *s, int64_t n, const char ***text,
                         int32_t **length, const char *file, const char *key, struct err *err)
{
    *text = xcalloc((size_t)n + 1, sizeof **text);
    *length = xcalloc((size_t)n + 1, sizeof **length);
    for (int64_t i = 0; i < n; i++) {
        if (s[i].n > 1 << 16)
            return err_set(err, "%s: metadata '%s': entry %lld is %zu bytes long", file, key,
                           (long long)i, s[i].n);
        (*text)[i] = s[i].s;
        (*length)[i] = (int32_t)s[i].n;
    }
    return 0;
}

static int read_kinds(const struct gguf *g, struct vocab *v, struct err *err)
{
    /* GGUF: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte */
    static const uint8_t kinds[] = {TOKEN_NORMAL,       TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_CONTROL,
                                    TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE};
    const char *key = "tokenizer.ggml.token_type";
    int found = gguf_ints(g, key, &v->type, &v->types, err);

    if (found < 0)
        return -1;
    if (found && v->types != v->tokens)
        return err_set(err, "%s: metadata '%s': %lld entries for %lld tokens", g->file, key,
                       (long long)v->types, (long long)v->tokens);
    v->kind = xcalloc((size_t)v->tokens + 1, 1); /* TOKEN_NORMAL without the key */
    for (int64_t i = 0; i < v->types; i++) {
        if (v->type[i] < 0 || v->type[i] >= (int32_t)sizeof kinds)
            return err_set(err, "%s: metadata '%s': token %lld has unknown type %d", g->file, key,
                           (long long)i, v->type[i]);
        v->kind[i] = kinds[v->type[i]];
    }
    return 0;
}

/* An id of the vocabulary; stays `fallback` if the key is not there. */
static int read_id(const struct gguf *g, const char *name, int64_t tokens, int32_t *id,
                   struct err *err)
{
    char key[128];
    int64_t value = *id;

    snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    if (gguf_int(g, key, &value, err) < 0)
        return -1;
    if (value < -1 || value >= tokens)
        return err_set(err, "%s: metadata '%s': %lld is no token of %lld", g->file, key,
                       (long long)value, (long long)tokens);
    *id = (int32_t)value;
    return 0;
}

/* 1 or 0 as the file says; -1, what the family does, if it says nothing. */
static int read_flag(const struct gguf *g, const char *key, int8_t *flag, struct err *err)
{
    bool value;
    int found = gguf_bool(g, key, &value, err);

    *flag = found > 0 ? value : -1;
    return found < 0 ? -1 : 0;
}

static int read_special(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                        struct err *err)
{
    int32_t eot = -1, eom = -1;

    src->bos = src->eos = -1;
    if (read_id(g, "bos_token_id", v->tokens, &src->bos, err) < 0 ||
        read_id(g, "eos_token_id", v->tokens, &src->eos, err) < 0 ||
        read_id(g, "eot_token_id", v->tokens, &eot, err) < 0 ||
        read_id(g, "eom_token_id", v->tokens, &eom, err) < 0 ||
        read_flag(g, "tokenizer.ggml.add_bos_token", &src->add_bos, err) < 0 ||
        read_flag(g, "tokenizer.ggml.add_eos_token", &src->add_eos, err) < 0)
        return -1;
    if (eot >= 0)
        v->stop[src->stops++] = eot;
    if (eom >= 0)
        v->stop[src->stops++] = eom;
    src->stop = v->stop;
    return 0;
}

/* A flag that must not be set: what it asks for is not done. */
static int refuse_flag(const struct gguf *g, const char *key, struct err *err)
{
    bool set = false;
    if (gguf_bool(g, key, &set, err) < 0)
        return -1;
    return set ? err_set(err, "%s: metadata '%s': not supported", g->file, key) : 0;
}

static int read_merges(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                       struct err *err)
{
    const char *merges = "tokenizer.ggml.merges";
    struct gguf_string pre = {"", 0};
    int found = gguf_string(g, "tokenizer.ggml.pre", &pre, err);

    if (found < 0 || refuse_flag(g, "tokenizer.ggml.add_space_prefix", err) < 0)
        return -1;
    if (pre.n == 0)
        return err_set(err,
                       "%s: metadata 'tokenizer.ggml.pre' is missing: how the text is to be "
                       "split before BPE would be a guess",
                       g->file);
    found = gguf_strings(g, merges, &v->merge, &v->merges, err);
    if (found <= 0)
        return found < 0 ? -1 : err_set(err, "%s: metadata '%s' is missing", g->file, merges);
    if (split_strings(v->merge, v->merges, &v->merge_text, &v->merge_length, g->file, merges, err) <
        0)
        return -1;
    src->pre = v->pre = copy_string(pre);
    src->merges = v->merges;
    src->merge = v->merge_text;
    src->merge_length = v->merge_length;
    return 0;
}

/* SentencePiece. A file that does not say adds the space in front, as llama.cpp has it. */
static int read_pieces(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                       struct err *err)
{
    const char *scores = "tokenizer.ggml.scores";
    bool prefix = true;
    int found = gguf_floats(g, scores, &v->score, &v->scores, err);

    if (found <= 0)
        return found < 0 ? -1 : err_set(err, "%s: metadata '%s' is missing", g->file, scores);
    if (v->scores != v->tokens)
        return err_set(err, "%s: metadata '%s': %lld entries for %lld tokens", g->file, scores,
                       (long long)v->scores, (long long)v->tokens);
    if (gguf_find(g, "tokenizer.ggml.precompiled_charsmap"))
        return err_set(err,
                       "%s: metadata 'tokenizer.ggml.precompiled_charsmap' (a normalizer of "
                       "SentencePiece): not supported",
                       g->file);
    v->pieces = (struct vocab_pieces){.score = v->score,
                                      .unknown = -1,
                                      .byte_fallback = true,
                                      .fuse_unknown = true,
                                      .normalizes = true};
    if (gguf_bool(g, "tokenizer.ggml.add_space_prefix", &prefix, err) < 0 ||
        refuse_flag(g, "tokenizer.ggml.remove_extra_whitespaces", err) < 0 ||
        read_id(g, "unknown_token_id", v->tokens, &v->pieces.unknown, err) < 0)
        return -1;
    v->pieces.prefix = prefix ? PREFIX_EACH : PREFIX_NONE;
    v->pieces.strips = prefix;
    src->pieces = &v->pieces;
    return 0;
}

static int read_vocab(const struct gguf *g, struct vocab *v, struct vocab_source *src,
                      int32_t vocab, struct err *err)
{
    const char *tokens = "tokenizer.ggml.tokens";
    struct gguf_string model = {"", 0};

    if (gguf_string(g, "tokenizer.ggml.model", &model, err) < 0)
        return -1;
    bool pieces = gguf_equals(model, "llama");
    if (!pieces && !gguf_equals(model, "gpt2"))
        return err_set(err,
                       "%s: metadata 'tokenizer.ggml.model': '%s' is not supported "
                       "(gpt2, the byte-level BPE, and llama, SentencePiece's, are)",
                       g->file, gguf_show(model).text);
    int found = gguf_strings(g, tokens, &v->token, &v->tokens, err);
    if (found <= 0)
        return found < 0 ? -1 : err_set(err, "%s: metadata '%s' is missing", g->file, tokens);
    if (v->tokens < 1 || v->tokens > vocab)
        return err_set(err, "%s: metadata '%s': %lld entries, but the model has %d", g->file,
                       tokens, (long long)v->tokens, vocab);
    if (split_strings(v->token, v->tokens, &v->text, &v->length, g->file, tokens, err) < 0 ||
        read_kinds(g, v, err) < 0)
        return -1;
    *src = (struct vocab_source){
        .tokens = (int32_t)v->tokens, .text = v->text, .length = v->length, .kind = v->kind};
    return (pieces ? read_pieces : read_merges)(g, v, src, err) || read_special(g, v, src, err) ? -1
                                                                                                : 0;
}

int model_gguf_tokenizer(struct model *m, const struct gguf *g, struct err *err)
{
    struct vocab v = {0};
    struct vocab_source src;
    struct gguf_string template;
    int rc = read_vocab(g, &v, &src, m->shape.vocab, err);

    if (rc == 0) {
        m->tokenizer = tokenizer_build(&src, err);
        if (!m->tokenizer)
            rc = err_prefix(err, "%s: vocabulary", g->file);
    }
    vocab_free(&v);
    if (rc == 0 && (rc = gguf_string(g, "tokenizer.chat_template", &template, err)) > 0) {
        if (template.n > MODEL_TEMPLATE_MAX)
            return err_set(err, "%s: metadata 'tokenizer.chat_template': %zu bytes, at most %d",
                           g->file, template.n, MODEL_TEMPLATE_MAX);
        m->chat_template = copy_string(template);
    }
    return rc < 0 ? -1 : 0;
}
