/* SPDX-License-Identifier: Apache-2.0 */
/* inputs.h - inputs for a kernel where no live step has left any. Any thread. */
#ifndef WHET_SPECIALIZER_ADMISSION_INPUTS_H
#define WHET_SPECIALIZER_ADMISSION_INPUTS_H

#include "engine/backend.h"

/* Seeded inputs of a slot at its full m, in the form of a capture: for benches before there was any
 * traffic. Free with capture_free and free. */
struct capture *capture_seeded(const struct model *model, const struct slot *slot,
                               int32_t decodes_most, uint64_t seed);

#endif
