/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h - the fixed bounds of the HTTP side; what an operator may want to change is an option
 * of options.def instead. */
#ifndef WHET_SERVER_LIMITS_H
#define WHET_SERVER_LIMITS_H

enum {
    HTTP_HEAD_MAX = 32 * 1024,    /* request line and headers: 431 above */
    HTTP_HEADERS_MAX = 100,       /* header fields: 431 above */
    HTTP_EXTENSION_MAX = 1024,    /* of one chunk: 400 above */
    HTTP_TRAILERS_MAX = 8 * 1024, /* all trailers of a body: 431 above */
    CONN_INPUT_MAX = 64 * 1024,   /* bytes read ahead of the request being answered */
    CONN_OUTPUT_BUSY = 64 * 1024, /* unsent bytes above which the next pipelined request waits */
    CONN_OUTPUT_MAX = 16 << 20,   /* unsent bytes of a stream above which the client is cut */
    LOG_PATH_MAX = 1000,          /* bytes of a request's path in its line of the log */
    CONN_KEEP_MAX = 64 * 1024,    /* larger buffers are freed when they are empty */
    INBOX_KEEP_MAX = 1 << 20,     /* likewise, of the engine's events */
    BODIES_IN_FLIGHT = 32,        /* x server.max_body: bytes of requests held by all of them */
    ANSWERS_IN_FLIGHT = 8,        /* x server.max_answer: likewise, of answers */
    WORKS_MAX = 256,              /* clients' bodies waiting for a thread: 429 above */
    OPERATOR_CONNECTIONS = 16,    /* above server.max_connections, for health, metrics and admin */
    FDS_ELSEWHERE = 64,           /* descriptors that connections leave to files and compilers */
    JSON_DEPTH_MAX = 32,
    JSON_ELEMENTS_MAX = 1 << 20,
    INLINE_BODY_MAX = 1024,     /* larger bodies are parsed and tokenized off the loop */
    SHORT_BODY_MAX = 64 * 1024, /* longer ones do so where short ones need not wait for them */
    STOPS_MAX = 16,
    STOP_BYTES_MAX = 1024,
    STOP_TOKENS_MAX = 64,
    CHOICES_MAX = 256, /* prompts x n */
    LOGPROBS_MAX = 20,
    BIAS_MAX = 1024,
    MESSAGES_MAX = 4096,
    TEMPLATE_KWARGS_MAX = 64,
    DEFAULT_MAX_TOKENS = 16, /* of /v1/completions, as OpenAI documents it */
    KEY_BYTES_MAX = 256,     /* an API key */
    REQUEST_ID_MAX = 128,
    CLIENT_NAME_MAX = 32, /* characters of a key's name */
    CLIENTS_NAMED = 128,  /* clients with metrics of their own */
    CLIENTS_IDLE = 4096,  /* addresses that are remembered without a request */
};

#define SWEEP_MS 50        /* granularity of every timeout */
#define PAUSE_MS 1000      /* a sweep so long after the last one: the loop stood still */
#define LINGER_S 2.0       /* reading on after the last response so that it is not reset away */
#define KEEPALIVE_S 15.0   /* silence before a stream gets a comment */
#define STALL_S 30.0       /* no engine progress for this long: /health says 503 */
#define DRAIN_GRACE_S 10.0 /* no step after what runs was cancelled: the process ends */
#define RETRY_AFTER_S 1    /* Retry-After of a 429 or 503 that names no other */

#endif
