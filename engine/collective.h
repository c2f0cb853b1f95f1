/* SPDX-License-Identifier: Apache-2.0 */
/* collective.h - what the ranks of one model say to each other within a step.
 *
 * Every rank of a world makes the same calls in the same order, once a step's regions ask for them
 * (`reduce` and `gather` in plan.h). A call returns when this rank has its result, or, where there
 * is a stream, when the work is on it. A rank that does not come, or has gone, is an error on all
 * others and never a hang: after that every call fails, and the world is over.
 *
 * CPUs of one host have them through shared memory (engine/cpu/collective_shm.h), GPUs by NCCL or
 * through their hosts' memory (engine/cuda/collective_cuda.h). Results have the same bits on every
 * rank.
 */
#ifndef WHET_ENGINE_COLLECTIVE_H
#define WHET_ENGINE_COLLECTIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

struct collective;
struct reduce_area; /* kernels/args.h */

/* Areas for kernels of reduce: of the steps themselves, and of kernels on trial beside them. */
enum reduce_use { REDUCE_STEPS, REDUCE_TRIALS, REDUCE_USES };

struct collective_ops {
    const char *name; /* "shm", "nccl", "host" */
    /* Before any other call, and before a stream is captured: no call will have more than `most`
     * floats. NULL: nothing is to be done. */
    int (*prepare)(struct collective *c, int64_t most, void *stream, struct err *e);
    /* out[i] = the sum of all ranks' in[i], i below n. `in` may be `out`. Pointers are of the
     * backend's memory; `stream` is its own, NULL on a CPU. 0, or -1 with a message. */
    int (*all_reduce)(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                      struct err *e);
    /* Optional: out[i] = the sum of all ranks' in[i], in their order, + residual[i], each addition
     * rounded to float. 1: not of so many, which is for all_reduce() and the caller; alike on all
     * ranks. */
    int (*reduce)(struct collective *c, const float *in, const float *residual, float *out,
                  int64_t n, void *stream, struct err *e);
    /* out[r * n + i] = rank r's in[i]: n floats of each rank, in their order. */
    int (*all_gather)(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                      struct err *e);
    /* Optional: this rank's view of an area; it lives as long as the collective. NULL: none. Of
     * GPUs its `host` is a struct peer_area (kernels/peer.h), and all else means nothing. */
    struct reduce_area *(*area)(struct collective *c, enum reduce_use use);
    /* Returns when every rank has called it. Host threads; not while a stream is captured. */
    int (*barrier)(struct collective *c, struct err *e);
    /* NULL, or why the world is over. Any thread. */
    const char *(*broken)(struct collective *c);
    /* Ends the world, with its reason: whoever waits comes back with an error. Any thread. */
    void (*abort)(struct collective *c, const char *why);
    void (*close)(struct collective *c);
};

enum { RANKS_ID = 192 };

/* How the ranks of a backend come to have a collective. */
struct ranks_ops {
    bool many_hosts; /* they may be on several */
    bool reduces; /* `reduce` is a slot of theirs, where it has an eager kernel (all ranks alike) */
    bool searched; /* a specializer may exchange their kernels: what it asks of the backend between
                      two steps (benches, checks) waits for no other rank */
    /* Rank 0, before any opens: what they will find each other by. `shared`: some of them have the
     * same device. */
    int (*make)(char id[RANKS_ID], int32_t world, bool one_host, bool shared, struct err *e);
    /* Every rank, at about the same time, on the thread that runs its steps. Waits of up to
     * `timeout_s` for others, then the world is over. NULL with a message. */
    struct collective *(*open)(const char id[RANKS_ID], int32_t rank, int32_t world,
                               double timeout_s, struct err *e);
    /* Rank 0, after make(): every rank has opened it, or none will any more. */
    void (*made)(const char id[RANKS_ID]);
    /* Optional: which device this process has, in a word that no other device has. */
    void (*device)(char *to, size_t n);
};

/* The first member of every implementation's own struct. */
struct collective {
    const struct collective_ops *ops;
    int32_t rank, world;
};

#endif
