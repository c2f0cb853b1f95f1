/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.c - the stages of encoding put together, and decoding.
 *
 * Text goes through the stages of Hugging Face tokenizers in the same order:
 *
 *   ill-formed UTF-8 replaced -> added tokens cut out -> NFC -> added tokens that are matched in
 *   normalized text cut out -> pre-tokenizer (words) -> BPE (tokens) -> BOS and EOS around it
 *
 * With SentencePiece spaces become U+2581 and one more comes in front: in the place of NFC, or just
 * before the pre-tokenizer, as the vocabulary says.
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
    bool spaces; /* SentencePiece, as `pieces` says; its `score` is not kept */
    struct vocab_pieces pieces;
};

/* ---- building ------------------------------------------------------------------------------ */

/* Control tokens that end a turn in the model families we know. A file names one as EOS, but a
 * chat model may end with another (Llama 3: <|eot_id|> where EOS is <|end_of_text|>). */
static const char *const stop_texts[] = {
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "</s>",
};

/* Patterns of SentencePiece's words: a space begins one; or runs of spaces do, where BPE comes to
 * the same (bpe_words_part()); or the text is one. */
static const struct pre_step space_step = {.pattern = "\\x{2581}[^\\x{2581}]*|[^\\x{2581}]+"};
static const struct pre_step spaces_step = {.pattern = "\\x{2581}*[^\\x{2581}]+|\\x{2581}+"};
static const struct pre_step text_step = {.pattern = NULL};

/* A text with PIECE_SPACE for its spaces, and with one in front: malloc'ed. */
static char *mark_spaces(const char *text, size_t n, bool prefix, size_t *length)
{
    size_t spaces = prefix, m = 0;
    for (size_t i = 0; i < n; i++)
        spaces += text[i] == ' ';
    char *out = xmalloc(n + PIECE_SPACE_BYTES * spaces + 1);
    if (prefix)
        m = (size_t)(stpcpy(out, PIECE_SPACE) - out);
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ')
            m = (size_t)(stpcpy(out + m, PIECE_SPACE) - out);
        else
            out[m++] = text[i];
    }
    *length = m;
    return out;
}

/* What a text is once normalized: malloc'ed, or NULL for the text as it is. -1 when told to end. */
static int normalize(const struct tokenizer *t, const char *text, size_t n, char **out,
                     size_t *length, struct encode_control *control, struct err *err)
{
    *out = NULL;
    *length = n;
    if (t->spaces && t->pieces.normalizes) {
        *out = mark_spaces(text, n, n > 0 && t->pieces.prefix != PREFIX_NONE, length);
        return encode_work(control, (int64_t)n, err);
    }
    if (t->nfc && nfc_normalize(text, n, out, length, control, err))
        return -1;
    if (!*out)
        *length = n;
    return 0;
}

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
    char *normal;
    if (normalize(t, src->text[id], n, &normal, &m, &control, err))
        return -1;
    added_put(t->normalized, normal ? normal : src->text[id], m, id, flags);
    free(normal);
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
    bool bos_expected = src->pieces != NULL;
    if (src->pieces && (src->pre || src->step || src->nfc))
        return err_set(err, "vocabulary: a pre-tokenizer or NFC beside SentencePiece");
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
    t->bpe = bpe_open(src, err);
    if (!t->bpe)
        return -1;
    if (src->pieces) {
        t->spaces = true;
        t->pieces = *src->pieces;
        t->pieces.score = NULL;
        src->step = t->pieces.splits         ? &space_step
                    : bpe_words_part(t->bpe) ? &spaces_step
                                             : &text_step;
        src->steps = 1;
    }
    t->pre = pretokenizer_open(src->step, src->steps, err);
    return t->pre ? 0 : -1;
}

struct tokenizer *tokenizer_build(const struct vocab_source *source, struct err *err)
{
    struct vocab_source src = *source;
    if (src.tokens <= 0) {
        err_set(err, "vocabulary: no tokens");
        return NULL;
    }
    if (!src.pre && !src.step && !src.pieces) {
        err_set(err, "vocabulary: tokenizer.ggml.pre is missing, so how text is cut is not known");
        return NULL;
    }
    if (check_id(&src, "BOS id", src.bos, err) || check_id(&src, "EOS id", src.eos, err) ||
        (src.pieces && check_id(&src, "unknown id", src.pieces->unknown, err)))
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
    const char *begin; /* of the text */
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

/* A piece without added tokens, its spaces still as in the text: into words, behind a space where
 * one has to be. */
static int cut_spaces(struct encoding *e, const char *piece, size_t n, struct err *err)
{
    enum space_prefix prefix = e->t->pieces.prefix;
    bool wanted = prefix == PREFIX_EACH || (prefix == PREFIX_FIRST && piece == e->begin);
    bool there = piece[0] == ' ' ||
                 (n >= PIECE_SPACE_BYTES && memcmp(piece, PIECE_SPACE, PIECE_SPACE_BYTES) == 0);
    size_t m;
    char *marked = mark_spaces(piece, n, wanted && !there, &m);
    int rc = encode_work(e->control, (int64_t)n, err);
    if (rc == 0)
        rc = pre_run_cut(e->run, marked, m, err);
    free(marked);
    return rc;
}

static int add_normalized(void *ctx, const char *piece, size_t n, int32_t id, struct err *err)
{
    struct encoding *e = ctx;
    if (id < 0 && e->t->spaces && !e->t->pieces.normalizes)
        return cut_spaces(e, piece, n, err);
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
    size_t m;
    char *normal;
    int rc = normalize(e->t, piece, n, &normal, &m, e->control, err);
    if (rc == 0)
        rc = added_cut(e->t->normalized, normal ? normal : piece, m, add_normalized, e, e->control,
                       err);
    free(normal);
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
    e.begin = valid ? valid : text;
    int rc = added_cut(t->added, e.begin, n, add_raw, &e, control, err);
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

const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *n)
{
    *n = 0;
    return id < 0 || id >= t->tokens ? "" : bpe_word_bytes(t->bpe, id, n);
}

const char *tokenizer_next_bytes(const struct tokenizer *t, int32_t id, bool special, bool *begun,
                                 size_t *n)
{
    const char *bytes = tokenizer_bytes(t, id, special, n);
    bool strip = !*begun && t->spaces && t->pieces.strips && *n > 0 && bytes[0] == ' ';
    *begun = *begun || *n > 0;
    *n -= strip;
    return bytes + strip;
}

char *tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool special,
                       size_t *length)
{
    struct utf8_stream stream = {.n = 0};
    size_t room = 64, m = 0;
    bool begun = false;
    char *out = xmalloc(room);
    for (int64_t i = 0; i <= n; i++) {
        size_t bytes = 0;
        const char *token = i < n ? tokenizer_next_bytes(t, ids[i], special, &begun, &bytes) : "";
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

bool tokenizer_adds_spaces(const struct tokenizer *t)
{
    return t->spaces && t->pieces.prefix != PREFIX_NONE;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->tokens && t->kind[id] == TOKEN_CONTROL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    struct encode_control control = {0};
    size_t n = strlen(text), normal_n;
    char *normal;
    int32_t id = added_find(t->added, text, n);
    if (id < 0 && normalize(t, text, n, &normal, &normal_n, &control, NULL) == 0) {
        id = added_find(t->normalized, normal ? normal : text, normal_n);
        free(normal);
    }
    if (id >= 0 || t->spaces)
        return id >= 0 ? id : bpe_find(t->bpe, text, n);
    char *bytes = xmalloc(n + 1);
    int64_t m = byte_level_decode(text, n, bytes);
    if (m > 0)
        id = bpe_find(t->bpe, bytes, (size_t)m);
    free(bytes);
    return id;
}
