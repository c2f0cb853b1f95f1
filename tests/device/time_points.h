/* SPDX-License-Identifier: Apache-2.0 */
/* time_points.h - points of the template of reduce, run by two ranks, each in a process of its
 * own: whether their sums are right, and what one takes in a graph. */
#ifndef WHET_TESTS_DEVICE_TIME_POINTS_H
#define WHET_TESTS_DEVICE_TIME_POINTS_H

#include <cuda_runtime_api.h>

#include "engine/collective.h"

/* By all cores, for `arch`. In each rank, which makes the same ones: a process that has compiled
 * must not be forked any more, since NVRTC may leave the driver open in it. */
struct sum_points *sum_points_compile(const char *root, const char *arch);

/* What a rank has for it: its stream, and memory on its GPU. */
struct sum_rank {
    int rank;
    struct collective *peer, *nccl;
    cudaStream_t stream;
    float *in, *residual, *out; /* [64 * 4096] */
};

/* All of them on a rank; both ranks call it at once. Rank 0 prints, for each size, NCCL, the eager
 * kernel, START and the best of each way and number of shots. Returns how many sums were wrong, or
 * -1. */
int sum_points_time(const struct sum_points *p, const struct sum_rank *r, struct err *e);

#endif
