/* SPDX-License-Identifier: Apache-2.0 */
/* machine.h - measures what this machine can do (struct machine of engine/plan.h). */
#ifndef WHET_ENGINE_CPU_MACHINE_H
#define WHET_ENGINE_CPU_MACHINE_H

#include "engine/cpu/pool.h"
#include "engine/plan.h"

/* Measures with every thread of `pool`, reading the model's own weights (which also brings their
 * pages in). Takes 20-100 ms. */
void machine_measure(const struct model *model, struct pool *pool, struct machine *out);

#endif
