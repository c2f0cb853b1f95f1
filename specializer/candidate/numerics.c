/* SPDX-License-Identifier: Apache-2.0 */
/* numerics.c - see numerics.h: the table. */
#include "specializer/candidate/numerics.h"

#include <string.h>

static const struct {
    const char *text;
    enum numerics proofs;
    enum precision lowest;
} levels[NUMERICS_COUNT] = {
#define NUMERICS(name, text, proofs, lowest) {text, NUMERICS_##proofs, PRECISION_##lowest},
#include "specializer/candidate/numerics.def"
};

const char *numerics_name(enum numerics n)
{
    return levels[n].text;
}

bool numerics_find(const char *name, enum numerics *out)
{
    for (int n = 0; name && n < NUMERICS_COUNT; n++)
        if (strcmp(levels[n].text, name) == 0) {
            *out = (enum numerics)n;
            return true;
        }
    return false;
}

enum numerics numerics_proofs(enum numerics n)
{
    return levels[n].proofs;
}

bool numerics_allows(enum numerics n, enum precision p)
{
    return p <= levels[n].lowest;
}
