/* SPDX-License-Identifier: Apache-2.0 */
/* hash.h - 64-bit names of things: FNV-1a over bytes, finished with a mix so that short inputs
 * spread. Identities, not signatures: nothing here withstands somebody who looks for collisions. */
#ifndef WHET_SPECIALIZER_CANDIDATE_HASH_H
#define WHET_SPECIALIZER_CANDIDATE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HASH_START UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Eight bytes at a step, for data that is large. */
static inline uint64_t hash_words(uint64_t h, const void *data, size_t n)
{
    const char *p = data;
    uint64_t word;
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&word, p + i, 8);
        h = (h ^ word) * UINT64_C(0x100000001b3);
        h ^= h >> 32;
    }
    return hash_bytes(h, p + i, n - i);
}

/* The terminating zero takes part, so ("ab","c") and ("a","bc") differ. */
static inline uint64_t hash_text(uint64_t h, const char *s)
{
    return hash_bytes(h, s, strlen(s) + 1);
}

static inline uint64_t hash_mix(uint64_t h)
{
    h ^= h >> 30;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    h ^= h >> 27;
    h *= UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static inline void hash_hex(uint64_t h, char out[17])
{
    snprintf(out, 17, "%016llx", (unsigned long long)hash_mix(h));
}

/* Seeded random numbers (splitmix64): the search must repeat exactly from its seed. */
static inline uint64_t random_next(uint64_t *state)
{
    return hash_mix(*state += UINT64_C(0x9e3779b97f4a7c15));
}

static inline int random_below(uint64_t *state, int n)
{
    return (int)(random_next(state) % (uint64_t)n);
}

#endif
