/* SPDX-License-Identifier: Apache-2.0 */
/* shard.h - which part of a model each of several ranks holds: tensor parallelism as arithmetic.
 *
 * A rank is a process with a device of its own; `world` of them compute every step together, each
 * its part of every layer (Shoeybi et al., Megatron-LM, arXiv:1909.08053). Attention is cut by
 * heads and the MLP by its inner columns, so that the first matrix of each pair (q, k, v; gate, up)
 * is cut into rows and the second (attn_out, mlp_out) into columns: the products of all ranks are
 * summed once a pair, and nothing else of a layer is sent. Logits are cut by tokens.
 *
 *   wq, wk, wv  rows     a rank's heads, and the KV heads that they read: where there are fewer of
 *                        those than ranks, neighbours hold the same one
 *   wo          columns  of those heads
 *   gate, up    rows     of h
 *   down        columns  of h
 *   head        rows     tokens; see shard_plan()
 *   embed       whole    a step looks up m rows of it: cutting it would cost a sum of all ranks
 *   norms       whole
 *
 * Pure functions of the arguments; any thread.
 */
#ifndef WHET_ENGINE_SHARD_H
#define WHET_ENGINE_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"

struct model;
struct model_shape;

enum { SHARD_WORLD_MAX = 64 };

struct shard_range {
    int32_t from, count;
};

/* What one rank has. Every rank of a world has equal counts, so that all of them run the same
 * kernels. All zero: a model that nobody has cut. */
struct shard {
    int32_t rank, world;
    struct shard_range heads, kv_heads, ffn, vocab;
};

enum shard_tensor {
    SHARD_WQ,
    SHARD_WK,
    SHARD_WV,
    SHARD_WO,
    SHARD_GATE,
    SHARD_UP,
    SHARD_DOWN,
    SHARD_HEAD,
    SHARD_EMBED,
    SHARD_TENSORS
};
const char *shard_tensor_name(enum shard_tensor t);

/* The rows and columns of a matrix that a rank has. A bias is cut as its matrix's rows are. */
struct shard_part {
    struct shard_range rows, cols;
};

/* Cuts a model of this shape. The head's rows are shared out in equal counts of whole
 * SHARD_VOCAB_UNIT where there are that many; the last ranks begin earlier instead of being padded,
 * so what they have overlaps and every row is a token.
 * -1 with a message: a rank that is none, heads or feed-forward columns that do not divide, KV
 * heads that neither divide nor are divided. The message names the worlds that would do. */
enum { SHARD_VOCAB_UNIT = 64 };
int shard_plan(const struct model_shape *whole, int32_t world, int32_t rank, struct shard *out,
               struct err *err);

/* Rows of the head that a rank has. */
struct shard_range shard_tokens(int32_t vocab, int32_t world, int32_t rank);

struct shard_part shard_part(const struct shard *s, const struct model_shape *whole,
                             enum shard_tensor t);

/* The shape of what the rank computes with: its heads, KV heads and feed-forward columns; hidden
 * size and vocabulary are the whole model's, and the head is no longer tied. */
struct model_shape shard_shape(const struct shard *s, const struct model_shape *whole);

/* -1 with a message naming layer, matrix and format where a column cut would go through a block of
 * the whole model `m`'s own formats. */
int shard_check_blocks(const struct shard *s, const struct model *m, struct err *err);

/* Bytes of what the rank has of the whole model `m`'s matrices, in their own formats. */
int64_t shard_bytes(const struct shard *s, const struct model *m);

#endif
