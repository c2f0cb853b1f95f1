/* SPDX-License-Identifier: Apache-2.0 */
/* peer_area.h - areas in which kernels of reduce meet between GPUs (kernels/peer.h). */
#ifndef WHET_ENGINE_CUDA_PEER_AREA_H
#define WHET_ENGINE_CUDA_PEER_AREA_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/peer.h"

/* Bytes of a rank's memory for calls of up to so many numbers (a multiple of 64), and of its counts
 * of calls; zero at first, but for places of words, which are empty; the memory at a multiple of
 * 256 bytes. */
size_t peer_area_bytes(int32_t world, int32_t numbers);
size_t peer_area_counts(void);

/* Of that memory, where places of words (REDUCE_WORDS) begin; they reach to its end. */
size_t peer_words_at(int32_t world, int32_t numbers);

/* Whether this process can find the GPUs of `world` ranks: those that launch.c left in
 * WHET_RANK_GPUS, its own first. A probe must, and without one no kernel is searched for. */
bool peer_gpus_known(int32_t world);

#endif
