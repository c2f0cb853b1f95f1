/* SPDX-License-Identifier: Apache-2.0 */
/* collective_cuda.h - collectives of device memory, on a stream: by NCCL, from GPU to GPU, or
 * through host memory.
 *
 * All can be captured into graphs. prepare() comes before the first call and before any capture.
 */
#ifndef WHET_ENGINE_CUDA_COLLECTIVE_CUDA_H
#define WHET_ENGINE_CUDA_COLLECTIVE_CUDA_H

#include "engine/collective.h"

enum { NCCL_ID = 128 };

/* What a world of NCCL finds itself by; -1 with a message, too, where there is no libnccl.so.2. */
int collective_nccl_id(char id[NCCL_ID], struct err *e);
struct collective *collective_nccl_open(const char id[NCCL_ID], int32_t rank, int32_t world,
                                        struct err *e);

/* Of ranks on one host whose GPUs can write each other's memory: small sums by a kernel of ours,
 * the rest by `nccl`, which it closes. Whether they can is found in prepare(), on all ranks alike.
 * Returns `nccl` itself where the world has too many ranks for that, or one. */
struct collective *collective_peer_open(struct collective *nccl);

/* The same through `shm`, a collective of the host, which it closes: for ranks that share a device,
 * which NCCL refuses, and where NCCL is not. */
struct collective *collective_host_open(struct collective *shm);

extern const struct ranks_ops cuda_ranks;

#endif
