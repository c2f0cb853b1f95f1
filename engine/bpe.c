/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.c - byte-pair encoding of one word in O(n log n).
 *
 * The vocabulary is kept as the bytes its tokens stand for, not in GPT-2's alphabet of printable
 * characters: words need no translation, and decoding is a lookup. A word starts as a doubly
 * linked list of one-byte symbols; a heap holds every adjacent pair that has a merge, lowest rank
 * first and leftmost among equals, which is the order of Hugging Face tokenizers. A merge takes
 * the right symbol out of the list and offers the two new pairs. Candidates are never removed:
 * one whose symbols have changed since is recognized when it comes up, because its rank names the
 * merge (and so the two ids) it was made for, and no symbol ever returns to an id it had.
 *
 * Most words of real text are one token. `whole` remembers per token whether its own bytes merge
 * into exactly itself: 0 not tried yet, 1 yes, 2 no. It is written by whatever thread finds out
 * first (all find the same), so it is a cache that cannot grow and takes no lock.
 * Measured: 1 MB of random letters without a space in 0.3 s, English prose at 29 MB/s with all
 * stages (one thread, 2-core Intel Xeon with AMX, other work beside it, 2026-11-22).
 */
#include "engine/bpe.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/encode_work.h"
#include "engine/utf8.h"

#define UNKNOWN UINT32_MAX /* end of a list, empty table cell */

struct merge {
    int32_t left, right; /* left -1: empty cell */
    int32_t rank, id;
};

struct bpe {
    int32_t tokens;
    bool ignore_merges;
    char *bytes;       /* of all tokens, one after the other */
    size_t *begin;     /* [tokens + 1] offsets into bytes */
    uint8_t *kind;     /* [tokens] */
    int32_t byte[256]; /* the one-byte tokens, -1: none */
    int32_t *cell;     /* [cells] token ids by the hash of their bytes, -1: empty */
    uint32_t cells;    /* a power of two */
    struct merge *merge;
    uint32_t merge_cells; /* a power of two */
    _Atomic uint8_t *whole;
    uint64_t seed; /* of both tables' hashes */
};

struct bpe_symbol {
    int32_t id; /* -1: merged into the symbol before it */
    uint32_t before, after;
};

struct bpe_candidate {
    int32_t rank; /* no two merges have the same */
    uint32_t at;  /* the left symbol */
};

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

static uint32_t hash_bytes(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = seed ^ n;
    for (; n >= 8; n -= 8, s += 8) {
        uint64_t v;
        memcpy(&v, s, 8);
        h = (h ^ v) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    uint64_t v = 0;
    memcpy(&v, s, n);
    h = (h ^ v) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32);
}

static uint32_t hash_pair(uint64_t seed, int32_t left, int32_t right)
{
    uint64_t h = seed ^ ((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u; /* the finalizer of SplitMix64 */
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(h >> 31);
}

static uint32_t table_size(int64_t entries)
{
    uint32_t n = 16;
    while (n < 2 * entries)
        n *= 2;
    return n;
}

const char *bpe_bytes(const struct bpe *b, int32_t id, size_t *n)
{
    *n = b->begin[id + 1] - b->begin[id];
    return b->bytes + b->begin[id];
}

int32_t bpe_find(const struct bpe *b, const char *bytes, size_t n)
{
    for (uint32_t i = hash_bytes(b->seed, bytes, n);; i++) {
        int32_t id = b->cell[i & (b->cells - 1)];
        if (id < 0)
            return -1;
        size_t length;
        const char *have = bpe_bytes(b, id, &length);
        if (length == n && memcmp(have, bytes, n) == 0)
            return id;
    }
}

/* The cell of a pair's merge; UNKNOWN if the pair does not merge. */
static uint32_t find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    for (uint32_t i = hash_pair(b->seed, left, right);; i++) {
        const struct merge *m = &b->merge[i & (b->merge_cells - 1)];
        if (m->left < 0)
            return UNKNOWN;
        if (m->left == left && m->right == right)
            return i & (b->merge_cells - 1);
    }
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
    const char *bytes = bpe_bytes(b, id, &n);
    if (n == 0 || bpe_find(b, bytes, n) >= 0)
        return;
    uint32_t i = hash_bytes(b->seed, bytes, n);
    while (b->cell[i & (b->cells - 1)] >= 0)
        i++;
    b->cell[i & (b->cells - 1)] = id;
    if (n == 1)
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
        int64_t m = byte_level_decode(src->text[i], n, b->bytes + at);
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
    memset(b->byte, 0xFF, sizeof b->byte);
    for (int added = 0; added < 2; added++)
        for (int32_t i = 0; i < b->tokens; i++)
            if (reachable[i] && bpe_added(b->kind[i]) == added)
                insert_token(b, i);
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
    int64_t left = byte_level_decode(text, head, room);
    int64_t right = left < 0 ? -1 : byte_level_decode(space + 1, n - head - 1, room + left);
    if (left <= 0 || right <= 0)
        return err_set(err, "merge %lld '%.*s' is not in the byte-level alphabet", (long long)rank,
                       (int)(n < 80 ? n : 80), text);
    out->left = bpe_find(b, room, (size_t)left);
    out->right = bpe_find(b, room + left, (size_t)right);
    out->id = bpe_find(b, room, (size_t)(left + right));
    out->rank = (int32_t)rank;
    if (out->left < 0 || out->right < 0 || out->id < 0)
        return err_set(err, "merge %lld '%.*s' has a token that is not in the vocabulary",
                       (long long)rank, (int)(n < 80 ? n : 80), text);
    return 0;
}

/* A pair listed twice has its last rank, as in Hugging Face tokenizers. */
static int read_merges(struct bpe *b, const struct vocab_source *src, struct err *err)
{
    if (src->merges < 0 || src->merges > INT32_MAX / 4)
        return err_set(err, "vocabulary: %lld merges", (long long)src->merges);
    b->merge_cells = table_size(src->merges);
    b->merge = xmalloc(b->merge_cells * sizeof *b->merge);
    memset(b->merge, 0xFF, b->merge_cells * sizeof *b->merge);
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
        uint32_t cell = find_merge(b, m.left, m.right);
        if (cell == UNKNOWN) {
            cell = hash_pair(b->seed, m.left, m.right) & (b->merge_cells - 1);
            while (b->merge[cell].left >= 0)
                cell = (cell + 1) & (b->merge_cells - 1);
        }
        b->merge[cell] = m;
    }
    free(room);
    return rc;
}

struct bpe *bpe_open(const struct vocab_source *src, struct err *err)
{
    struct bpe *b = xcalloc(1, sizeof *b);
    b->tokens = src->tokens;
    b->seed = draw_seed();
    b->ignore_merges = src->ignore_merges;
    b->kind = xmalloc((size_t)src->tokens);
    memcpy(b->kind, src->kind, (size_t)src->tokens);
    b->whole = xcalloc((size_t)src->tokens, sizeof *b->whole);
    bool *reachable = xcalloc((size_t)src->tokens, sizeof *reachable);
    int rc = read_tokens(b, src, reachable, err);
    if (rc == 0) {
        index_tokens(b, reachable);
        rc = read_merges(b, src, err);
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
    free((void *)b->whole);
    free(b);
}

/* ---- merging ------------------------------------------------------------------------------- */

void id_list_add(struct id_list *l, int32_t id)
{
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 64;
        l->id = xrealloc(l->id, (size_t)l->room * sizeof *l->id);
    }
    l->id[l->n++] = id;
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    free(s->symbol);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

/* A list of n symbols starts with n - 1 pairs; each of its n - 1 merges takes one and offers two:
 * 2n will do. Little of what is there need be kept, so nothing is copied; and no room to spare for
 * a word of megabytes, which takes 28 bytes a byte as it is. */
static void make_room(struct bpe_scratch *s, size_t n)
{
    if (n <= s->room)
        return;
    bpe_scratch_free(s);
    s->room = n < 128 ? 256 : n < 1 << 20 ? 2 * n : n;
    s->symbol = xmalloc(s->room * sizeof *s->symbol);
    s->heap = xmalloc(2 * s->room * sizeof *s->heap);
}

static bool comes_first(struct bpe_candidate a, struct bpe_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void heap_push(struct bpe_candidate *heap, size_t *n, struct bpe_candidate c)
{
    size_t i = (*n)++;
    for (; i > 0 && comes_first(c, heap[(i - 1) / 2]); i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = c;
}

static struct bpe_candidate heap_pop(struct bpe_candidate *heap, size_t *n)
{
    struct bpe_candidate top = heap[0], last = heap[--*n];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < *n) {
        if (child + 1 < *n && comes_first(heap[child + 1], heap[child]))
            child++;
        if (!comes_first(heap[child], last))
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return top;
}

/* Offers the pair that begins at symbol `at`, if it merges. */
static void offer(const struct bpe *b, const struct bpe_scratch *s, uint32_t at, size_t *heaped)
{
    if (at == UNKNOWN || s->symbol[at].after == UNKNOWN)
        return;
    uint32_t cell = find_merge(b, s->symbol[at].id, s->symbol[s->symbol[at].after].id);
    if (cell != UNKNOWN)
        heap_push(s->heap, heaped, (struct bpe_candidate){b->merge[cell].rank, at});
}

/* Lays the word out as one-byte symbols; returns how many. */
static uint32_t lay_out(const struct bpe *b, const struct bpe_scratch *s, const char *word,
                        size_t n)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte[(unsigned char)word[i]];
        if (id < 0)
            continue;
        s->symbol[m] = (struct bpe_symbol){id, m ? m - 1 : UNKNOWN, m + 1};
        m++;
    }
    if (m)
        s->symbol[m - 1].after = UNKNOWN;
    return m;
}

/* Carries out the merge that a candidate names; nothing if one of its two symbols has been merged
 * since. */
static void merge_pair(const struct bpe *b, struct bpe_scratch *s, struct bpe_candidate c,
                       size_t *heaped)
{
    struct bpe_symbol *left = &s->symbol[c.at];
    if (left->id < 0 || left->after == UNKNOWN)
        return;
    struct bpe_symbol *right = &s->symbol[left->after];
    uint32_t cell = find_merge(b, left->id, right->id);
    if (cell == UNKNOWN || b->merge[cell].rank != c.rank)
        return;
    left->id = b->merge[cell].id;
    left->after = right->after;
    right->id = -1;
    if (left->after != UNKNOWN)
        s->symbol[left->after].before = c.at;
    offer(b, s, left->before, heaped);
    offer(b, s, c.at, heaped);
}

/* A bound of the steps that a heap of n takes for one candidate. */
static int64_t levels(size_t n)
{
    return 64 - __builtin_clzll((unsigned long long)n | 1);
}

static int merge_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t n,
                      struct id_list *out, struct encode_control *control, struct err *err)
{
    make_room(s, n);
    uint32_t count = lay_out(b, s, word, n);
    size_t heaped = 0;
    for (uint32_t i = 0; i < count; i++) {
        offer(b, s, i, &heaped);
        if (encode_work(control, levels(heaped), err))
            return -1;
    }
    while (heaped) {
        if (encode_work(control, levels(heaped), err))
            return -1;
        struct bpe_candidate c = heap_pop(s->heap, &heaped);
        merge_pair(b, s, c, &heaped);
    }
    for (uint32_t i = count ? 0 : UNKNOWN; i != UNKNOWN; i = s->symbol[i].after)
        id_list_add(out, s->symbol[i].id);
    return 0;
}

int bpe_word(const struct bpe *b, struct bpe_scratch *s, const char *word, size_t n,
             struct id_list *out, struct encode_control *control, struct err *err)
{
    int32_t id = bpe_find(b, word, n);
    if (id >= 0 && bpe_added(b->kind[id]))
        id = -1;
    if (id < 0)
        return merge_word(b, s, word, n, out, control, err);
    uint8_t whole = atomic_load_explicit(&b->whole[id], memory_order_relaxed);
    if (whole == 1 || b->ignore_merges) {
        id_list_add(out, id);
        return encode_work(control, (int64_t)n, err);
    }
    int64_t before = out->n;
    if (merge_word(b, s, word, n, out, control, err))
        return -1;
    if (whole == 0) {
        bool self = out->n == before + 1 && out->id[before] == id;
        atomic_store_explicit(&b->whole[id], self ? 1 : 2, memory_order_relaxed);
    }
    return 0;
}
