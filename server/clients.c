/* SPDX-License-Identifier: Apache-2.0 */
/* clients.c - a table of clients, their token buckets, their counts.
 *
 * The table is found through a keyed hash, since addresses are chosen by clients. Keys in the key
 * files are held by them (auth.c); what nobody holds is forgotten when CLIENTS_IDLE others were
 * here since. A forgotten address comes back with a full bucket and a number of its own, so an
 * address that changes may get more than its limit; whoever needs limits that hold gives out keys.
 *
 * Counts are kept by name for the first CLIENTS_NAMED names of the key files, so that /metrics does
 * not grow with whatever clients do, and for all others in one row.
 */
#include "server/clients.h"

#include <math.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/metrics.h"
#include "config/siphash.h"

enum { BUCKETS = 4096 };

struct clients {
    struct siphash_key key;
    struct client *bucket[BUCKETS];
    struct client *oldest, *newest; /* can be forgotten */
    int n, idle, named;
    uint64_t ids;
    struct client_rules rules;
    struct client_counts other; /* of all that have no row of their own, or had one */
};

struct clients *clients_open(void)
{
    struct clients *all = xcalloc(1, sizeof *all);
    all->key = siphash_key_random();
    return all;
}

void clients_close(struct clients *all)
{
    for (int i = 0; all && i < BUCKETS; i++)
        for (struct client *c = all->bucket[i], *next; c; c = next) {
            next = c->next_same;
            free(c);
        }
    if (all)
        client_rules_free(&all->rules);
    free(all);
}

int clients_remembered(const struct clients *all)
{
    return all->n;
}

static void add(struct client_counts *sum, const struct client_counts *c)
{
    sum->requests += c->requests;
    sum->prompt_tokens += c->prompt_tokens;
    sum->generated_tokens += c->generated_tokens;
    sum->active += c->active;
    for (int k = 0; k <= REFUSED_TOKENS; k++)
        sum->refused[k] += c->refused[k];
}

/* ---- finding and forgetting ---------------------------------------------------------------- */

static struct client **bucket_of(struct clients *all, const struct client_name *who)
{
    unsigned char text[1 + sizeof who->bytes];
    text[0] = (unsigned char)who->kind;
    memcpy(text + 1, who->bytes, sizeof who->bytes);
    return &all->bucket[siphash(&all->key, text, sizeof text) % BUCKETS];
}

static void idle_remove(struct clients *all, struct client *c)
{
    *(c->older ? &c->older->newer : &all->oldest) = c->newer;
    *(c->newer ? &c->newer->older : &all->newest) = c->older;
    c->older = c->newer = NULL;
    all->idle--;
}

static void forget(struct clients *all, struct client *c)
{
    struct client **link = bucket_of(all, &c->name);
    while (*link != c)
        link = &(*link)->next_same;
    *link = c->next_same;
    all->n--;
    if (c->counts == &c->own) {
        all->named--;
        add(&all->other, &c->own);
    }
    free(c);
}

static void idle_add(struct clients *all, struct client *c)
{
    c->older = all->newest;
    *(all->newest ? &all->newest->newer : &all->oldest) = c;
    all->newest = c;
    if (++all->idle > CLIENTS_IDLE) {
        struct client *oldest = all->oldest;
        idle_remove(all, oldest);
        forget(all, oldest);
    }
}

static struct client *make(struct clients *all, const struct client_name *who)
{
    struct client *c = xcalloc(1, sizeof *c), **link = bucket_of(all, who);
    c->id = ++all->ids;
    c->name = *who;
    c->limits = client_rules_limits(&all->rules, who);
    c->tokens = (double)c->limits.tokens_per_minute;
    c->filled_ns = clock_ns();
    c->counts = who->kind == CLIENT_NAMED && all->named < CLIENTS_NAMED ? &c->own : &all->other;
    all->named += c->counts == &c->own;
    c->next_same = *link;
    *link = c;
    all->n++;
    return c;
}

struct client *clients_get(struct clients *all, const struct client_name *who)
{
    struct client *c = *bucket_of(all, who);
    while (c &&
           (c->name.kind != who->kind || memcmp(c->name.bytes, who->bytes, sizeof who->bytes) != 0))
        c = c->next_same;
    if (!c)
        c = make(all, who);
    else if (c->held == 0)
        idle_remove(all, c);
    c->held++;
    return c;
}

void clients_release(struct clients *all, struct client *c)
{
    if (--c->held == 0)
        idle_add(all, c);
}

struct client_name clients_address(const struct sockaddr *addr)
{
    struct client_name who = {.kind = CLIENT_ADDRESS};
    if (addr->sa_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)addr)->sin6_addr;
        bool four = IN6_IS_ADDR_V4MAPPED(six);
        memcpy(who.bytes, six->s6_addr + (four ? 12 : 0), four ? 4 : 8);
        who.bytes[SHA256_BYTES - 1] = four ? 4 : 6;
    } else if (addr->sa_family == AF_INET) {
        memcpy(who.bytes, &((const struct sockaddr_in *)addr)->sin_addr, 4);
        who.bytes[SHA256_BYTES - 1] = 4;
    }
    return who;
}

/* ---- tokens a minute ----------------------------------------------------------------------- */

static double rate(const struct client *c)
{
    return (double)c->limits.tokens_per_minute / 60;
}

static void fill(struct client *c, int64_t now_ns)
{
    double most = (double)c->limits.tokens_per_minute;
    if (now_ns > c->filled_ns) {
        c->tokens += (double)(now_ns - c->filled_ns) * 1e-9 * rate(c);
        c->filled_ns = now_ns;
    }
    if (c->tokens > most)
        c->tokens = most;
}

/* Time until now counts with the old rate. What was used of a limit that is raised is used of the
 * new one; of one that is lowered the client keeps its share, and so waits no longer for a full
 * bucket than it would have. */
static void put_limits(struct clients *all, struct client *c, int64_t now_ns)
{
    double before = (double)c->limits.tokens_per_minute;
    fill(c, now_ns);
    c->limits = client_rules_limits(&all->rules, &c->name);
    double after = (double)c->limits.tokens_per_minute;
    if (before == 0)
        c->tokens = after;
    else if (after > before)
        c->tokens += after - before;
    else
        c->tokens *= after / before;
}

void clients_set_rules(struct clients *all, struct client_rules *rules)
{
    int64_t now = clock_ns();
    client_rules_free(&all->rules);
    all->rules = *rules;
    *rules = (struct client_rules){0};
    for (int i = 0; i < BUCKETS; i++)
        for (struct client *c = all->bucket[i]; c; c = c->next_same)
            put_limits(all, c, now);
}

double client_wait_s(struct client *c, int64_t tokens, int64_t now_ns)
{
    if (c->limits.tokens_per_minute == 0)
        return 0;
    fill(c, now_ns);
    if (tokens > c->limits.tokens_per_minute)
        return INFINITY;
    double missing = (double)tokens - c->tokens;
    return missing > 0 ? missing / rate(c) : 0;
}

void client_charge(struct client *c, int64_t tokens, int64_t now_ns)
{
    if (c->limits.tokens_per_minute == 0)
        return;
    fill(c, now_ns);
    c->tokens -= (double)tokens;
}

void client_headers(struct client *c, int64_t now_ns, char *out, size_t n)
{
    const struct request_limits *r = &c->limits.requests;
    int at = 0;
    out[0] = '\0';
    if (r->running > 0 && r->waiting >= 0) {
        int32_t most = r->running + r->waiting;
        at = snprintf(out, n,
                      "x-ratelimit-limit-requests: %d\r\n"
                      "x-ratelimit-remaining-requests: %d\r\n",
                      most, most > c->active ? most - c->active : 0);
    }
    if (c->limits.tokens_per_minute == 0)
        return;
    fill(c, now_ns);
    double most = (double)c->limits.tokens_per_minute;
    snprintf(out + at, n - (size_t)at,
             "x-ratelimit-limit-tokens: %.0f\r\n"
             "x-ratelimit-remaining-tokens: %.0f\r\n"
             "x-ratelimit-reset-tokens: %.0fs\r\n",
             most, c->tokens > 0 ? floor(c->tokens) : 0, ceil((most - c->tokens) / rate(c)));
}

/* ---- metrics ------------------------------------------------------------------------------- */

static const char *const refusal_name[] = {"queue", "displaced", "requests", "tokens"};

struct row {
    const char *name;
    const struct client_counts *counts;
};

static void put_count(FILE *out, const char *name, const char *type, const char *help,
                      const struct row *row, int rows,
                      double (*value)(const struct client_counts *))
{
    metric_head(out, name, type, help);
    for (int i = 0; i < rows; i++) {
        char label[64];
        snprintf(label, sizeof label, "client=\"%s\"", row[i].name);
        metric_value(out, name, label, value(row[i].counts));
    }
}

static double requests_of(const struct client_counts *c)
{
    return (double)c->requests;
}

static double prompts_of(const struct client_counts *c)
{
    return (double)c->prompt_tokens;
}

static double generated_of(const struct client_counts *c)
{
    return (double)c->generated_tokens;
}

static double active_of(const struct client_counts *c)
{
    return (double)c->active;
}

static void put_rows(const struct clients *all, const struct row *row, int rows, FILE *out)
{
    put_count(out, "client_requests_total", "counter",
              "Generations that entered the queue, by client", row, rows, requests_of);
    put_count(out, "client_prompt_tokens_total", "counter", "Their prompt tokens", row, rows,
              prompts_of);
    put_count(out, "client_generated_tokens_total", "counter", "Tokens generated, by client", row,
              rows, generated_of);
    put_count(out, "client_active", "gauge", "Generations that run or wait, by client", row, rows,
              active_of);
    metric_head(out, "client_refused_total", "counter",
                "Requests answered 429, by client and what had no room for them");
    for (int i = 0; i < rows; i++)
        for (int k = 0; k <= REFUSED_TOKENS; k++) {
            char label[96];
            snprintf(label, sizeof label, "client=\"%s\",limit=\"%s\"", row[i].name,
                     refusal_name[k]);
            metric_value(out, "client_refused_total", label, (double)row[i].counts->refused[k]);
        }
    metric_head(out, "clients", "gauge", "Keys and addresses that are remembered");
    metric_value(out, "clients", NULL, all->n);
}

void clients_metrics(const struct clients *all, bool names, FILE *out)
{
    struct row row[CLIENTS_NAMED + 1];
    char name[CLIENTS_NAMED][CLIENT_NAME_MAX + 1];
    struct client_counts sum = all->other;
    int rows = 0;
    for (int i = 0; i < BUCKETS; i++)
        for (const struct client *c = all->bucket[i]; c; c = c->next_same)
            if (c->counts == &c->own) {
                add(&sum, &c->own);
                snprintf(name[rows], sizeof name[rows], "%s", (const char *)c->name.bytes);
                row[rows] = (struct row){name[rows], &c->own};
                rows++;
            }
    if (names) {
        row[rows] = (struct row){"other", &all->other};
        put_rows(all, row, rows + 1, out);
    } else {
        row[0] = (struct row){"all", &sum};
        put_rows(all, row, 1, out);
    }
}
