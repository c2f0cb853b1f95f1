/* SPDX-License-Identifier: Apache-2.0 */
/* transfer.h - from one store to another: kernels and texts, and nothing that has to be believed.
 * Any thread.
 */
#ifndef WHET_SPECIALIZER_TRANSFER_TRANSFER_H
#define WHET_SPECIALIZER_TRANSFER_TRANSFER_H

#include <cjson/cJSON.h>

#include "specializer/store/store.h"

/* Of the form of an export. */
enum { EXPORT_VERSION = 1 };

/* How large an import may be, and how much of all imports the store keeps. */
enum {
    IMPORT_BYTES_MOST = 128 << 20,
    IMPORT_KERNELS_MOST = 4096,
    IMPORT_TEXTS_MOST = 512,
    IMPORT_TEXT_BYTES = 8 << 20
};

/* Everything that another store can use. */
cJSON *store_export(struct store *s, struct err *err);
/* Takes the admitted kernels of an export as proposals: known template, knobs and slot names are
 * all that is believed, and of a language model's kernels their texts (export_text.h). Returns how
 * many are taken or there already, or -1 when it is not an export or is too large; an error of the
 * store leaves what was taken before. What finds no room is said in the trace. */
int store_import(struct store *s, const char *body, size_t n, const char *who, struct err *err);

#endif
