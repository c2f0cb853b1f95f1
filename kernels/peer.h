/* SPDX-License-Identifier: Apache-2.0 */
/* peer.h - what kernels of `reduce` are given on GPUs that reach each other's memory.
 *
 * The same promise as on CPUs (args.h, several ranks): out = (the sum over ranks of x, in their
 * order) + residual, each addition rounded to float, so all kernels have the same bits on all
 * ranks. A kernel writes its numbers into the other ranks' memory and waits for theirs in its own.
 *
 * An area has memory on every rank, which all of them map, and beside it what a rank keeps for
 * itself: counts of calls, and the host's word `over`. All ranks make the same calls in one area in
 * the same order, one at a time. Numbers may travel in four ways (enum reduce_way), each with
 * memory and counts of its own, so that what one way leaves in memory is never read by another.
 *
 *   REDUCE_LL     items of 16 bytes, {number, c, number, c}: what has c is there
 *   REDUCE_LL128  lines of 128 bytes, 30 numbers and {c, c}, written by eight threads of a warp at
 *                 once. That such a line arrives as one is so on NVLink, and not on PCIe
 *   REDUCE_PLAIN  numbers, and a flag for each block, which is c when they are there
 *   REDUCE_WORDS  numbers alone: a place is REDUCE_EMPTY, a NaN that no number is, until its number
 *                 comes, and again when that was taken
 *
 * c is the number of a way's call: one more than that of the call before, never 0, which is what
 * memory begins with (after 2^32 - 1 comes 2, so that numbers go on being odd and even in turn).
 * Graphs are launched again with the same arguments, so kernels count: at the end of a call all
 * REDUCE_COUNTS counts of the way are c, whatever the number of blocks. Kernels of a way may so be
 * exchanged between any two calls.
 *
 * Memory has two turns, and a call is in that of c & 1. A rank writes its part of call c only after
 * it has seen everybody's of call c - 1, so everybody has ended call c - 2, which was in the same
 * turn. A turn has a slot for what each rank sends (in the owner's slot nobody writes), and one
 * more for sums, where a call has a second shot. In calls whose c is 0 or 1 modulo REDUCE_CLEAN, a
 * kernel clears of its own memory's turn what no rank writes in this call: an item that was written
 * so long ago that c has come round would look new.
 *
 * REDUCE_WORDS counts nothing, and its turn is the host's to say: no two calls behind each other
 * have the same. So other kernels than those of `reduce` may make such a call, with as many blocks
 * as they like: a projection that is told of it (cuda.h, cuda_out_args.sum) adds the ranks' numbers
 * itself when it has its own. A number is sent once and taken once, by whichever kernel. Between
 * two calls of a turn lies one of the other, or of another way: for that a rank sends only when it
 * has taken all of the first, and so nothing of the second finds a place that is not empty yet.
 *
 * A rank may never come. A kernel that waits reads *over at times, and goes home when it is not 0;
 * nobody reads what it leaves. */
#ifndef WHET_KERNELS_PEER_H
#define WHET_KERNELS_PEER_H

#include "args.h"

enum reduce_way { REDUCE_LL, REDUCE_LL128, REDUCE_PLAIN, REDUCE_WORDS, REDUCE_WAYS };
#define REDUCE_EMPTY 0xffffffffu
enum {
    REDUCE_PEERS = 8,              /* ranks at most */
    REDUCE_PEER_NUMBERS = 1 << 18, /* of a call at most */
    REDUCE_COUNTS = 128,           /* blocks at most */
    REDUCE_CLEAN = 1 << 24,
    REDUCE_LINE = 30 /* numbers of 128 bytes in REDUCE_LL128 */
};

/* Items of 16 bytes of a slot for so many numbers (a multiple of 64); behind plain numbers are two
 * flags for each block, those of the first shot in front. */
#define REDUCE_ITEMS(way, numbers)                                             \
    ((way) == REDUCE_LL      ? (numbers) / 2                                   \
     : (way) == REDUCE_LL128 ? ((numbers) + REDUCE_LINE - 1) / REDUCE_LINE * 8 \
     : (way) == REDUCE_PLAIN ? (numbers) / 4 + 2 * REDUCE_COUNTS               \
                             : (numbers) / 4)
/* Where a way begins in an area's memory, in items: turn 0 with its world + 1 slots, then turn 1.
 * REDUCE_WAYS: where the area ends. */
#define REDUCE_AT(way, world, numbers)                                   \
    (2 * ((world) + 1) *                                                 \
     (((way) > REDUCE_LL ? REDUCE_ITEMS(REDUCE_LL, numbers) : 0) +       \
      ((way) > REDUCE_LL128 ? REDUCE_ITEMS(REDUCE_LL128, numbers) : 0) + \
      ((way) > REDUCE_PLAIN ? REDUCE_ITEMS(REDUCE_PLAIN, numbers) : 0) + \
      ((way) > REDUCE_WORDS ? REDUCE_ITEMS(REDUCE_WORDS, numbers) : 0)))
/* Where the slot for what rank `of` sends (world: for sums) begins in a turn, in items. */
#define REDUCE_SLOT(way, world, numbers, turn, of) \
    (REDUCE_AT(way, world, numbers) +              \
     (size_t)((turn) * ((world) + 1) + (of)) * REDUCE_ITEMS(way, numbers))

/* One rank's view of an area. */
struct peer_area {
    void *memory[REDUCE_PEERS]; /* [world], each of REDUCE_AT(REDUCE_WAYS, ...) items of 16 bytes */
    uint32_t *calls;            /* [REDUCE_WAYS][REDUCE_COUNTS], this rank's */
    const uint32_t *over;       /* the host's: not 0 when the world is over */
    int32_t rank, world;
    int32_t numbers; /* of a call at most, a multiple of 64 */
    int32_t pad_;
};

/* The one argument of a kernel. `out` is neither x nor residual. */
struct peer_reduce_args {
    const float *x;        /* [m, HIDDEN] what this rank computed */
    const float *residual; /* [m, HIDDEN] the same on all ranks */
    float *out;            /* [m, HIDDEN] */
    int32_t m;             /* the same on all ranks, up to M_MAX; m HIDDEN <= area.numbers */
    int32_t turn;          /* of a call of REDUCE_WORDS, 0 or 1 */
    struct peer_area area;
};

#endif
