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

/* Keys and values that the engine will want on the device. */
struct kv_wish {
    int64_t pages,
        mib; /* asked for (engine.kv_pages, engine.kv_mib); 0: whatever there is room for */
    int64_t most_pages; /* more are of no use unless asked for */
};

/* `wish` is engine.device_weights. auto: formats of the file, and bf16 beside them where that
 * leaves room for the pages asked for; where none are, for most_pages or three quarters of what
 * bf16 alone would leave. `o` is what the backend will be opened with, but for pages. `e4m3`:
 * kernels may have activations in it. Sets m->own_formats, m->bf16_copies and m->e4m3_products; a
 * backend in host memory has no use for them.
 */
void device_weights_settle(struct model *m, const char *wish, bool e4m3,
                           const struct backend_ops *ops, const struct backend_options *o,
                           const struct kv_wish *kv);

#endif
