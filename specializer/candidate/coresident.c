/* SPDX-License-Identifier: Apache-2.0 */
/* coresident.c - see coresident.h. */
#include "specializer/candidate/coresident.h"

#include <stdio.h>
#include <string.h>

#include "specializer/candidate/hash.h"

static void add(struct coresidents *set, const char *slot, const char *key)
{
    if (set->n == CORESIDENTS_MOST)
        return;
    struct coresident *c = &set->kernel[set->n++];
    snprintf(c->slot, sizeof c->slot, "%s", slot);
    snprintf(c->key, sizeof c->key, "%s", key);
}

void coresidents_add(struct coresidents *set, const struct slot *slot)
{
    const struct kernel *k = atomic_load(&slot->kernel);
    if (k->origin != ORIGIN_EAGER)
        add(set, slot->name, k->id);
}

uint64_t coresidents_hash(const struct coresidents *set)
{
    uint64_t h = HASH_START;
    for (int i = 0; i < set->n; i++)
        h = hash_text(hash_text(h, set->kernel[i].slot), set->kernel[i].key);
    return hash_mix(h);
}

bool coresidents_has(const struct coresidents *set, const struct slot *slot)
{
    struct coresidents now = {0};
    coresidents_add(&now, slot);
    for (int i = 0; i < set->n; i++)
        if (strcmp(set->kernel[i].slot, slot->name) == 0)
            return now.n > 0 && strcmp(set->kernel[i].key, now.kernel[0].key) == 0;
    return now.n == 0;
}

cJSON *coresidents_json(const struct coresidents *set)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < set->n; i++)
        cJSON_AddStringToObject(o, set->kernel[i].slot, set->kernel[i].key);
    return o;
}

void coresidents_read(struct coresidents *set, const cJSON *json)
{
    const cJSON *one;
    *set = (struct coresidents){0};
    if (cJSON_IsObject(json))
        cJSON_ArrayForEach(one, json) if (cJSON_IsString(one))
            add(set, one->string, one->valuestring);
}
