/* SPDX-License-Identifier: Apache-2.0 */
/* test_http.c - requests out of bytes: what is accepted, what is refused, however it is cut. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "server/http.h"

enum { MAX_BODY = 1000 };

struct result {
    struct http_request req;
    struct http_parser parser;
    enum parse_result last;
    size_t left; /* bytes not taken */
};

/* Offers `n` bytes in pieces of `piece`, the way a socket does. */
static struct result *parse_pieces(const char *text, size_t n, size_t piece)
{
    struct result *r = calloc(1, sizeof(*r));
    struct buf in = {0};
    http_begin(&r->parser, &r->req, MAX_BODY);
    r->last = PARSE_MORE;
    for (size_t at = 0; at < n && r->last != PARSE_COMPLETE && r->last != PARSE_REFUSED;) {
        size_t take = n - at < piece ? n - at : piece;
        buf_add(&in, text + at, take);
        at += take;
        size_t used;
        do {
            r->last = http_parse(&r->parser, in.p, in.n, &used);
            buf_consume(&in, used);
        } while (r->last == PARSE_HEAD || (r->last == PARSE_MORE && used && in.n));
        r->left = in.n + n - at;
    }
    buf_free(&in);
    return r;
}

static void drop(struct result *r)
{
    http_request_free(&r->req);
    free(r);
}

static void expect_refused(const char *text, int status)
{
    size_t n = strlen(text), pieces[] = {1, 3, n};
    for (int i = 0; i < 3; i++) {
        struct result *r = parse_pieces(text, n, pieces[i]);
        if (r->last != PARSE_REFUSED || r->parser.status != status)
            fail_msg("expected %d, got result %d status %d for: %s", status, r->last,
                     r->parser.status, text);
        assert_true(strlen(r->parser.message) > 5);
        assert_null(strstr(r->parser.message, "(null)"));
        drop(r);
    }
}

static void expect_body(const char *text, const char *body, size_t left)
{
    size_t n = strlen(text), pieces[] = {1, 2, 7, n};
    for (int i = 0; i < 4; i++) {
        struct result *r = parse_pieces(text, n, pieces[i]);
        if (r->last != PARSE_COMPLETE)
            fail_msg("not complete (%s) for: %s", r->parser.message, text);
        assert_int_equal(r->req.body.n, strlen(body));
        if (*body)
            assert_memory_equal(r->req.body.p, body, strlen(body));
        assert_int_equal(r->left, left);
        drop(r);
    }
}

static void http_reads_a_get(void **state)
{
    (void)state;
    const char *text =
        "GET /v1/models/a%2Fb?x=1&name=c+d%21 HTTP/1.1\r\nHost: h\r\nX-A:  two words \t"
        "\r\n\r\n";
    struct result *r = parse_pieces(text, strlen(text), 5);
    assert_int_equal(r->last, PARSE_COMPLETE);
    assert_string_equal(r->req.method, "GET");
    assert_string_equal(r->req.path, "/v1/models/a/b");
    assert_true(r->req.keep_alive);
    assert_true(slice_is(*http_header(&r->req, "x-a"), "two words"));
    assert_null(http_header(&r->req, "x-b"));
    char *name = http_query(&r->req, "name");
    assert_string_equal(name, "c d!");
    free(name);
    assert_null(http_query(&r->req, "nam"));
    drop(r);
}

static void http_reads_bodies_by_length(void **state)
{
    (void)state;
    expect_body("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", "hello", 0);
    expect_body("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloGET", "hello", 3);
    expect_body("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\nGET", "", 3);
}

static void http_reads_chunked_bodies(void **state)
{
    (void)state;
    expect_body("POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                "5\r\nhello\r\n1;name=\"v\"\r\n!\r\n00\r\n\r\n",
                "hello!", 0);
    expect_body("POST /x HTTP/1.1\r\nHost: h\r\ntransfer-encoding: Chunked\r\n\r\n"
                "A\r\n0123456789\r\n0\r\nTrailer: x\r\nOther: y\r\n\r\nNEXT",
                "0123456789", 4);
}

static void http_refuses_request_smuggling(void **state)
{
    (void)state;
#define POST "POST /x HTTP/1.1\r\nHost: h\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n"
    static const char *const bad[] = {
        CHUNKED "Content-Length: 5\r\n\r\n0\r\n\r\n",
        POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        POST "Content-Length: 5, 5\r\n\r\nhello",
        POST "Content-Length: +5\r\n\r\nhello",
        POST "Content-Length: -5\r\n\r\nhello",
        POST "Content-Length: 0x5\r\n\r\nhello",
        POST "Content-Length: 5 5\r\n\r\nhello",
        POST "Content-Length:\r\n\r\nhello",
        POST "Content-Length: 99999999999999999999\r\n\r\nhello",
        POST "Content-Length : 5\r\n\r\nhello",
        POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST "Transfer-Encoding: identity\r\n\r\n",
        CHUNKED "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        /* names that are no tokens: who looks only at what is before the space sees another */
        POST "X A: b\r\n\r\n",
        POST "Content-Length X: 5\r\n\r\nhello",
        POST "Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
        POST "X\"A: b\r\n\r\n",
        POST "X(A): b\r\n\r\n",
        POST "X\xc3\xa9: b\r\n\r\n",
        POST "X/A: b\r\n\r\n",
        /* line ends */
        POST "X: a\rContent-Length: 5\r\n\r\nhello",
        POST "X: a\r\r\n\r\n",
        POST "X: a\nContent-Length: 5\r\n\r\nhello",
        "POST /x HTTP/1.1\nHost: h\n\n",
        POST "X: a\r\n folded\r\n\r\n",
        POST "X: a\r\n\tfolded\r\n\r\n",
        "POST /x HTTP/1.1\r\n Host: h\r\n\r\n",
        /* chunk framing */
        CHUNKED "\r\n5\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n5\r\nhello\n0\r\n\r\n",
        CHUNKED "\r\n5\r\nhelloXX0\r\n\r\n",
        CHUNKED "\r\n5\rhello\r\n0\r\n\r\n",
        CHUNKED "\r\n5;a=\nb\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n5;a=\rb\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n 5\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n0x5\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n-5\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n0\r\nX: a\n\r\n",
        CHUNKED "\r\n0\r\n\n",
        CHUNKED "\r\n8000000000000000\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\nffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n100000000000000000000005\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n00000000000000005\r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n5 \r\nhello\r\n0\r\n\r\n",
        CHUNKED "\r\n0\r\nX A: b\r\n\r\n",
        CHUNKED "\r\n0\r\nX : b\r\n\r\n",
        CHUNKED "\r\n0\r\n X: b\r\n\r\n",
        CHUNKED "\r\n0\r\nX: a\r\n b\r\n\r\n",
        CHUNKED "\r\n0\r\nno colon\r\n\r\n",
        CHUNKED "\r\n0\r\nX\r\n\r\n",
        CHUNKED "\r\n0\r\n: b\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        expect_refused(bad[i], 400);
}

static void http_refuses_malformed_heads(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x16\x03\x01\x02\r\n\r\n", /* a TLS client hello */
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: h\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: h\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\r\nHost: h\r\n\r\n",
        "FETCH / HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /% HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nNo colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n: no name\r\n\r\n",
        "GET / HTTP/1.1\r\n: no name\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\n:\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nX: \x01\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: me@h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h, h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h:80x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n",
        "GET http://other/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http://me@h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET https://h/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /\xc3\xa9 HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a\\b HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nX: \x7f\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        expect_refused(bad[i], 400);
    const char nul[] = "GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n";
    struct result *r = parse_pieces(nul, sizeof(nul) - 1, sizeof(nul));
    assert_int_equal(r->last, PARSE_REFUSED);
    drop(r);
}

static void http_caps_heads_and_bodies(void **state)
{
    (void)state;
    struct buf b = {0};
    buf_str(&b, "GET / HTTP/1.1\r\nHost: h\r\nX: ");
    for (int i = 0; i < HTTP_HEAD_MAX; i++)
        buf_char(&b, 'a');
    struct result *r = parse_pieces(b.p, b.n, 1000);
    assert_int_equal(r->parser.status, 431);
    drop(r);
    buf_clear(&b);
    buf_str(&b, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < HTTP_HEADERS_MAX; i++)
        buf_str(&b, "a: b\r\n");
    buf_str(&b, "\r\n");
    r = parse_pieces(b.p, b.n, 1000);
    assert_int_equal(r->parser.status, 431);
    drop(r);
    buf_free(&b);
    expect_refused("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", 413);
    expect_refused("POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n", 413);
    expect_refused("POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "7fffffffffffffff\r\nhello\r\n0\r\n\r\n",
                   413);
}

/* Endless framing is a flood too, even if no byte of data ever comes. */
static void http_caps_chunk_framing(void **state)
{
    (void)state;
    static const struct {
        const char *first, *again;
        size_t most; /* bytes that may have been taken */
        int status;
    } flood[] = {{"0\r\n", "a: b\r\n", HTTP_TRAILERS_MAX * 2, 431},
                 {"0\r\na:", "b", HTTP_TRAILERS_MAX * 2, 431},
                 {"1;", "a=b;", HTTP_EXTENSION_MAX * 2, 400},
                 {"", "1;a=b\r\nx\r\n", MAX_BODY * 20, 413}};
    for (int i = 0; i < 4; i++) {
        struct buf b = {0};
        buf_str(&b, "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        buf_str(&b, flood[i].first);
        for (int k = 0; k < HTTP_HEAD_MAX; k++)
            buf_str(&b, flood[i].again);
        struct result *r = parse_pieces(b.p, b.n, 512);
        assert_int_equal(r->last, PARSE_REFUSED);
        assert_int_equal(r->parser.status, flood[i].status);
        assert_true(b.n - r->left < flood[i].most);
        drop(r);
        buf_free(&b);
    }
}

static void http_knows_when_connections_end(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool keep;
    } cases[] = {
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", false},
        {"GET / HTTP/1.0\r\n\r\n", false},
        {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", true},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: TE, Close\r\nTE: x\r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: TE\r\nConnection: close \r\n\r\n", false},
        {"GET / HTTP/1.1\r\nHost: h\r\nConnection: closed, keep-alive,\r\n\r\n", true},
        {"GET / HTTP/1.0\r\nConnection: upgrade ,keep-alive\r\n\r\n", true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct result *r = parse_pieces(cases[i].text, strlen(cases[i].text), 1);
        assert_int_equal(r->last, PARSE_COMPLETE);
        assert_int_equal(r->req.keep_alive, cases[i].keep);
        drop(r);
    }
}

static void http_says_which_versions_it_speaks(void **state)
{
    (void)state;
    static const char *const others[] = {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                         "GET / HTTP/2.0\r\nHost: h\r\n\r\n"};
    for (int i = 0; i < 2; i++) {
        struct result *r = parse_pieces(others[i], strlen(others[i]), 100);
        assert_int_equal(r->last, PARSE_REFUSED);
        assert_string_equal(r->parser.message, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        drop(r);
    }
}

static void http_writes_dates(void **state)
{
    (void)state;
    char date[HTTP_DATE_SIZE];
    http_date(date, 784111777); /* the example of RFC 9110, section 5.6.7 */
    assert_string_equal(date, "Sun, 06 Nov 1994 08:49:37 GMT");
    http_date(date, 1709164799);
    assert_string_equal(date, "Wed, 28 Feb 2024 23:59:59 GMT");
}

static void http_reads_absolute_targets(void **state)
{
    (void)state;
    const char *text = "GET http://example.org/a?b HTTP/1.1\r\nHost: example.org\r\n\r\n";
    struct result *r = parse_pieces(text, strlen(text), 9);
    assert_string_equal(r->req.path, "/a");
    assert_int_equal(r->req.query.n, 1);
    assert_true(slice_is(r->req.host, "example.org"));
    drop(r);
    text = "GET http://example.org HTTP/1.1\r\nHost: example.org\r\n\r\n";
    r = parse_pieces(text, strlen(text), 9);
    assert_string_equal(r->req.path, "/");
    drop(r);
    text = "GET http://[::1]:80?a/b HTTP/1.1\r\nHost: [::1]:80\r\n\r\n";
    r = parse_pieces(text, strlen(text), 9);
    assert_string_equal(r->req.path, "/");
    assert_int_equal(r->req.query.n, 3);
    assert_true(slice_is(r->req.host, "[::1]:80"));
    drop(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(http_reads_a_get),
        cmocka_unit_test(http_reads_bodies_by_length),
        cmocka_unit_test(http_reads_chunked_bodies),
        cmocka_unit_test(http_refuses_request_smuggling),
        cmocka_unit_test(http_refuses_malformed_heads),
        cmocka_unit_test(http_caps_heads_and_bodies),
        cmocka_unit_test(http_caps_chunk_framing),
        cmocka_unit_test(http_knows_when_connections_end),
        cmocka_unit_test(http_reads_absolute_targets),
        cmocka_unit_test(http_says_which_versions_it_speaks),
        cmocka_unit_test(http_writes_dates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
