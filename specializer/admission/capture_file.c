/* SPDX-License-Identifier: Apache-2.0 */
/* capture_file.c - struct capture, written flat: a head of numbers, then the arrays that are there.
 *
 * The file is read by the same program on the same machine a moment later, so byte order and
 * versions are no concern; damage is. The head says which arrays follow, their sizes follow from
 * the head and the model's shape, and indices in them are checked before anybody uses them.
 */
#include "specializer/admission/capture_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config/safe_path.h"

enum { MAGIC = 0x57435031, ARRAYS = 8, COUNT_MAX = 1 << 24 };

struct head {
    int32_t magic, region, layer, m, spans, context, pages, table;
    int32_t present; /* bit i: array i follows */
};

struct array {
    void **at;
    int64_t bytes;
};

static int64_t width_of_in(enum region r, const struct model_shape *s)
{
    return r == REGION_MLP_OUT  ? s->ffn
           : r == REGION_REDUCE ? s->hidden
                                : (int64_t)s->heads * s->head_dim;
}

/* The arrays of a capture in file order, with the sizes that its numbers imply. */
static void arrays_of(struct capture *c, const struct model_shape *s, int32_t table,
                      struct array a[ARRAYS])
{
    int64_t f = sizeof(float), m = c->m;
    int64_t page = (int64_t)s->kv_heads * KV_PAGE * s->head_dim * kv_element_bytes(s);
    struct array all[ARRAYS] = {
        {(void **)&c->x, m * s->hidden * f},
        {(void **)&c->in, m * width_of_in(c->region, s) * f},
        {(void **)&c->position, m * 4},
        {(void **)&c->kv_at, m * 4},
        {(void **)&c->span, c->spans * (int64_t)sizeof(struct span)},
        {(void **)&c->page_table, (int64_t)table * 4},
        {(void **)&c->k_pages, c->pages * page},
        {(void **)&c->v_pages, c->pages * page},
    };
    memcpy(a, all, sizeof all);
}

/* Entries of the page table that the spans use. */
static int32_t table_length(const struct capture *c)
{
    int32_t n = 0;
    for (int32_t i = 0; c->span && i < c->spans; i++) {
        int32_t end = c->span[i].pages_at + (c->span[i].context + KV_PAGE - 1) / KV_PAGE;
        n = end > n ? end : n;
    }
    return n;
}

int capture_save(const struct capture *c, const struct model_shape *shape, const char *path,
                 struct err *err)
{
    struct capture copy = *c;
    struct array a[ARRAYS];
    struct head h = {MAGIC,      (int32_t)c->region, c->layer, c->m, c->spans,
                     c->context, c->pages,           0,        0};
    h.table = c->page_table ? table_length(c) : 0;
    arrays_of(&copy, shape, h.table, a);
    for (int i = 0; i < ARRAYS; i++)
        h.present |= (*a[i].at != NULL) << i;
    FILE *f = safe_create(path);
    if (!f)
        return err_set(err, "%.300s: %s", path, strerror(errno));
    bool ok = fwrite(&h, sizeof h, 1, f) == 1;
    for (int i = 0; ok && i < ARRAYS; i++)
        if (*a[i].at && a[i].bytes > 0)
            ok = fwrite(*a[i].at, (size_t)a[i].bytes, 1, f) == 1;
    if (fclose(f) != 0 || !ok)
        return err_set(err, "%.300s: cannot be written: %s", path, strerror(errno));
    return 0;
}

static const char *bad_head(const struct head *h, const struct model_shape *s)
{
    if (h->magic != MAGIC)
        return "not a capture";
    if (h->region < 0 || h->region >= REGION_NODES)
        return "region";
    if (h->layer < 0 || h->layer >= s->layers)
        return "layer";
    if (h->m < 1 || h->m > COUNT_MAX / s->hidden)
        return "m";
    if (h->spans < 0 || h->spans > h->m)
        return "spans";
    if (h->pages < 0 || h->pages > COUNT_MAX || h->table < 0 || h->table > COUNT_MAX)
        return "pages";
    return NULL;
}

/* The arrays that a region's case reads, as bits of head.present. */
static int32_t needed(enum region r)
{
    static const int32_t need[REGION_NODES] = {
        [REGION_ATTN_IN] = 1 | 4 | 8,
        [REGION_ATTN] = 2 | 16 | 32 | 64 | 128,
        [REGION_ATTN_OUT] = 1 | 2,
        [REGION_MLP_IN] = 1,
        [REGION_MLP_OUT] = 1 | 2,
        [REGION_HEAD] = 1,
        [REGION_MLP] = 1,
        [REGION_REDUCE] = 1 | 2,
    };
    return need[r];
}

static const char *bad_spans(const struct capture *c, int32_t table)
{
    for (int32_t i = 0; i < c->spans; i++) {
        const struct span *s = &c->span[i];
        if (s->first < 0 || s->count < 1 || s->first > c->m - s->count || s->context < s->count ||
            s->context > COUNT_MAX || s->pages_at < 0 ||
            s->pages_at > table - (s->context + KV_PAGE - 1) / KV_PAGE)
            return "span";
    }
    for (int32_t i = 0; i < table; i++)
        if (c->page_table[i] < 0 || c->page_table[i] >= c->pages)
            return "page_table";
    return NULL;
}

static const char *bad_contents(const struct capture *c, const struct head *h)
{
    if ((h->present & needed(c->region)) != needed(c->region))
        return "an array is missing";
    if (c->region == REGION_ATTN)
        return bad_spans(c, h->table);
    for (int32_t i = 0; c->region == REGION_ATTN_IN && i < c->m; i++)
        if (c->kv_at[i] < 0 || c->kv_at[i] / KV_PAGE >= c->pages || c->position[i] < 0 ||
            c->position[i] > COUNT_MAX)
            return "kv_at or position";
    return NULL;
}

static int64_t bytes_left(FILE *f)
{
    struct stat st;
    long at = ftell(f);
    return at < 0 || fstat(fileno(f), &st) != 0 ? 0 : st.st_size - at;
}

static const char *read_all(FILE *f, const struct model_shape *s, struct capture *c)
{
    struct head h;
    struct array a[ARRAYS];
    if (fread(&h, sizeof h, 1, f) != 1)
        return "head";
    const char *bad = bad_head(&h, s);
    if (bad)
        return bad;
    c->region = (enum region)h.region;
    c->layer = h.layer;
    c->m = h.m;
    c->spans = h.spans;
    c->context = h.context;
    c->pages = h.pages;
    arrays_of(c, s, h.table, a);
    for (int i = 0; i < ARRAYS; i++) {
        if (!(h.present >> i & 1))
            continue;
        if (a[i].bytes > bytes_left(f))
            return "cut short";
        *a[i].at = xmalloc((size_t)a[i].bytes + 1);
        if (a[i].bytes > 0 && fread(*a[i].at, (size_t)a[i].bytes, 1, f) != 1)
            return "cut short";
    }
    return bad_contents(c, &h);
}

struct capture *capture_load(const char *path, const struct model_shape *shape, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        err_set(err, "%.300s: %s", path, strerror(errno));
        return NULL;
    }
    struct capture *c = xcalloc(1, sizeof *c);
    const char *bad = read_all(f, shape, c);
    fclose(f);
    if (!bad)
        return c;
    err_set(err, "a damaged capture (%s): %.300s", bad, path);
    capture_free(c);
    free(c);
    return NULL;
}
