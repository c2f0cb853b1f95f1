/* SPDX-License-Identifier: Apache-2.0 */
/* lt_record.h - the object of a library's kernel: one algorithm of cuBLASLt, as a text file.
 *
 * Needs neither the library nor a device. The algorithm itself is opaque: the library's own bytes,
 * good for the version that made them; `ids` says in words what they mean.
 */
#ifndef WHET_ENGINE_CUDA_LT_RECORD_H
#define WHET_ENGINE_CUDA_LT_RECORD_H

#include <stdbool.h>

#include "config/err.h"
#include "kernels/args.h"

enum { LT_WORDS = 8, LT_M_MOST = 2048 };

struct lt_record {
    int64_t library;    /* cublasLtGetVersion() */
    enum region region; /* that has the product */
    int32_t m;          /* largest number of tokens; [m, k] by [n, k] */
    int32_t n, k;
    char ids[200];
    uint64_t algo[LT_WORDS];
};

/* Whether the file begins as such a record does; a cubin does not. */
bool lt_record_is(const char *path);
int lt_record_write(const char *path, const struct lt_record *r, struct err *e);
/* Refuses whatever lt_record_write() would not have written. */
int lt_record_read(const char *path, struct lt_record *r, struct err *e);

#endif
