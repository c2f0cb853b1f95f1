/* SPDX-License-Identifier: Apache-2.0 */
/* store_json.c - see store_json.h. */
#include "specializer/store/store_json.h"

#include "specializer/candidate/evidence.h"
#include "specializer/candidate/life.h"

cJSON *gain_json(const struct gain *g)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "pairs", g->pairs);
    cJSON_AddNumberToObject(o, "mean", g->mean);
    cJSON_AddNumberToObject(o, "low", g->low);
    cJSON_AddNumberToObject(o, "high", g->high);
    return o;
}

cJSON *record_json(const struct record *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", r->key);
    cJSON_AddStringToObject(o, "name", r->name);
    cJSON_AddStringToObject(o, "slot", r->slot);
    cJSON_AddStringToObject(o, "template", r->template);
    cJSON_AddStringToObject(o, "knobs", r->knobs);
    cJSON_AddStringToObject(o, "origin", origin_name(r->origin));
    cJSON_AddStringToObject(o, "state", life_name(r->state));
    cJSON_AddBoolToObject(o, "bit_equal", r->bit_equal);
    cJSON_AddStringToObject(o, "environment", r->env);
    cJSON_AddStringToObject(o, "source_hash", r->source);
    cJSON_AddNumberToObject(o, "changed", (double)r->changed_s);
    if (r->predicted_s > 0)
        cJSON_AddNumberToObject(o, "predicted_s", r->predicted_s);
    if (r->reason[0])
        cJSON_AddStringToObject(o, "reason", r->reason);
    if (r->rollbacks > 0)
        cJSON_AddNumberToObject(o, "rollbacks", r->rollbacks);
    cJSON_AddItemToObject(o, "evidence", evidence_json(&r->evidence));
    return o;
}

cJSON *trace_json(const struct trace_row *row)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "id", (double)row->id);
    cJSON_AddNumberToObject(o, "at", row->at);
    if (row->slot)
        cJSON_AddStringToObject(o, "slot", row->slot);
    if (row->key)
        cJSON_AddStringToObject(o, "kernel", row->key);
    if (row->name)
        cJSON_AddStringToObject(o, "name", row->name);
    cJSON_AddStringToObject(o, "event", row->event ? row->event : "");
    if (row->text && row->text[0])
        cJSON_AddStringToObject(o, "text", row->text);
    if (row->who)
        cJSON_AddStringToObject(o, "who", row->who);
    return o;
}

const char *row_text(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, name);
    return cJSON_IsString(v) ? v->valuestring : "";
}
