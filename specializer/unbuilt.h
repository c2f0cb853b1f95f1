/* SPDX-License-Identifier: Apache-2.0 */
/* unbuilt.h - candidates of which a child that died decided nothing: texts of a language model that
 * were not built, and whatever kills its probe. A few tries, not one after the other for as long as
 * the server runs. Specializer thread. */
#ifndef WHET_SPECIALIZER_UNBUILT_H
#define WHET_SPECIALIZER_UNBUILT_H

#include "specializer/candidate/stage.h"
#include "specializer/store/store.h"

enum { UNBUILT_MOST = 3, UNBUILT_KNOWN = 64, PROBE_DEATHS_MOST = 3 };

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

/* Its probe died without a verdict, which the store counts: RETRY, or REFUSE with a reason when
 * that has happened PROBE_DEATHS_MOST times, whichever server of the store saw it. */
enum stage_result unprobed_came(struct store *store, struct candidate *c);

#endif
