/* SPDX-License-Identifier: Apache-2.0 */
/* probe_reduce.h - the inside of the probe of a kernel of reduce: GPUs, each as a rank.
 *
 *   probe_reduce.c        the rounds, and what they show
 *   probe_reduce_gpus.c   memory of the ranks, numbers, launches, waiting
 */
#ifndef WHET_ENGINE_CUDA_PROBE_REDUCE_H
#define WHET_ENGINE_CUDA_PROBE_REDUCE_H

#include "engine/cuda/probe_private.h"
#include "kernels/peer.h"

enum {
    PARTY_CALLS = 8,       /* in a round */
    PARTY_BAND = 16 << 10, /* bytes of nobody around what a kernel may write */
    PARTY_SEGMENTS = 3,    /* what a call's predecessor writes: x, residual; out is spoilt */
    PARTY_PATTERN = 0xa5   /* of each byte that is nobody's */
};

/* A rank. Device pointers are of its own GPU, and reached by the others. */
struct party_gpu {
    int device;
    cudaStream_t stream;
    cudaEvent_t done;
    char *area;                                     /* PARTY_BAND, the area's memory, PARTY_BAND */
    float *x, *residual, *stage_x, *stage_residual; /* [PARTY_CALLS][most] */
    char *out;                                      /* [PARTY_CALLS] of PARTY_BAND, [most], ... */
    uint32_t *calls;
    struct probe_segment *segment; /* [PARTY_CALLS][PARTY_SEGMENTS] */
    unsigned *delay;               /* [PARTY_CALLS] ns */
    struct peer_area view;
    float *x_host; /* [PARTY_CALLS][most] */
    char *out_host, *area_host;
};

struct party {
    struct device_session *session;
    const struct device_reduce *q;
    struct backend *b;
    struct kernel *kernel;
    struct loaded *loaded;
    int32_t world, numbers; /* numbers: of an area */
    int64_t most;           /* of a call */
    int32_t m[PARTY_CALLS];
    struct party_gpu gpu[REDUCE_PEERS];
    float *residual_host; /* [PARTY_CALLS][most] */
    uint32_t *over;       /* the host's side */
    uint32_t *over_device;
    uint32_t count[REDUCE_WAYS]; /* calls that were made so far, of each way */
    int way;                     /* how the kernel's numbers travel, once that was seen; else -1.
                                    Words are not counted, so a kernel says so itself */
    int round, runs;
    bool late;                                    /* calls of this round have predecessors, */
    unsigned delay_ns[REDUCE_PEERS][PARTY_CALLS]; /* which wait so long */
    bool dead;                                    /* it did not end */
};

/* Seconds that the calls of a round may take; a test on slow threads sets more. */
extern double probe_reduce_s;

/* Bytes from one call's outputs to the next one's. */
size_t party_out_stride(const struct party *p);

/* Loads the kernel and gives each rank its memory. *verdict where -1 comes back. */
int party_open(struct party *p, enum device_verdict *verdict, struct err *e);
/* `sound`: the process goes on. */
void party_close(struct party *p, bool sound);

/* Draws all numbers of a round, sends them and the delays, spoils outputs. */
int party_fill(struct party *p, struct err *e);
/* Every byte of the areas and of what surrounds them; places of words are empty. */
int party_fill_areas(struct party *p, int value, struct err *e);
/* As if so many calls of each way had been made. */
int party_count(struct party *p, uint32_t calls, struct err *e);
/* The turn of call i, where the host says it. */
int32_t party_turn(const struct party *p, int i);
/* Call i on a rank, where there are delays behind a predecessor that lets it start at once and
 * writes its inputs late. Waits for nothing. */
int party_launch(struct party *p, int32_t rank, int i, struct err *e);
/* Waits for ranks [from, to). 0; 1: not ended after `limit_s`; -1: a GPU broke, party.dead. */
int party_wait(struct party *p, int32_t from, int32_t to, double limit_s, struct err *e);
/* Outputs, counts and (if `areas`) areas of all ranks to the host. */
int party_fetch(struct party *p, uint32_t count[REDUCE_PEERS][REDUCE_WAYS][REDUCE_COUNTS],
                bool areas, struct err *e);

#endif
