/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_http_answer.c - any bytes as what an adviser's endpoint answers, in the pieces that libcurl
 * hands over. Text comes of a whole completion alone, and no key is in it.
 */
#include <string.h>

#include "specializer/adviser/adviser_http.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct key key = {.text = "sk-secret", .n = 9};
    struct answer a = {0};
    struct body b = {0};
    size_t piece = size > 0 ? 1 + data[0] % 64u : 1;
    for (size_t at = 1; at < size && !b.too_large; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        char *copy = xmalloc(n); /* of its own, so that a byte read behind it is seen */
        memcpy(copy, data + at, n);
        demand(count_head(copy, 1, n, &b) == n || b.too_large);
        demand(take(copy, 1, n, &b) == n || b.too_large);
        free(copy);
    }
    demand(b.n <= ANSWER_BYTES_MOST && b.head <= HEAD_BYTES_MOST);
    if (!b.too_large)
        read_completion(&b, &a);
    demand((a.text != NULL) == (a.fault == CALL_OK && !b.too_large));
    demand(a.tokens_in >= 0 && a.tokens_out >= 0);
    if (a.text) {
        key_blot(&key, a.text);
        demand(!strstr(a.text, key.text));
    }
    free(a.text);
    free(b.data);
    return 0;
}
