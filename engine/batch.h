/* SPDX-License-Identifier: Apache-2.0 */
/* batch.h - a schedule written out as the arrays of a step.
 *
 * One batch is one step in flight: its schedule, its arrays, its results. The engine has two and
 * uses them in turn (engine_step.c). Engine thread only.
 */
#ifndef WHET_ENGINE_BATCH_H
#define WHET_ENGINE_BATCH_H

#include "engine/backend.h"
#include "engine/crash.h"
#include "engine/scheduler.h"

struct batch {
    struct schedule schedule;
    struct step step;
    struct sequence **admitted; /* [max_batch] first run in this step */
    int32_t admitted_n;
    /* owned memory behind step's const pointers */
    int32_t *tokens, *position, *kv_at, *row, *page_table;
    int32_t page_table_size;
    struct span *span;
    struct sample_row *sample;
    /* the step under way: */
    const struct overrides *trial; /* the canary's candidates, or NULL */
    bool live;                     /* it counts for the canary */
    bool after_slice;              /* a slice was lent just before it */
    bool swapped;                  /* some slot's kernel was swapped just before it */
    bool same_bits;                /* each token has the bits that it would have alone */
    struct crash_kernels inside;   /* other kernels than eager ones */
    struct step_report report;
    bool feeds_next; /* its tokens can be read by a step started before it lands */
    int64_t start_ns;
};

struct batch *batch_open(const struct scheduler_limits *l);
void batch_close(struct batch *b);

/* Makes `step` from `schedule` and the sequences' tokens and pages as they are now. */
void batch_fill(struct batch *b);
/* The kernels that may end the process, or lose the device, in a step: `trial`'s where it has some,
 * else those in its slots. What runs in another process, and eager, are not among them. */
void batch_inside(struct crash_kernels *out, struct dispatch *d, const struct backend_ops *ops,
                  const struct step *s, const struct overrides *trial);
/* Before a step under way lands: the history of each row as it is by then. */
void batch_refresh(struct batch *b);

#endif
