/* SPDX-License-Identifier: Apache-2.0 */
/* hf_fields.h - inside engine/model_hf.c and what it hands parts of config.json to: fields of a
 * JSON object, each checked as it is read. */
#ifndef WHET_ENGINE_HF_FIELDS_H
#define WHET_ENGINE_HF_FIELDS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"

/* After the first failure, whose message is in `err` with `file` in front, no field is looked at
 * any more: functions give their fallback or 0. */
struct hf_fields {
    const cJSON *object;
    const char *file;
    struct err *err;
    bool failed;
};

/* Given as the fallback: the field must be there. */
enum { HF_REQUIRED = -1 };

/* The field, or NULL if it is absent or null. */
const cJSON *hf_field(const struct hf_fields *f, const char *name);
/* Whether the field is there and null, which says more than none: "no window", say. */
bool hf_is_null(const struct hf_fields *f, const char *name);

/* The value, or `fallback` of a field that is absent or null. What is of another type, not finite
 * or, for hf_whole(), no whole number from 0 to 2^31 - 1 is a failure. Texts live as long as the
 * object. */
double hf_number(struct hf_fields *f, const char *name, double fallback);
int32_t hf_whole(struct hf_fields *f, const char *name, double fallback);
bool hf_flag(struct hf_fields *f, const char *name, bool fallback);
const char *hf_string(struct hf_fields *f, const char *name, const char *fallback);
/* A number from `least` to `most`. */
double hf_within(struct hf_fields *f, const char *name, double fallback, double least, double most);

/* hf_rope.c: base and scaling of the rotary frequencies into `s`, whose max_context is that of
 * config.json; yarn may make it longer. -1 with a message. */
struct model_shape;
int hf_read_rope(struct hf_fields *config, struct model_shape *s);

#endif
