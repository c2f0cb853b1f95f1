/* SPDX-License-Identifier: Apache-2.0 */
/* http_body.c - bodies of requests, by length or in chunks.
 *
 * The chunk decoder is a table of eleven states that knows CRLF and nothing else as the end of a
 * line. Extensions and trailers are read to be dropped, but they are read: what is no extension or
 * no field line is refused, because somebody before us may have taken it for something else.
 */
#include "server/http_parts.h"

/* Moves up to `left` bytes of data to the body. */
static size_t take_data(struct http_parser *h, const char *data, size_t n)
{
    if (n > h->left)
        n = (size_t)h->left;
    buf_add(&h->req->body, data, n);
    h->left -= n;
    return n;
}

static enum parse_result chunk_size_digit(struct http_parser *h, char c)
{
    int digit = http_hex(c);
    if (digit >= 0) {
        if (++h->digits > 16 || h->left >> 59) /* 2^63 and more; or endless zeros */
            return http_refuse(h, 400, "malformed chunk size");
        h->left = h->left * 16 + (uint64_t)digit;
        return PARSE_MORE;
    }
    if (!h->digits || (c != '\r' && c != ';'))
        return http_refuse(h, 400, "malformed chunk size");
    if (h->left > h->max_body - h->req->body.n) /* the body is never larger than max_body */
        return http_refuse(h, 413, "the body is larger than the limit of %llu bytes",
                           (unsigned long long)h->max_body);
    h->extension = 0;
    h->chunk = c == ';' ? CHUNK_EXTENSION : CHUNK_SIZE_LF;
    return PARSE_MORE;
}

/* A byte of an extension or a trailer, other than the CR that ends it. */
static enum parse_result framing_text(struct http_parser *h, char c)
{
    if (((unsigned char)c < 0x20 && c != '\t') || c == 0x7f)
        return http_refuse(h, 400, "control character in the framing of a chunked body");
    if (h->chunk == CHUNK_EXTENSION)
        return ++h->extension > HTTP_EXTENSION_MAX
                   ? http_refuse(h, 400, "a chunk extension is longer than %d bytes",
                                 HTTP_EXTENSION_MAX)
                   : PARSE_MORE;
    if (++h->trailers > HTTP_TRAILERS_MAX)
        return http_refuse(h, 431, "the trailers are larger than %d bytes", HTTP_TRAILERS_MAX);
    if (h->chunk == TRAILER)
        return PARSE_MORE;
    bool colon = c == ':' && h->chunk == TRAILER_NAME;
    if (!colon && !http_is_token(c))
        return http_refuse(h, 400, "a trailer's name is not a token");
    h->chunk = colon ? TRAILER : TRAILER_NAME;
    return PARSE_MORE;
}

/* One byte of chunk framing. The table says what ends a line and where that leads. */
static enum parse_result chunk_byte(struct http_parser *h, char c)
{
    if (++h->framing > h->max_body + HTTP_HEAD_MAX)
        return http_refuse(h, 413, "the chunked body has more framing than data");
    if (h->chunk == CHUNK_SIZE)
        return chunk_size_digit(h, c);
    bool text = h->chunk == CHUNK_EXTENSION || h->chunk == TRAILER_START || h->chunk == TRAILER;
    if (h->chunk == TRAILER_NAME || (text && c != '\r'))
        return framing_text(h, c);
    static const struct {
        char want;
        enum chunk_state to;
    } line_end[] = {
        [CHUNK_EXTENSION] = {'\r', CHUNK_SIZE_LF}, [CHUNK_SIZE_LF] = {'\n', CHUNK_DATA},
        [CHUNK_DATA_CR] = {'\r', CHUNK_DATA_LF},   [CHUNK_DATA_LF] = {'\n', CHUNK_SIZE},
        [TRAILER_START] = {'\r', CHUNK_END_LF},    [TRAILER] = {'\r', TRAILER_LF},
        [TRAILER_LF] = {'\n', TRAILER_START},      [CHUNK_END_LF] = {'\n', TRAILER_START},
    };
    if (c != line_end[h->chunk].want)
        return http_refuse(h, 400, "a chunk does not end in CRLF");
    bool end = h->chunk == CHUNK_END_LF;
    h->chunk = line_end[h->chunk].to;
    if (h->chunk == CHUNK_DATA && h->left == 0)
        h->chunk = TRAILER_START;
    if (h->chunk == CHUNK_SIZE)
        h->digits = 0;
    return end ? PARSE_COMPLETE : PARSE_MORE;
}

static enum parse_result parse_chunked(struct http_parser *h, const char *data, size_t n,
                                       size_t *used)
{
    size_t i = 0;
    enum parse_result r = PARSE_MORE;
    while (i < n && r == PARSE_MORE) {
        if (h->chunk == CHUNK_DATA) {
            i += take_data(h, data + i, n - i);
            if (h->left == 0)
                h->chunk = CHUNK_DATA_CR;
        } else {
            r = chunk_byte(h, data[i++]);
        }
    }
    *used = i;
    return r;
}

enum parse_result http_parse_body(struct http_parser *h, const char *data, size_t n, size_t *used)
{
    enum parse_result r = PARSE_MORE;
    if (h->req->chunked) {
        r = parse_chunked(h, data, n, used);
    } else {
        *used = take_data(h, data, n);
        r = h->left ? PARSE_MORE : PARSE_COMPLETE;
    }
    if (r == PARSE_COMPLETE)
        h->state = AT_END;
    return r;
}
