/* SPDX-License-Identifier: Apache-2.0 */
/* toy_engine.h - engine.h and specializer.h without a model, for tests of the HTTP side.
 *
 * It echoes: token k of the answer is token k of the prompt, over and over; the end-of-text token
 * ends it. Tokens are bytes (ids 0..255) plus three special ones. Text, stop strings and ends go
 * through the engine's own sequence.c, so events have their real shape. Everything that a test
 * wants to happen is set in `toy`.
 */
#ifndef WHET_TESTS_UNIT_SERVER_TOY_ENGINE_H
#define WHET_TESTS_UNIT_SERVER_TOY_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TOY_CONTEXT = 512, TOY_EOS = 256, TOY_IM_START = 257, TOY_IM_END = 258, TOY_VOCAB = 259 };

struct toy {
    _Atomic int step_us;  /* time of a step */
    _Atomic bool loading; /* engine_state says loading */
    _Atomic bool lost;    /* ... or that the device is gone */
    _Atomic bool hold;    /* no steps while set: requests stay queued or running */
    _Atomic int fail_at;  /* a request fails instead of its n-th token; -1: never */
    _Atomic int pause_at; /* no request gets more tokens than this; -1: as many as it wants */
    _Atomic int batch;    /* sequences running together */
    _Atomic int queue;    /* further ones waiting */
    _Atomic int retry_s;  /* what those above hear of when to come back */
    _Atomic int submitted, cancelled, ended; /* counts */
    _Atomic double stalled;
};
extern struct toy toy;

/* Back to: ready, fast, never failing, 8 running and 8 waiting, counts at 0. */
void toy_reset(void);

#endif
