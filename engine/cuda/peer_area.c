/* SPDX-License-Identifier: Apache-2.0 */
/* peer_area.c - see peer_area.h. */
#include "engine/cuda/peer_area.h"

#include <stdlib.h>
#include <string.h>

size_t peer_area_bytes(int32_t world, int32_t numbers)
{
    return (size_t)REDUCE_AT(REDUCE_WAYS, world, numbers) * 16;
}

size_t peer_words_at(int32_t world, int32_t numbers)
{
    return (size_t)REDUCE_AT(REDUCE_WORDS, world, numbers) * 16;
}

size_t peer_area_counts(void)
{
    return (size_t)REDUCE_WAYS * REDUCE_COUNTS * sizeof(uint32_t);
}

bool peer_gpus_known(int32_t world)
{
    const char *gpus = getenv("WHET_RANK_GPUS");
    int32_t n = gpus && *gpus;
    for (const char *at = gpus; n && (at = strchr(at, ',')); at++)
        n++;
    return n >= world;
}
