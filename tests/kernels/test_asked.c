/* SPDX-License-Identifier: Apache-2.0 */
/* test_asked.c - what products of rows and of panels, and attention in the order of memory, ask
 * memory for before they read it.
 *
 * A prefetch changes no result, so nothing else notices one that names the wrong lines: kernels
 * are only slower. Here the ones of kernels/cpu/lib are written down instead, while a matrix is
 * multiplied group after group (the portable kernels, which ask as those of AVX2 and AVX-512 do).
 * Every line of a group has to be asked for before the group begins, but for the first groups, and
 * what is one stream in the order of its addresses, without a gap and without a line twice. So are
 * the rows of kv heads, all keys and then all values.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static void asked(const void *p);
#define FIRST(p, ...) (p)
#define __builtin_prefetch(...) asked(FIRST(__VA_ARGS__, 0))

#define PREFETCH 2 /* of page_order.h: kv heads */
#include "kernels/cpu/lib/page_order.h"
#include "kernels/cpu/lib/panel.h"
#include "kernels/cpu/lib/rows.h"

enum { LINE = 64, AHEAD = 2048, ROWS = 4, GROUPS = 24, LONGEST = 4096 };

/* What was asked for of the matrix: lines of it, and whether addresses only ever rose. */
static struct {
    const uint8_t *base, *last;
    int64_t lines, times, falls;
    bool *line, rising;
} seen;

static void asked(const void *p)
{
    const uint8_t *at = p;
    int64_t line = (at - seen.base) / LINE;
    seen.rising &= at > seen.last;
    seen.falls += at < seen.last;
    seen.last = at;
    seen.times++;
    if (line < seen.lines)
        seen.line[line] = true;
}

static void begin(const uint8_t *base, int64_t bytes)
{
    free(seen.line);
    seen.base = seen.last = base;
    seen.lines = bytes / LINE;
    seen.times = seen.falls = 0;
    seen.rising = true;
    seen.line = calloc((size_t)seen.lines, sizeof *seen.line);
    if (!seen.line)
        abort();
}

/* Lines of [from, from + bytes) that were not asked for. */
static int64_t missed(int64_t from, int64_t bytes)
{
    int64_t n = 0;
    for (int64_t line = (from + LINE - 1) / LINE; line < (from + bytes) / LINE; line++)
        n += line < seen.lines && !seen.line[line];
    return n;
}

static int judge(const char *what, int64_t late, int64_t bytes, bool one_stream)
{
    /* A block is asked for in whole lines: two for 80 bytes. */
    bool often = seen.times > 2 * (bytes / LINE) + 2 * GROUPS;
    bool bad = late > 0 || often || (one_stream && !seen.rising);
    printf("%s - %s: %d lines late, %d asked for in %d lines, %s\n", bad ? "not ok" : "ok", what,
           (int)late, (int)seen.times, (int)(bytes / LINE), seen.rising ? "rising" : "to and fro");
    return bad;
}

static uint8_t *matrix(int64_t bytes)
{
    uint8_t *w = aligned_alloc(LINE, (size_t)((bytes + LINE - 1) / LINE * LINE));
    if (!w)
        abort();
    for (int64_t i = 0; i < bytes; i++)
        w[i] = 0x28;
    return w;
}

/* Rows of a constant type and length, as templates have them. */
INLINE int rows_of(const char *what, const int type, const int k)
{
    static const float x[LONGEST];
    const int64_t stride = ROW_BYTES(type, k), group = ROWS * stride, bytes = GROUPS * group;
    const int64_t before = ROWS * stride + AHEAD; /* of the first groups nothing can be known */
    const bool one_stream = stride <= SHORT_ROW;
    uint8_t *w = matrix(bytes);
    float y[ROWS];
    int64_t late = 0;
    begin(w, bytes);
    for (int g = 0; g < GROUPS; g++) {
        if (g * group >= before)
            late += missed(g * group, one_stream ? AHEAD / 2 : group);
        rows_dot(type, w + g * group, stride, ROWS, x, k, 1, k, AHEAD, y, ROWS);
    }
    int bad = judge(what, late + missed(before, bytes - before), bytes, one_stream);
    begin(w, bytes);
    rows_dot(type, w, stride, ROWS, x, k, 1, k, 0, y, ROWS);
    bad += seen.times > 0; /* PREFETCH=0 asks for nothing */
    free(w);
    return bad;
}

/* Panels, `together` at a time, as panel_dot() asks for them. */
INLINE int panels_of(const char *what, const int type, const int k, const int together)
{
    const int blocks = k / BLOCK;
    const int64_t stride = panel_bytes(type, k), group = together * stride, bytes = GROUPS * group;
    uint8_t *w = matrix(bytes);
    int64_t late = 0;
    begin(w, bytes);
    for (int g = 0; g < GROUPS; g++) {
        if (g * group >= 2 * group + AHEAD)
            late += missed(g * group, (int64_t)blocks * PANEL_QUANTS(type));
        for (int b = 0; b < blocks; b++)
            for (int p = 0; p < together; p++)
                panels_ask(type, w + g * group, stride, together, blocks, b, p, AHEAD);
    }
    int bad = judge(what, late + missed(2 * group + AHEAD, bytes - 2 * group - AHEAD), bytes, true);
    free(w);
    return bad;
}

/* Attention of one token over pages whose keys and then values lie in a row, for kv heads
 * [kv0, kv1). Heads that share a kv head may each ask for the line at which another one's share
 * ends; values are summed, and asked for, SETS lines of each row at a time. Behind the last ones
 * there is nothing, so the last page is asked for again. */
static int pages_of(const char *what, int kv0, int kv1)
{
    enum { PAGES = 12, LENGTH = KV_PAGE * HEAD_DIM * 4, PAGE = KV_HEADS * LENGTH };
    static float q[HEADS * HEAD_DIM], score[HEADS * PAGES * KV_PAGE], out[HEADS * HEAD_DIM];
    static int32_t table[PAGES];
    uint8_t *pages = matrix(2 * PAGES * PAGE);
    const struct span span = {.count = 1, .context = PAGES * KV_PAGE};
    const struct attn_args a = {
        .k_pages = pages, .v_pages = pages + PAGES * PAGE, .page_table = table, .scale = 1};
    int64_t late = 0, rows = 0;
    for (int p = 0; p < PAGES; p++)
        table[p] = p;
    begin(pages, 2 * PAGES * PAGE);
    const struct chunk c = {&a, &span, kv0, kv1, 0, PAGES, PAGES, PAGES * KV_PAGE};
    order_scores(&c, q, score, PAGES * KV_PAGE);
    /* by now all keys but the first, and the first values */
    for (int p = 0; p < 2 * PAGES; p++)
        for (int kv = kv0; kv < kv1; kv++, rows++)
            if (rows >= PREFETCH && rows < (kv1 - kv0) * PAGES + PREFETCH)
                late += missed(p * (int64_t)PAGE + kv * LENGTH, LENGTH);
    late += seen.falls;
    order_values(&c, score, PAGES * KV_PAGE, out);
    for (int p = PAGES; p < 2 * PAGES; p++)
        for (int kv = kv0; kv < kv1; kv++)
            late += missed(p * (int64_t)PAGE + kv * LENGTH, LENGTH);
    const int64_t most = rows * (LENGTH / LINE + GROUP);
    const int64_t turns = rows / 2 * (DIMS / SETS - 1) + PREFETCH;
    const bool bad = late > 0 || seen.times > most || seen.falls > turns;
    printf("%s - %s: %d lines late, %d asked for, at most %d, back %d times\n",
           bad ? "not ok" : "ok", what, (int)late, (int)seen.times, (int)most, (int)seen.falls);
    free(pages);
    return bad;
}

int main(void)
{
    int bad = rows_of("rows of Q4_1", DTYPE_Q4_1, 576);
    bad += rows_of("rows of Q8_0", DTYPE_Q8_0, 1536);
    bad += rows_of("rows of bf16", DTYPE_BF16, 576);
    bad += rows_of("rows of Q4_K", DTYPE_Q4_K, 1024);
    bad += rows_of("rows of Q3_K", DTYPE_Q3_K, 1024);
    bad += rows_of("long rows of Q8_0", DTYPE_Q8_0, 3072);
    bad += rows_of("long rows of bf16", DTYPE_BF16, 2048);
    bad += panels_of("panels of Q4_1", DTYPE_Q4_1, 576, 1);
    bad += panels_of("panels of Q4_1, two at a time", DTYPE_Q4_1, 1536, 2);
    bad += panels_of("panels of Q8_0", DTYPE_Q8_0, 576, 1);
    bad += panels_of("panels of Q4_K", DTYPE_Q4_K, 1024, 1);
    bad += pages_of("pages of three kv heads", 0, 3);
    bad += pages_of("pages of the last two", 1, 3);
    bad += pages_of("pages of one", 1, 2);
    free(seen.line);
    return bad > 0;
}
