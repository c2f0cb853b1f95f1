/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_points.h - points of the CUDA templates for the tests that compile them by themselves: facts
 * of a shape, points by chance, their names, their cubins. Spaces and rules are the specializer's
 * own. */
#ifndef WHET_TESTS_KERNELS_CUDA_POINTS_H
#define WHET_TESTS_KERNELS_CUDA_POINTS_H

#include "specializer/search/space.h"
#include "tests/kernels/cuda_build.h"

/* Facts of a region of a model of this shape, with bf16 weights, on a GPU. */
struct facts cuda_facts(const struct model_shape *s, enum region region, int m_max, int sms);

/* The same with weights of which the device keeps the format. */
struct facts cuda_facts_in(const struct model_shape *s, enum region region, int m_max, int sms,
                           enum dtype type);
/* Whether a template reads weights in blocks, and no bf16. */
bool cuda_reads_bricks(const struct template *t);
/* The n-th format, counted round, of those that a template reads for m tokens: bf16, or one of
 * blocks. */
enum dtype cuda_type(const struct template *t, int m, int n);

/* The START row's point, or the defaults. */
struct point cuda_start(const struct template *t, const struct facts *f);
/* A legal point by chance, which moves on with *z; false if a million tries found none. */
bool cuda_point_random(const struct template *t, const struct facts *f, uint32_t *z,
                       struct point *p);
/* What differs from the defaults, as "NAME=value ..."; "defaults" if nothing does. */
void cuda_point_text(const struct template *t, const struct point *p, char *out, size_t size);
/* The point's cubin through NVRTC: as cuda_build(). Any thread. */
char *cuda_point_build(const char *root, const char *arch, const struct template *t,
                       const struct facts *f, const struct point *p, size_t *size, char *why);

#endif
