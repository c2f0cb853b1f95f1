/* batch.h - a schedule written out as the arrays of a step.
 *
 * One batch is one step in flight: its schedule, its arrays, its results. The loop uses one; a
 * backend that works ahead of the host would use two in turn. Engine thread only.
 */
#ifndef WHET_ENGINE_BATCH_H
#define WHET_ENGINE_BATCH_H

#include "engine/backend.h"
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
};

struct batch *batch_open(const struct scheduler_limits *l);
void batch_close(struct batch *b);

/* Makes `step` from `schedule` and the sequences' tokens and pages as they are now. */
void batch_fill(struct batch *b);

#endif
