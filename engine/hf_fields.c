/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.c - fields of a config.json. */
#include "engine/hf_fields.h"

#include <math.h>

const cJSON *hf_field(const struct hf_fields *f, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(f->object, name);
    return v && !cJSON_IsNull(v) ? v : NULL;
}

bool hf_is_null(const struct hf_fields *f, const char *name)
{
    return cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(f->object, name));
}

double hf_number(struct hf_fields *f, const char *name, double fallback)
{
    const cJSON *v = hf_field(f, name);

    if (f->failed || (!v && fallback != HF_REQUIRED))
        return fallback;
    if (!v)
        err_set(f->err, "%s: '%s' is missing", f->file, name);
    else if (!cJSON_IsNumber(v) || !isfinite(v->valuedouble))
        err_set(f->err, "%s: '%s' is not a number", f->file, name);
    else
        return v->valuedouble;
    f->failed = true;
    return 0;
}

int32_t hf_whole(struct hf_fields *f, const char *name, double fallback)
{
    double v = hf_number(f, name, fallback);

    if (f->failed)
        return 0;
    if (v != floor(v) || v < 0 || v > INT32_MAX) {
        err_set(f->err, "%s: '%s': %g is no whole number in range", f->file, name, v);
        f->failed = true;
        return 0;
    }
    return (int32_t)v;
}

bool hf_flag(struct hf_fields *f, const char *name, bool fallback)
{
    const cJSON *v = hf_field(f, name);

    if (f->failed || !v)
        return fallback;
    if (!cJSON_IsBool(v)) {
        err_set(f->err, "%s: '%s' is neither true nor false", f->file, name);
        f->failed = true;
    }
    return cJSON_IsTrue(v);
}

const char *hf_string(struct hf_fields *f, const char *name, const char *fallback)
{
    const cJSON *v = hf_field(f, name);

    if (f->failed || !v)
        return fallback;
    if (!cJSON_IsString(v)) {
        err_set(f->err, "%s: '%s' is not a string", f->file, name);
        f->failed = true;
        return fallback;
    }
    return v->valuestring;
}

double hf_within(struct hf_fields *f, const char *name, double fallback, double least, double most)
{
    double v = hf_number(f, name, fallback);

    if (f->failed || (v >= least && v <= most))
        return v;
    err_set(f->err, "%s: '%s' is %g, expected %g to %g", f->file, name, v, least, most);
    f->failed = true;
    return fallback;
}
