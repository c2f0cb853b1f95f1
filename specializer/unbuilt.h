/* SPDX-License-Identifier: Apache-2.0 */
/* unbuilt.h - texts of a language model whose builds decided nothing: a few tries, not one after
 * the other for as long as the server runs. Specializer thread. */
#ifndef WHET_SPECIALIZER_UNBUILT_H
#define WHET_SPECIALIZER_UNBUILT_H

#include "specializer/candidate/stage.h"

enum { UNBUILT_MOST = 3, UNBUILT_KNOWN = 64 };

/* The last such texts. */
struct unbuilts {
    struct unbuilt {
        char key[KEY_HEX + 1];
        int32_t n;
        uint64_t at; /* `all` when it was not built last */
    } of[UNBUILT_KNOWN];
    uint64_t all;
};

/* A build of the candidate decided nothing: RETRY, or REFUSE with a reason when that has happened
 * UNBUILT_MOST times. */
enum stage_result unbuilt_came(struct unbuilts *u, struct candidate *c);

#endif
