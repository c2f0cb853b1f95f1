/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.h - SHA-256 (FIPS 180-4), for names of secrets that do not reveal them. Any thread. */
#ifndef WHET_CONFIG_SHA256_H
#define WHET_CONFIG_SHA256_H

#include <stddef.h>

enum { SHA256_BYTES = 32 };

void sha256(const void *bytes, size_t n, unsigned char out[SHA256_BYTES]);

#endif
