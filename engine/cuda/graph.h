/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h - steps that were captured: one graph for a bucket and the kernels chosen for it.
 *
 * The engine thread asks for graphs and launches them; a thread of its own (the builder) captures
 * and instantiates, so that no step waits for it. Cells and the request are under
 * builder.lock, but for the fields that say which thread they belong to.
 */
#ifndef WHET_ENGINE_CUDA_GRAPH_H
#define WHET_ENGINE_CUDA_GRAPH_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "engine/backend.h"

enum {
    NARROW_BUCKETS = 12,
    DECODE_WIDTHS = 7, /* multiples of NARROW from two to DECODE_MOST */
    WIDE_CELLS = 8,
    VARIANTS = 4 /* graphs that a cell keeps */
};

/* What a step runs: the kernels, and the buckets they were chosen for. */
struct kernel_choice {
    /* By place (formats_place()). Spans have eager's, and no slot; neither has reduce where its
     * kernels are not searched. NULL: a place behind REGION_NODES that no layer has. */
    const struct kernel *kernel[STEP_PLACES];
    struct slot *slot[STEP_PLACES];
    int32_t m, rows;        /* bucket values (narrow), or the padded counts (wide) */
    int32_t context;        /* bucket value */
    int32_t tiles, singles; /* wide: what attention is launched for */
    int32_t lead; /* not decode: tokens of which the kernel of attention is a template's */
    bool decode;  /* every sequence has one token */
    bool trial;   /* one kernel is a canary's, and in no slot */
};

struct variant {
    struct kernel_choice choice;
    int32_t launches[STEP_PLACES];
    cudaGraphExec_t exec; /* NULL: empty */
    uint64_t last_used;
    uint64_t steps;            /* that it could run; engine thread */
    bool timed;                /* a step of exactly these kernels was, since it is there */
    double share[STEP_PLACES]; /* of that step's time; engine thread */
};

struct cell {
    struct variant variant[VARIANTS];
    bool asked;                /* the builder has it */
    uint64_t not_before;       /* step: a graph of it could not be made */
    struct kernel_choice last; /* wide: of the cell's last step, and how often in a row; engine */
    int32_t repeats;           /* thread */
    double share[STEP_PLACES]; /* of a step's time, as last measured of whatever kernels: a graph's
                                  until it is timed itself; engine thread */
    const struct kernel *served[STEP_PLACES]; /* by the last graph, canaries aside; engine thread */
};

struct builder {
    pthread_t thread;
    pthread_mutex_t lock; /* cells, request; never held while something is captured */
    pthread_cond_t wake;
    bool running, stop;
    bool busy; /* a graph of `making` is made, perhaps out of an executable of `leaving` */
    struct kernel_choice making, leaving;
    struct cell *cell; /* that wants a graph of `request` next; NULL: none */
    struct kernel_choice request;
    cudaStream_t stream;
};

int graph_open(struct backend *b, struct err *e);
void graph_close(struct backend *b);
/* The executable of a choice, or an older one of the same bucket while the builder makes the right
 * one; never one that was made for a canary and nothing else. NULL: neither is there, or the older
 * one has a kernel that was unloaded, or one where eager or an earlier kernel is wanted, which may
 * be because it is wrong; then the step is launched uncaptured. Never captures. */
struct variant *graph_get(struct backend *b, const struct kernel_choice *c);
/* The same for a wide step, of which no other graph will do; asks for one once the same step has
 * come WIDE_REPEATS times in a row, or twice where every sequence has one token. It begins after
 * the block has been copied and leaves no tokens. */
struct variant *graph_get_wide(struct backend *b, const struct kernel_choice *c);
bool graph_uses(struct backend *b, const struct kernel *k, bool drop);
/* Whether there is a graph of exactly this choice; asks the builder for one if not. */
bool graph_there(struct backend *b, const struct kernel_choice *c);
/* The same without asking. */
bool graph_known(struct backend *b, const struct kernel_choice *c);

/* Ends the capture on `stream` and makes an executable of it: *exec, which is NULL or used no more,
 * is updated if `update` says that it can be, else replaced. `failed`: what was captured is not
 * whole, and e has a message; the capture ends all the same. 0, or -1. The caller's thread began
 * it. */
int graph_capture_end(cudaStream_t stream, int failed, cudaGraphExec_t *exec, bool update,
                      struct err *e);

/* A step of this choice spent so much of its time in each region: the cell's graph of exactly these
 * kernels, if there is one, and the cell know it from now on. Engine thread. */
void graph_timed(struct backend *b, const struct kernel_choice *c, const double share[STEP_PLACES]);

/* The cell that steps of these buckets belong to. */
struct cell *graph_cell(struct backend *b, const struct kernel_choice *c);

#endif
