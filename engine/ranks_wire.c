/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_wire.c - a step to bytes and back: counts, then its arrays one after the other; and what is
 * said of kernels. */
#include "engine/ranks_wire.h"

#include <stdlib.h>
#include <string.h>

struct head {
    int32_t m, spans, pages, context, rows, changes, trial_slot, trial;
    int32_t beside_run, beside;
    int64_t step, version;
};

static size_t bytes_of(const struct head *h)
{
    return sizeof *h + (size_t)h->m * 3 * sizeof(int32_t) + (size_t)h->rows * sizeof(int32_t) +
           (size_t)h->pages * sizeof(int32_t) + (size_t)h->spans * sizeof(struct span) +
           (size_t)h->changes * sizeof(struct wire_change);
}

void wire_buffer_free(struct wire_buffer *b)
{
    free(b->data);
    *b = (struct wire_buffer){0};
}

static void put(struct wire_buffer *b, const void *data, size_t n)
{
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

void wire_pack(const struct step *s, const struct wire_table *t, struct wire_buffer *b)
{
    struct head h = {.m = s->m,
                     .spans = s->spans,
                     .pages = s->pages,
                     .context = s->context,
                     .rows = s->rows,
                     .changes = t->changes,
                     .trial_slot = t->trial_slot,
                     .trial = t->trial,
                     .beside_run = t->beside_run,
                     .beside = t->beside,
                     .step = t->step,
                     .version = t->version};
    size_t m = (size_t)s->m * sizeof(int32_t), need = bytes_of(&h);
    if (need > b->room) {
        b->room = 2 * need;
        b->data = xrealloc(b->data, b->room);
    }
    b->n = 0;
    put(b, &h, sizeof h);
    put(b, s->tokens, m);
    put(b, s->position, m);
    put(b, s->kv_at, m);
    put(b, s->row, (size_t)s->rows * sizeof(int32_t));
    put(b, s->page_table, (size_t)s->pages * sizeof(int32_t));
    put(b, s->span, (size_t)s->spans * sizeof *s->span);
    put(b, t->change, (size_t)t->changes * sizeof *t->change);
}

/* A sequence has a token at least in a step, and no more pages than its context has. */
static int64_t most_pages(const struct wire_limits *l)
{
    return (int64_t)l->max_tokens * ((l->max_context + KV_PAGE - 1) / KV_PAGE + 1);
}

size_t wire_most(const struct wire_limits *l)
{
    return sizeof(struct head) +
           (size_t)l->max_tokens * (3 * sizeof(int32_t) + sizeof(struct span)) +
           (size_t)l->max_rows * sizeof(int32_t) + (size_t)most_pages(l) * sizeof(int32_t) +
           (size_t)l->slots * sizeof(struct wire_change);
}

/* ---- back ----------------------------------------------------------------------------------- */

static int check_head(const struct head *h, size_t n, const struct wire_limits *l, struct err *err)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } count[] = {{"tokens", h->m, 1, l->max_tokens},
                 {"sequences", h->spans, 1, h->m},
                 {"pages", h->pages, 1, most_pages(l)},
                 {"rows", h->rows, 0, l->max_rows},
                 {"positions", h->context, 1, l->max_context},
                 {"changed slots", h->changes, 0, l->slots},
                 {"slots for a canary", (int64_t)h->trial_slot + 1, 0, l->slots},
                 {"kernels of a canary", h->trial, h->trial_slot < 0 ? 0 : 1,
                  h->trial_slot < 0 ? 0 : INT32_MAX},
                 {"runs of reduce", (int64_t)h->beside_run + 1, 0, INT32_MAX},
                 {"kernels beside reduce", h->beside, 0, h->beside_run < 0 ? 0 : INT32_MAX}};
    for (size_t i = 0; i < sizeof count / sizeof *count; i++)
        if (count[i].value < count[i].least || count[i].value > count[i].most)
            return err_set(err, "a step of %lld %s; from %lld to %lld are possible",
                           (long long)count[i].value, count[i].name, (long long)count[i].least,
                           (long long)count[i].most);
    if (bytes_of(h) != n)
        return err_set(err, "a step of %d tokens in %zu bytes instead of %zu", h->m, n,
                       bytes_of(h));
    return 0;
}

/* Every value in [0, most). */
static int check_values(const char *name, const int32_t *v, int32_t n, int64_t most,
                        struct err *err)
{
    for (int32_t i = 0; i < n; i++)
        if (v[i] < 0 || v[i] >= most)
            return err_set(err, "a step with %s %d; they end at %lld", name, v[i], (long long)most);
    return 0;
}

/* The sequences' tokens follow each other without gaps, and their pages lie in the table. */
static int check_spans(const struct step *s, struct err *err)
{
    int32_t next = 0;
    for (int32_t i = 0; i < s->spans; i++) {
        const struct span *p = &s->span[i];
        int64_t pages = ((int64_t)p->context + KV_PAGE - 1) / KV_PAGE;
        if (p->first != next || p->count < 1 || p->count > s->m - next || p->context < p->count ||
            p->context > s->context || p->pages_at < 0 || p->pages_at + pages > s->pages)
            return err_set(err, "sequence %d of a step does not fit it", i);
        next += p->count;
    }
    return next == s->m ? 0 : err_set(err, "a step with tokens that are no sequence's");
}

/* In the order of the slots, so that none is changed twice. */
static int check_changes(const struct wire_table *t, const struct wire_limits *l, struct err *err)
{
    for (int32_t i = 0, least = 0; i < t->changes; i++) {
        const struct wire_change *c = &t->change[i];
        if (c->slot < least || c->slot >= l->slots || c->kernel < 0)
            return err_set(err, "a step that puts kernel %d into slot %d of %d", c->kernel, c->slot,
                           l->slots);
        least = c->slot + 1;
    }
    return 0;
}

int wire_unpack(const char *data, size_t n, const struct wire_limits *l, struct step *s,
                struct wire_table *t, struct err *err)
{
    struct head h;
    if (n < sizeof h)
        return err_set(err, "a step of %zu bytes", n);
    memcpy(&h, data, sizeof h);
    if (check_head(&h, n, l, err))
        return -1;
    const int32_t *at = (const int32_t *)(const void *)(data + sizeof h);
    *s = (struct step){
        .m = h.m, .spans = h.spans, .pages = h.pages, .context = h.context, .rows = h.rows};
    s->tokens = at;
    s->position = s->tokens + h.m;
    s->kv_at = s->position + h.m;
    s->row = s->kv_at + h.m;
    s->page_table = s->row + h.rows;
    s->span = (const struct span *)(const void *)(s->page_table + h.pages);
    *t = (struct wire_table){.step = h.step,
                             .version = h.version,
                             .trial_slot = h.trial_slot,
                             .trial = h.trial,
                             .beside_run = h.beside_run,
                             .beside = h.beside,
                             .changes = h.changes,
                             .change =
                                 (const struct wire_change *)(const void *)(s->span + h.spans)};
    return check_values("token", s->tokens, h.m, l->vocab, err) ||
                   check_values("position", s->position, h.m, l->max_context, err) ||
                   check_values("cache position", s->kv_at, h.m, (int64_t)l->kv_pages * KV_PAGE,
                                err) ||
                   check_values("row", s->row, h.rows, h.m, err) ||
                   check_values("page", s->page_table, h.pages, l->kv_pages, err) ||
                   check_spans(s, err) || check_changes(t, l, err)
               ? -1
               : 0;
}

/* ---- timings -------------------------------------------------------------------------------- */

int wire_read_timing(const char *data, size_t n, const struct wire_limits *l, struct wire_timing *t,
                     struct err *err)
{
    if (n != sizeof *t)
        return err_set(err, "a timing of %zu bytes", n);
    memcpy(t, data, sizeof *t);
    if (t->kernel < 0 || t->m < 1 || t->m > l->max_tokens || t->calls < 1 || t->calls > TIMED_MOST)
        return err_set(err, "a timing of kernel %d with %d tokens, %d times", t->kernel, t->m,
                       t->calls);
    return 0;
}

/* ---- kernels -------------------------------------------------------------------------------- */

static bool ends(const char *text, size_t n)
{
    return memchr(text, 0, n) != NULL;
}

int wire_read_kernel(const char *data, size_t n, struct wire_kernel *k, const char **bytes,
                     struct err *err)
{
    if (n < sizeof *k)
        return err_set(err, "a kernel of %zu bytes", n);
    memcpy(k, data, sizeof *k);
    if (k->number < 1 || k->region < 0 || k->region >= REGION_NODES || k->origin < ORIGIN_EAGER ||
        k->origin >= ORIGINS || k->layer < 0 || k->layers < 0)
        return err_set(err, "kernel %d of region %d, origin %d", k->number, k->region, k->origin);
    if (!ends(k->id, sizeof k->id) || !ends(k->name, sizeof k->name) ||
        !ends(k->entry, sizeof k->entry))
        return err_set(err, "kernel %d has a text without an end", k->number);
    if (k->bytes < 1 || k->bytes > KERNEL_BYTES_MOST || (size_t)k->bytes != n - sizeof *k)
        return err_set(err, "kernel %d: %zu bytes instead of %lld", k->number, n - sizeof *k,
                       (long long)k->bytes);
    *bytes = data + sizeof *k;
    return 0;
}
