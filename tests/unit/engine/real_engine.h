/* SPDX-License-Identifier: Apache-2.0 */
/* real_engine.h - an engine with a real backend, started as a server starts it, for tests. */
#ifndef WHET_TESTS_UNIT_ENGINE_REAL_ENGINE_H
#define WHET_TESTS_UNIT_ENGINE_REAL_ENGINE_H

#include "tests/unit/unit.h"

#include <unistd.h>

#include "engine/engine.h"

/* Started and ready; fails the test with the engine's words if it cannot be. */
static inline struct engine *start_ready(const struct config *c)
{
    struct err err = {""};
    char message[256];
    struct engine *e = engine_start(c, &err);
    if (!e)
        fail_msg("%s", err.msg);
    while (engine_state(e, NULL, NULL, 0) == ENGINE_LOADING)
        usleep(1000);
    if (engine_state(e, NULL, message, sizeof message) != ENGINE_READY)
        fail_msg("%s", message);
    return e;
}

#endif
