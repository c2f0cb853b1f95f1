/* SPDX-License-Identifier: Apache-2.0 */
/* batch.c - from "these positions of these sequences" to flat arrays.
 *
 * Tokens lie in the order of the schedule, each sequence's share contiguous (a span). Rows with
 * logits follow the same order: first the rows of a span that score prompt positions, then the
 * one that draws, then those that draw behind guesses. The engine walks the results in that order
 * again.
 *
 * A sequence that is in the step under way has one token more than is known. It stands in the
 * arrays as the row that draws it, for the backend to put in its place.
 */
#include "engine/batch.h"

#include <stdlib.h>
#include <string.h>

struct batch *batch_open(const struct scheduler_limits *l)
{
    struct batch *b = xcalloc(1, sizeof *b);
    size_t sequences = (size_t)l->max_batch, tokens = (size_t)scheduler_max_tokens(l);
    b->schedule.item = xcalloc(sequences, sizeof *b->schedule.item);
    b->admitted = xcalloc(sequences, sizeof *b->admitted);
    b->span = xcalloc(sequences, sizeof *b->span);
    b->tokens = xcalloc(tokens, sizeof *b->tokens);
    b->position = xcalloc(tokens, sizeof *b->position);
    b->kv_at = xcalloc(tokens, sizeof *b->kv_at);
    b->row = xcalloc((size_t)l->max_rows, sizeof *b->row);
    b->sample = xcalloc((size_t)l->max_rows, sizeof *b->sample);
    return b;
}

void batch_close(struct batch *b)
{
    if (!b)
        return;
    free(b->schedule.item);
    free(b->admitted);
    free(b->span);
    free(b->tokens);
    free(b->position);
    free(b->kv_at);
    free(b->row);
    free(b->sample);
    free(b->page_table);
    free(b);
}

static void add_pages(struct batch *b, const struct sequence *seq, int32_t pages)
{
    struct step *s = &b->step;
    if (s->pages + pages > b->page_table_size) {
        b->page_table_size = 2 * (s->pages + pages) + 64;
        b->page_table = xrealloc(b->page_table, (size_t)b->page_table_size * sizeof *b->page_table);
    }
    memcpy(b->page_table + s->pages, seq->page, (size_t)pages * sizeof *b->page_table);
    s->pages += pages;
}

/* A row for the position at `token` of the step. target -1: draw the token behind those there are
 * and the first `guesses` of its guesses. */
static void add_row(struct batch *b, struct sequence *seq, int32_t token, int32_t target,
                    int32_t guesses)
{
    struct step *s = &b->step;
    int32_t index = sequence_length(seq) - seq->prompt_n + guesses;
    if (target < 0)
        sequence_aim(seq, index);
    b->row[s->rows] = token;
    b->sample[s->rows++] = (struct sample_row){.params = &seq->sampling,
                                               .index = (uint64_t)index,
                                               .history = seq->tokens,
                                               .history_n = seq->n + guesses,
                                               .prompt_n = seq->prompt_n,
                                               .unseen = seq->ahead > 0 ? token + 1 : 0,
                                               .target = target};
}

static void add_rows(struct batch *b, const struct schedule_item *item, int32_t at)
{
    struct sequence *seq = item->seq;
    int32_t first = seq->scored > 0 ? seq->scored - 1 : 0;
    first = first > item->first ? first : item->first;
    for (int32_t p = first; p < first + item->scores; p++)
        add_row(b, seq, at + p - item->first, seq->tokens[p + 1], 0);
    int32_t known = item->count - item->guesses;
    for (int32_t i = 0; item->draw && i <= item->guesses; i++)
        add_row(b, seq, at + known - 1 + i, -1, i);
}

void batch_fill(struct batch *b)
{
    struct step *s = &b->step;
    *s = (struct step){0};
    for (int32_t i = 0; i < b->schedule.items; i++) {
        const struct schedule_item *item = &b->schedule.item[i];
        const struct sequence *seq = item->seq;
        int32_t context = item->first + item->count;
        b->span[i] = (struct span){
            .first = s->m, .count = item->count, .context = context, .pages_at = s->pages};
        add_rows(b, item, s->m);
        for (int32_t p = item->first; p < context; p++, s->m++) {
            bool known = p < seq->n + item->guesses; /* guesses lie behind its tokens */
            b->tokens[s->m] = known ? seq->tokens[p] : STEP_TOKEN_OF_ROW(seq->drawn_row);
            b->position[s->m] = p;
            b->kv_at[s->m] = seq->page[p / KV_PAGE] * KV_PAGE + p % KV_PAGE;
        }
        add_pages(b, seq, (context + KV_PAGE - 1) / KV_PAGE);
        s->context = context > s->context ? context : s->context;
    }
    s->spans = b->schedule.items;
    s->tokens = b->tokens;
    s->position = b->position;
    s->kv_at = b->kv_at;
    s->span = b->span;
    s->page_table = b->page_table;
    s->row = b->row;
    s->sample = b->sample;
}

void batch_refresh(struct batch *b)
{
    struct sample_row *row = b->sample;
    for (int32_t i = 0; i < b->schedule.items; i++) {
        const struct schedule_item *item = &b->schedule.item[i];
        int32_t rows = item->scores + item->draw + item->guesses;
        for (int32_t n = 0; n < rows; n++, row++) {
            row->history = item->seq->tokens;
            row->history_n = item->seq->n + (n > item->scores ? n - item->scores : 0);
        }
    }
}

/* In a step with candidates nobody else is suspected, as in one that fails. A text of a CPU runs in
 * another process. */
void batch_inside(struct crash_kernels *out, struct dispatch *d, const struct backend_ops *ops,
                  const struct step *s, const struct overrides *trial)
{
    out->n = 0;
    for (int i = 0; trial && i < trial->n; i++)
        out->of[out->n++] = trial->of[i].kernel;
    for (int p = 0; !trial && p < STEP_PLACES && out->n < CRASH_KERNELS; p++) {
        int32_t m = region_m(place_region(p), s->m, s->rows);
        const struct slot *slot = dispatch_slot_of_place(d, p, m, s->context);
        const struct kernel *k = slot ? slot_kernel(slot) : NULL;
        if (k && k->origin != ORIGIN_EAGER && k->m_max >= m && (k->cpu || ops->step_start))
            out->of[out->n++] = k;
    }
}
