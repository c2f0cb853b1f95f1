/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_pieces.c - what is different in a vocabulary of SentencePiece.
 *
 * Tokens are written in the text's own characters, with U+2581 for a space, and <0xE2> stands for
 * the byte E2. Which merges there are and in which order follows from scores: two symbols merge if
 * what they are together is a token, the highest score first and the leftmost among equals. Hence a
 * merge of the table here for every way to put a token together from two others, and its rank is
 * the place of the token's score among all scores.
 *
 * A text is one word then, spaces and all. In nearly all vocabularies a space is only where a token
 * begins; no merge reaches over the border before it, so that the text may be cut there, and most
 * of its words are found whole.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bpe_private.h"

enum { PIECE_BYTES_MAX = 256 };

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that a token <0xHH> stands for; -1 for any other. */
static int byte_of(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* What a token stands for in a text, to `out`: its byte, or its characters with spaces. An added
 * token that is looked for in the normalized text takes the prefix with it. */
static size_t spell(const char *text, size_t n, bool prefix, char *out)
{
    size_t m = 0;
    int byte = prefix ? -1 : byte_of(text, n);
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    if (prefix)
        out[m++] = ' ';
    for (size_t i = 0; i < n;) {
        bool space = n - i >= PIECE_SPACE_BYTES && memcmp(text + i, PIECE_SPACE, 3) == 0;
        out[m++] = space ? ' ' : text[i];
        i += space ? PIECE_SPACE_BYTES : 1;
    }
    return m;
}

/* Whether words may be made of a token. With scores not of control and byte tokens, nor of those
 * that are cut out before; with Hugging Face's merges of all in the model's own vocabulary. */
static bool in_words(const struct vocab_source *src, int32_t id)
{
    uint8_t kind = src->kind[id];
    if (src->pieces->score)
        return kind == TOKEN_NORMAL || kind == TOKEN_UNUSED;
    return !src->added || !(src->added[id] & ADDED_OUTSIDE);
}

void bpe_read_pieces(struct bpe *b, const struct vocab_source *src, bool *findable)
{
    b->byte_fallback = src->pieces->byte_fallback;
    b->fuse_unknown = src->pieces->fuse_unknown;
    b->unknown = src->pieces->unknown;
    bool prefixes = src->pieces->normalizes && src->pieces->prefix != PREFIX_NONE;
    b->shown = xmalloc(b->begin[b->tokens] + (size_t)b->tokens + 1);
    b->shown_begin = xcalloc((size_t)b->tokens + 1, sizeof *b->shown_begin);
    for (int32_t i = 0; i < b->tokens; i++) {
        size_t n, *at = &b->shown_begin[i];
        const char *text = bpe_word_bytes(b, i, &n);
        uint8_t added = src->added ? src->added[i] : 0;
        bool prefix = prefixes && n > 0 && (added & ADDED_NORMALIZED);
        at[1] = at[0] + spell(text, n, prefix, b->shown + at[0]);
        findable[i] = in_words(src, i);
        int byte = added & ADDED_OUTSIDE ? -1 : byte_of(text, n);
        /* A character's bytes are looked for in capitals. */
        bool capitals = byte >= 0 && text[3] < 'a' && text[4] < 'a';
        if (capitals && b->byte[byte] < 0)
            b->byte[byte] = i;
    }
}

bool bpe_words_part(const struct bpe *b)
{
    if (!b->pieces || b->ignore_merges || bpe_find(b, PIECE_SPACE, PIECE_SPACE_BYTES) < 0)
        return false;
    for (uint32_t i = 0; i < b->merge_cells; i++) {
        size_t n;
        if (b->merge[i].left < 0)
            continue;
        const char *text = bpe_word_bytes(b, b->merge[i].id, &n);
        bool begun = false; /* a character that is no space has come */
        for (size_t k = 0; k < n;) {
            bool space = n - k >= PIECE_SPACE_BYTES && memcmp(text + k, PIECE_SPACE, 3) == 0;
            if (space && begun)
                return false;
            begun = begun || !space;
            k += space ? PIECE_SPACE_BYTES : 1;
        }
    }
    return true;
}

/* ---- merges by scores ---------------------------------------------------------------------- */

struct scored {
    float score;
    int32_t id, rank;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The tokens that words are made of, the highest score first, and the rank of each. */
static int rank_tokens(const struct bpe *b, const float *score, const bool *findable,
                       struct scored *out, int32_t *count, struct err *err)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->tokens; i++) {
        size_t bytes;
        bpe_word_bytes(b, i, &bytes);
        if (!findable[i] || bytes == 0)
            continue;
        if (isnan(score[i]))
            return err_set(err, "the score of token %d is not a number", i);
        if (bytes > PIECE_BYTES_MAX)
            return err_set(err, "token %d has %zu bytes (at most %d)", i, bytes, PIECE_BYTES_MAX);
        out[n++] = (struct scored){.score = score[i], .id = i};
    }
    qsort(out, (size_t)n, sizeof *out, by_score);
    for (int32_t i = 1; i < n; i++)
        out[i].rank = out[i - 1].rank + (out[i].score != out[i - 1].score);
    *count = n;
    return 0;
}

/* Every way to put a token together from two others, put into the table if asked for: how many. */
static int64_t splits(struct bpe *b, const struct scored *token, bool put)
{
    size_t n;
    int64_t count = 0;
    const char *text = bpe_word_bytes(b, token->id, &n);
    if (bpe_find(b, text, n) != token->id) /* the second of two that are written alike */
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)text[i] & 0xC0) == 0x80) /* within a character */
            continue;
        int32_t left = bpe_find(b, text, i);
        int32_t right = left < 0 ? -1 : bpe_find(b, text + i, n - i);
        if (right < 0)
            continue;
        count++;
        if (put)
            bpe_put_merge(b, (struct merge){left, right, token->rank, token->id});
    }
    return count;
}

int bpe_merges_of_scores(struct bpe *b, const struct vocab_source *src, const bool *findable,
                         struct err *err)
{
    struct scored *token = xcalloc((size_t)b->tokens, sizeof *token);
    int32_t n = 0;
    int64_t merges = 0;
    int rc = rank_tokens(b, src->pieces->score, findable, token, &n, err);
    for (int32_t i = 0; rc == 0 && i < n; i++)
        merges += splits(b, &token[i], false);
    if (rc == 0 && merges > INT32_MAX / 4)
        rc = err_set(err, "the tokens make %lld merges", (long long)merges);
    bpe_make_merges(b, rc == 0 ? merges : 0);
    for (int32_t i = 0; rc == 0 && i < n; i++)
        splits(b, &token[i], true);
    free(token);
    return rc;
}
