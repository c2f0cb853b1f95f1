/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_http.c - any bytes as a connection's input: the parser, then JSON and request parameters.
 *
 * The same bytes are parsed in one piece and in many; both must see the same requests, or the end
 * of one would depend on how packets were cut - which is request smuggling.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/http.h"
#include "server/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BODY = 4096, REQUESTS_MAX = 16 };

struct seen {
    int requests, status;
    size_t body[REQUESTS_MAX], used;
};

static void read_body(const struct http_request *r)
{
    static const struct params_model model = {"m", 1000};
    struct api_error e = {0};
    cJSON *body = json_parse(r->body.p ? r->body.p : "", r->body.n, &e);
    for (int chat = 0; body && chat < 2; chat++) {
        struct params p;
        params_read(&p, body, chat, &model, &e);
        params_free(&p);
    }
    struct buf out = {0};
    json_put_string(&out, r->body.p, r->body.n);
    buf_free(&out);
    cJSON_Delete(body);
}

/* Parses requests off the input, offering `piece` bytes more at a time. */
static struct seen parse(const char *data, size_t size, size_t piece)
{
    struct seen seen = {0};
    size_t offered = 0;
    enum parse_result last = PARSE_COMPLETE;
    while (last == PARSE_COMPLETE && seen.requests < REQUESTS_MAX) {
        struct http_request *r = calloc(1, sizeof(*r));
        struct http_parser h;
        http_begin(&h, r, MAX_BODY);
        do {
            size_t used;
            last = http_parse(&h, data + seen.used, offered - seen.used, &used);
            seen.used += used;
            if (last == PARSE_MORE && (used == 0 || seen.used == offered)) {
                if (offered == size)
                    break;
                offered = size - offered < piece ? size : offered + piece;
            }
        } while (last == PARSE_MORE || last == PARSE_HEAD);
        if (last == PARSE_COMPLETE) {
            free(http_query(r, "a"));
            read_body(r);
            seen.body[seen.requests++] = r->body.n;
        }
        seen.status = last == PARSE_REFUSED ? h.status : 0;
        http_request_free(r);
        free(r);
    }
    return seen;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct seen whole = parse((const char *)data, size, size ? size : 1);
    for (size_t piece = 1; piece < 4; piece++) {
        struct seen cut = parse((const char *)data, size, piece);
        if (cut.requests != whole.requests || cut.status != whole.status ||
            memcmp(cut.body, whole.body, sizeof(cut.body)) != 0) {
            fprintf(stderr, "%d requests in one piece, %d in pieces of %zu\n", whole.requests,
                    cut.requests, piece);
            abort();
        }
    }
    return 0;
}
