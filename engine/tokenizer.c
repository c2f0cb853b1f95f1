/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - the stages of encoding put together, and decoding.
 *
 * Text goes through the stages of Hugging Face tokenizers in the same order:
 *
 *   ill-formed UTF-8 replaced -> added tokens cut out -> NFC -> added tokens that are matched in
 *   normalized text cut out -> pre-tokenizer (words) -> BPE (tokens) -> BOS and EOS around it
 *
 * Each stage hands its pieces straight to the next (callbacks, no lists in between); only the
 * last appends to the result. The tokenizer itself is read-only once built; all that changes while
 * encoding is in struct encoding on the caller's stack.
 */
#include "engine/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/added.h"
#include "engine/bpe.h"
#include "engine/encode_work.h"
#include "engine/nfc.h"
#include "engine/pretokenize.h"
#include "engine/utf8.h"

struct tokenizer {
    struct bpe *bpe;
    struct pretokenizer *pre;
    struct added *added, *normalized; /* matched in the raw text, and in the normalized text */
    int32_t tokens;
    uint8_t *kind; /* [tokens] */
    bool *stop;    /* [tokens] */
    bool nfc, add_bos, add_eos;
    int32_t bos, eos;
};

/* ---- building ------------------------------------------------------------------------------ */

/* Control tokens that end a turn in the model families we know. A file names one as EOS, but a
 * chat model may end with another (Llama 3: <|eot_id|> where EOS is <|end_of_text|>). */
static const char *const stop_texts[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>",
};

/* Ill-formed text is refused: it could match inside a character and cut it in two. */
static int put_added(struct tokenizer *t, const struct vocab_source *src, int32_t id,
                     struct err *err)
{
    uint8_t flags = src->added ? src->added[id] : 0;
    size_t n = (size_t)src->length[id], m;
    if (!utf8_valid(src->text[id], n))
        return err_set(err, "vocabulary: token %d is matched in text but is not UTF-8", id);
    if (n > ADDED_TEXT_MAX)
        return err_set(err,
                       "vocabulary: token %d is matched in text and has %zu bytes (at most %d)", id,
                       n, ADDED_TEXT_MAX);
    if (!(flags & ADDED_NORMALIZED)) {
        added_put(t->added, src->text[id], n, id, flags);
        return 0;
    }
    struct encode_control control = {0};
    char *nfc = NULL;
    if (t->nfc && nfc_normalize(src->text[id], n, &nfc, &m, &control, err))
        return -1;
    added_put(t->normalized, nfc ? nfc : src->text[id], nfc ? m : n, id, flags);
    free(nfc);
    return 0;
}

static int check_id(const struct vocab_source *src, const char *what, int32_t id, struct err *err)
{
    if (id < -1 || id >= src->tokens)
        return err_set(err, "vocabulary: %s %d is not one of the %d tokens", what, id, src->tokens);
    return 0;
}

static int set_stops(struct tokenizer *t, const struct vocab_source *src, struct err *err)
{
    if (t->eos >= 0)
        t->stop[t->eos] = true;
    for (int32_t i = 0; i < src->stops; i++) {
        if (check_id(src, "end-of-generation id", src->stop[i], err))
            return -1;
        if (src->stop[i] >= 0)
            t->stop[src->stop[i]] = true;
    }
    for (size_t i = 0; i < sizeof stop_texts / sizeof *stop_texts; i++) {
        int32_t id = tokenizer_find(t, stop_texts[i]);
        if (id >= 0 && t->kind[id] == TOKEN_CONTROL)
            t->stop[id] = true;
    }
    return 0;
}

/* Vocabulary, merges and pre-tokenizer; what the named family knows overrides the source. */
static int build_stages(struct tokenizer *t, struct vocab_source *src, struct err *err)
{
    bool bos_expected = false;
    if (src->pre) {
        const struct pre_family *family = pretokenize_family(src->pre, err);
        if (!family)
            return -1;
        src->step = family->step;
        src->steps = family->steps;
        src->ignore_merges = family->ignore_merges;
        src->nfc = family->nfc;
        bos_expected = family->add_bos;
    }
    t->nfc = src->nfc;
    t->add_bos = src->bos >= 0 && (src->add_bos < 0 ? bos_expected : src->add_bos);
    t->add_eos = src->eos >= 0 && src->add_eos > 0;
    t->pre = pretokenizer_open(src->step, src->steps, err);
    if (!t->pre)
        return -1;
    t->bpe = bpe_open(src, err);
    return t->bpe ? 0 : -1;
}

struct tokenizer *tokenizer_build(const struct vocab_source *source, struct err *err)
{
    struct vocab_source src = *source;
    if (src.tokens <= 0) {
        err_set(err, "vocabulary: no tokens");
        return NULL;
    }
    if (!src.pre && !src.step) {
        err_set(err, "vocabulary: tokenizer.ggml.pre is missing, so how text is cut is not known");
        return NULL;
    }
    if (check_id(&src, "BOS id", src.bos, err) || check_id(&src, "EOS id", src.eos, err))
        return NULL;
    struct tokenizer *t = xcalloc(1, sizeof *t);
    t->tokens = src.tokens;
    t->bos = src.bos;
    t->eos = src.eos;
    t->kind = xmalloc((size_t)src.tokens);
    memcpy(t->kind, src.kind, (size_t)src.tokens);
    t->stop = xcalloc((size_t)src.tokens, sizeof *t->stop);
    t->added = added_open();
    t->normalized = added_open();
    if (build_stages(t, &src, err))
        goto fail;
    for (int32_t i = 0; i < src.tokens; i++)
        if (bpe_added(src.kind[i]) && put_added(t, &src, i, err))
            goto fail;
    if (set_stops(t, &src, err))
        goto fail;
    return t;
fail:
    tokenizer_free(t);
    return NULL;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    bpe_close(t->bpe);
    pretokenizer_close(t->pre);
    added_close(t->added);
    added_close(t->normalized);
    free(t->kind);
    free(t->stop);
    free(t);
}

/* ---- encoding ------------------------------------------------------------------------------ */

int encode_poll(struct encode_control *c, struct err *err)
{
    c->polled = c->work;
    if (c->cancelled || !c->cancel || !atomic_load_explicit(c->cancel, memory_order_relaxed))
        return c->cancelled ? -1 : 0;
    c->cancelled = true;
    return err_set(err, "the encoding was cancelled");
}

struct encoding {
    const struct tokenizer *t;
    struct encode_control *control;
    struct pre_run *run;
    struct bpe_scratch scratch;
    struct id_list ids;
};

static int add_word(void *ctx, const char *word, size_t n, struct err *err)
{
    struct encoding *e = ctx;
    if (n >= INT32_MAX)
        return err_set(err, "a word of %zu bytes is too long to encode", n);
    return bpe_word(e->t->bpe, &e->scratch, word, n, &e->ids, e->control, err);
}

static int add_normalized(void *ctx, const char *piece, size_t n, int32_t id, struct err *err)
{
    struct encoding *e = ctx;
    if (id < 0)
        return pre_run_cut(e->run, piece, n, err);
    id_list_add(&e->ids, id);
    return 0;
}

static int add_raw(void *ctx, const char *piece, size_t n, int32_t id, struct err *err)
{
    struct encoding *e = ctx;
    if (id >= 0) {
        id_list_add(&e->ids, id);
        return 0;
    }
    size_t m = n;
    char *nfc = NULL;
    if (e->t->nfc && nfc_normalize(piece, n, &nfc, &m, e->control, err))
        return -1;
    if (!nfc)
        m = n;
    int rc = added_cut(e->t->normalized, nfc ? nfc : piece, m, add_normalized, e, e->control, err);
    free(nfc);
    return rc;
}

int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                         int32_t **ids, struct err *err)
{
    struct encode_control control = {0};
    return tokenizer_encode_cancellable(t, text, n, special, &control, ids, err);
}

int64_t tokenizer_encode_cancellable(const struct tokenizer *t, const char *text, size_t n,
                                     bool special, struct encode_control *control, int32_t **ids,
                                     struct err *err)
{
    struct encoding e = {.t = t, .control = control};
    *ids = NULL;
    if (encode_poll(control, err))
        return -1;
    char *valid = utf8_valid(text, n) ? NULL : utf8_lossy(text, n, &n);
    e.run = pre_run_begin(t->pre, add_word, &e, control);
    if (special && t->add_bos)
        id_list_add(&e.ids, t->bos);
    int rc = added_cut(t->added, valid ? valid : text, n, add_raw, &e, control, err);
    if (special && t->add_eos)
        id_list_add(&e.ids, t->eos);
    pre_run_end(e.run);
    bpe_scratch_free(&e.scratch);
    free(valid);
    if (rc) {
        free(e.ids.id);
        return -1;
    }
    *ids = e.ids.id ? e.ids.id : xmalloc(sizeof **ids);
    return e.ids.n;
}

/* ---- decoding and questions ---------------------------------------------------------------- */

const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, bool special, size_t *n)
{
    *n = 0;
    if (id < 0 || id >= t->tokens || (!special && t->kind[id] == TOKEN_CONTROL))
        return "";
    return bpe_bytes(t->bpe, id, n);
}

char *tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool special,
                       size_t *length)
{
    struct utf8_stream stream = {.n = 0};
    size_t room = 64, m = 0;
    char *out = xmalloc(room);
    for (int64_t i = 0; i <= n; i++) {
        size_t bytes = 0;
        const char *token = i < n ? tokenizer_bytes(t, ids[i], special, &bytes) : "";
        if (m + 3 * bytes + 17 > room) {
            room = 2 * room + 3 * bytes + 17;
            out = xrealloc(out, room);
        }
        m += utf8_stream_push(&stream, token, bytes, i == n, out + m);
    }
    out[m] = 0;
    *length = m;
    return out;
}

int32_t tokenizer_vocab(const struct tokenizer *t)
{
    return t->tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_is_stop(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->tokens && t->stop[id];
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->tokens && t->kind[id] == TOKEN_CONTROL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    size_t n = strlen(text);
    int32_t id = added_find(t->added, text, n);
    if (id < 0)
        id = added_find(t->normalized, text, n);
    if (id >= 0)
        return id;
    char *bytes = xmalloc(n + 1);
    int64_t m = byte_level_decode(text, n, bytes);
    if (m > 0)
        id = bpe_find(t->bpe, bytes, (size_t)m);
    free(bytes);
    return id;
}
