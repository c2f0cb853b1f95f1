/* SPDX-License-Identifier: Apache-2.0 */
/* nfc.h - Unicode normalization form C, as Hugging Face tokenizers computes it. */
#ifndef WHET_ENGINE_NFC_H
#define WHET_ENGINE_NFC_H

#include <stddef.h>

#include "engine/tokenizer.h"

/* Well-formed UTF-8 in NFC as *nfc, malloc'ed, of *length bytes; NULL if the text is plainly in NFC
 * already. Linear in n, whatever the text. -1 with a message if `control` says to end. */
int nfc_normalize(const char *text, size_t n, char **nfc, size_t *length,
                  struct encode_control *control, struct err *err);

#endif
