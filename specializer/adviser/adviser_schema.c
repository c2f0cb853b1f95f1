/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_schema.c - JSON schemas of the replies, for endpoints that can be held to one.
 *
 * They keep to what strict structured output allows everywhere: every property required, none
 * besides, no lengths, no patterns. So knobs are listed by name, each with its values, and a model
 * with nothing to say about one gives an empty list. The parser demands more and trusts none of it.
 */
#include <string.h>

#include "specializer/adviser/adviser_points.h"
#include "specializer/adviser/adviser_request.h"

static cJSON *of_type(const char *type)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "type", type);
    return o;
}

static cJSON *list_of(cJSON *items)
{
    cJSON *o = of_type("array");
    cJSON_AddItemToObject(o, "items", items);
    return o;
}

static cJSON *object(void)
{
    cJSON *o = of_type("object");
    cJSON_AddObjectToObject(o, "properties");
    cJSON_AddArrayToObject(o, "required");
    cJSON_AddFalseToObject(o, "additionalProperties");
    return o;
}

/* Adds a property; `schema` is taken over. */
static void property(cJSON *o, const char *name, cJSON *schema)
{
    cJSON_AddItemToObject(cJSON_GetObjectItem(o, "properties"), name, schema);
    cJSON_AddItemToArray(cJSON_GetObjectItem(o, "required"), cJSON_CreateString(name));
}

static cJSON *one_of(const char *const *text, int n)
{
    cJSON *o = of_type("string");
    cJSON_AddItemToObject(o, "enum", cJSON_CreateStringArray(text, n));
    return o;
}

static cJSON *version(void)
{
    cJSON *o = of_type("integer");
    const int one = REPLY_VERSION;
    cJSON_AddItemToObject(o, "enum", cJSON_CreateIntArray(&one, 1));
    return o;
}

/* One property for every knob of the template. */
static cJSON *knobs_schema(const struct reply_terms *terms, const struct template *t)
{
    cJSON *o = object();
    for (int k = 0; k < t->knobs; k++) {
        int32_t value[KNOB_VALUES];
        int n = terms->values(terms->ctx, t->id, t->knob[k].name, value);
        cJSON *values = of_type("integer");
        cJSON_AddItemToObject(values, "enum", cJSON_CreateIntArray((const int *)value, n));
        property(o, t->knob[k].name, list_of(values));
    }
    return o;
}

/* One for every template of the space. */
static cJSON *hints_schema(const struct advice_request *r)
{
    struct reply_terms terms = adviser_terms(r);
    cJSON *o = object();
    for (int i = 0; i < template_count(); i++)
        if (adviser_has_template(r->space, template_at(i)))
            property(o, template_at(i)->id, knobs_schema(&terms, template_at(i)));
    return o;
}

cJSON *adviser_reply_schema(const struct advice_request *r)
{
    static const char *const kinds[] = {"numeric", "boundary", "resource", "dynamic_shape"};
    cJSON *risk = object(), *region = object(), *o = object();
    property(risk, "kind", one_of(kinds, 4));
    property(risk, "candidates", list_of(of_type("string")));
    property(risk, "note", of_type("string"));
    property(region, "region", one_of(&r->slot, 1));
    property(region, "label", of_type("string"));
    property(region, "priority", list_of(of_type("string")));
    property(region, "hints", hints_schema(r));
    property(region, "risks", list_of(risk));
    property(o, "version", version());
    property(o, "regions", list_of(region));
    return o;
}

cJSON *adviser_moves_schema(const struct advice_request *r)
{
    (void)r;
    cJSON *node = object(), *o = object();
    property(node, "node", of_type("string"));
    property(node, "changes", list_of(of_type("string")));
    property(o, "version", version());
    property(o, "nodes", list_of(node));
    return o;
}
