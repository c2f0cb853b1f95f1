/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_tokenizer_json.c - any bytes as a tokenizer.json; what opens must encode and decode any
 * text: part of the input, whole and with its halves swapped, comes back as the same ids from a
 * second encoding, and every id stays in the vocabulary. What follows a zero byte is only text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t *ids, *again;
    struct err err;
    size_t length;
    struct encode_control control = {0};
    int64_t count = tokenizer_encode_cancellable(t, text, n, true, &control, &ids, &err);
    if (control.work > 16 * 300 * (int64_t)n + 16 * (2 << 16)) /* 16 steps at most */
        abort();
    if (count < 0)
        return; /* a pattern of the file that asks for too much work */
    if (tokenizer_encode(t, text, n, true, &again, &err) != count ||
        memcmp(ids, again, (size_t)count * sizeof *ids) != 0)
        abort(); /* the second time words come out of the cache */
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab(t))
            abort();
    free(tokenizer_decode(t, ids, count, true, &length));
    free(again);
    free(ids);
}

/* Through the file system in memory: the reader maps a path. */
static struct tokenizer *open_bytes(const uint8_t *data, size_t size)
{
    char path[64];
    struct err err;
    struct tokenizer *t = NULL;
    int fd = memfd_create("fuzz", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && write(fd, data, size) == (ssize_t)size)
        t = tokenizer_from_json(path, TOKENS_MAX, &err);
    if (fd >= 0)
        close(fd);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "It's 12345  <|im_start|>\xC3\xA9\xE2\x82\xAC\xF0\x9F\x99\x82\r\n\xFF";
    const uint8_t *zero = memchr(data, 0, size);
    struct tokenizer *t = open_bytes(data, zero ? (size_t)(zero - data) : size);
    if (!t)
        return 0;
    if (zero) {
        size -= (size_t)(zero + 1 - data);
        data = zero + 1;
    }
    size_t n = size < 2000 ? size : 2000;
    char swapped[2000];
    memcpy(swapped, data + n / 2, n - n / 2);
    memcpy(swapped + (n - n / 2), data, n / 2);
    check(t, (const char *)data, n);
    check(t, swapped, n);
    check(t, text, sizeof text - 1);
    tokenizer_free(t);
    return 0;
}
