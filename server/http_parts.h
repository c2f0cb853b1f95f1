/* SPDX-License-Identifier: Apache-2.0 */
/* http_parts.h - what http.c (heads) and http_body.c share. */
#ifndef WHET_SERVER_HTTP_PARTS_H
#define WHET_SERVER_HTTP_PARTS_H

#include "server/http.h"

/* Ends the parse; returns PARSE_REFUSED. */
enum parse_result http_refuse(struct http_parser *h, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Value of a hexadecimal digit, or -1. */
int http_hex(char c);
/* A character of field names and methods (RFC 9110 5.6.2). */
bool http_is_token(char c);
/* Takes bytes of the body; *used says how many. */
enum parse_result http_parse_body(struct http_parser *h, const char *data, size_t n, size_t *used);

#endif
