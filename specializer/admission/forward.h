/* SPDX-License-Identifier: Apache-2.0 */
/* forward.h - the whole model on one thread with any kernel in any region, down to the logits.
 *
 * For the end-to-end check: no pool, no scheduler, no sampling. A fixed set of sequences of equal
 * length, each with its own pages.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_FORWARD_H
#define WHET_SPECIALIZER_ADMISSION_FORWARD_H

#include "engine/cpu/sizes.h"
#include "engine/formats.h"
#include "engine/model.h"

struct forward;

/* Room for `sequences` of `length` tokens. Everything is allocated here; steps allocate nothing. */
struct forward *forward_open(const struct model *model, int32_t sequences, int32_t length);
void forward_close(struct forward *f);

/* Memory for forward_use(): everything that `k` will need in the layers of `formats`, which outlive
 * `f`; NULL: in all. Calls nothing of it. */
void forward_room(struct forward *f, const struct cpu_kernel *k, const struct format_class *formats,
                  const struct kernel_sizes *sizes);
/* From now on region `k->region` runs `k` in these layers, and eager in the others. Its packed
 * weights are made here. Allocates nothing. */
void forward_use(struct forward *f, const struct cpu_kernel *k);

/* The kernel of forward_use() gets a step's tokens one by one, each as in a step of its own: with
 * tokens that are given beforehand, every call of it is the one that steps of one token would make,
 * layer by layer instead of step by step. The other regions' bits are those of such steps as far as
 * eager's are (EAGER_NARROW tokens). */
void forward_by_rows(struct forward *f);

/* One step over `count` sequences from `first` on, `width` tokens each at positions from `position`
 * on; tokens of sequence s are token[s * length + position ...]. Writes logits rows
 * logits[(s * length + p) * vocab]. */
void forward_step(struct forward *f, const int32_t *token, int32_t first, int32_t count,
                  int32_t position, int32_t width, float *logits);

/* Lets the eager kernels' own buffers grow to what such a step of the first `count` sequences will
 * need. Not a whole step: of layers that follow each other with weights of the same formats the
 * first runs. */
void forward_stretch(struct forward *f, const int32_t *token, int32_t count, int32_t position,
                     int32_t width);

#endif
