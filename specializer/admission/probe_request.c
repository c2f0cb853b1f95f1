/* SPDX-License-Identifier: Apache-2.0 */
/* probe_request.c - the probe's two messages.
 *
 * Both ends are the same program, yet each checks what it reads: a request may be typed by hand
 * when a refusal is looked into, and an answer comes from a process that ran foreign code.
 */
#include "specializer/admission/probe_request.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/json_strict.h"
#include "config/safe_path.h"
#include "config/table.h"
#include "engine/plan.h"
#include "engine/quant.h"

enum { REQUEST_MAX = 1 << 20 };
static const char *const precision_text[] = {"f32", "bf16", "int8", "e4m3"};
EVERY_ROW(precision_text, PRECISION_COUNT);
static const char *const depth_text[] = {"full", "short", "whole", "end"};
static const char *const verdict_text[] = {"pass", "refuse", "error"};
static const char *const machine_text[] = {"cpu", "cuda"};

/* The numbers of a shape, in one table for writing and reading. */
struct field {
    const char *name;
    void *at;
    enum { FIELD_INT, FIELD_FLOAT, FIELD_BOOL } kind;
};
enum { FIELDS = 21 };
_Static_assert(sizeof(struct model_shape) == 80, "a new member of a shape has a row in fields_of");

static void fields_of(struct model_shape *s, struct field f[FIELDS])
{
    struct field all[FIELDS] = {
        {"arch", &s->arch, FIELD_INT},
        {"layers", &s->layers, FIELD_INT},
        {"hidden", &s->hidden, FIELD_INT},
        {"heads", &s->heads, FIELD_INT},
        {"kv_heads", &s->kv_heads, FIELD_INT},
        {"head_dim", &s->head_dim, FIELD_INT},
        {"ffn", &s->ffn, FIELD_INT},
        {"vocab", &s->vocab, FIELD_INT},
        {"max_context", &s->max_context, FIELD_INT},
        {"eps", &s->eps, FIELD_FLOAT},
        {"rope_base", &s->rope_base, FIELD_FLOAT},
        {"rope_interleaved", &s->rope_interleaved, FIELD_BOOL},
        {"tied_head", &s->tied_head, FIELD_BOOL},
        {"kv_bf16", &s->kv_bf16, FIELD_BOOL},
        {"rope_type", &s->scaling.type, FIELD_INT},
        {"factor", &s->scaling.factor, FIELD_FLOAT},
        {"low_freq_factor", &s->scaling.low_freq_factor, FIELD_FLOAT},
        {"high_freq_factor", &s->scaling.high_freq_factor, FIELD_FLOAT},
        {"original_context", &s->scaling.original_context, FIELD_INT},
        {"attention_factor", &s->scaling.attention_factor, FIELD_FLOAT},
        {"whole_ramp", &s->scaling.whole_ramp, FIELD_BOOL},
    };
    memcpy(f, all, sizeof all);
}

static void write_shape(cJSON *j, const struct model_shape *shape)
{
    struct model_shape s = *shape;
    struct field f[FIELDS];
    cJSON *o = cJSON_AddObjectToObject(j, "shape");
    fields_of(&s, f);
    for (int i = 0; i < FIELDS; i++)
        cJSON_AddNumberToObject(o, f[i].name,
                                f[i].kind == FIELD_INT     ? *(int32_t *)f[i].at
                                : f[i].kind == FIELD_FLOAT ? (double)*(float *)f[i].at
                                                           : *(bool *)f[i].at);
}

static bool read_shape(const cJSON *j, struct model_shape *s)
{
    struct field f[FIELDS];
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(j, "shape");
    fields_of(s, f);
    for (int i = 0; i < FIELDS; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, f[i].name);
        if (!v && f[i].at == &s->kv_bf16)
            continue; /* floats, where a person does not say */
        if (!cJSON_IsNumber(v) || !(fabs(v->valuedouble) < 0x1p31))
            return false;
        if (f[i].kind == FIELD_INT)
            *(int32_t *)f[i].at = (int32_t)v->valuedouble;
        else if (f[i].kind == FIELD_FLOAT)
            *(float *)f[i].at = (float)v->valuedouble;
        else
            *(bool *)f[i].at = v->valuedouble != 0;
    }
    return arch_known((int32_t)s->arch);
}

static int choice_of(const char *value, const char *const *text, int n)
{
    for (int i = 0; value && i < n; i++)
        if (strcmp(value, text[i]) == 0)
            return i;
    return -1;
}
/* The place of `value` in a table of words, or -1. */
#define CHOICE(value, table) choice_of(value, table, (int)(sizeof(table) / sizeof *(table)))

int probe_request_write(const struct probe_request *q, const char *path, struct err *err)
{
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "machine", machine_text[q->machine]);
    write_shape(j, &q->shape);
    cJSON_AddStringToObject(j, "model", q->model);
    cJSON_AddStringToObject(j, "object", q->object);
    cJSON_AddStringToObject(j, "name", q->name);
    cJSON_AddStringToObject(j, "references", q->references ? q->references : "");
    cJSON_AddStringToObject(j, "region", region_name(q->region));
    cJSON_AddNumberToObject(j, "m_from", q->m_from);
    cJSON_AddNumberToObject(j, "m_to", q->m_to);
    cJSON_AddNumberToObject(j, "context", q->context);
    cJSON_AddNumberToObject(j, "layer", q->layer);
    cJSON_AddStringToObject(j, "drawn", dtype_name(q->drawn));
    cJSON_AddNumberToObject(j, "threads", q->threads);
    cJSON_AddNumberToObject(j, "pack_mib", q->pack_mib);
    cJSON_AddNumberToObject(j, "risk", q->risk);
    cJSON_AddBoolToObject(j, "text", q->text);
    cJSON_AddBoolToObject(j, "own_formats", q->own_formats);
    cJSON_AddNumberToObject(j, "ranks", q->ranks);
    cJSON_AddStringToObject(j, "numerics", numerics_name(q->numerics));
    cJSON_AddStringToObject(j, "precision", precision_text[q->precision]);
    cJSON_AddStringToObject(j, "depth", depth_text[q->depth]);
    cJSON_AddNumberToObject(j, "seed", (double)(q->seed & ((1ULL << 53) - 1)));
    cJSON *list = cJSON_AddArrayToObject(j, "captures");
    for (int32_t i = 0; i < q->captures; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(q->capture[i]));
    char *text = cJSON_Print(j);
    cJSON_Delete(j);
    FILE *f = safe_create(path);
    bool ok = f && text && fputs(text, f) >= 0;
    if (f && fclose(f) != 0)
        ok = false;
    free(text);
    return ok ? 0 : err_set(err, "%.300s: cannot be written: %s", path, strerror(errno));
}

static char *read_text(const char *path, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        err_set(err, "%.300s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = xmalloc(REQUEST_MAX + 1);
    size_t n = fread(text, 1, REQUEST_MAX, f);
    text[n] = 0;
    fclose(f);
    return text;
}

static const char *string_of(const cJSON *j, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(j, name));
}

/* A whole number in [lo, hi]; false if it is missing or anything else. */
static bool int_of(const cJSON *j, const char *name, double lo, double hi, int32_t *out)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, name);
    if (!cJSON_IsNumber(v) || v->valuedouble < lo || v->valuedouble > hi ||
        v->valuedouble != floor(v->valuedouble))
        return false;
    *out = (int32_t)v->valuedouble;
    return true;
}

static bool read_drawn(const cJSON *j, enum dtype *out)
{
    const char *name = string_of(j, "drawn");
    *out = DTYPE_BF16;
    for (int t = 0; name && t < DTYPE_COUNT; t++)
        if (strcmp(name, dtype_name((enum dtype)t)) == 0) {
            *out = (enum dtype)t;
            return true;
        }
    return !name;
}

static const char *read_captures(struct probe_request *q, const cJSON *j)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(j, "captures"), *item;
    cJSON_ArrayForEach(item, list)
    {
        if (!cJSON_IsString(item) || q->captures == PROBE_CAPTURES_MAX)
            return "captures";
        q->capture[q->captures++] = xstrdup(item->valuestring);
    }
    return NULL;
}

/* NULL, or the name of the field at fault. */
static const char *read_fields(struct probe_request *q, const cJSON *j)
{
    const char *const text[] = {"model", "object", "name", "references"};
    char **const to[] = {&q->model, &q->object, &q->name, &q->references};
    for (int i = 0; i < 4; i++) {
        const char *value = string_of(j, text[i]);
        if (!value)
            return text[i];
        *to[i] = xstrdup(value);
    }
    const char *region = string_of(j, "region");
    int r = region ? region_parse(region) : -1;
    enum numerics numerics;
    int depth = CHOICE(string_of(j, "depth"), depth_text);
    int precision = CHOICE(string_of(j, "precision"), precision_text);
    int machine = CHOICE(string_of(j, "machine"), machine_text);
    const cJSON *seed = cJSON_GetObjectItemCaseSensitive(j, "seed");
    if (machine < 0)
        return "machine";
    if (!read_shape(j, &q->shape))
        return "shape";
    if (r < 0)
        return "region";
    if (depth < 0)
        return "depth";
    if (!numerics_find(string_of(j, "numerics"), &numerics))
        return "numerics";
    if (precision < 0)
        return "precision";
    if (!int_of(j, "m_to", 1, 65536, &q->m_to))
        return "m_to";
    if (!int_of(j, "m_from", 1, q->m_to, &q->m_from))
        return "m_from";
    if (!int_of(j, "context", r == REGION_ATTN, 1 << 24, &q->context))
        return "context";
    q->layer = 0; /* this and the next where a person does not say */
    if (cJSON_HasObjectItem(j, "layer") && !int_of(j, "layer", 0, 1 << 16, &q->layer))
        return "layer";
    if (!read_drawn(j, &q->drawn))
        return "drawn";
    if (!int_of(j, "threads", 1, 1024, &q->threads))
        return "threads";
    q->pack_mib = PACK_MIB_USUAL; /* where a person does not say */
    if (cJSON_HasObjectItem(j, "pack_mib") && !int_of(j, "pack_mib", 0, 1 << 20, &q->pack_mib))
        return "pack_mib";
    if (!int_of(j, "risk", 0, 255, &q->risk))
        return "risk";
    q->own_formats = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "own_formats"));
    q->ranks = 1; /* where a person does not say */
    if (cJSON_HasObjectItem(j, "ranks") && !int_of(j, "ranks", 1, SHARD_WORLD_MAX, &q->ranks))
        return "ranks";
    const cJSON *is_text = cJSON_GetObjectItemCaseSensitive(j, "text");
    if (!cJSON_IsBool(is_text))
        return "text";
    q->text = cJSON_IsTrue(is_text);
    if (!cJSON_IsNumber(seed) || seed->valuedouble < 0 || seed->valuedouble > 0x1p53)
        return "seed";
    q->machine = (enum machine_kind)machine;
    q->region = (enum region)r;
    q->numerics = numerics;
    q->precision = (enum precision)precision;
    q->seed = (uint64_t)seed->valuedouble;
    q->depth = (enum probe_depth)depth;
    return read_captures(q, j);
}

int probe_request_read(struct probe_request *q, const char *path, struct err *err)
{
    memset(q, 0, sizeof *q);
    char *text = read_text(path, err);
    if (!text)
        return -1;
    cJSON *j = json_strict_parse(text);
    free(text);
    if (!cJSON_IsObject(j)) {
        cJSON_Delete(j);
        return err_set(err, "%.300s: not a JSON object", path);
    }
    const char *bad = read_fields(q, j);
    cJSON_Delete(j);
    if (!bad)
        return 0;
    probe_request_free(q);
    return err_set(err, "%.300s: field %s is missing or wrong", path, bad);
}

void probe_request_free(struct probe_request *q)
{
    free(q->model);
    free(q->object);
    free(q->name);
    free(q->references);
    for (int32_t i = 0; i < q->captures; i++)
        free(q->capture[i]);
    memset(q, 0, sizeof *q);
}

/* The numbers of an answer, in one table for writing and reading. */
struct number {
    const char *name;
    double *value;
};
enum { NUMBERS = 6 };

static void numbers_of(struct probe_answer *a, struct number n[NUMBERS])
{
    struct number all[NUMBERS] = {{"own_max", &a->evidence.own_max},
                                  {"own_rms", &a->evidence.own_rms},
                                  {"eager_max", &a->evidence.eager_max},
                                  {"eager_rms", &a->evidence.eager_rms},
                                  {"kl", &a->kl},
                                  {"top1", &a->top1}};
    memcpy(n, all, sizeof all);
}

char *probe_answer_text(const struct probe_answer *a)
{
    struct probe_answer copy = *a;
    struct number n[NUMBERS];
    numbers_of(&copy, n);
    cJSON *j = cJSON_CreateObject();
    cJSON_AddStringToObject(j, "verdict", verdict_text[a->verdict]);
    cJSON_AddStringToObject(j, "stage", a->stage);
    cJSON_AddStringToObject(j, "reason", a->reason);
    for (int i = 0; i < NUMBERS; i++)
        cJSON_AddNumberToObject(j, n[i].name, *n[i].value);
    cJSON_AddNumberToObject(j, "cases", a->evidence.probe_cases);
    cJSON_AddBoolToObject(j, "bit_equal", a->evidence.bit_equal);
    cJSON_AddBoolToObject(j, "sealed", a->sealed);
    cJSON_AddBoolToObject(j, "killed", a->killed);
    cJSON_AddStringToObject(j, "worst", a->evidence.worst);
    cJSON_AddItemToObject(j, "refusal", refusal_json(&a->evidence.refusal));
    char *text = cJSON_PrintUnformatted(j);
    cJSON_Delete(j);
    return text;
}

static void copy_text(char *dst, size_t n, const char *src)
{
    snprintf(dst, n, "%s", src ? src : "");
}

int probe_answer_parse(struct probe_answer *a, const char *text)
{
    memset(a, 0, sizeof *a);
    cJSON *j = json_strict_parse(text);
    int verdict = CHOICE(string_of(j, "verdict"), verdict_text);
    struct number n[NUMBERS];
    numbers_of(a, n);
    for (int i = 0; i < NUMBERS; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(j, n[i].name);
        if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble)) /* 1e999 is a number of JSON */
            verdict = -1;
        else
            *n[i].value = v->valuedouble;
    }
    if (!int_of(j, "cases", 0, 1e6, &a->evidence.probe_cases))
        verdict = -1;
    a->verdict = verdict < 0 ? PROBE_ERROR : (enum probe_verdict)verdict;
    a->evidence.bit_equal = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "bit_equal"));
    a->sealed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "sealed"));
    a->killed = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(j, "killed"));
    copy_text(a->stage, sizeof a->stage, string_of(j, "stage"));
    copy_text(a->reason, sizeof a->reason, string_of(j, "reason"));
    refusal_read(&a->evidence.refusal, cJSON_GetObjectItemCaseSensitive(j, "refusal"));
    copy_text(a->evidence.worst, sizeof a->evidence.worst, string_of(j, "worst"));
    cJSON_Delete(j);
    return verdict < 0 ? -1 : 0;
}
