/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_limits.h - when a language model may be asked: budgets an hour, and a circuit breaker.
 *
 * Budgets are counted over the last sixty minutes, minute by minute; several questions may be under
 * way, and what they may take is reserved until they are over. The breaker opens after a few
 * bad answers in a row (a reply that was rejected is as bad as none: both cost and neither helps),
 * stays open for a time that doubles with every further one, then lets a single question through.
 * Time is a parameter, so that tests need not wait. No locking.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_LIMITS_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

enum { LIMIT_MINUTES = 60, BREAKER_BAD_MOST = 3 };
#define BREAKER_FIRST_S 30.0
#define BREAKER_LONGEST_S 3600.0

enum breaker { BREAKER_CLOSED, BREAKER_HALF_OPEN, BREAKER_OPEN };

/* Why a question is not put. */
#define HOLD_LIST(H)      \
    H(BREAKER, "breaker") \
    H(CALLS, "calls")     \
    H(TOKENS, "tokens")   \
    H(BUSY, "busy")       \
    H(TOO_LONG, "document")
enum hold {
    HOLD_NOT,
#define H(id, name) HOLD_##id,
    HOLD_LIST(H)
#undef H
        HOLDS
};
const char *hold_name(enum hold h);

struct limits {
    int64_t calls_an_hour, tokens_an_hour;
    struct {
        int64_t minute; /* of the clock given, + 1; 0: never used */
        int64_t calls, tokens;
    } spent[LIMIT_MINUTES];
    int64_t calls_out, tokens_out; /* of questions under way: reserved, not yet spent */
    int bad;                       /* in a row */
    double open_s;                 /* how long the breaker opens next time */
    int64_t open_until;            /* of the clock given, ns; 0: closed */
};

void limits_init(struct limits *l, int64_t calls_an_hour, int64_t tokens_an_hour);
/* May one call that takes about `tokens` be made, besides those under way? HOLD_NOT: yes. */
enum hold limits_ask(const struct limits *l, int64_t now_ns, int64_t tokens);
/* A call is under way, or is over; what it really took is spent by itself. */
void limits_reserve(struct limits *l, int64_t tokens);
void limits_release(struct limits *l, int64_t tokens);
void limits_spend(struct limits *l, int64_t now_ns, int64_t calls, int64_t tokens);
void limits_good(struct limits *l);
/* `at_least_s` > 0 opens at once, for that long at least: the endpoint asked for it. */
void limits_bad(struct limits *l, int64_t now_ns, double at_least_s);
enum breaker limits_breaker(const struct limits *l, int64_t now_ns);

#endif
