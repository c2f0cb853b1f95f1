/* SPDX-License-Identifier: Apache-2.0 */
/* export.c - everything in a store that another one can use, as JSON. */
#include <stdio.h>

#include "specializer/store/store_json.h"
#include "specializer/transfer/export_text.h"
#include "specializer/transfer/transfer.h"

/* What the row's environment is in words, once for all rows of it. */
static void export_environment(struct store *s, const cJSON *row, cJSON *environments)
{
    const char *env = row_text(row, "environment");
    char name[80], text[STORE_ENVIRONMENT_MOST];
    snprintf(name, sizeof name, STORE_ENVIRONMENT "%s", env);
    if (!cJSON_HasObjectItem(environments, env) && store_value(s, name, text, sizeof text))
        cJSON_AddStringToObject(environments, env, text);
}

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
        cJSON *row, *environments = cJSON_AddObjectToObject(o, "environments");
        cJSON_ArrayForEach(row, rows)
        {
            export_text(s, row);
            export_environment(s, row, environments);
        }
        return o;
    }
    cJSON_Delete(o);
    return NULL;
}
