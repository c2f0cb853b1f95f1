/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_encode.c - any bytes as a text: its NFC against libutf8proc's own (on short texts, because
 * that is quadratic), and encoded and decoded by a tokenizer that leaves texts alone and by one
 * that puts them in NFC: what comes back is the text, or its NFC. By two of SentencePiece, too, one
 * of which gives back every text without added tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/nfc.c" /* for is_fixed(): where whet and libutf8proc differ on purpose */
#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *open_golden(const char *name)
{
    char path[512];
    struct err err;
    snprintf(path, sizeof path, "%s/tokenizer/%s.json", GOLDEN, name);
    struct tokenizer *t = tokenizer_from_json(path, TOKENS_MAX, &err);
    if (!t)
        abort();
    return t;
}

static void check_nfc(char *text, size_t n)
{
    struct encode_control control = {0};
    utf8proc_uint8_t *want;
    char *nfc;
    size_t length = n;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int got = utf8_decode(text + i, n - i, &cp);
        if (is_fixed(cp))
            memset(text + i, 'x', (size_t)got);
        i += (size_t)got;
    }
    utf8proc_ssize_t wanted = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n,
                                           &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (wanted < 0 || nfc_normalize(text, n, &nfc, &length, &control, NULL))
        abort();
    if (!nfc)
        length = n;
    if (length != (size_t)wanted || memcmp(nfc ? nfc : text, want, length) != 0)
        abort();
    if (control.work > 40 * (int64_t)n)
        abort();
    free(want);
    free(nfc);
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t n, bool normal)
{
    struct encode_control control = {0};
    struct err err;
    int32_t *ids;
    size_t length, m = n;
    char *nfc = NULL;
    int64_t count = tokenizer_encode_cancellable(t, text, n, false, &control, &ids, &err);
    if (count < 0 || control.work > 200 * (int64_t)n + 1000)
        abort();
    char *back = tokenizer_decode(t, ids, count, true, &length);
    if (normal && nfc_normalize(text, n, &nfc, &m, &control, NULL))
        abort();
    if (!nfc)
        m = n;
    if (length != m || memcmp(back, nfc ? nfc : text, m) != 0)
        abort();
    free(nfc);
    free(back);
    free(ids);
}

/* A text with U+2581 for its spaces is the same to SentencePiece: `spaced` has spaces for them. */
static void check_pieces(const struct tokenizer *t, const char *text, size_t n, bool whole)
{
    struct encode_control control = {0};
    struct err err;
    int32_t *ids;
    size_t length, m = 0;
    int64_t count = tokenizer_encode_cancellable(t, text, n, false, &control, &ids, &err);
    if (count < 0 || control.work > 400 * (int64_t)n + 2000)
        abort();
    char *back = tokenizer_decode(t, ids, count, true, &length), *spaced = malloc(n + 1);
    for (size_t i = 0; i < n; m++) {
        bool mark = n - i >= 3 && memcmp(text + i, PIECE_SPACE, 3) == 0;
        spaced[m] = mark ? ' ' : text[i];
        i += mark ? 3 : 1;
    }
    for (int64_t i = 0; i < count; i++)
        whole &= !tokenizer_is_special(t, ids[i]) && ids[i] != tokenizer_find(t, "<tool>");
    if (whole && (length != m || memcmp(back, spaced, m) != 0))
        abort();
    free(spaced);
    free(back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *plain, *normal, *pieces, *words;
    if (!plain) {
        pieces = open_golden("pieces");
        words = open_golden("words");
        plain = open_golden("gpt2");
        normal = open_golden("qwen2");
    }
    size_t n;
    char *text = utf8_lossy((const char *)data, size < 1000 ? size : 1000, &n);
    check_round_trip(plain, text, n, false);
    check_round_trip(normal, text, n, true);
    check_pieces(pieces, text, n, true);
    check_pieces(words, text, n, false);
    check_nfc(text, n);
    free(text);
    return 0;
}
