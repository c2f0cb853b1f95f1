/* nfc.h - Unicode normalization form C, as Hugging Face tokenizers computes it. */
#ifndef WHET_ENGINE_NFC_H
#define WHET_ENGINE_NFC_H

#include <stddef.h>

/* Well-formed UTF-8 in NFC, malloc'ed; NULL if the text is plainly in NFC already. */
char *nfc_normalize(const char *text, size_t n, size_t *length);

#endif
