/* SPDX-License-Identifier: Apache-2.0 */
/* wide.h - loaded kernels of wide steps, and those of others that read bf16: what they are given
 * beside their region's arguments (struct cuda_wide of kernels/cuda.h), and what else is made of
 * what they leave.
 *
 * Whoever makes a walk calls these, with that walk.
 */
#ifndef WHET_ENGINE_CUDA_WIDE_H
#define WHET_ENGINE_CUDA_WIDE_H

#include "engine/backend.h"
#include "kernels/cuda.h"

struct loaded; /* loaded.h */
struct walk;   /* walk.h */

/* What kernel `l` needs and this device or region does not have. -1 with a message. */
int wide_check(const struct backend *b, const struct loaded *l, enum region r, struct err *e);
/* Where region r leaves what it has in bf16; NULL: it leaves none. */
void *wide_left16(const struct walk *w, enum region r);
/* Whether attn_in leaves float queries of all tokens for a template of attention (walk_floats). */
bool wide_floats(const struct walk *w);
/* Makes the region's bf16 input, if it is not there, and fills `a`; `work` is the kernel's working
 * memory. */
int wide_begin(struct walk *w, const struct loaded *l, enum region r, void *work,
               struct cuda_wide *a, struct err *e);
/* What the region left in bf16 also as float, where the walk wants that (a probe's). */
int wide_end(struct walk *w, enum region r, struct err *e);

#endif
