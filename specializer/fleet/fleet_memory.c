/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_memory.c - what other servers said, as the specializer asks for it.
 *
 * Bounded whatever is sent: so many rows a slot, so many retractions. A server whose speeds are
 * seldom seen here (another cooling, a broken clock, a lie) is not listened to any more.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/fleet/fleet_private.h"

/* A speed of others is right if at least so much of it is seen here. */
#define AGREEMENT 0.7
/* How long leases of others are respected while nothing comes of them, and a wish that was not
 * answered. */
#define PATIENCE_NS (INT64_C(120) * 1000000000)
#define ANSWER_NS (INT64_C(2) * 1000000000)

void fleet_refuse(struct fleet *f, const char *server, const char *why)
{
    char plain[FLEET_WORD];
    fleet_plain(server, plain);
    atomic_fetch_add(&f->refused, 1);
    pthread_mutex_lock(&f->lock);
    bool shown = f->poisons < WRONG_SHOWN;
    if (shown)
        snprintf(f->poison[f->poisons++], FLEET_WORD, "%.40s: %.150s", plain, why);
    pthread_mutex_unlock(&f->lock);
    if (shown)
        log_warn("fleet", "%s from server %.40s is not taken", why, plain);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static struct peer *peer_of(struct fleet *f, const char *server)
{
    for (int i = 0; i < f->peers; i++)
        if (strcmp(f->peer[i].server, server) == 0)
            return &f->peer[i];
    if (f->peers == PEERS_MOST)
        return NULL;
    struct peer *p = &f->peer[f->peers++];
    *p = (struct peer){0};
    snprintf(p->server, sizeof p->server, "%s", server);
    return p;
}

static void add_serving(void *ctx, const struct winner *w)
{
    struct serving *s = ctx;
    s->key = xrealloc(s->key, (size_t)(s->n + 1) * sizeof *s->key);
    memcpy(s->key[s->n++], w->key, sizeof *s->key);
}

static struct serving read_serving(struct fleet *f)
{
    struct serving s = {NULL, 0};
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        store_winners(f->store, f->self.env, add_serving, &s, NULL);
    pthread_mutex_unlock(&f->in_use);
    return s;
}

/* The same server says something of the same kernel. */
static bool is_word_of(const struct fleet_row *a, const struct fleet_row *b)
{
    return memcmp(a->key, b->key, KEY_HEX) == 0 && memcmp(a->server, b->server, KEY_HEX) == 0;
}

/* Where a row goes: over the older word of the same server, behind the others, or where there are
 * too many in place of another. NULL: there is no room. Lock held. */
static struct fleet_row *room_for(struct fleet *f, struct slot_rows *s, const struct fleet_row *r,
                                  const struct serving *serving)
{
    for (int i = 0; i < s->n; i++)
        if (is_word_of(&s->row[i], r))
            return &s->row[i];
    if (s->n == ROWS_OF_SLOT) {
        atomic_fetch_add(&f->dropped, 1); /* this one or another */
        return fleet_who_goes(f, s, r, serving);
    }
    s->row = xrealloc(s->row, (size_t)(s->n + 1) * sizeof *s->row);
    s->row[s->n] = (struct fleet_row){0};
    return &s->row[s->n++];
}

static void take_row(struct fleet *f, int slot, struct fleet_row *r, const struct serving *serving)
{
    pthread_mutex_lock(&f->lock);
    struct slot_rows *s = &f->rows[slot];
    struct fleet_row *to = room_for(f, s, r, serving);
    r->serial = ++f->serial;
    r->compared = to && to->compared && is_word_of(to, r) && to->speed == r->speed;
    if (to)
        *to = *r;
    s->came_ns = clock_ns();
    pthread_mutex_unlock(&f->lock);
    atomic_fetch_add(&f->taken, to != NULL);
}

void fleet_take_rows(struct fleet *f, const struct fleet_rows *rows)
{
    struct serving serving = {NULL, 0};
    bool asked = false;
    for (int i = 0; i < rows->n; i++) {
        const char *value[FLEET_COLUMNS];
        struct fleet_row r;
        struct err err;
        int slot;
        for (int c = 0; c < FLEET_COLUMNS; c++)
            value[c] = fleet_value(rows, i, c);
        if (fleet_row_read(value, f->slots, &r, &slot, &err) != 0) {
            fleet_refuse(f, value[FLEET_SERVER], err.msg);
            continue;
        }
        if (!asked && f->rows[slot].n == ROWS_OF_SLOT) { /* only this thread adds any */
            serving = read_serving(f);
            asked = true;
        }
        take_row(f, slot, &r, &serving);
    }
    free(serving.key);
    if (rows->n > 0)
        atomic_fetch_add(&f->news, 1);
}

void fleet_forget_numbers(struct fleet *f)
{
    pthread_mutex_lock(&f->lock);
    for (int slot = 0; slot < dispatch_slots(f->slots); slot++)
        for (int i = 0; i < f->rows[slot].n; i++)
            f->rows[slot].row[i].seq = 0;
    pthread_mutex_unlock(&f->lock);
}

static struct slot_rows *rows_of(struct fleet *f, const char *slot)
{
    for (int i = 0; i < dispatch_slots(f->slots); i++)
        if (strcmp(dispatch_slot_at(f->slots, i)->name, slot) == 0)
            return &f->rows[i];
    return NULL;
}

/* What was said last against the kernel, or NULL. */
static const struct fleet_suspect *suspect_of(const struct fleet *f, const char *key)
{
    for (int i = 0; i < f->suspects; i++)
        if (strcmp(f->suspect[i].key, key) == 0)
            return &f->suspect[i];
    return NULL;
}

/* Copies first: what is done with a row may take its time. */
void fleet_each(struct fleet *f, const char *slot, int64_t after, int most, fleet_row_fn *fn,
                void *ctx)
{
    if (!f)
        return;
    struct fleet_row *copy = NULL;
    int n = 0;
    pthread_mutex_lock(&f->lock);
    const struct slot_rows *s = rows_of(f, slot);
    for (int i = 0; s && i < s->n; i++) {
        const struct fleet_row *r = &s->row[i];
        if (r->serial <= after || fleet_distrusted(f, r->server) || suspect_of(f, r->key))
            continue;
        copy = copy ? copy : xcalloc((size_t)s->n, sizeof *copy);
        copy[n++] = *r;
    }
    pthread_mutex_unlock(&f->lock);
    for (int done = 0; n > 0 && (most == 0 || done < most); done++) { /* in their order */
        int first = 0;
        for (int i = 1; i < n; i++)
            if (copy[i].serial < copy[first].serial)
                first = i;
        fn(ctx, &copy[first]);
        copy[first] = copy[--n];
    }
    free(copy);
}

int fleet_count(struct fleet *f, const char *slot)
{
    if (!f)
        return 0;
    pthread_mutex_lock(&f->lock);
    const struct slot_rows *s = rows_of(f, slot);
    int n = s ? s->n : 0;
    pthread_mutex_unlock(&f->lock);
    return n;
}

uint64_t fleet_news(struct fleet *f)
{
    return f ? atomic_load(&f->news) : 0;
}

/* Each measurement of others counts once, however often it or this server's own is told of. */
void fleet_compare(struct fleet *f, const struct record *own)
{
    if (own->evidence.speed <= 0)
        return;
    pthread_mutex_lock(&f->lock);
    struct slot_rows *s = rows_of(f, own->slot);
    for (int i = 0; s && i < s->n; i++) {
        struct fleet_row *r = &s->row[i];
        if (r->speed <= 0 || r->compared || strcmp(r->key, own->key) != 0)
            continue;
        struct peer *p = peer_of(f, r->server);
        r->compared = true;
        bool right = own->evidence.speed >= AGREEMENT * r->speed;
        if (p)
            ++*(right ? &p->hits : &p->misses);
        if (p && !right && p->misses == MISSES_ENOUGH && p->misses > p->hits)
            log_warn("fleet",
                     "server %s: %d of its speeds were not seen here and %d were: what it sends is "
                     "left alone",
                     p->server, p->misses, p->hits);
    }
    pthread_mutex_unlock(&f->lock);
}

/* ---- leases ---------------------------------------------------------------------------------- */

void fleet_wish(struct fleet *f, const char *const *slot, int n)
{
    if (!f)
        return;
    n = n < WISHES_MOST ? n : WISHES_MOST;
    pthread_mutex_lock(&f->lock);
    bool had = n == 0 && f->wishes == 0, keeps = false;
    for (int i = 0; i < n; i++)
        keeps |= strcmp(slot[i], f->lease) == 0;
    /* The order is looked at again with every heartbeat; at once only if there is nothing to hold
     * on to. */
    bool asks = !had && (f->lease[0] ? !keeps : n > 0 && f->wishes == 0);
    for (int i = 0; i < n; i++)
        snprintf(f->wish[i], sizeof f->wish[i], "%s", slot[i]);
    f->wishes = n;
    if (asks) {
        f->wish_new = true;
        f->wished_ns = clock_ns();
    }
    pthread_mutex_unlock(&f->lock);
    if (asks)
        fleet_wake(f);
}

bool fleet_leased(struct fleet *f, const char *slot)
{
    if (!f)
        return false;
    pthread_mutex_lock(&f->lock);
    bool yes = f->lease_state == LEASE_HELD && strcmp(f->lease, slot) == 0;
    pthread_mutex_unlock(&f->lock);
    return yes;
}

bool fleet_elsewhere(struct fleet *f, const char *slot)
{
    if (!f)
        return false;
    int64_t now = clock_ns();
    pthread_mutex_lock(&f->lock);
    bool held = f->lease_state == LEASE_HELD && now < f->lease_until_ns;
    const struct slot_rows *s = rows_of(f, slot);
    bool elsewhere = false;
    if (f->state != FLEET_ONLINE || f->lease_state == LEASE_FAILED)
        ;
    else if (f->wish_new) /* the answer is on its way */
        elsewhere = now - f->wished_ns < ANSWER_NS && !(held && strcmp(f->lease, slot) == 0);
    else if (held)
        elsewhere = strcmp(f->lease, slot) != 0;
    else if (f->lease_state == LEASE_TAKEN)
        elsewhere = now - f->alone_ns < PATIENCE_NS || (s && now - s->came_ns < PATIENCE_NS);
    pthread_mutex_unlock(&f->lock);
    return elsewhere;
}

/* ---- retractions ----------------------------------------------------------------------------- */

static void forget_suspect(struct fleet *f, int i)
{
    f->asked -= i < f->asked;
    memmove(f->suspect + i, f->suspect + i + 1, (size_t)(--f->suspects - i) * sizeof *f->suspect);
}

/* Makes room for one more: the oldest goes that is of no kernel which serves here. What is said of
 * those must not be drowned in what is said of others. */
static void forget_oldest(struct fleet *f, const struct serving *serving)
{
    int i = 0;
    while (i + 1 < f->suspects && fleet_serves(serving, f->suspect[i].key))
        i++;
    if (log_due(&f->forgotten))
        log_warn(
            "fleet",
            "more than %d kernels are said to be wrong: what was said of %s is forgotten (%llu "
            "times)",
            SUSPECTS_MOST, f->suspect[i].key, (unsigned long long)atomic_load(&f->forgotten));
    forget_suspect(f, i);
}

/* True if it is news. The kernel may have been found wrong before, and looked at here. */
static bool take_retraction(struct fleet *f, const struct fleet_suspect *x,
                            const struct serving *serving)
{
    pthread_mutex_lock(&f->lock);
    const struct fleet_suspect *old = suspect_of(f, x->key);
    /* A database that was restored from a backup counts from where it was then. */
    bool known = old && old->seq == x->seq && strcmp(old->at, x->at) == 0;
    if (!known && old)
        forget_suspect(f, (int)(old - f->suspect));
    else if (!known && f->suspects == SUSPECTS_MOST)
        forget_oldest(f, serving);
    if (!known) {
        f->suspect = xrealloc(f->suspect, (size_t)(f->suspects + 1) * sizeof *f->suspect);
        f->suspect[f->suspects++] = *x;
    }
    pthread_mutex_unlock(&f->lock);
    return !known;
}

void fleet_take_retractions(struct fleet *f, const struct fleet_rows *rows)
{
    struct serving serving = {NULL, 0};
    if (f->suspects + rows->n > SUSPECTS_MOST) /* only this thread adds any */
        serving = read_serving(f);
    for (int i = 0; i < rows->n; i++) {
        const char *key = fleet_value(rows, i, 1), *slot = fleet_value(rows, i, 2);
        char plain[FLEET_WORD];
        if (!fleet_is_key(key) || !rows_of(f, slot)) {
            fleet_refuse(f, fleet_value(rows, i, 3), "a retraction with a wrong key or slot");
            continue;
        }
        struct fleet_suspect x = {.seq = atoll(fleet_value(rows, i, 0)), .came_ns = clock_ns()};
        snprintf(x.key, sizeof x.key, "%s", key);
        snprintf(x.slot, sizeof x.slot, "%s", slot);
        fleet_plain(fleet_value(rows, i, 4), plain);
        snprintf(x.by, sizeof x.by, "%.99s", plain);
        fleet_plain(fleet_value(rows, i, 5), plain);
        snprintf(x.reason, sizeof x.reason, "%s", plain);
        snprintf(x.at, sizeof x.at, "%s", fleet_value(rows, i, 6));
        atomic_fetch_add(&f->suspected, take_retraction(f, &x, &serving));
    }
    free(serving.key);
    if (rows->n > 0)
        atomic_fetch_add(&f->news, 1);
}

bool fleet_suspect_next(struct fleet *f, struct fleet_suspect *out)
{
    if (!f)
        return false;
    pthread_mutex_lock(&f->lock);
    bool some = f->asked < f->suspects;
    if (some)
        *out = f->suspect[f->asked++];
    pthread_mutex_unlock(&f->lock);
    return some;
}

bool fleet_retracted(struct fleet *f, const char *key, int64_t since_ns)
{
    if (!f)
        return false;
    pthread_mutex_lock(&f->lock);
    const struct fleet_suspect *x = suspect_of(f, key);
    bool yes = x && x->came_ns > since_ns;
    pthread_mutex_unlock(&f->lock);
    return yes;
}
