/* SPDX-License-Identifier: Apache-2.0 */
/* check_rows.c - gathering tokens: rows of floats for the linear regions, and for attention one
 * span a token, whose context ends at that token. */
#include "specializer/admission/check_rows.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"

static float *gather(struct row_set *s, int slot, const float *src, const int32_t *row, int32_t n,
                     int64_t cols)
{
    float *dst = xmalloc((size_t)n * (size_t)cols * sizeof *dst);
    for (int32_t i = 0; i < n; i++)
        memcpy(dst + i * cols, src + row[i] * cols, (size_t)cols * sizeof *dst);
    s->memory[slot] = dst;
    return dst;
}

static int32_t *gather_int(struct row_set *s, int slot, const int32_t *src, const int32_t *row,
                           int32_t n)
{
    int32_t *dst = xmalloc((size_t)n * sizeof *dst);
    for (int32_t i = 0; i < n; i++)
        dst[i] = src[row[i]];
    s->memory[slot] = dst;
    return dst;
}

static struct span own_span(const struct attn_args *a, int32_t token, int32_t at)
{
    for (int32_t i = 0; i < a->spans; i++) {
        const struct span *p = &a->span[i];
        if (token >= p->first && token < p->first + p->count)
            return (struct span){at, 1, p->context - (p->first + p->count - 1 - token),
                                 p->pages_at};
    }
    return (struct span){at, 1, 1, 0};
}

static void attention_rows(struct row_set *s, const int32_t *row, int32_t n)
{
    struct attn_args *a = &s->args.attn;
    int64_t cols = (int64_t)a->heads * a->head_dim;
    struct span *span = xmalloc((size_t)n * sizeof *span);
    for (int32_t i = 0; i < n; i++)
        span[i] = own_span(a, row[i], i);
    a->q = gather(s, 0, a->q, row, n, cols);
    s->memory[1] = span;
    a->span = span;
    a->spans = n;
    a->a = s->memory[2] = xcalloc((size_t)n * (size_t)cols, sizeof *a->a);
}

void row_set_open(struct row_set *s, const struct model *model, enum region r, const void *args,
                  const int32_t *row, int32_t n)
{
    memset(s, 0, sizeof *s);
    int64_t hidden = model->shape.hidden;
    union region_args *a = &s->args;
    switch (r) {
    case REGION_EMBED:
        a->embed = *(const struct embed_args *)args;
        a->embed.tokens = gather_int(s, 0, a->embed.tokens, row, n);
        break;
    case REGION_ATTN_IN:
        a->attn_in = *(const struct attn_in_args *)args;
        a->attn_in.x = gather(s, 0, a->attn_in.x, row, n, hidden);
        a->attn_in.position = gather_int(s, 1, a->attn_in.position, row, n);
        a->attn_in.kv_at = gather_int(s, 2, a->attn_in.kv_at, row, n);
        break;
    case REGION_ATTN:
        a->attn = *(const struct attn_args *)args;
        attention_rows(s, row, n);
        break;
    case REGION_MLP_IN:
        a->mlp_in = *(const struct mlp_in_args *)args;
        a->mlp_in.x = gather(s, 0, a->mlp_in.x, row, n, hidden);
        break;
    case REGION_MLP:
        a->mlp = *(const struct mlp_args *)args;
        a->mlp.x = gather(s, 0, a->mlp.x, row, n, hidden);
        break;
    case REGION_HEAD:
        a->head = *(const struct head_args *)args;
        a->head.row = gather_int(s, 0, a->head.row, row, n);
        break;
    default:
        a->out = *(const struct out_args *)args;
        a->out.in = gather(s, 0, a->out.in, row, n, a->out.w.cols);
        a->out.x = gather(s, 1, a->out.x, row, n, a->out.w.rows);
        break;
    }
    a->embed.m = n; /* first in every struct */
}

void row_set_close(struct row_set *s)
{
    for (int i = 0; i < 4; i++)
        free(s->memory[i]);
}

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int32_t add_row(int32_t *row, int32_t n, int32_t most, int32_t m, int32_t value)
{
    if (n >= most || value < 0 || value >= m)
        return n;
    for (int32_t i = 0; i < n; i++)
        if (row[i] == value)
            return n;
    row[n] = value;
    return n + 1;
}

int32_t row_set_choose(int32_t m, int32_t most, uint64_t seed, int32_t *row)
{
    int32_t n = 0;
    most = most < m ? most : m;
    n = add_row(row, n, most, m, m - 1);
    n = add_row(row, n, most, m, 0);
    for (int32_t p = m > 1 ? 1 << (31 - __builtin_clz((unsigned)m - 1)) : 0; p >= 4; p /= 2) {
        n = add_row(row, n, most, m, m - 1 - (m - 1) % p); /* the first row of the last tile */
        n = add_row(row, n, most - 1, m, p - 1);
    }
    while (n < most)
        n = add_row(row, n, most, m, random_below(&seed, m));
    qsort(row, (size_t)n, sizeof *row, by_number);
    return n;
}
