/* SPDX-License-Identifier: Apache-2.0 */
/* bpe.c - byte-pair encoding of one word in O(n log n).
 *
 * The vocabulary is kept as the bytes its tokens stand for, not in GPT-2's alphabet of printable
 * characters: words need no translation, and decoding is a lookup. A word starts as a doubly
 * linked list of one-byte symbols; a heap holds every adjacent pair that has a merge, lowest rank
 * first and leftmost among equals, which is the order of Hugging Face tokenizers. A merge takes
 * the right symbol out of the list and offers the two new pairs. Candidates are never removed:
 * one whose symbols have changed since is recognized when it comes up, because its rank is no more
 * that of the pair there. (SentencePiece's scores may give two merges the same rank: the pair is
 * merged then in place of its own candidate, which has the same rank and place.)
 *
 * Most words of real text are one token. `whole` remembers per token whether its own bytes merge
 * into exactly itself: 0 not tried yet, 1 yes, 2 no. It is written by whatever thread finds out
 * first (all find the same), so it is a cache that cannot grow and takes no lock.
 * Measured: 1 MB of random letters without a space in 0.3 s, English prose at 29 MB/s with all
 * stages (one thread, 2-core Intel Xeon with AMX, other work beside it, 2026-11-22).
 */
#include "engine/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "engine/bpe_private.h"
#include "engine/encode_work.h"
#include "engine/utf8.h"

struct bpe_symbol {
    int32_t id; /* -1: merged into the symbol before it */
    uint32_t before, after;
};

struct bpe_candidate {
    int32_t rank;
    uint32_t at; /* the left symbol */
};

/* ---- tables -------------------------------------------------------------------------------- */

uint32_t bpe_hash_bytes(uint64_t seed, const char *s, size_t n)
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

uint32_t bpe_hash_pair(uint64_t seed, int32_t left, int32_t right)
{
    uint64_t h = seed ^ ((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u; /* the finalizer of SplitMix64 */
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(h >> 31);
}

const char *bpe_word_bytes(const struct bpe *b, int32_t id, size_t *n)
{
    *n = b->begin[id + 1] - b->begin[id];
    return b->bytes + b->begin[id];
}

const char *bpe_bytes(const struct bpe *b, int32_t id, size_t *n)
{
    if (!b->shown)
        return bpe_word_bytes(b, id, n);
    *n = b->shown_begin[id + 1] - b->shown_begin[id];
    return b->shown + b->shown_begin[id];
}

int32_t bpe_find(const struct bpe *b, const char *bytes, size_t n)
{
    for (uint32_t i = bpe_hash_bytes(b->seed, bytes, n);; i++) {
        int32_t id = b->cell[i & (b->cells - 1)];
        if (id < 0)
            return -1;
        size_t length;
        const char *have = bpe_word_bytes(b, id, &length);
        if (length == n && memcmp(have, bytes, n) == 0)
            return id;
    }
}

uint32_t bpe_find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    for (uint32_t i = bpe_hash_pair(b->seed, left, right);; i++) {
        const struct merge *m = &b->merge[i & (b->merge_cells - 1)];
        if (m->left < 0)
            return UNKNOWN;
        if (m->left == left && m->right == right)
            return i & (b->merge_cells - 1);
    }
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
    uint32_t cell = bpe_find_merge(b, s->symbol[at].id, s->symbol[s->symbol[at].after].id);
    if (cell != UNKNOWN)
        heap_push(s->heap, heaped, (struct bpe_candidate){b->merge[cell].rank, at});
}

/* Appends a symbol to the m that are there. */
static uint32_t lay(const struct bpe_scratch *s, uint32_t m, int32_t id)
{
    s->symbol[m] = (struct bpe_symbol){id, m ? m - 1 : UNKNOWN, m + 1};
    return m + 1;
}

static bool has_bytes(const struct bpe *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (b->byte[(unsigned char)s[i]] < 0)
            return false;
    return b->byte_fallback;
}

/* Lays the word out as characters, those without a token as their bytes or as the unknown token.
 * That waits for the next character with a token, as in Hugging Face tokenizers: byte tokens come
 * before it, and a whole run is one where they are to be fused. */
static uint32_t lay_out_characters(const struct bpe *b, const struct bpe_scratch *s,
                                   const char *word, size_t n)
{
    uint32_t m = 0, cp;
    bool waits = false;
    for (size_t i = 0, length; i < n; i += length) {
        int got = utf8_decode(word + i, n - i, &cp);
        length = got > 0 ? (size_t)got : 1;
        int32_t id = bpe_find(b, word + i, length);
        if (id >= 0) {
            m = waits ? lay(s, m, b->unknown) : m;
            m = lay(s, m, id);
            waits = false;
        } else if (has_bytes(b, word + i, length)) {
            for (size_t k = 0; k < length; k++)
                m = lay(s, m, b->byte[(unsigned char)word[i + k]]);
        } else if (b->unknown >= 0) {
            m = waits && !b->fuse_unknown ? lay(s, m, b->unknown) : m;
            waits = true;
        }
    }
    return waits ? lay(s, m, b->unknown) : m;
}

/* Lays the word out as symbols; returns how many, at most n. */
static uint32_t lay_out(const struct bpe *b, const struct bpe_scratch *s, const char *word,
                        size_t n)
{
    uint32_t m = 0;
    if (b->pieces)
        m = lay_out_characters(b, s, word, n);
    for (size_t i = 0; i < n && !b->pieces; i++) {
        int32_t id = b->byte[(unsigned char)word[i]];
        m = id < 0 ? m : lay(s, m, id);
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
    uint32_t cell = bpe_find_merge(b, left->id, right->id);
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
    if (id >= 0 && bpe_added(b->kind[id]) && !b->pieces)
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
