/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_escape.c - any bytes as a text that goes into an answer: a client's, a model's name, a
 * compiler's words, an adviser's. Written here, or by cJSON elsewhere, it is a string of JSON that
 * ends where it was ended, and in UTF-8; what was UTF-8 comes back as it was.
 */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/json_strict.h"
#include "server/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

static bool is_utf8(const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len)
        if ((len = (size_t)utf8_sequence(s + i, n - i)) == 0)
            return false;
    return true;
}

/* Ends the object in `b`, reads it, and gives its one member's bytes; the caller frees. */
static char *read_back(struct buf *b, size_t *n)
{
    struct api_error e = {0};
    buf_str(b, ",\"end\":1}");
    demand(is_utf8(b->p, b->n));
    for (size_t i = 0; i < b->n; i++)
        demand((unsigned char)b->p[i] >= 0x20);
    cJSON *o = json_parse(b->p, b->n, &e);
    demand(o && cJSON_GetArraySize(o) == 2 && cJSON_GetNumberValue(json_get(o, "end")) == 1);
    char *text = json_bytes(json_get(o, "text"), n);
    cJSON_Delete(o);
    buf_free(b);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf b = {0};
    size_t n;
    json_memory();
    buf_str(&b, "{\"text\":");
    json_put_string(&b, (const char *)data, size);
    char *back = read_back(&b, &n);
    demand(!is_utf8((const char *)data, size) || (n == size && memcmp(back, data, n) == 0));
    free(back);

    char *text = xstrndup((const char *)data, size); /* up to a zero byte, if there is one */
    cJSON *string = cJSON_CreateString(text);
    char *made = cJSON_PrintUnformatted(string);
    buf_str(&b, "{\"text\":");
    json_put_made(&b, made);
    back = read_back(&b, &n);
    demand(!is_utf8(text, strlen(text)) || (n == strlen(text) && memcmp(back, text, n) == 0));
    free(back);
    free(made);
    cJSON_Delete(string);
    free(text);
    return 0;
}
