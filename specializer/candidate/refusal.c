/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.c - see refusal.h: names, JSON, and the sentences of old stores. */
#include "specializer/candidate/refusal.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config/table.h"

static const char *const stage_names[] = {"build", "probe", "load", "bench", "shadow", "canary"};
EVERY_ROW(stage_names, STAGES);
static const char *const cause_names[] = {"none",       "other",     "error", "gain",
                                          "impossible", "withdrawn", "wrong"};
EVERY_ROW(cause_names, CAUSES);

const char *stage_name(enum stage stage)
{
    return stage_names[stage];
}

/* ---- JSON ------------------------------------------------------------------------------------ */

cJSON *refusal_json(const struct refusal *r)
{
    cJSON *o = cJSON_CreateObject();
    if (r->cause != CAUSE_WITHDRAWN)
        cJSON_AddStringToObject(o, "stage",
                                r->cause == CAUSE_AUDIT ? "audit" : stage_names[r->stage]);
    cJSON_AddStringToObject(o, "cause", cause_names[r->cause]);
    if (r->value != 0 && isfinite(r->value))
        cJSON_AddNumberToObject(o, "value", r->value);
    if (r->in_case[0])
        cJSON_AddStringToObject(o, "case", r->in_case);
    return o;
}

/* Which of `names` it is, or 0. */
static int one_of(const cJSON *json, const char *member, const char *const *names, int n)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(json, member);
    for (int i = 0; i < n; i++)
        if (cJSON_IsString(v) && strcmp(v->valuestring, names[i]) == 0)
            return i;
    return 0;
}

void refusal_read(struct refusal *r, const cJSON *json)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(json, "value");
    const cJSON *in_case = cJSON_GetObjectItemCaseSensitive(json, "case");
    *r = (struct refusal){.cause = (enum cause)one_of(json, "cause", cause_names, CAUSES),
                          .stage = (enum stage)one_of(json, "stage", stage_names, STAGES)};
    if (cJSON_IsNumber(value) && isfinite(value->valuedouble))
        r->value = value->valuedouble;
    if (cJSON_IsString(in_case))
        snprintf(r->in_case, sizeof r->in_case, "%s", in_case->valuestring);
}

/* ---- sentences of old stores ----------------------------------------------------------------- */

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* "m=3 outlier, team of 2: row 4: largest error 2.8e-06 is 42 times eager's 6.67e-08" */
static void read_error(struct refusal *r, const char *said)
{
    const char *is = strstr(said, " is "), *row = strstr(said, ": row ");
    const char *end = row ? row : strstr(said, ": all rows");
    int all = 0;
    if (!is || sscanf(is, " is %lf times eager's%n", &r->value, &all) != 1 || all == 0) {
        r->value = 0;
        return;
    }
    r->cause = CAUSE_ERROR;
    if (end)
        snprintf(r->in_case, sizeof r->in_case, "%.*s", (int)(end - said), said);
}

void refusal_of_sentence(struct refusal *r, const char *sentence)
{
    *r = (struct refusal){.cause = sentence[0] ? CAUSE_OTHER : CAUSE_NONE};
    for (int i = 0; i < STAGES; i++) {
        size_t n = strlen(stage_names[i]);
        if (!begins(sentence, stage_names[i]) || !begins(sentence + n, ": "))
            continue;
        const char *said = sentence + n + strlen(": ");
        r->stage = (enum stage)i;
        if (i == STAGE_PROBE)
            read_error(r, said);
        else if ((i == STAGE_BENCH && begins(said, "gain")) ||
                 (i == STAGE_CANARY && begins(said, "whole steps")))
            r->cause = CAUSE_GAIN;
    }
}
