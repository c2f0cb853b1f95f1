/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.c - what a step and the host tell each other: the step's block in, the drawn tokens out.
 *
 * A few kilobytes each way, through kernels that read and write the host's memory: copy engines
 * have to be waited for, and wait, each time. An uncaptured step has a kernel for each
 * (transfer()). A graph brings its own, as first and last node, so nothing lies between one graph
 * and the next: open finds the block in one of two places, those of the two steps in flight, and
 * close leaves the tokens in one of two, and says on the device that the other is next.
 *
 * Invariant: b->told is which of them the next graph on the stream will find, -1 if nobody knows.
 * Where it is not the one that the host has filled, because steps were launched uncaptured
 * meanwhile or one failed, it is set by a kernel before the graph.
 */
#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

enum { THREADS = 128, OPEN_MOST = 64 << 10, BOTH_MOST = 16 << 10 };

int transfer(struct backend *b, void *to, const void *from, size_t bytes, bool early, struct err *e)
{
    struct walk w = {.b = b, .stream = b->stream};
    struct eager_copy_args a = {
        .from = from, .to = to, .n16 = (int32_t)((bytes + 15) / 16), .early = early};
    dim3 grid = {(unsigned)(a.n16 + THREADS - 1) / THREADS, 1, 1};
    return launch(&w, PRIM_COPY, grid, THREADS, 0, &a, e);
}

/* Bytes of the block that the graphs of a cell bring: what its sequences can need at most, within
 * reason. */
static size_t opened_bytes(const struct backend *b, const struct kernel_choice *c)
{
    const struct step_block *s = &b->narrow;
    int64_t pages = (int64_t)c->m * ((c->context + KV_PAGE - 1) / KV_PAGE);
    int64_t bytes = (char *)(s->page_table + pages) - s->device;
    bytes = bytes < s->bytes ? bytes : s->bytes;
    return (size_t)(bytes < OPEN_MOST ? bytes : OPEN_MOST) / 16 * 16;
}

int transfer_open(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    struct walk own = {.b = b, .stream = w->stream};
    size_t bytes = opened_bytes(b, w->choice);
    struct eager_open_args a = {.from = {b->inflight[0].narrow_host, b->inflight[1].narrow_host},
                                .to = b->narrow.device,
                                .parity = b->parity_device,
                                .n16 = (int32_t)(bytes / 16),
                                .both = bytes <= BOTH_MOST};
    dim3 grid = {(unsigned)(a.n16 + THREADS - 1) / THREADS, 1, 1};
    return launch(&own, PRIM_OPEN, grid, THREADS, 0, &a, e);
}

int transfer_close(struct walk *w, struct err *e)
{
    struct backend *b = w->b;
    struct walk own = {.b = b, .stream = w->stream};
    struct eager_close_args a = {.counts = b->narrow.counts,
                                 .best = b->best,
                                 .to = {b->inflight[0].best, b->inflight[1].best},
                                 .parity = b->parity_device};
    return launch(&own, PRIM_CLOSE, (dim3){1, 1, 1}, NARROW, 0, &a, e);
}

int transfer_launch(struct backend *b, const struct kernel_choice *c, cudaGraphExec_t exec,
                    size_t used, struct err *e)
{
    const struct step_block *s = &b->narrow;
    size_t brought = opened_bytes(b, c);
    int told = b->told;
    b->told = -1;
    if (told != b->parity && transfer(b, b->parity_device, b->parity_host[b->parity], 16, true, e))
        return -1;
    if (used > brought &&
        transfer(b, s->device + brought, s->host + brought, used - brought, true, e))
        return -1;
    CU(cudaGraphLaunch(exec, b->stream));
    b->told = !b->parity;
    return 0;
}
