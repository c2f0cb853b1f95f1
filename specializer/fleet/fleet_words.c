/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_words.c - what this server says of kernels that are wrong, and how it gets through.
 *
 * A word is in the store from the moment in which it is said (store_words.h), so neither a process
 * that is killed nor a database that is away for days loses it. Words of another environment are
 * told, too: the server may run another model by now. So are those of servers that share this
 * store's file, if they did not tell them themselves within a minute: they may be gone.
 *
 * Each connection may be to another database than the last, or to one that has lost its last
 * moments. What was told before is told to it again, and changes nothing where it is known.
 *
 * Only where the store takes nothing (its disk is full) a word waits in memory.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/fleet/fleet_private.h"

enum { PAGE = 64, OTHERS_S = 60 };

/* ---- said here ------------------------------------------------------------------------------- */

/* The oldest goes where there is no room. */
static void wait_in_memory(struct fleet *f, const struct store_word *w, const struct err *why)
{
    log_warn("fleet", "%s: what is said of kernel %s waits in memory alone", why->msg, w->key);
    pthread_mutex_lock(&f->lock);
    if (f->sayings == SAYINGS_MOST)
        memmove(f->saying, f->saying + 1, (size_t)--f->sayings * sizeof *f->saying);
    f->saying[f->sayings++] = *w;
    pthread_mutex_unlock(&f->lock);
}

static void say(struct fleet *f, struct store_word *w)
{
    struct err err;
    memcpy(w->env, f->self.env, sizeof w->env);
    memcpy(w->server, f->self.server, sizeof w->server);
    memcpy(w->name, f->self.name, sizeof w->name);
    if (store_word_keep(f->store, w, &err) != 0)
        wait_in_memory(f, w, &err);
    atomic_fetch_add(&f->untold, 1);
    atomic_store(&f->said, true);
    fleet_wake(f);
}

void fleet_verdict(struct fleet *f, const char *key, bool upheld, const char *words)
{
    struct store_word w = {.verdict = true, .upheld = upheld};
    if (!f)
        return;
    snprintf(w.key, sizeof w.key, "%s", key);
    snprintf(w.words, sizeof w.words, "%s", words);
    say(f, &w);
}

void fleet_wrong(struct fleet *f, const char *key, const char *slot, const char *reason)
{
    struct store_word w = {.verdict = false};
    if (!f)
        return;
    snprintf(w.key, sizeof w.key, "%s", key);
    snprintf(w.slot, sizeof w.slot, "%s", slot);
    snprintf(w.words, sizeof w.words, "%s", reason);
    atomic_fetch_add(&f->retracted_here, 1);
    say(f, &w);
}

/* ---- told ------------------------------------------------------------------------------------ */

enum outcome { TOLD, REFUSED, LATER };

/* What one turn found. */
struct turn {
    bool failed[2]; /* retractions, verdicts: one right may lack, one table be locked */
    int said;       /* statements */
    int result;     /* 0, or -1 with the message of the last that failed */
};

/* `again`: only to a database that does not know it. One that is refused for what is in it would be
 * so for ever. */
static enum outcome tell(struct fleet *f, struct turn *t, const struct store_word *w, bool again,
                         struct err *err)
{
    struct fleet_self who = f->self;
    memcpy(who.env, w->env, sizeof who.env);
    memcpy(who.server, w->server, sizeof who.server);
    memcpy(who.name, w->name, sizeof who.name);
    if (t->failed[w->verdict])
        return LATER;
    t->said++;
    struct err why;
    int r = w->verdict ? fleet_say_verdict(f->db, &who, w->key, w->upheld, w->words, again, &why)
                       : fleet_retract(f->db, who.env, w->key, w->slot, who.server, who.name,
                                       w->words, again, &why);
    if (r == 0)
        return TOLD;
    if (fleet_db_alive(f->db) && fleet_row_refused(f)) {
        atomic_fetch_add(&f->errors, 1);
        log_warn("fleet", "what is said of kernel %s is given up: %s", w->key, why.msg);
        return REFUSED;
    }
    *err = why;
    t->result = -1;
    t->failed[w->verdict] = true;
    return LATER;
}

static bool is_same(const struct store_word *a, const struct store_word *b)
{
    return a->verdict == b->verdict && a->upheld == b->upheld && strcmp(a->key, b->key) == 0 &&
           strcmp(a->words, b->words) == 0;
}

/* Those that the store did not take, if it takes them now or not. */
static void tell_from_memory(struct fleet *f, struct turn *t, struct err *err)
{
    for (int i = 0; fleet_db_alive(f->db) && !atomic_load(&f->stop);) {
        struct store_word w = {.id = 0};
        pthread_mutex_lock(&f->lock);
        bool some = i < f->sayings;
        if (some)
            w = f->saying[i];
        pthread_mutex_unlock(&f->lock);
        if (!some)
            break;
        if (tell(f, t, &w, false, err) == LATER) {
            i++;
            continue;
        }
        pthread_mutex_lock(&f->lock); /* unless a full queue has dropped it meanwhile */
        if (i < f->sayings && is_same(&f->saying[i], &w))
            memmove(f->saying + i, f->saying + i + 1,
                    (size_t)(--f->sayings - i) * sizeof *f->saying);
        pthread_mutex_unlock(&f->lock);
    }
}

struct page {
    struct store_word word[PAGE];
    int n;
};

static void gather(void *ctx, const struct store_word *w)
{
    struct page *p = ctx;
    if (p->n < PAGE)
        p->word[p->n++] = *w;
}

static int read_page(struct fleet *f, struct page *p, bool told, int64_t after, struct err *err)
{
    int r = 0;
    p->n = 0;
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        r = store_words(f->store, told, f->self.server, OTHERS_S, after, PAGE, gather, p, err);
    pthread_mutex_unlock(&f->in_use);
    return r;
}

/* A note that is lost is made when the word is told once more. */
static void note(struct fleet *f, int64_t id, enum outcome what)
{
    if (what == LATER)
        return;
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop) && what == TOLD)
        store_word_told(f->store, id, NULL);
    else if (!atomic_load(&f->stop))
        store_word_forget(f->store, id, NULL);
    pthread_mutex_unlock(&f->in_use);
}

/* Those of the store with an id above *after that were told before, or that were not, until the
 * turn has said enough. True: that were all. */
static bool tell_from_store(struct fleet *f, struct turn *t, bool told, int64_t *after,
                            struct err *err)
{
    struct page *p = xcalloc(1, sizeof *p);
    bool whole = false;
    while (!whole && t->said < PAGE && fleet_db_alive(f->db) && !atomic_load(&f->stop)) {
        int i = 0;
        if (read_page(f, p, told, *after, err) != 0) {
            t->result = -1;
            break;
        }
        for (; i < p->n && t->said < PAGE && fleet_db_alive(f->db); i++) {
            enum outcome what = tell(f, t, &p->word[i], told, err);
            if (!told || what == REFUSED)
                note(f, p->word[i].id, what);
            *after = p->word[i].id;
        }
        whole = i == p->n && p->n < PAGE;
    }
    free(p);
    return whole;
}

/* What was told to other connections. If some of it cannot be told now, all is told again later. */
static bool tell_again(struct fleet *f, struct turn *t, struct err *err)
{
    struct turn again = {.said = t->said};
    bool whole = tell_from_store(f, &again, true, &f->again_after, err);
    if (again.result != 0)
        t->result = -1;
    f->again_failed |= again.result != 0;
    if (whole) {
        f->again_due = f->again_failed;
        f->again_failed = false;
        f->again_after = 0;
    }
    return whole;
}

static void count_untold(struct fleet *f)
{
    int n = 0;
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        n = store_words_untold(f->store);
    pthread_mutex_unlock(&f->in_use);
    pthread_mutex_lock(&f->lock);
    n += f->sayings;
    pthread_mutex_unlock(&f->lock);
    atomic_store(&f->untold, n);
}

/* A turn says PAGE words at most, and more with the next: leases and heartbeats must not wait for a
 * thousand, after days without a database. */
int fleet_say_all(struct fleet *f, struct err *err)
{
    struct turn t = {.result = 0};
    int64_t after = 0;
    tell_from_memory(f, &t, err);
    bool whole = tell_from_store(f, &t, false, &after, err);
    if (whole && f->again_due && fleet_db_alive(f->db))
        whole = tell_again(f, &t, err);
    if (!whole && t.result == 0)
        atomic_store(&f->said, true);
    count_untold(f);
    return t.result;
}
