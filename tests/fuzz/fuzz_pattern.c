/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pattern.c - any bytes as a pre-tokenizer pattern; behind a zero byte, the text it cuts. What
 * opens must cut any text into words that make up the text again, in bounded work, or fail. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/pretokenize.h"
#include "engine/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct rest {
    const char *text;
    size_t n;
};

static int next_word(void *ctx, const char *word, size_t n, struct err *err)
{
    struct rest *r = ctx;
    (void)err;
    if (n == 0 || n > r->n || memcmp(r->text, word, n) != 0)
        abort();
    r->text += n;
    r->n -= n;
    return 0;
}

static void cut(const struct pretokenizer *p, const char *text, size_t n)
{
    struct rest rest = {text, n};
    struct encode_control control = {0};
    struct err err = {""};
    struct pre_run *r = pre_run_begin(p, next_word, &rest, &control);
    int rc = pre_run_cut(r, text, n, &err);
    pre_run_end(r);
    if ((rc == 0 && rest.n) || (rc && !*err.msg))
        abort();
    if (control.work > 300 * (int64_t)n + (1 << 16))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t n = zero ? (size_t)(zero - data) : size, length;
    char *pattern = xmalloc(n + 1), *text;
    struct err err = {""};
    memcpy(pattern, data, n);
    pattern[n] = 0;
    struct pre_step step = {.pattern = pattern};
    struct pretokenizer *p = pretokenizer_open(&step, 1, &err);
    if (!p && !*err.msg)
        abort();
    if (p) {
        text =
            utf8_lossy((const char *)data + n + (zero != NULL), size - n - (zero != NULL), &length);
        cut(p, text, length);
        free(text);
        text = utf8_lossy((const char *)data, size, &length);
        cut(p, text, length);
        free(text);
    }
    pretokenizer_close(p);
    free(pattern);
    return 0;
}
