/* SPDX-License-Identifier: Apache-2.0 */
/* device_weights.h - whether a device keeps weights in the format of the file.
 *
 * Decided once for a model, before its backend opens: whoever counts bytes, names formats or
 * compiles kernels asks device_type() (plan.h), which follows the model.
 */
#ifndef WHET_ENGINE_DEVICE_WEIGHTS_H
#define WHET_ENGINE_DEVICE_WEIGHTS_H

#include "engine/backend.h"
#include "engine/model.h"

/* `wish` is engine.device_weights. auto: bf16 where that, with `least_pages` pages of keys and
 * values and repacked weights, fits the device. `o` is what the backend will be opened with, but
 * for pages. Sets m->own_formats and m->bf16_copies; a backend in host memory has no use for them.
 */
void device_weights_settle(struct model *m, const char *wish, const struct backend_ops *ops,
                           const struct backend_options *o, int64_t least_pages);

#endif
