/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache.c - pages, holders, and the index of sealed pages.
 *
 * A prefix is a chain of pages. Each sealed page has a serial number that is never reused, and is
 * indexed under (owner, serial of the page before it, its own tokens). A lookup walks from the root
 * and compares all three, not only the hash: since the serial stands for everything before, two
 * prefixes can never be confused, nor two owners, whatever a client sends. The hash has a key of
 * its own in each run, so that nobody can choose prompts whose pages all fall into one bucket, and
 * make every lookup walk through them. When a page is forgotten its serial is gone and
 * its continuations can no longer be reached; they are the older ones in the list below, because
 * holders drop their pages last page first, so in practice they went before it.
 *
 * States of a page, and where it is linked:
 *   held       refs > 0                    nowhere (in the index too if sealed)
 *   cached     refs == 0, serial != 0      index and the list of cached pages, oldest first
 *   free       refs == 0, serial == 0      the stack of free pages
 * Invariant: used + cached + free == pages, at any moment.
 */
#include "engine/kvcache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/siphash.h"

enum { NONE = -1 };

struct page {
    int32_t refs;
    int32_t next_same; /* next page in the same hash bucket */
    int32_t older, newer;
    uint64_t use; /* times it was handed out */
    uint64_t owner;
    uint64_t serial; /* 0: not sealed */
    uint64_t before; /* serial of the page before; 0: this is the first */
    int32_t token[KV_PAGE];
};

struct kvcache {
    int32_t pages, used, cached, frees;
    struct page *page; /* [pages] */
    int32_t *free;     /* [pages] a stack */
    int32_t oldest, newest;
    int32_t *bucket; /* [mask + 1] first page or NONE */
    uint32_t mask;
    struct siphash_key key;
    uint64_t next_serial;
};

struct kvcache *kvcache_open(int32_t pages)
{
    struct kvcache *kv = xcalloc(1, sizeof *kv);
    uint32_t buckets = 16;
    while (buckets < (uint32_t)pages * 2)
        buckets *= 2;
    kv->pages = kv->frees = pages;
    kv->page = xcalloc((size_t)pages + 1, sizeof *kv->page);
    kv->free = xmalloc(((size_t)pages + 1) * sizeof *kv->free);
    /* The stack hands out low numbers first, which keeps a small load in few pages of memory. */
    for (int32_t i = 0; i < pages; i++)
        kv->free[i] = pages - 1 - i;
    kv->bucket = xmalloc(buckets * sizeof *kv->bucket);
    for (uint32_t i = 0; i < buckets; i++)
        kv->bucket[i] = NONE;
    kv->mask = buckets - 1;
    kv->oldest = kv->newest = NONE;
    kv->key = siphash_key_random();
    kv->next_serial = 1;
    return kv;
}

void kvcache_close(struct kvcache *kv)
{
    if (!kv)
        return;
    free(kv->page);
    free(kv->free);
    free(kv->bucket);
    free(kv);
}

int32_t kvcache_pages(const struct kvcache *kv)
{
    return kv->pages;
}

int32_t kvcache_available(const struct kvcache *kv)
{
    return kv->frees + kv->cached;
}

int32_t kvcache_used(const struct kvcache *kv)
{
    return kv->used;
}

/* ---- the index of sealed pages ------------------------------------------------------------ */

/* What a page is known by, in one piece for the hash. */
struct page_name {
    uint64_t owner, before;
    int32_t token[KV_PAGE];
};

static uint32_t bucket_of(const struct kvcache *kv, uint64_t owner, uint64_t before,
                          const int32_t *tokens)
{
    struct page_name name = {.owner = owner, .before = before};
    memcpy(name.token, tokens, sizeof name.token);
    return (uint32_t)siphash(&kv->key, &name, sizeof name) & kv->mask;
}

static int32_t find(const struct kvcache *kv, uint64_t owner, uint64_t before,
                    const int32_t *tokens)
{
    int32_t i = kv->bucket[bucket_of(kv, owner, before, tokens)];
    for (; i != NONE; i = kv->page[i].next_same) {
        const struct page *p = &kv->page[i];
        if (p->owner == owner && p->before == before && !memcmp(p->token, tokens, sizeof p->token))
            break;
    }
    return i;
}

static void forget(struct kvcache *kv, int32_t page)
{
    struct page *p = &kv->page[page];
    int32_t *link = &kv->bucket[bucket_of(kv, p->owner, p->before, p->token)];
    while (*link != page)
        link = &kv->page[*link].next_same;
    *link = p->next_same;
    p->serial = 0;
}

/* ---- the list of cached pages ------------------------------------------------------------- */

static void cached_unlink(struct kvcache *kv, int32_t page)
{
    struct page *p = &kv->page[page];
    *(p->older == NONE ? &kv->oldest : &kv->page[p->older].newer) = p->newer;
    *(p->newer == NONE ? &kv->newest : &kv->page[p->newer].older) = p->older;
    kv->cached--;
}

static void cached_append(struct kvcache *kv, int32_t page)
{
    struct page *p = &kv->page[page];
    p->older = kv->newest;
    p->newer = NONE;
    *(kv->newest == NONE ? &kv->oldest : &kv->page[kv->newest].newer) = page;
    kv->newest = page;
    kv->cached++;
}

/* ---- holders ------------------------------------------------------------------------------ */

int32_t kvcache_take(struct kvcache *kv)
{
    int32_t page;
    if (kv->frees > 0) {
        page = kv->free[--kv->frees];
    } else if (kv->oldest != NONE) {
        page = kv->oldest;
        cached_unlink(kv, page);
        forget(kv, page);
    } else {
        return -1;
    }
    kv->page[page].refs = 1;
    kv->page[page].use++;
    kv->used++;
    return page;
}

uint64_t kvcache_use(const struct kvcache *kv, int32_t page)
{
    return kv->page[page].use + 1;
}

/* Adds a holder to the page. */
static void hold(struct kvcache *kv, int32_t page)
{
    struct page *p = &kv->page[page];
    assert(p->refs > 0 || p->serial); /* a free page is nobody's to hold */
    if (p->refs++ == 0) {
        cached_unlink(kv, page);
        kv->used++;
    }
}

void kvcache_drop(struct kvcache *kv, int32_t page)
{
    struct page *p = &kv->page[page];
    assert(p->refs > 0);
    if (--p->refs > 0)
        return;
    kv->used--;
    if (p->serial)
        cached_append(kv, page);
    else
        kv->free[kv->frees++] = page;
}

bool kvcache_writable(const struct kvcache *kv, int32_t page)
{
    return kv->page[page].refs == 1 && kv->page[page].serial == 0;
}

/* ---- sharing ------------------------------------------------------------------------------ */

int32_t kvcache_find(struct kvcache *kv, uint64_t owner, int32_t before, const int32_t *tokens)
{
    uint64_t serial = before == NONE ? 0 : kv->page[before].serial;
    int32_t page = before == NONE || serial ? find(kv, owner, serial, tokens) : NONE;
    if (page != NONE)
        hold(kv, page);
    return page;
}

int32_t kvcache_match(struct kvcache *kv, uint64_t owner, const int32_t *tokens, int32_t max,
                      int32_t *pages)
{
    int32_t n = 0;
    for (; n < max; n++) {
        pages[n] =
            kvcache_find(kv, owner, n > 0 ? pages[n - 1] : NONE, tokens + (int64_t)n * KV_PAGE);
        if (pages[n] == NONE)
            break;
    }
    return n;
}

int32_t kvcache_seal(struct kvcache *kv, uint64_t owner, int32_t page, int32_t before,
                     const int32_t *tokens)
{
    struct page *p = &kv->page[page];
    uint64_t serial = before < 0 ? 0 : kv->page[before].serial;
    if (p->serial || (before >= 0 && (!serial || kv->page[before].owner != owner)))
        return page;
    /* Two sequences may have computed the same page side by side: one copy is enough. */
    int32_t known = find(kv, owner, serial, tokens);
    if (known != NONE) {
        hold(kv, known);
        kvcache_drop(kv, page);
        return known;
    }
    uint32_t at = bucket_of(kv, owner, serial, tokens);
    memcpy(p->token, tokens, sizeof p->token);
    p->owner = owner;
    p->before = serial;
    p->serial = kv->next_serial++;
    p->next_same = kv->bucket[at];
    kv->bucket[at] = page;
    return page;
}

int32_t kvcache_forget(struct kvcache *kv)
{
    int32_t forgotten = 0;
    for (uint32_t i = 0; i <= kv->mask; i++)
        kv->bucket[i] = NONE;
    while (kv->oldest != NONE) {
        int32_t page = kv->oldest;
        cached_unlink(kv, page);
        kv->page[page].serial = 0;
        kv->free[kv->frees++] = page;
        forgotten++;
    }
    for (int32_t i = 0; i < kv->pages; i++) {
        forgotten += kv->page[i].serial != 0;
        kv->page[i].serial = 0;
    }
    return forgotten;
}
