/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.c - see siphash.h. Words are little-endian whatever the machine. */
#include "config/siphash.h"

#include <sys/random.h>

#include "config/clock.h"

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void rounds(uint64_t v[4], int n)
{
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

static uint64_t word(const unsigned char *p, size_t n)
{
    uint64_t w = 0;
    for (size_t i = 0; i < n; i++)
        w |= (uint64_t)p[i] << (8 * i);
    return w;
}

static void absorb(uint64_t v[4], uint64_t w)
{
    v[3] ^= w;
    rounds(v, 2);
    v[0] ^= w;
}

uint64_t siphash(const struct siphash_key *key, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t v[4] = {key->k[0] ^ 0x736f6d6570736575u, key->k[1] ^ 0x646f72616e646f6du,
                     key->k[0] ^ 0x6c7967656e657261u, key->k[1] ^ 0x7465646279746573u};
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8)
        absorb(v, word(p, 8));
    absorb(v, (uint64_t)n << 56 | word(p, left));
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

struct siphash_key siphash_key_random(void)
{
    struct siphash_key key = {{0, 0}};
    /* A kernel without getrandom: hard to guess from outside is the best there is. */
    if (getrandom(&key, sizeof key, 0) != (ssize_t)sizeof key)
        key = (struct siphash_key){{(uint64_t)clock_ns(), (uint64_t)(uintptr_t)&key}};
    return key;
}
