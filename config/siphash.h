/* SPDX-License-Identifier: Apache-2.0 */
/* siphash.h - SipHash-2-4 (Aumasson and Bernstein, 2012): a hash of which nobody without the key
 * can make collisions. For tables whose keys come from clients. Any thread. */
#ifndef WHET_CONFIG_SIPHASH_H
#define WHET_CONFIG_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
    uint64_t k[2];
};

/* A key that was never used before and that nobody can guess. */
struct siphash_key siphash_key_random(void);
uint64_t siphash(const struct siphash_key *key, const void *bytes, size_t n);

#endif
