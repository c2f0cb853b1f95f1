/* SPDX-License-Identifier: Apache-2.0 */
/* draft.c - see draft.h.
 *
 * The first step of a run reads what is known of each sequence and was not computed yet (one or
 * two tokens where it was guessed for last time, more after guesses from elsewhere or a prompt),
 * and draws a token of each that wants guesses. Every further step is a decode of those that want
 * more. What is computed for guesses counts as computed only as far as they turn out right.
 *
 * A page that the draft model has computed to its end is marked with the number of the page's use
 * (kvcache_use()), so that the mark is void as soon as the page is given to somebody else. That is
 * what is believed of sealed pages, which another sequence may have written; of its other pages
 * the sequence knows how far they are written.
 */
#include "engine/draft.h"

#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/scheduler.h"
#include "engine/tokenizer.h"

enum { ROWS = DRAFT_WIDTH };

struct draft {
    const struct backend_ops *ops;
    struct backend *backend;
    struct model *model;
    struct dispatch *dispatch;
    const struct kvcache *kv;
    uint64_t *full; /* [pages] number of the page's use for which the draft model has computed all
                       positions */
    int32_t positions, vocab; /* tokens that both models know */
    struct step step;
    int32_t tokens[DRAFT_READ], position[DRAFT_READ], kv_at[DRAFT_READ], row[ROWS];
    int32_t *page_table;
    int32_t page_table_size;
    struct span span[ROWS];
    struct sample_row sample[ROWS];
    struct sampling sampling[ROWS];
    struct sequence *drawn_for[ROWS]; /* [rows] the sequence that a row's drawn token belongs to */
    int32_t wanted[ROWS];             /* [rows] how many guesses that sequence is to have */
};

/* ---- vocabularies -------------------------------------------------------------------------- */

static int token_differs(const struct model *served, const struct model *small, int32_t id,
                         struct err *err)
{
    const struct tokenizer *a = served->tokenizer, *b = small->tokenizer;
    size_t an, bn;
    const char *at = tokenizer_bytes(a, id, true, &an), *bt = tokenizer_bytes(b, id, true, &bn);
    if (an != bn || memcmp(at, bt, an) != 0)
        return err_set(err,
                       "the vocabularies differ: token %d is \"%.*s\" to the served model and "
                       "\"%.*s\" to the draft model",
                       id, an < 40 ? (int)an : 40, at, bn < 40 ? (int)bn : 40, bt);
    if (tokenizer_is_special(a, id) != tokenizer_is_special(b, id))
        return err_set(err,
                       "the vocabularies differ: token %d (\"%.*s\") is special to the %s model "
                       "alone",
                       id, an < 40 ? (int)an : 40, at,
                       tokenizer_is_special(a, id) ? "served" : "draft");
    return 0;
}

int draft_same_vocabulary(const struct model *served, const struct model *small, struct err *err)
{
    if (!small->tokenizer)
        return err_set(err, "the draft model has no tokenizer");
    int32_t n = tokenizer_vocab(served->tokenizer), m = tokenizer_vocab(small->tokenizer);
    int32_t both = n < m ? n : m;
    for (int32_t id = 0; id < both; id++)
        if (token_differs(served, small, id, err))
            return -1;
    if (n != m)
        return err_set(err,
                       "the vocabularies differ: the served model has %d tokens and the draft "
                       "model %d",
                       n, m);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int open_backend(struct draft *d, const struct draft_parts *p, struct err *err)
{
    struct backend_options o = p->options;
    o.max_tokens = DRAFT_READ;
    o.max_rows = ROWS;
    o.beside = p->beside;
    d->backend = p->ops->open(d->model, &o, err);
    if (!d->backend)
        return -1;
    const struct kernel *eager[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = p->ops->eager(d->backend, (enum region)r);
    d->dispatch = dispatch_open(eager, NULL);
    p->ops->set_dispatch(d->backend, d->dispatch);
    d->full = xcalloc((size_t)o.kv_pages, sizeof *d->full);
    int64_t positions = (int64_t)o.kv_pages * KV_PAGE;
    d->positions = d->model->shape.max_context;
    if (positions < d->positions)
        d->positions = (int32_t)positions;
    int32_t a = d->model->shape.vocab, b = p->served->shape.vocab;
    d->vocab = a < b ? a : b;
    return 0;
}

struct draft *draft_open(const struct draft_parts *p, struct err *err)
{
    struct draft *d = xcalloc(1, sizeof *d);
    d->ops = p->ops;
    d->model = p->model;
    if (draft_same_vocabulary(p->served, d->model, err) || open_backend(d, p, err)) {
        draft_close(d);
        return NULL;
    }
    return d;
}

void draft_close(struct draft *d)
{
    if (!d)
        return;
    if (d->backend)
        d->ops->close(d->backend);
    if (d->dispatch)
        dispatch_close(d->dispatch);
    model_close(d->model);
    free(d->full);
    free(d->page_table);
    free(d);
}

void draft_use_pages(struct draft *d, const struct kvcache *kv)
{
    d->kv = kv;
}

const struct model *draft_model(const struct draft *d)
{
    return d->model;
}

/* ---- what has been computed ---------------------------------------------------------------- */

static bool page_full(const struct draft *d, int32_t page)
{
    return d->full[page] == kvcache_use(d->kv, page);
}

/* The first `n` positions of the sequence are computed. */
static void mark(struct draft *d, struct sequence *seq, int32_t n)
{
    for (int32_t i = seq->drafted / KV_PAGE; i < n / KV_PAGE; i++)
        d->full[seq->page[i]] = kvcache_use(d->kv, seq->page[i]);
    seq->drafted = n;
}

/* Sealed pages may be another sequence's work, also ones that have taken the place of its own. */
static void look_at_sealed(const struct draft *d, struct sequence *seq)
{
    int32_t i = 0;
    while (i < seq->sealed && page_full(d, seq->page[i]))
        i++;
    if (i < seq->sealed || seq->drafted < i * KV_PAGE)
        seq->drafted = i * KV_PAGE;
}

int32_t draft_behind(struct draft *d, struct sequence *seq)
{
    if (seq->undraftable)
        return 0;
    for (; seq->draft_seen < seq->n; seq->draft_seen++)
        if (seq->tokens[seq->draft_seen] >= d->vocab) {
            seq->undraftable = true; /* the draft model has no such token */
            return 0;
        }
    look_at_sealed(d, seq);
    /* The last token is computed a second time in its place, because its logits are needed. */
    if (seq->drafted >= seq->n)
        seq->drafted = seq->n - 1;
    return seq->n - seq->drafted;
}

int32_t draft_room(const struct draft *d, const struct sequence *seq)
{
    return d->positions > seq->n ? d->positions - seq->n : 0;
}

void draft_checked(struct draft *d, struct sequence *seq, int32_t right)
{
    if (seq->drafted == seq->n)
        mark(d, seq, seq->n + (right < seq->draft_beyond ? right : seq->draft_beyond));
    seq->draft_beyond = 0;
}

/* ---- a step -------------------------------------------------------------------------------- */

static void begin_step(struct draft *d)
{
    d->step = (struct step){.tokens = d->tokens,
                            .position = d->position,
                            .kv_at = d->kv_at,
                            .span = d->span,
                            .row = d->row,
                            .sample = d->sample};
}

static void add_pages(struct draft *d, const struct sequence *seq, int32_t pages)
{
    struct step *s = &d->step;
    if (s->pages + pages > d->page_table_size) {
        d->page_table_size = 2 * (s->pages + pages) + 64;
        d->page_table = xrealloc(d->page_table, (size_t)d->page_table_size * sizeof *d->page_table);
    }
    memcpy(d->page_table + s->pages, seq->page, (size_t)pages * sizeof *d->page_table);
    s->pages += pages;
    s->page_table = d->page_table;
}

/* Positions [first, first + count) of the sequence and its guesses. */
static void add_span(struct draft *d, const struct sequence *seq, int32_t first, int32_t count)
{
    struct step *s = &d->step;
    int32_t context = first + count;
    d->span[s->spans++] =
        (struct span){.first = s->m, .count = count, .context = context, .pages_at = s->pages};
    for (int32_t p = first; p < context; p++, s->m++) {
        d->tokens[s->m] = seq->tokens[p];
        d->position[s->m] = p;
        d->kv_at[s->m] = seq->page[p / KV_PAGE] * KV_PAGE + p % KV_PAGE;
    }
    add_pages(d, seq, (context + KV_PAGE - 1) / KV_PAGE);
    s->context = context > s->context ? context : s->context;
}

/* The last token added draws the next guess, with the numbers that the served model's draw in its
 * place will have. */
static void add_row(struct draft *d, struct sequence *seq, int32_t wanted)
{
    struct step *s = &d->step;
    int32_t r = s->rows++;
    d->drawn_for[r] = seq;
    d->wanted[r] = wanted;
    d->sampling[r] = seq->sampling;
    d->sampling[r].top_logprobs = -1;
    d->sampling[r].banneds = 0; /* nothing is guessed before min_tokens */
    d->row[r] = s->m - 1;
    d->sample[r] = (struct sample_row){.params = &d->sampling[r],
                                       .index = (uint64_t)(seq->n - seq->prompt_n + seq->guesses),
                                       .history = seq->tokens,
                                       .history_n = seq->n + seq->guesses,
                                       .prompt_n = seq->prompt_n,
                                       .target = -1};
}

static int run_step(struct draft *d, struct draft_steps *done, struct err *err)
{
    int64_t from = clock_ns();
    if (d->ops->step(d->backend, &d->step, NULL, err) < 0)
        return -1;
    done->width[done->n] = d->step.m;
    done->ns[done->n++] = clock_ns() - from;
    done->drawn += d->step.rows;
    return 0;
}

/* One sequence of `width` tokens in pages that nobody has yet. */
static int warm_step(struct draft *d, int32_t width, struct draft_steps *done, struct err *err)
{
    static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};
    int32_t page[DRAFT_READ / KV_PAGE];
    int32_t tokens[DRAFT_READ] = {0};
    struct sequence seq = {.tokens = tokens, .n = width, .page = page};
    for (int32_t i = 0; i < DRAFT_READ / KV_PAGE; i++)
        page[i] = i;
    begin_step(d);
    add_span(d, &seq, 0, width);
    d->row[0] = width - 1;
    d->sample[0] = (struct sample_row){
        .params = &greedy, .history = tokens, .history_n = width, .prompt_n = width, .target = -1};
    d->step.rows = 1;
    return run_step(d, done, err);
}

int draft_warm(struct draft *d, struct draft_steps *done, double *first_s, struct err *err)
{
    static const int32_t width[] = {1, 2, 4, 16, 64, DRAFT_READ};
    *first_s = 0;
    for (int pass = 0; pass < 2; pass++) {
        *done = (struct draft_steps){0};
        for (size_t i = 0; i < sizeof width / sizeof *width && width[i] <= d->positions; i++)
            if (warm_step(d, width[i], done, err))
                return -1;
        for (int32_t i = 0; pass == 0 && i < done->n; i++)
            *first_s += (double)done->ns[i] * 1e-9;
    }
    return 0;
}

static bool ends_text(const struct sequence *seq, int32_t token)
{
    for (int32_t i = 0; i < seq->stop_tokens; i++)
        if (seq->stop_token[i] == token)
            return true;
    return false;
}

/* Appends the drawn tokens to the guesses of their sequences, and fills the next step with the
 * sequences that want more. A token that ends the text is not made a guess: the step that would
 * check it draws it anyway. */
static void next_step(struct draft *d)
{
    int32_t rows = d->step.rows;
    begin_step(d);
    for (int32_t r = 0; r < rows; r++) {
        struct sequence *seq = d->drawn_for[r];
        int32_t token = d->sample[r].out.token, wanted = d->wanted[r];
        if (token < 0 || token >= d->vocab || ends_text(seq, token))
            continue;
        seq->tokens[seq->n + seq->guesses++] = token;
        if (seq->guesses >= wanted)
            continue;
        add_span(d, seq, seq->n + seq->guesses - 1, 1);
        add_row(d, seq, wanted);
        seq->draft_beyond++;
    }
}

static int fail(const struct drafting *job, int32_t jobs)
{
    for (int32_t i = 0; i < jobs; i++) {
        job[i].seq->draft_beyond = 0;
        if (job[i].guesses > 0)
            job[i].seq->guesses = 0;
    }
    return -1;
}

int draft_run(struct draft *d, const struct drafting *job, int32_t jobs, struct draft_steps *done,
              struct err *err)
{
    *done = (struct draft_steps){0};
    begin_step(d);
    for (int32_t i = 0; i < jobs; i++) {
        struct sequence *seq = job[i].seq;
        seq->draft_beyond = 0;
        add_span(d, seq, seq->drafted, job[i].read);
        if (job[i].guesses == 0)
            continue; /* its guesses were found by lookup */
        seq->guesses = 0;
        sequence_room(seq, job[i].guesses);
        add_row(d, seq, job[i].guesses);
    }
    if (run_step(d, done, err))
        return fail(job, jobs);
    for (int32_t i = 0; i < jobs; i++)
        mark(d, job[i].seq, job[i].seq->drafted + job[i].read);
    for (next_step(d); d->step.rows > 0; next_step(d))
        if (run_step(d, done, err))
            return fail(job, jobs);
    return 0;
}
