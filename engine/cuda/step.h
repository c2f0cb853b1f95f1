/* SPDX-License-Identifier: Apache-2.0 */
/* step.h - a step under way: what is sent, how it is launched, and how its tokens come back.
 *
 * Engine thread. Two steps may be under way at once, one running and one waiting behind it.
 */
#ifndef WHET_ENGINE_CUDA_STEP_H
#define WHET_ENGINE_CUDA_STEP_H

#include <cuda_runtime_api.h>

#include "engine/backend.h"
#include "engine/cuda/graph.h"
#include "kernels/eager.h"

struct walk; /* walk.h */

/* A step in flight, with everything of it that must not be the next one's. There are two, used in
 * turn, so a step can be sent while the one before it runs. Pointers: pinned host memory. */
struct inflight {
    const struct step *step; /* NULL: not under way */
    struct kernel_choice choice;
    bool plain;       /* every row wants its best token and no more */
    bool wide;        /* runs on the wide block */
    bool hooked;      /* a hook observes it */
    bool graph;       /* it runs as a graph */
    bool drawn_there; /* every row's token is in b->best when it has run */
    int32_t rows, samples;
    int32_t launches[STEP_PLACES];
    double share[STEP_PLACES]; /* of its time, if it runs as a graph */
    int64_t start_ns;
    char *narrow_host, *wide_host; /* the blocks' mirrors */
    int32_t *best;
    struct eager_sample *sample; /* [samples] */
    struct eager_adjust *adjust;
    struct eager_sampled *sampled; /* [rows] written by the device */
    cudaEvent_t done;
    cudaEvent_t region_event[STEP_PLACES][2]; /* of a layer of each place */
};

/* transfer.c: a few KB to or from pinned host memory, on the stream. `early`: they are there
 * already, whatever runs before it on the stream. Both sides have room for whole 16 bytes. */
int transfer(struct backend *b, void *to, const void *from, size_t bytes, bool early,
             struct err *e);
/* First and last node of a graph. */
int transfer_open(struct walk *w, struct err *e);
int transfer_close(struct walk *w, struct err *e);
/* Launches a graph of the cell of `c` on the narrow block of b->inflight[b->parity], of which
 * `used` bytes are filled. The drawn tokens will be in its `best`. */
int transfer_launch(struct backend *b, const struct kernel_choice *c, cudaGraphExec_t exec,
                    size_t used, struct err *e);

/* sample.c */
bool sample_plain(const struct step *s);
/* Sets f->samples and f->drawn_there. */
int sample_launch(struct backend *b, struct inflight *f, const struct step *s, struct err *e);
void sample_collect(struct backend *b, const struct inflight *f, const struct step *s);

#endif
