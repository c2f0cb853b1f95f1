/* SPDX-License-Identifier: Apache-2.0 */
/* device_weights.c - see device_weights.h. */
#include "engine/device_weights.h"

#include <string.h>

#include "config/log.h"
#include "engine/plan.h"
#include "engine/quant.h"
#include "kernels/bricks.h"

/* Whether some matrix is in a format that a device can keep. */
static bool keeps_any(const struct model *m)
{
    for (int32_t l = 0; l < m->shape.layers; l++)
        for (int r = REGION_EMBED; r < REGION_COUNT; r++)
            if (device_type(m, (enum region)r, l, 1) != DTYPE_BF16)
                return true;
    return false;
}

/* Bytes for pages, if the model is kept so; *page: of one. */
static int64_t room_with(struct model *m, bool own, bool copies, const struct backend_ops *ops,
                         const struct backend_options *o, int64_t *page)
{
    m->own_formats = own;
    m->bf16_copies = copies;
    return ops->kv_room(m, o, page);
}

/* Whether there is room for both forms. */
static bool both_fit(struct model *m, const struct backend_ops *ops,
                     const struct backend_options *o, const struct kv_wish *kv)
{
    int64_t page = 0, other = 0, room = room_with(m, true, true, ops, o, &page);
    if (kv->pages > 0 || kv->mib > 0)
        return room >= kv->pages * page && room >= kv->mib * 1048576;
    if (room >= kv->most_pages * page)
        return true;
    return room > 0 && room >= room_with(m, false, false, ops, o, &other) / 4 * 3;
}

void device_weights_settle(struct model *m, const char *wish, bool e4m3,
                           const struct backend_ops *ops, const struct backend_options *o,
                           const struct kv_wish *kv)
{
    m->own_formats = true;
    if (m->fine_scales && ops->kv_room)
        log_info("engine",
                 "weights in F8 become bf16 on the device, because they have a scale for "
                 "fewer than %d columns",
                 BRICK_SCALED);
    bool any = ops->kv_room && keeps_any(m), choose = any && strcmp(wish, "auto") == 0;
    bool both = choose ? both_fit(m, ops, o, kv) : any && strcmp(wish, "both") == 0;
    m->bf16_copies = both;
    m->e4m3_products = both && e4m3 && ops->e4m3 && ops->e4m3();
    m->own_formats = both || choose || (any && strcmp(wish, "own") == 0);
    if (choose)
        log_info("engine",
                 "weights on the device: in the file's own formats%s "
                 "(engine.device_weights)",
                 both ? ", and as bf16 for steps of many tokens"
                      : " alone, because bf16 beside them would leave too little for KV pages");
}
