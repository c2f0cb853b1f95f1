/* SPDX-License-Identifier: Apache-2.0 */
/* hearing.c - a kernel that whole steps spoke against is heard again in other company.
 *
 * The bench measures a kernel among its own kind, the canary in a step, where kernels meet: on a
 * GPU one begins while the one before it drains, on a CPU one finds in a cache what another left
 * there. So "whole steps are slower with it" is said of a kernel among those that served around it.
 * One whose bench was clear, and against which the canary found nothing but the time, is therefore
 * not refused but adjourned, and heard again once its company is one in which it has not lost yet.
 * It begins again at the bench's door and before it: admission.md has no proof that outlives a
 * verdict, so all of them are made again; only the object may be there already.
 *
 * Company: the kernels of the slots that share steps with it, those of other regions and the same M
 * bucket, attention in any context. Which kernels they were is in the candidate's row, so a restart
 * changes nothing.
 *
 * It ends. A kernel is heard HEARINGS_MOST times and never twice in one company, so swaps that go
 * to and fro bring nobody back; a slot holds HEARINGS_A_COMPANY hearings in one company, whoever it
 * is that waits; and a hearing has to be worth more than new candidates are: what its bench
 * promises for the slot's share, halved with every hearing lost. That prices it late, when the
 * search around it has slowed down and its company is the one that will stay.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/candidate/hash.h"
#include "specializer/hearing.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"

enum { HEARINGS_A_COMPANY = 2, NAMED_MOST = 3 };

/* ---- company ------------------------------------------------------------------------------- */

static bool shares_steps(const struct slot *a, const struct slot *b)
{
    return a->m_index == b->m_index && a->region != b->region;
}

/* "mlp_in/m8=6b60ee6d", or "" for eager. */
static void member(const struct slot *slot, char *out, size_t n)
{
    const struct kernel *k = atomic_load(&slot->kernel);
    out[0] = 0;
    if (k->origin != ORIGIN_EAGER)
        snprintf(out, n, "%s=%.8s", slot->name, k->id);
}

static void company_of(const struct specializer *s, const struct place *p, char out[COMPANY_TEXT])
{
    char one[64];
    size_t at = 0;
    snprintf(out, COMPANY_TEXT, "eager");
    for (int i = 0; i < s->places; i++) {
        if (!shares_steps(s->place[i].slot, p->slot))
            continue;
        member(s->place[i].slot, one, sizeof one);
        if (one[0] && at < COMPANY_TEXT)
            at += (size_t)snprintf(out + at, COMPANY_TEXT - at, "%s%s", at ? " " : "", one);
    }
}

uint64_t hearing_company(const struct specializer *s, const struct place *p)
{
    char company[COMPANY_TEXT];
    company_of(s, p, company);
    return hash_text(HASH_START, company);
}

/* It has lost in this very company. */
static bool lost_among(const struct heard *h, const char *company)
{
    size_t n = strlen(company);
    for (const char *at = h->among; *at;) {
        size_t here = strcspn(at, ";");
        if (here == n && strncmp(at, company, n) == 0)
            return true;
        at += here;
        at += strspn(at, "; ");
    }
    return false;
}

bool hearing_allowed(const struct specializer *s, const struct place *p, const struct heard *h)
{
    char company[COMPANY_TEXT];
    if (h->n == 0)
        return true;
    company_of(s, p, company);
    return h->n < HEARINGS_MOST && !lost_among(h, company);
}

/* The slots whose kernels are not those of the last company in which it lost, in words. */
static void changed_since(const struct specializer *s, const struct place *p, const struct heard *h,
                          char *out, size_t n)
{
    const char *last = strrchr(h->among, ';');
    char one[64], name[64];
    size_t at = 0;
    int changed = 0;
    last = last ? last + 2 : h->among;
    out[0] = 0;
    for (int i = 0; i < s->places; i++) {
        const struct slot *slot = s->place[i].slot;
        if (!shares_steps(slot, p->slot))
            continue;
        member(slot, one, sizeof one);
        snprintf(name, sizeof name, "%s=", slot->name);
        bool same = one[0] ? strstr(last, one) != NULL : strstr(last, name) == NULL;
        if (!same && ++changed <= NAMED_MOST && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s", at ? ", " : "", slot->name);
    }
    if (changed > NAMED_MOST && at < n)
        snprintf(out + at, n - at, " and %d more", changed - NAMED_MOST);
}

/* ---- adjourning ---------------------------------------------------------------------------- */

bool hearing_adjourn(struct specializer *s, struct place *p, struct candidate *c)
{
    struct heard *h = &c->evidence.heard;
    char company[COMPANY_TEXT];
    bool clear = c->evidence.bench.low >= CLEAR_GAIN;
    if (c->body[0] || c->steps == STEPS_UNSEEN || (c->steps == STEPS_SLOWER && !clear))
        return false;
    company_of(s, p, company);
    if (!lost_among(h, company)) { /* it was heard in another, if that went while it was heard */
        size_t at = strlen(h->among);
        snprintf(h->among + at, sizeof h->among - at, "%s%s", at ? "; " : "", company);
        h->n++;
    }
    h->low = c->evidence.bench.low;
    h->speed = c->evidence.speed;
    p->hearing.some = p->hearing.dirty = true;
    return c->steps == STEPS_UNDECIDED || h->n < HEARINGS_MOST;
}

/* ---- whose turn it is ---------------------------------------------------------------------- */

/* Rows that may be heard: adjourned, or a hearing that was not held to its end. */
enum {
    WAITING = 1u << LIFE_ADJOURNED | 1u << LIFE_PROPOSED | 1u << LIFE_BUILT | 1u << LIFE_PROBED |
              1u << LIFE_BENCHED | 1u << LIFE_SHADOWED | 1u << LIFE_CANARY
};

struct docket {
    struct specializer *s;
    struct place *p;
    double speed; /* to beat, then of the best */
};

/* Lock held. */
static void waiting_row(void *ctx, const struct record *r)
{
    struct docket *d = ctx;
    const struct heard *h = &r->evidence.heard;
    const struct template *t = template_find(r->template);
    char source[17] = "";
    if (t)
        template_source_hash(t, source);
    if (h->n == 0 || h->speed <= d->speed || strcmp(source, r->source) != 0 ||
        r->deaths >= DEATHS_MOST || is_disabled(d->s, r->key, r->template) ||
        !hearing_allowed(d->s, d->p, h))
        return;
    d->speed = h->speed;
    snprintf(d->p->hearing.key, sizeof d->p->hearing.key, "%s", r->key);
    d->p->hearing.promise = h->low / (1 + h->low) * exp2(-h->n);
}

/* Hearings that the slot has held in the company there is; one more if `more`. */
static int held(struct place *p, bool more)
{
    struct company *c = p->hearing.company_held;
    for (int i = 0; i < COMPANIES; i++)
        if (c[i].held > 0 && c[i].hash == p->hearing.company)
            return c[i].held += more;
    if (more) {
        c[p->hearing.next] = (struct company){p->hearing.company, 1};
        p->hearing.next = (p->hearing.next + 1) % COMPANIES;
    }
    return more;
}

/* Looks up who is to be heard next, if that may be another than last time. */
static void call(struct specializer *s, struct place *p)
{
    uint64_t company = hearing_company(s, p);
    if (company == p->hearing.company && !p->hearing.dirty)
        return;
    p->hearing.company = company;
    p->hearing.dirty = false;
    p->hearing.key[0] = 0;
    struct record_filter f = {.env = s->keys.env, .slot = p->slot->name, .states = WAITING};
    pthread_mutex_lock(&s->lock);
    struct docket d = {s, p, (1 + p->gain_eager) * (1 + s->config->specializer_min_gain)};
    store_each(s->store, &f, waiting_row, &d, NULL);
    pthread_mutex_unlock(&s->lock);
}

bool hearing_due(struct specializer *s, struct place *p)
{
    pthread_mutex_lock(&s->lock);
    bool open = p->hearing.some && !p->left_out && !p->finalist && !p->pinned[0];
    pthread_mutex_unlock(&s->lock);
    if (!open || s->strategy == &strategy_agentic || clock_ns() < p->not_before_ns)
        return false;
    call(s, p);
    return p->hearing.key[0] && held(p, false) < HEARINGS_A_COMPANY;
}

struct place *hearing_choose(struct specializer *s, double than)
{
    struct place *best = NULL;
    double most = fmax(than, OBSERVE_FLOOR);
    for (int i = 0; i < s->places; i++) {
        struct place *p = &s->place[i];
        if (!p->hearing.some || !hearing_due(s, p))
            continue;
        pthread_mutex_lock(&s->lock);
        double worth = p->share * p->hearing.promise;
        pthread_mutex_unlock(&s->lock);
        if (worth >= most) {
            most = worth;
            best = p;
        }
    }
    return best;
}

static void remember_row(void *ctx, const struct record *r)
{
    struct place *p = r->evidence.heard.n > 0 ? place_find(ctx, r->slot) : NULL;
    if (p)
        p->hearing.some = p->hearing.dirty = true;
}

void hearings_recall(struct specializer *s)
{
    struct record_filter f = {.env = s->keys.env, .states = WAITING};
    store_each(s->store, &f, remember_row, s, NULL);
}

/* ---- holding it ---------------------------------------------------------------------------- */

/* The candidate of a row, or NULL: its template has another text or other points by now. */
static struct candidate *candidate_of(struct specializer *s, struct place *p,
                                      const struct record *r, int32_t *id)
{
    const struct template *t = template_find(r->template);
    struct point point;
    if (!t || point_parse(t, r->knobs, &point, NULL) != 0 ||
        (*id = space_find(p->space, t, &point)) < 0)
        return NULL;
    struct candidate *c = candidate_new(&s->keys, t, &point, space_facts(p->space), p->slot);
    if (strcmp(c->key, r->key) == 0)
        return c;
    candidate_free(c);
    return NULL;
}

bool hearing_start(struct specializer *s, struct place *p)
{
    struct record r;
    int32_t id = -1;
    char changed[160];
    bool found = store_get(s->store, p->hearing.key, &r, NULL) > 0;
    p->hearing.key[0] = 0;
    p->hearing.dirty = true;
    held(p, true);
    if (!found)
        return false;
    free(r.log);
    changed_since(s, p, &r.evidence.heard, changed, sizeof changed);
    struct candidate *c = candidate_of(s, p, &r, &id);
    if (!c || round_admit(s, c, NULL) <= 0) {
        candidate_free(c);
        return false;
    }
    store_trace(s->store, p->slot->name, c->key, "heard_again", NULL,
                "%s changed since; hearing %d of at most %d", changed, r.evidence.heard.n + 1,
                (int)HEARINGS_MOST);
    log_info("specializer", "%s: %s heard again: %s changed since", p->slot->name, c->name,
             changed);
    s->round = (struct round){.place = p, .n = 1};
    s->round.item[0] = (struct item){.c = c, .id = id, .stage = ITEM_BUILD, .again = true};
    pthread_mutex_lock(&s->lock);
    p->candidates++;
    pthread_mutex_unlock(&s->lock);
    return true;
}
