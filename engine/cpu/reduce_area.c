/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_area.c - rank after rank: flags, the line of its sleepers, two places. */
#include "engine/cpu/reduce_area.h"

enum { FLAG_WORDS = REDUCE_SLICES * REDUCE_FLAG, SLEEPER_WORDS = REDUCE_FLAG };

size_t reduce_area_part(int32_t r)
{
    size_t words = FLAG_WORDS + SLEEPER_WORDS + 2 * (size_t)REDUCE_FLOATS;
    return (size_t)r * words * sizeof(uint32_t);
}

size_t reduce_area_bytes(int32_t world)
{
    return reduce_area_part(world);
}

void reduce_area_aim(struct reduce_area *a, void *memory, int32_t rank, int32_t world)
{
    a->rank = rank;
    a->world = world;
    for (int32_t r = 0; r < world; r++) {
        uint32_t *part = (uint32_t *)(void *)((char *)memory + reduce_area_part(r));
        a->flag[r] = part;
        a->sleepers[r] = part + FLAG_WORDS;
        a->place[r][0] = (float *)(void *)(part + FLAG_WORDS + SLEEPER_WORDS);
        a->place[r][1] = a->place[r][0] + REDUCE_FLOATS;
    }
}
