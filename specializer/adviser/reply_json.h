/* SPDX-License-Identifier: Apache-2.0 */
/* reply_json.h - a language model's JSON, read strictly: for the adviser's and the agent's replies.
 *
 * One document, alone or in one Markdown fence, of version REPLY_VERSION; objects whose fields are
 * all there, of the type they should have, and no others. Whatever is not so rejects the whole
 * reply with a fault and a sentence. Pure.
 */
#ifndef WHET_SPECIALIZER_ADVISER_REPLY_JSON_H
#define WHET_SPECIALIZER_ADVISER_REPLY_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "specializer/adviser/adviser_reply.h"

/* Where the reason of a rejection goes. */
struct reading {
    enum reply_fault *fault;
    struct err *err;
};

enum {
    REPLY_STRING = cJSON_String,
    REPLY_NUMBER = cJSON_Number,
    REPLY_LIST = cJSON_Array,
    REPLY_OBJECT = cJSON_Object
};

/* Fields of an object, all of them obligatory and no others allowed. */
struct reply_field {
    const char *name;
    int type;
};

/* Sets the fault and "fault: sentence", made fit for logs; -1. */
int reply_bad(const struct reading *r, enum reply_fault f, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The whole document, its top fields (of which one is "version") in at[0..tops); or NULL. Caller
 * deletes. */
cJSON *reply_document(const struct reading *r, const char *text, size_t n,
                      const struct reply_field *top, int tops, const cJSON **at);
/* Puts the fields of `o` into at[0..n), in the order of the table. */
int reply_fields(const struct reading *r, const cJSON *o, const char *where,
                 const struct reply_field *field, int n, const cJSON **at);
/* Copies text for people: at most `chars` characters, or it is too long. */
int reply_copy_text(const struct reading *r, const cJSON *v, const char *what, int chars, char *out,
                    size_t room);

#endif
