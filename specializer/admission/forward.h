/* SPDX-License-Identifier: Apache-2.0 */
/* forward.h - the whole model on one thread with any kernel in any region, down to the logits.
 *
 * For the end-to-end check: no pool, no scheduler, no sampling. A fixed set of sequences of equal
 * length, each with its own pages.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_FORWARD_H
#define WHET_SPECIALIZER_ADMISSION_FORWARD_H

#include "engine/cpu/sizes.h"
#include "engine/model.h"

struct forward;

/* Room for `sequences` of `length` tokens. Everything is allocated here; steps allocate nothing. */
struct forward *forward_open(const struct model *model, int32_t sequences, int32_t length);
void forward_close(struct forward *f);

/* Memory for forward_use(): everything that `k` will need. Calls nothing of it. */
void forward_room(struct forward *f, const struct cpu_kernel *k, const struct kernel_sizes *sizes);
/* From now on region `k->region` runs `k` with its packed weights, which are made here. Allocates
 * nothing. */
void forward_use(struct forward *f, const struct cpu_kernel *k);

/* One step over `count` sequences from `first` on, `width` tokens each at positions from `position`
 * on; tokens of sequence s are token[s * length + position ...]. Writes logits rows
 * logits[(s * length + p) * vocab]. */
void forward_step(struct forward *f, const int32_t *token, int32_t first, int32_t count,
                  int32_t position, int32_t width, float *logits);

#endif
