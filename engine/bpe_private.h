/* SPDX-License-Identifier: Apache-2.0 */
/* bpe_private.h - the tables of byte-pair encoding: built in bpe_build.c and bpe_pieces.c, read in
 * bpe.c, and not changed in between. */
#ifndef WHET_ENGINE_BPE_PRIVATE_H
#define WHET_ENGINE_BPE_PRIVATE_H

#include <stdatomic.h>

#include "engine/bpe.h"

#define UNKNOWN UINT32_MAX /* end of a list, empty table cell */

struct merge {
    int32_t left, right; /* left -1: empty cell */
    int32_t rank, id;
};

struct bpe {
    int32_t tokens;
    bool ignore_merges;
    char *bytes;       /* of all tokens, one after the other, as words have them */
    size_t *begin;     /* [tokens + 1] offsets into bytes */
    uint8_t *kind;     /* [tokens] */
    int32_t byte[256]; /* the one-byte tokens (of SentencePiece <0x00> and so on), -1: none */
    int32_t *cell;     /* [cells] token ids by the hash of their bytes, -1: empty */
    uint32_t cells;    /* a power of two */
    struct merge *merge;
    uint32_t merge_cells; /* a power of two */
    _Atomic uint8_t *whole;
    uint64_t seed; /* of both tables' hashes */
    /* of SentencePiece: */
    bool pieces;                      /* words start as characters, not as bytes */
    bool byte_fallback, fuse_unknown; /* of a character without a token */
    int32_t unknown;                  /* -1: none */
    char *shown;                      /* what tokens stand for in a text, one after the other */
    size_t *shown_begin;              /* [tokens + 1] offsets into shown */
};

uint32_t bpe_hash_bytes(uint64_t seed, const char *s, size_t n);
uint32_t bpe_hash_pair(uint64_t seed, int32_t left, int32_t right);
/* The cell of a pair's merge; UNKNOWN if the pair does not merge. */
uint32_t bpe_find_merge(const struct bpe *b, int32_t left, int32_t right);

/* An empty table with room for so many merges. */
void bpe_make_merges(struct bpe *b, int64_t entries);
/* Puts a merge into the table, which has room; a pair that is there gets the new rank. */
void bpe_put_merge(struct bpe *b, struct merge m);

/* ---- SentencePiece (bpe_pieces.c) ---------------------------------------------------------- */

/* Byte tokens, and what tokens stand for in a text; `findable` [tokens] says which ones words are
 * made of. */
void bpe_read_pieces(struct bpe *b, const struct vocab_source *src, bool *findable);
/* The merges that follow from the scores of the tokens. */
int bpe_merges_of_scores(struct bpe *b, const struct vocab_source *src, const bool *findable,
                         struct err *err);

#endif
