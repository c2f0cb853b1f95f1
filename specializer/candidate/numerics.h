/* SPDX-License-Identifier: Apache-2.0 */
/* numerics.h - specializer.numerics: what outputs a kernel may produce, and what it may make of its
 * activations. numerics.def is the one list of levels. Pure; any thread.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_NUMERICS_H
#define WHET_SPECIALIZER_CANDIDATE_NUMERICS_H

#include <stdbool.h>

enum numerics {
#define NUMERICS(name, text, proofs, lowest) NUMERICS_##name,
#include "specializer/candidate/numerics.def"
    NUMERICS_COUNT
};

/* Precision of activations that a kernel declares, each lower than the one before. */
enum precision { PRECISION_F32, PRECISION_BF16, PRECISION_INT8, PRECISION_E4M3, PRECISION_COUNT };

/* "tolerance"; and back: false for what is no level (NULL is none). */
const char *numerics_name(enum numerics n);
bool numerics_find(const char *name, enum numerics *out);
/* The level whose evidence `n` is served with: itself, but `tolerance` for `frozen`. */
enum numerics numerics_proofs(enum numerics n);
/* Whether a kernel may declare `p`. */
bool numerics_allows(enum numerics n, enum precision p);

#endif
