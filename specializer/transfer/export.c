/* SPDX-License-Identifier: Apache-2.0 */
/* export.c - everything in a store that another one can use, as JSON. */
#include "specializer/store/store_json.h"
#include "specializer/transfer/export_text.h"
#include "specializer/transfer/transfer.h"

static void export_row(void *ctx, const struct record *r)
{
    cJSON_AddItemToArray(ctx, record_json(r));
}

cJSON *store_export(struct store *s, struct err *err)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "whet_store", EXPORT_VERSION);
    cJSON *rows = cJSON_AddArrayToObject(o, "kernels");
    struct record_filter all = {0};
    if (store_each(s, &all, export_row, rows, err) == 0) {
        cJSON *row;
        cJSON_ArrayForEach(row, rows) export_text(s, row);
        return o;
    }
    cJSON_Delete(o);
    return NULL;
}
