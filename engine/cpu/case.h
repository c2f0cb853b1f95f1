/* SPDX-License-Identifier: Apache-2.0 */
/* case.h - one run of one region in its own memory: what tests, probes, benches and shadows share.
 *
 * A case holds the inputs of a region (seeded or captured), the model's real weights of one layer,
 * and an output arena of its own. The arena can be poisoned, guarded and read back as rows, so the
 * code that judges a kernel never depends on which region it is. CPU memory.
 */
#ifndef WHET_ENGINE_CPU_CASE_H
#define WHET_ENGINE_CPU_CASE_H

#include <stdbool.h>

#include "engine/backend.h"
#include "engine/case_shape.h"

const char *fill_name(enum fill f);

struct kernel_case;

/* Weights, norms and biases come from `model` (or are replaced by random ones when `random_params`,
 * so that no gain is 1 and no bias 0). The case keeps a pointer to `model`. `guard`: outputs lie
 * against PROT_NONE pages on both sides and inputs are mapped read-only after filling. */
struct kernel_case *case_random(const struct model *model, const struct case_shape *shape,
                                enum fill fill, bool random_params, bool guard, uint64_t seed);
/* The same from captured live inputs. */
struct kernel_case *case_captured(const struct model *model, const struct capture *c, bool guard);
void case_free(struct kernel_case *c);

/* Refills the inputs in place (same pointers) with another seed. */
void case_refill(struct kernel_case *c, enum fill fill, uint64_t seed);
/* Fills all outputs (KV pages included) and guard bands with NaN bits. */
void case_poison(struct kernel_case *c);
/* The args struct of the region, outputs pointing into the case's arena. */
void *case_args(struct kernel_case *c);
enum region case_region(const struct kernel_case *c);
/* Points the args at packed weights (in the order of bind_weights()); NULLs
 * clear. */
void case_set_packed(struct kernel_case *c, const void *const packed[3]);
/* The weights a kernel of this region may repack, in that order; returns how many (0 for attn). */
int case_weights(const struct kernel_case *c, struct weight *out[3]);

/* Reads output `i` (as oracle_out orders them) into rows of floats; KV is gathered from the pages.
 * Returns false if output `i` does not exist. `value` is malloc'ed. */
bool case_output(const struct kernel_case *c, int i, int32_t *rows, int32_t *cols, float **value);
/* NULL, or what was damaged: a guard band, KV positions that are not the step's own, an input. */
const char *case_damage(const struct kernel_case *c);
/* Hash of every input buffer's bytes and of the shape. Weights that lie in the model are not among
 * them: the layer says which those are. */
uint64_t case_digest(const struct kernel_case *c);
/* "input x", "wall after output 1", ...: what of this case lies at address `p`; NULL: nothing.
 * Static storage per thread. */
const char *case_where(const struct kernel_case *c, const void *p);

#endif
