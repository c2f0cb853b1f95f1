/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_build.c - a vocabulary source becomes the tables that bpe.c merges with.
 *
 * Words of a byte-level vocabulary are bytes, and its tokens are kept as the bytes that they stand
 * for. Words of a SentencePiece vocabulary are characters, and its tokens are kept as they are
 * written (bpe_pieces.c has what is different there).
 */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/bpe_private.h"
#include "engine/utf8.h"

/* ---- GPT-2's alphabet ---------------------------------------------------------------------- */

/* Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for U+0100 on.
 */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF))
        return (int)cp;
    if (cp < 0x100 || cp > 0x143)
        return -1;
    uint32_t k = cp - 0x100;
    return (int)(k < 0x21 ? k : k < 0x43 ? k - 0x21 + 0x7F : 0xAD);
}

int64_t byte_level_decode(const char *text, size_t n, char *out)
{
    int64_t m = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int length = utf8_decode(text + i, n - i, &cp);
        int byte = length > 0 ? alphabet_byte(cp) : -1;
        if (byte < 0)
            return -1;
        out[m++] = (char)byte;
        i += (size_t)length;
    }
    return m;
}

/* ---- tables -------------------------------------------------------------------------------- */

/* Tokens and merges come with a model. Whoever made it could choose them so that all fall into one
 * cell, if a cell followed from them alone. */
static uint64_t draw_seed(void)
{
    uint64_t seed;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)(uintptr_t)&seed;
    return seed;
}

static uint32_t table_size(int64_t entries)
{
    uint32_t n = 16;
    while (n < 2 * entries)
        n *= 2;
    return n;
}

/* ---- building ------------------------------------------------------------------------------ */

bool bpe_added(uint8_t kind)
{
    return kind == TOKEN_CONTROL || kind == TOKEN_USER_DEFINED;
}

/* Makes a token findable by its bytes; the first of equal ones stays. */
static void insert_token(struct bpe *b, int32_t id)
{
    size_t n;
    const char *bytes = bpe_word_bytes(b, id, &n);
    if (n == 0 || bpe_find(b, bytes, n) >= 0)
        return;
    uint32_t i = bpe_hash_bytes(b->seed, bytes, n);
    while (b->cell[i & (b->cells - 1)] >= 0)
        i++;
    b->cell[i & (b->cells - 1)] = id;
    if (n == 1 && !b->pieces)
        b->byte[(unsigned char)bytes[0]] = id;
}

/* Bytes of every token. A text outside the alphabet stands for its own UTF-8, and cannot come
 * out of merges: `reachable` tells which is which. */
static int read_tokens(struct bpe *b, const struct vocab_source *src, bool *reachable,
                       struct err *err)
{
    size_t total = 0;
    for (int32_t i = 0; i < src->tokens; i++) {
        if (src->length[i] < 0)
            return err_set(err, "vocabulary: token %d has a negative length", i);
        total += (size_t)src->length[i];
    }
    b->bytes = xmalloc(total + 1);
    b->begin = xcalloc((size_t)src->tokens + 1, sizeof *b->begin);
    size_t at = 0;
    for (int32_t i = 0; i < src->tokens; i++) {
        size_t n = (size_t)src->length[i];
        int64_t m = b->pieces ? -1 : byte_level_decode(src->text[i], n, b->bytes + at);
        reachable[i] = m >= 0;
        if (m < 0)
            memcpy(b->bytes + at, src->text[i], n);
        b->begin[i] = at;
        at += m < 0 ? n : (size_t)m;
    }
    b->begin[src->tokens] = at;
    return 0;
}

/* Normal tokens first: an added token with the same bytes must not take their place. */
static void index_tokens(struct bpe *b, const bool *reachable)
{
    b->cells = table_size(b->tokens);
    b->cell = xmalloc(b->cells * sizeof *b->cell);
    memset(b->cell, 0xFF, b->cells * sizeof *b->cell);
    for (int added = 0; added < 2; added++)
        for (int32_t i = 0; i < b->tokens; i++)
            if (reachable[i] && bpe_added(b->kind[i]) == added)
                insert_token(b, i);
}

/* A half of a merge, as words have it, to `out`: its bytes; at most 0 for none. */
static int64_t read_half(const struct bpe *b, const char *text, size_t n, char *out)
{
    if (!b->pieces)
        return byte_level_decode(text, n, out);
    memcpy(out, text, n);
    return (int64_t)n;
}

/* Finds the three tokens of a merge "left right". */
static int read_merge(const struct bpe *b, const char *text, size_t n, int64_t rank,
                      struct merge *out, char *room, struct err *err)
{
    const char *space = memchr(text, ' ', n);
    if (!space)
        return err_set(err, "merge %lld '%.*s' is not two tokens", (long long)rank,
                       (int)(n < 80 ? n : 80), text);
    size_t head = (size_t)(space - text);
    int64_t left = read_half(b, text, head, room);
    int64_t right = left < 0 ? -1 : read_half(b, space + 1, n - head - 1, room + left);
    if (left <= 0 || right <= 0)
        return err_set(err, "merge %lld '%.*s' is not %s", (long long)rank, (int)(n < 80 ? n : 80),
                       text, b->pieces ? "two tokens" : "in the byte-level alphabet");
    out->left = bpe_find(b, room, (size_t)left);
    out->right = bpe_find(b, room + left, (size_t)right);
    out->id = bpe_find(b, room, (size_t)(left + right));
    out->rank = (int32_t)rank;
    if (out->left < 0 || out->right < 0 || out->id < 0)
        return err_set(err, "merge %lld '%.*s' has a token that is not in the vocabulary",
                       (long long)rank, (int)(n < 80 ? n : 80), text);
    return 0;
}

void bpe_put_merge(struct bpe *b, struct merge m)
{
    uint32_t cell = bpe_find_merge(b, m.left, m.right);
    if (cell == UNKNOWN) {
        cell = bpe_hash_pair(b->seed, m.left, m.right) & (b->merge_cells - 1);
        while (b->merge[cell].left >= 0)
            cell = (cell + 1) & (b->merge_cells - 1);
    }
    b->merge[cell] = m;
}

void bpe_make_merges(struct bpe *b, int64_t entries)
{
    b->merge_cells = table_size(entries);
    b->merge = xmalloc(b->merge_cells * sizeof *b->merge);
    memset(b->merge, 0xFF, b->merge_cells * sizeof *b->merge);
}

/* A pair listed twice has its last rank, as in Hugging Face tokenizers. */
static int read_merges(struct bpe *b, const struct vocab_source *src, struct err *err)
{
    if (src->merges < 0 || src->merges > INT32_MAX / 4)
        return err_set(err, "vocabulary: %lld merges", (long long)src->merges);
    bpe_make_merges(b, src->merges);
    size_t size = 256;
    char *room = xmalloc(size);
    int rc = 0;
    for (int64_t i = 0; i < src->merges && rc == 0; i++) {
        if (src->merge_length[i] < 0) {
            rc = err_set(err, "vocabulary: merge %lld has a negative length", (long long)i);
            break;
        }
        size_t n = (size_t)src->merge_length[i];
        if (n > size)
            room = xrealloc(room, size = 2 * n);
        struct merge m;
        rc = read_merge(b, src->merge[i], n, i, &m, room, err);
        if (rc)
            break;
        bpe_put_merge(b, m);
    }
    free(room);
    return rc;
}

struct bpe *bpe_open(const struct vocab_source *src, struct err *err)
{
    struct bpe *b = xcalloc(1, sizeof *b);
    b->tokens = src->tokens;
    b->seed = draw_seed();
    memset(b->byte, 0xFF, sizeof b->byte);
    b->ignore_merges = src->ignore_merges;
    b->kind = xmalloc((size_t)src->tokens);
    memcpy(b->kind, src->kind, (size_t)src->tokens);
    b->whole = xcalloc((size_t)src->tokens, sizeof *b->whole);
    b->pieces = src->pieces != NULL;
    bool *reachable = xcalloc((size_t)src->tokens, sizeof *reachable);
    int rc = read_tokens(b, src, reachable, err);
    if (rc == 0 && b->pieces)
        bpe_read_pieces(b, src, reachable);
    if (rc == 0) {
        index_tokens(b, reachable);
        rc = b->pieces && src->pieces->score ? bpe_merges_of_scores(b, src, reachable, err)
                                             : read_merges(b, src, err);
    }
    free(reachable);
    if (rc) {
        bpe_close(b);
        return NULL;
    }
    return b;
}

void bpe_close(struct bpe *b)
{
    if (!b)
        return;
    free(b->bytes);
    free(b->begin);
    free(b->kind);
    free(b->cell);
    free(b->merge);
    free(b->shown);
    free(b->shown_begin);
    free((void *)b->whole);
    free(b);
}
