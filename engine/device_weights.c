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

void device_weights_settle(struct model *m, const char *wish, const struct backend_ops *ops,
                           const struct backend_options *o, int64_t least_pages)
{
    int64_t page = 0, room = 0;
    m->own_formats = true;
    if (m->fine_scales && ops->kv_room)
        log_info("engine",
                 "weights in F8 become bf16 on the device, because they have a scale for "
                 "fewer than %d columns",
                 BRICK_SCALED);
    bool any = ops->kv_room && keeps_any(m);
    m->bf16_copies = any && strcmp(wish, "both") == 0;
    m->own_formats = m->bf16_copies || (any && strcmp(wish, "own") == 0);
    if (!any || strcmp(wish, "auto") != 0)
        return;
    room = ops->kv_room(m, o, &page);
    m->own_formats = room < least_pages * page;
    log_info("engine", "weights on the device: %s",
             m->own_formats ? "in the file's own formats, because bf16 does not fit"
                            : "bf16, for which there is room (engine.device_weights)");
}
