/* SPDX-License-Identifier: Apache-2.0 */
/* evidence.c - see evidence.h. The table is the whole program: a new measurement is one row. */
#include "specializer/candidate/evidence.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum kind { NUMBER, COUNT, BYTES, FLAG, TEXT };

#define FIELD(kind, member)                                                                      \
    {                                                                                            \
#member, kind, offsetof(struct evidence, member), sizeof(((struct evidence *)0)->member) \
    }

static const struct field {
    const char *name;
    enum kind kind;
    size_t at, size;
} fields[] = {
    FIELD(NUMBER, build_s),     FIELD(NUMBER, build_cpu_s),     FIELD(NUMBER, probe_cpu_s),
    FIELD(BYTES, object_bytes), FIELD(NUMBER, probe_s),         FIELD(COUNT, probe_cases),
    FIELD(NUMBER, own_max),     FIELD(NUMBER, own_rms),         FIELD(NUMBER, eager_max),
    FIELD(NUMBER, eager_rms),   FIELD(FLAG, bit_equal),         FIELD(TEXT, worst),
    FIELD(COUNT, bench.pairs),  FIELD(NUMBER, bench.mean),      FIELD(NUMBER, bench.low),
    FIELD(NUMBER, bench.high),  FIELD(NUMBER, incumbent_s),     FIELD(NUMBER, own_s),
    FIELD(NUMBER, roofline_s),  FIELD(TEXT, against),           FIELD(NUMBER, speed),
    FIELD(COUNT, shadow_runs),  FIELD(COUNT, shadow_different), FIELD(NUMBER, shadow_max),
    FIELD(NUMBER, shadow_rms),  FIELD(COUNT, canary.pairs),     FIELD(NUMBER, canary.mean),
    FIELD(NUMBER, canary.low),  FIELD(NUMBER, canary.high),     FIELD(NUMBER, step_s),
    FIELD(COUNT, together),     FIELD(TEXT, prompts),           FIELD(COUNT, lost.n),
    FIELD(NUMBER, lost.low),    FIELD(NUMBER, lost.speed),      FIELD(NUMBER, warm_base_s),
    FIELD(NUMBER, warm_s),
};

enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

/* "bench.low" is shown as bench_low: dots make awkward keys in most query languages. */
static void json_name(const struct field *f, char *out, size_t n)
{
    snprintf(out, n, "%s", f->name);
    for (char *c = out; *c; c++)
        if (*c == '.')
            *c = '_';
}

cJSON *evidence_json(const struct evidence *e)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        const char *p = (const char *)e + f->at;
        char name[64];
        json_name(f, name, sizeof name);
        double number = 0;
        if (f->kind == TEXT) {
            if (*p)
                cJSON_AddStringToObject(o, name, p);
            continue;
        }
        if (f->kind == FLAG) {
            if (*(const bool *)p)
                cJSON_AddTrueToObject(o, name);
            continue;
        }
        if (f->kind == NUMBER)
            number = *(const double *)p;
        else if (f->kind == COUNT)
            number = *(const int32_t *)p;
        else
            number = (double)*(const int64_t *)p;
        if (number != 0 && isfinite(number))
            cJSON_AddNumberToObject(o, name, number);
    }
    cJSON *among = e->lost.n > 0 ? cJSON_AddArrayToObject(o, "lost_among") : NULL;
    for (int i = 0; i < e->lost.n; i++)
        cJSON_AddItemToArray(among, coresidents_json(&e->lost.among[i]));
    if (e->refusal.cause != CAUSE_NONE)
        cJSON_AddItemToObject(o, "refusal", refusal_json(&e->refusal));
    return o;
}

void evidence_read(struct evidence *e, const cJSON *json)
{
    for (int i = 0; i < FIELDS; i++) {
        const struct field *f = &fields[i];
        char *p = (char *)e + f->at;
        char name[64];
        json_name(f, name, sizeof name);
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(json, name);
        if (f->kind == TEXT && cJSON_IsString(v))
            snprintf(p, f->size, "%s", v->valuestring);
        else if (f->kind == FLAG && cJSON_IsBool(v))
            *(bool *)p = cJSON_IsTrue(v);
        else if (f->kind == NUMBER && cJSON_IsNumber(v) && isfinite(v->valuedouble))
            *(double *)p = v->valuedouble;
        else if (f->kind == COUNT && cJSON_IsNumber(v))
            *(int32_t *)p = v->valueint;
        else if (f->kind == BYTES && cJSON_IsNumber(v) && fabs(v->valuedouble) < 9e15)
            *(int64_t *)p = (int64_t)v->valuedouble;
    }
    e->lost.n = e->lost.n < 0 ? 0 : e->lost.n > RETRIALS_MOST ? RETRIALS_MOST : e->lost.n;
    const cJSON *among = cJSON_GetObjectItemCaseSensitive(json, "lost_among");
    for (int i = 0; i < e->lost.n; i++)
        coresidents_read(&e->lost.among[i], cJSON_GetArrayItem(among, i));
    refusal_read(&e->refusal, cJSON_GetObjectItemCaseSensitive(json, "refusal"));
}

/* ---- in words -------------------------------------------------------------------------------- */

static void gain_words(const struct gain *g, const char *of, char *out)
{
    if (g->pairs > 0)
        snprintf(out, EVIDENCE_WORDS, "%+.1f %% [%+.1f, %+.1f] over %d pairs%s", g->mean * 100,
                 g->low * 100, g->high * 100, g->pairs, of);
}

static void probe_words(const struct evidence *e, char *out)
{
    if (e->probe_cases > 0 && e->bit_equal)
        snprintf(out, EVIDENCE_WORDS, "%d cases, eager's bits in all", e->probe_cases);
    else if (e->probe_cases > 0 && e->eager_max > 0)
        snprintf(out, EVIDENCE_WORDS, "%d cases, largest error %.2g times eager's (%s)",
                 e->probe_cases, e->own_max / e->eager_max, e->worst);
    else if (e->probe_cases > 0)
        snprintf(out, EVIDENCE_WORDS, "%d cases", e->probe_cases);
}

static void canary_words(const struct evidence *e, char *out)
{
    char of[64];
    snprintf(of, sizeof of, " of whole steps, %d kernels together", e->together);
    gain_words(&e->canary, e->together ? of : " of whole steps", out);
}

void evidence_words(const struct evidence *e, enum life reached, char out[EVIDENCE_WORDS])
{
    out[0] = 0;
    if (reached == LIFE_BUILT && e->build_s > 0)
        snprintf(out, EVIDENCE_WORDS, "%.1f kB in %.1f s", (double)e->object_bytes / 1000,
                 e->build_s);
    else if (reached == LIFE_PROBED)
        probe_words(e, out);
    else if (reached == LIFE_BENCHED)
        gain_words(&e->bench, "", out);
    else if (reached == LIFE_SHADOWED && e->shadow_runs > 0)
        snprintf(out, EVIDENCE_WORDS, "%d live runs beside the one that serves, other bits in %d",
                 e->shadow_runs, e->shadow_different);
    else if (reached == LIFE_CANARY)
        canary_words(e, out);
}
