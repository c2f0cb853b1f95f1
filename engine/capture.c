/* SPDX-License-Identifier: Apache-2.0 */
/* capture.c - see capture.h. */
#include "engine/capture.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"

void capture_free(struct capture *c)
{
    if (!c)
        return;
    void *owned[] = {c->x,          c->in,   c->position, c->kv_at,
                     c->page_table, c->span, c->k_pages,  c->v_pages};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    memset(c, 0, sizeof *c);
}

void *capture_copy(const void *from, int64_t count, size_t size)
{
    void *p = xmalloc((size_t)count * size + 1);
    memcpy(p, from, (size_t)count * size);
    return p;
}

int32_t capture_spans(const struct step *s, int32_t m)
{
    return s->spans < m ? s->spans : m;
}

/* Gives `page` the next number of the compact pool unless it has one. */
static int32_t renumber(int32_t *number, int32_t page, int32_t *pages)
{
    if (number[page] == 0)
        number[page] = ++*pages;
    return number[page] - 1;
}

void capture_kv_at(struct capture *c, const struct step *s, int32_t *number)
{
    c->position = capture_copy(s->position, s->m, sizeof *c->position);
    c->kv_at = xmalloc((size_t)s->m * sizeof *c->kv_at);
    for (int32_t i = 0; i < s->m; i++)
        c->kv_at[i] =
            renumber(number, s->kv_at[i] / KV_PAGE, &c->pages) * KV_PAGE + s->kv_at[i] % KV_PAGE;
}

static int32_t pages_of(const struct span *span)
{
    return (span->context + KV_PAGE - 1) / KV_PAGE;
}

void capture_table(struct capture *c, const struct step *s, int32_t *number)
{
    int32_t used = 0, at = 0;
    c->span = capture_copy(s->span, s->spans, sizeof *c->span);
    for (int32_t i = 0; i < s->spans; i++)
        used += pages_of(&s->span[i]);
    c->page_table = xmalloc((size_t)used * sizeof *c->page_table + 1);
    for (int32_t i = 0; i < s->spans; i++) {
        c->span[i].pages_at = at;
        for (int32_t p = 0; p < pages_of(&s->span[i]); p++)
            c->page_table[at++] =
                renumber(number, s->page_table[s->span[i].pages_at + p], &c->pages);
    }
}

int32_t *capture_fold(struct capture *c, int32_t most)
{
    int32_t *place = xmalloc((size_t)c->pages * sizeof *place + 1), own = 0, shared = 0, used = 0;
    for (int32_t i = 0; i < c->pages; i++)
        place[i] = -1;
    for (int32_t i = 0; i < c->spans; i++) {
        const struct span *s = &c->span[i];
        for (int32_t p = (s->context - s->count) / KV_PAGE; p < pages_of(s); p++)
            if (place[c->page_table[s->pages_at + p]] < 0)
                place[c->page_table[s->pages_at + p]] = own++;
        used += pages_of(s);
    }
    for (int32_t i = 0; i < c->pages; i++)
        if (place[i] < 0)
            place[i] = own + shared++ % (most - own);
    for (int32_t i = 0; i < used; i++)
        c->page_table[i] = place[c->page_table[i]];
    c->pages = c->pages < most ? c->pages : most;
    return place;
}
