/* SPDX-License-Identifier: Apache-2.0 */
/* kv_dtype.h - of what type keys and values are: engine.kv_dtype.
 *
 * A GPU keeps bf16. A CPU keeps floats, or bf16: half the bytes of a decode step's largest part at
 * long contexts, and twice the positions in as much memory, for keys and values that are rounded by
 * up to 2^-8 of themselves.
 */
#ifndef WHET_ENGINE_KV_DTYPE_H
#define WHET_ENGINE_KV_DTYPE_H

#include "engine/backend.h"

/* Sets m->shape.kv_bf16 by `wish`, which is "auto", "f32" or "bf16", for a model that `ops` will
 * open. -1 with a message where the backend has no such cache. Before anything reads the shape. */
int kv_dtype_settle(struct model *m, const char *wish, const struct backend_ops *ops,
                    struct err *err);

/* Bytes of a KV page of such a model in all layers, in host memory. */
int64_t kv_page_bytes(const struct model_shape *s);

#endif
