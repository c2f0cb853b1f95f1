/* SPDX-License-Identifier: Apache-2.0 */
/* kv_dtype.c - see kv_dtype.h. */
#include "engine/kv_dtype.h"

#include <string.h>

int kv_dtype_settle(struct model *m, const char *wish, const struct backend_ops *ops,
                    struct err *err)
{
    bool host = !ops->kv_room; /* else pages are a device's, which has one type */
    m->shape.kv_bf16 = host && strcmp(wish, "bf16") == 0;
    if (!host && strcmp(wish, "f32") == 0)
        return err_set(err,
                       "engine.kv_dtype = f32: on a GPU keys and values are in bf16; say auto or "
                       "bf16, or engine.backend = cpu");
    return 0;
}

int64_t kv_page_bytes(const struct model_shape *s)
{
    return (int64_t)s->layers * 2 * s->kv_heads * KV_PAGE * s->head_dim * kv_element_bytes(s);
}
