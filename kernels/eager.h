/* SPDX-License-Identifier: Apache-2.0 */
/* eager.h - arguments of the primitive CUDA kernels that the eager regions are made of.
 *
 * Shared by eager*.cu and engine/cuda/. They are shape-generic: shapes are arguments, so the
 * cubins are built with the program and nothing is compiled where it runs. A region is a few of
 * these and a matrix product of the vendor's BLAS between them (engine/cuda/eager.c). Activations
 * come in float and bf16; a null pointer means that nobody wants that copy. */
#ifndef WHET_KERNELS_EAGER_H
#define WHET_KERNELS_EAGER_H

#include "cuda.h"
#include "sampling.h"

/* x = table[token] of a table in bricks (kernels/bricks.h). Grid: M, 256 threads. */
struct eager_embed_args {
    struct cuda_embed_args step;
    int32_t type; /* enum dtype */
};

/* d[m, n] = x16[m, k] w[n, k]^T (+ c), w in bricks; rows of c and d are ld apart. Grid: ceil(n /
 * BRICK_ROWS), EAGER_BRICKS threads. m at most 8, or 16 with the kernel that has two tiles of
 * tokens. */
enum { EAGER_BRICKS = 256, EAGER_BRICKS_MOST = 16 };
struct eager_bricks_args {
    const void *w, *x16;
    const float *c; /* or null */
    float *d;
    int32_t m, n, k, ld;
};

/* to = bf16(w) of w [n, k] in bricks, as plain rows. Any grid of 256 threads. */
struct eager_expand_args {
    const void *w;
    void *to;
    int32_t n, k;
};

/* y16[i, :] = bf16(rmsnorm(x[row ? row[i] : i, :]) * gain), i < *count. Grid: rows. */
struct eager_norm_args {
    const int32_t *count;
    const float *x;
    const float *gain;
    const int32_t *row;
    void *y16;
    int32_t n;
    float eps;
};

/* Bias, q/k norm, RoPE and append of raw projections [M, (heads + 2 kv_heads) head_dim]; 8
 * elements a lane. Grid: (ceil((heads + 2 kv_heads) head_dim / 8 / EAGER_ROPE), M), EAGER_ROPE
 * threads. */
enum { EAGER_ROPE = 128 };
struct eager_rope_args {
    const int32_t *count;
    const float *raw;
    const void *raw16; /* instead of raw */
    const float *bias, *q_norm, *k_norm;
    const float *rope_cos, *rope_sin;
    const int32_t *position, *kv_at;
    float *q; /* of the first q_rows rows */
    void *q16;
    void *k_pages, *v_pages;
    int32_t heads, kv_heads, head_dim, q_rows;
    float eps;
};

/* h = silu(g) * u of raw [M, 2 ffn], g and u alternating. Grid: (ceil(ffn / EAGER_SILU), M), 256.
 */
enum { EAGER_SILU = 2048 };
struct eager_silu_args {
    const int32_t *count;
    const float *raw;
    const void *raw16;
    float *h;
    void *h16;
    int32_t ffn;
};

/* y16 = bf16(x) of [M, n]. Grid: (ceil(n / 1024), M), 256 threads. */
struct eager_round_args {
    const int32_t *count;
    const float *x;
    void *y16;
    int32_t n;
};

/* y += x of [M, n]. Grid: (ceil(n / 1024), M), 256 threads. */
struct eager_add_args {
    const int32_t *count;
    const float *x;
    float *y;
    int32_t n;
};

/* Attention of single tokens. Grid: (splits, kv_heads * chunks, tokens), 128 threads; a block takes
 * G (the kernel's own) query heads of one kv head, of which there are `chunks` such parts. token:
 * which tokens, null: all. */
struct eager_decode_args {
    const int32_t *count;
    const int32_t *token;
    const float *q;
    const void *q16; /* read if q is null */
    const void *k_pages, *v_pages;
    const int32_t *position, *pages_at, *page_table;
    float *a;
    void *a16;
    float *part;
    unsigned *counter;
    int32_t heads, kv_heads, chunks;
    int32_t least; /* positions of a part that is a block's own; 0: as few as the grid makes them */
    float scale;
};
enum { EAGER_GROUP = 8 };

/* Attention of runs of tokens: tile i is rows [first, first + rows) of the step, which are in a
 * sequence whose first of these rows is at `position`. Grid: (tiles, heads), 128 threads. */
struct eager_tile {
    int32_t first, rows, position, pages_at;
};
enum { EAGER_TILE = 64 };

struct eager_prefill_args {
    const struct eager_tile *tile;
    const void *q16, *k_pages, *v_pages;
    const int32_t *page_table;
    float *a;
    void *a16;
    int32_t heads, kv_heads;
    float scale;
};

/* The same by eager_wgmma.cu, where there is one (compute capability 9.0), in tiles of up to
 * EAGER_WGMMA_TILE rows, those with most positions first. Each map is a CUtensorMap of bf16 rows,
 * 128-byte swizzled in boxes of 64 columns: q of [M, heads * head_dim] and EAGER_WGMMA_TILE / 2
 * rows, k and v of the pages as rows of head_dim and KV_PAGE of them. Grid: up to one block a
 * multiprocessor, EAGER_WGMMA_THREADS. eager_wgmma_128_2: clusters of two blocks, for even groups.
 */
enum {
    EAGER_WGMMA_THREADS = 384,
    EAGER_WGMMA_TILE = 128,
    EAGER_WGMMA_POSITIONS = 128,
    EAGER_WGMMA_STAGES = 3
};
#define EAGER_WGMMA_SMEM(head_dim) \
    ((EAGER_WGMMA_TILE + 2 * EAGER_WGMMA_STAGES * EAGER_WGMMA_POSITIONS) * (head_dim)*2 + 128)

struct eager_map {
    WHET_ALIGN(64) uint64_t word[16];
};

struct eager_wgmma_args {
    struct eager_prefill_args prompt; /* without q16, k_pages and v_pages */
    int32_t tiles;                    /* of prompt.tile */
    struct eager_map q, k, v;
};

/* best[i] of logits [rows, vocab]. Grid: (parts, rows), 256 threads; part: [rows, parts] pairs. */
struct eager_best_args {
    const int32_t *count;
    const float *logits;
    int32_t *best;
    uint64_t *part;
    unsigned *counter;
    int32_t vocab;
};

/* Sum: out = all ranks' in (+ add), n numbers; in may be out. Gather: out [world, n],
 * another place than in. Grid: PEER_BLOCKS, always, PEER_THREADS. */
enum { PEERS_MOST = 8, PEER_BLOCKS = 64, PEER_THREADS = 256 };
struct eager_peer_args {
    const float *in, *add; /* add: or null */
    float *out;
    void *area[PEERS_MOST]; /* of each rank, as this device reaches it: PEER_AREA() bytes */
    const unsigned *over;   /* the host's: not zero when nobody is to be awaited any more */
    unsigned *calls;        /* [PEER_BLOCKS] */
    int32_t n, most;        /* even; n <= most */
    int32_t rank, world;
};
#define PEER_AREA(world, most) (16 * (int64_t)(world) * (most)) /* [2][world][most / 2] of 16 */

/* ---- sampling ----------------------------------------------------------------------------- */

enum { EAGER_TOPS = 20 };

/* A token whose logit changes before anything else looks at it. */
struct eager_adjust {
    int32_t id;
    int32_t kind; /* EAGER_BIAS: += value; EAGER_PENALTY: drawn `value` times so far */
    float value;
};
enum { EAGER_BIAS, EAGER_PENALTY, EAGER_BAN };

/* One row that needs more than the best token (struct sampling of engine/sampler.h). */
struct eager_sample {
    int32_t row;
    int32_t target; /* >= 0: score this token */
    SAMPLING_NUMBERS(SAMPLING_MEMBER)
    int32_t top_k, tops; /* tops: -1 no log-probabilities */
    int32_t adjust_at, adjusts;
    int32_t unseen; /* index in seen of a drawn token that the list does not count yet, or -1 */
    uint64_t seed, index;
};

struct eager_sampled {
    int32_t token;
    float logprob;
    int32_t tops;
    int32_t top_id[EAGER_TOPS];
    float top_logprob[EAGER_TOPS];
};

/* Grid: samples, 1024 threads. weight: [samples, vocab] floats. */
struct eager_sample_args {
    const struct eager_sample *sample;
    const struct eager_adjust *adjust;
    float *logits;
    float *weight;
    struct eager_sampled *out;
    const int32_t *seen; /* the step's tokens */
    int32_t *drawn;      /* drawn[row] out: for the next step */
    int32_t vocab;
};

/* to = from, 16 bytes each; one side may be host memory. `early`: what is read was there before the
 * kernel was launched, so it is read before the wait. Any grid. */
struct eager_copy_args {
    const void *from;
    void *to;
    int32_t n16, early;
};

/* First node of a graph: to = from[*parity], 16 bytes each, before anything else of the step.
 * `both`: reads both, so as not to wait for the parity first. Any grid. */
struct eager_open_args {
    const void *from[2];
    void *to;
    const int32_t *parity;
    int32_t n16, both;
};

/* Last node of a graph: the drawn tokens to[*parity][0..rows), and flips the parity. Grid: 1. */
struct eager_close_args {
    const struct cuda_counts *counts;
    const int32_t *best;
    int32_t *to[2];
    int32_t *parity;
};

/* ---- tools of the backend ------------------------------------------------------------------ */

/* Reads `n16` 16-byte words; writes only if they are one particular value. Any grid. */
struct eager_read_args {
    const void *data;
    int64_t n16;
    unsigned *out;
};

/* Copies pages number[i] of k and v to places i. Grid: (pages, 2), 256 threads. */
struct eager_gather_args {
    const void *k, *v;
    void *to_k, *to_v;
    const int32_t *number;
    int32_t page16; /* 16-byte words of a page */
};

/* y = x16 of [M, n], i < *count. Grid: (ceil(n / 1024), M), 256 threads. */
struct eager_widen_args {
    const int32_t *count;
    const void *x16;
    float *y;
    int32_t n;
};

/* Compares rows of a and b (floats, or bf16 positions in pages through kv_at) into out[0..4]: rows
 * that are not finite on one side alone, a's in the low half and b's in the high one; rows that
 * differ; then as float bits worst max and rms error of the finite ones. With rope_cos, a row of b
 * is turned by as much as its position is before a's: pairs of columns 2 i, 2 i + 1 of each head by
 * row a_position[t] - b_position[t] >= 0 of the tables. Grid: rows < 65536, 256 threads. */
struct eager_compare_args {
    const int32_t *count;
    const float *a, *b;
    const void *a_pages, *b_pages;
    const int32_t *a_at, *b_at;
    const float *rope_cos, *rope_sin; /* [positions, head_dim/2] or null */
    const int32_t *a_position, *b_position;
    int32_t cols, kv_heads, head_dim;
    unsigned *out;
};

#endif
