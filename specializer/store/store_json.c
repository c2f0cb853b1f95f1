/* store_json.c - see store_json.h.
 *
 * An export carries evidence so that people can read it, but an import believes none of it: what
 * was fast and right elsewhere is only a good place to begin here.
 */
#include "specializer/store/store_json.h"

#include <stdlib.h>
#include <string.h>

#include "specializer/evidence.h"
#include "specializer/hash.h"
#include "specializer/life.h"
#include "specializer/search/space.h"
#include "specializer/store/export_text.h"

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

/* ---- export -------------------------------------------------------------------------------- */

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

/* ---- import -------------------------------------------------------------------------------- */

const char *row_text(const cJSON *row, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(row, name);
    return cJSON_IsString(v) ? v->valuestring : "";
}

/* 1 taken, 0 not of use here, -1 error. */
static int import_row(struct store *s, const cJSON *row, const char *who, struct err *err)
{
    const char *slot = row_text(row, "slot"), *knobs = row_text(row, "knobs");
    const struct template *t = template_find(row_text(row, "template"));
    int state = life_parse(row_text(row, "state"));
    struct point point;
    struct err why;
    struct record r = {.origin = ORIGIN_RESTORED, .state = LIFE_PROPOSED};
    if (state < 0 || !life_admitted((enum life)state) || !t || strlen(slot) >= sizeof r.slot ||
        point_parse(t, knobs, &point, &why) != 0)
        return 0;
    point_text(t, &point, r.knobs, sizeof r.knobs);
    hash_hex(hash_text(hash_text(hash_text(HASH_START, slot), t->id), r.knobs), r.key);
    snprintf(r.env, sizeof r.env, "%s", ENV_IMPORTED);
    snprintf(r.slot, sizeof r.slot, "%s", slot);
    snprintf(r.template, sizeof r.template, "%s", t->id);
    snprintf(r.name, sizeof r.name, "%s (imported)", t->id);
    return store_move(s, &r, LIFE_PROPOSED, "imported", who, err) == 0 ? 1 : -1;
}

int store_import(struct store *s, const char *body, size_t n, const char *who, struct err *err)
{
    cJSON *o = cJSON_ParseWithLength(body, n);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(o, "whet_store");
    const cJSON *rows = cJSON_GetObjectItemCaseSensitive(o, "kernels");
    int taken = 0;
    if (!o)
        taken = err_set(err, "import: not JSON");
    else if (!cJSON_IsNumber(version) || !cJSON_IsArray(rows))
        taken = err_set(err, "import: not an export of a whet store (whet_store, kernels)");
    else if (version->valueint != EXPORT_VERSION)
        taken = err_set(err, "import: whet_store is %d, this program reads %d", version->valueint,
                        (int)EXPORT_VERSION);
    const cJSON *row;
    if (taken == 0)
        cJSON_ArrayForEach(row, rows)
        {
            int r = import_row(s, row, who, err);
            if (r == 0)
                r = import_text(s, row, who, err);
            if (r < 0) {
                taken = -1;
                break;
            }
            taken += r;
        }
    cJSON_Delete(o);
    return taken;
}
