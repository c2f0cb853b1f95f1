/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_limits.c - see adviser_limits.h. */
#include "specializer/adviser/adviser_limits.h"

#include <math.h>

#define MINUTE_NS INT64_C(60000000000)

const char *hold_name(enum hold h)
{
    static const char *const names[HOLDS] = {"not",
#define H(id, name) name,
                                             HOLD_LIST(H)
#undef H
    };
    return h < HOLDS ? names[h] : "?";
}

void limits_init(struct limits *l, int64_t calls_an_hour, int64_t tokens_an_hour)
{
    *l = (struct limits){.calls_an_hour = calls_an_hour,
                         .tokens_an_hour = tokens_an_hour,
                         .open_s = BREAKER_FIRST_S};
}

static int64_t minute_of(int64_t now_ns)
{
    return now_ns / MINUTE_NS + 1;
}

enum breaker limits_breaker(const struct limits *l, int64_t now_ns)
{
    if (l->open_until == 0)
        return BREAKER_CLOSED;
    return now_ns < l->open_until ? BREAKER_OPEN : BREAKER_HALF_OPEN;
}

enum hold limits_ask(const struct limits *l, int64_t now_ns, int64_t tokens)
{
    int64_t calls = l->calls_out, used = l->tokens_out, minute = minute_of(now_ns);
    enum breaker breaker = limits_breaker(l, now_ns);
    if (breaker == BREAKER_OPEN || (breaker == BREAKER_HALF_OPEN && calls > 0))
        return HOLD_BREAKER; /* half open: one alone finds out */
    for (int i = 0; i < LIMIT_MINUTES; i++)
        if (l->spent[i].minute > minute - LIMIT_MINUTES) {
            calls += l->spent[i].calls;
            used += l->spent[i].tokens;
        }
    if (calls >= l->calls_an_hour)
        return HOLD_CALLS;
    return used + tokens > l->tokens_an_hour ? HOLD_TOKENS : HOLD_NOT;
}

void limits_reserve(struct limits *l, int64_t tokens)
{
    l->calls_out++;
    l->tokens_out += tokens;
}

void limits_release(struct limits *l, int64_t tokens)
{
    l->calls_out--;
    l->tokens_out -= tokens;
}

void limits_spend(struct limits *l, int64_t now_ns, int64_t calls, int64_t tokens)
{
    int64_t minute = minute_of(now_ns);
    int i = (int)(minute % LIMIT_MINUTES);
    if (l->spent[i].minute != minute) {
        l->spent[i].minute = minute;
        l->spent[i].calls = l->spent[i].tokens = 0;
    }
    l->spent[i].calls += calls;
    l->spent[i].tokens += tokens;
}

void limits_good(struct limits *l)
{
    l->bad = 0;
    l->open_until = 0;
    l->open_s = BREAKER_FIRST_S;
}

void limits_bad(struct limits *l, int64_t now_ns, double at_least_s)
{
    bool was_open = l->open_until != 0;
    if (++l->bad < BREAKER_BAD_MOST && !was_open && at_least_s <= 0)
        return;
    double open_s = fmin(fmax(l->open_s, at_least_s), BREAKER_LONGEST_S);
    l->open_until = now_ns + (int64_t)(open_s * 1e9);
    l->open_s = fmin(2 * l->open_s, BREAKER_LONGEST_S);
}
