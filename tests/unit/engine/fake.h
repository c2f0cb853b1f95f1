/* SPDX-License-Identifier: Apache-2.0 */
/* fake.h - a backend whose "model" is a hash, for tests of the engine around it.
 *
 * Its KV cache holds the token that was written at each position. The logits of a row are a hash
 * of all tokens it attends to, read through the page table as a real backend reads keys. So a
 * wrong page, a page shared too early, a position skipped or a stale page changes the text, and
 * the right text of any request is known without the engine: fake_text() works it out alone.
 *
 * While the kernel in its slot is called "wrong", it writes something else than the token.
 *
 * fake_pipelined_ops keeps drawn tokens to itself, as a device does: a started step is computed
 * when it is waited for, from what was true when it was started and what the step before it drew.
 */
#ifndef WHET_TESTS_UNIT_ENGINE_FAKE_H
#define WHET_TESTS_UNIT_ENGINE_FAKE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/backend.h"
#include "tests/unit/engine/toy.h"

/* What a test asks of the fake; reset by fake_reset(). */
static struct {
    _Atomic int32_t delay_us;   /* a step takes this long at least */
    _Atomic bool hold;          /* ... and does not end while this is set */
    _Atomic bool held;          /* one waits for that */
    _Atomic bool moves;         /* ... and says that it gets on */
    _Atomic int32_t token_us;   /* ... and this much longer for each of its tokens */
    _Atomic int32_t fail_next;  /* this many steps fail */
    _Atomic int32_t fail_every; /* and one step in this many (0: none) */
    _Atomic int32_t poison;     /* a step with this token id fails (-1: none) */
    _Atomic bool fail_override; /* steps with a canary's candidate fail */
    _Atomic bool uncaptured;    /* steps without one say that they had to do without a graph */
    _Atomic bool fail_open;
    _Atomic bool lost;       /* every step says that the device is gone */
    _Atomic int32_t keep_in; /* one started step in this many must not be named by the next */
    _Atomic uint64_t steps, override_steps, most_tokens, most_spans;
    _Atomic uint64_t starts, ahead; /* steps started; of these, while another was under way */
} fake;

static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.poison = -1;
}

enum { FAKE_ROWS = 1024 };
struct fake_inflight;

struct backend {
    struct backend_options options;
    struct dispatch *dispatch;
    int32_t *kv; /* [kv_pages * KV_PAGE] token + 1 written there; 0: nothing */
    float logits[TOY_VOCAB];
    void *scratch;
    /* pipelined: */
    struct fake_inflight *inflight[2]; /* oldest first */
    int32_t drawn[FAKE_ROWS];          /* by the last step computed; -1: not on the device */
};

/* A step under way, with what it must not look up any more. */
struct fake_inflight {
    const struct step *step;
    const struct overrides *overrides;
    struct sampling params[FAKE_ROWS];
    int32_t *history[FAKE_ROWS];
    bool kept_in, wrong;
};

static struct kernel fake_kernel[REGION_COUNT];

static uint64_t fake_hash(uint64_t h, int32_t token)
{
    h = (h ^ (uint64_t)(uint32_t)token) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Letters and blanks mostly; the end of generation about once in 60 tokens. */
static void fake_logits(uint64_t h, float *logits)
{
    for (int32_t i = 0; i < TOY_VOCAB; i++) {
        h = h * 6364136223846793005u + 1442695040888963407u;
        float noise = (float)(h >> 40) / (float)(1 << 24);
        bool letter = (i >= 'a' && i <= 'f') || i == ' ';
        logits[i] = 6 * noise + (letter ? 4 : i == TOY_END ? 2.2f : i >= 256 || i == 0 ? -9 : 0);
    }
}

static struct backend *fake_open(const struct model *m, const struct backend_options *o,
                                 struct err *e)
{
    if (fake.fail_open) {
        err_set(e, "the fake refuses to open");
        return NULL;
    }
    struct backend *b = xcalloc(1, sizeof *b);
    b->options = *o;
    b->kv = xcalloc((size_t)o->kv_pages * KV_PAGE, sizeof *b->kv);
    b->scratch = xmalloc((size_t)sampler_scratch_bytes(m->shape.vocab));
    for (int r = 0; r < REGION_COUNT; r++) {
        strcpy(fake_kernel[r].id, "eager");
        fake_kernel[r].region = (enum region)r;
    }
    return b;
}

static void fake_close(struct backend *b)
{
    free(b->kv);
    free(b->scratch);
    free(b);
}

static const struct machine *fake_machine(struct backend *b)
{
    (void)b;
    static const struct machine m = {"a fake", 1e9, 1e9, 1e-6};
    return &m;
}

static const struct kernel *fake_eager(struct backend *b, enum region r)
{
    (void)b;
    return &fake_kernel[r];
}

static void fake_set_dispatch(struct backend *b, struct dispatch *d)
{
    b->dispatch = d;
}

static const struct span *fake_span_of(const struct step *s, int32_t token)
{
    for (int32_t i = 0; i < s->spans; i++)
        if (token >= s->span[i].first && token < s->span[i].first + s->span[i].count)
            return &s->span[i];
    return NULL;
}

static int fake_row(struct backend *b, const struct step *s, int32_t r, struct err *e)
{
    const struct span *span = fake_span_of(s, s->row[r]);
    uint64_t h = 1;
    for (int32_t p = 0; p <= s->position[s->row[r]]; p++) {
        int32_t page = s->page_table[span->pages_at + p / KV_PAGE];
        int32_t token = b->kv[page * KV_PAGE + p % KV_PAGE] - 1;
        if (token < 0)
            return err_set(e, "position %d was never computed", p);
        h = fake_hash(h, token);
    }
    fake_logits(h, b->logits);
    sampler_run(b->logits, TOY_VOCAB, &s->sample[r], b->scratch);
    return 0;
}

static struct slot *fake_slot(struct dispatch *d)
{
    return dispatch_slot(d, REGION_ATTN_IN, 0, 1, 0);
}

static bool fake_is_wrong(const struct backend *b)
{
    return b->dispatch && !strcmp(slot_kernel(fake_slot(b->dispatch))->id, "wrong");
}

static int fake_run(struct backend *b, const struct step *s, const struct overrides *o, bool wrong,
                    struct err *e)
{
    fake.steps++;
    fake.override_steps += o != NULL;
    fake.most_tokens = (uint64_t)s->m > fake.most_tokens ? (uint64_t)s->m : fake.most_tokens;
    fake.most_spans = (uint64_t)s->spans > fake.most_spans ? (uint64_t)s->spans : fake.most_spans;
    if (fake.delay_us + fake.token_us > 0)
        usleep((useconds_t)(fake.delay_us + fake.token_us * s->m));
    for (; fake.hold; usleep(200)) {
        fake.held = true;
        if (fake.moves && s->progress_ns)
            atomic_store(s->progress_ns, clock_ns());
    }
    fake.held = false;
    if (s->m > b->options.max_tokens || s->rows > b->options.max_rows)
        return err_set(e, "a step of %d tokens and %d rows is too large", s->m, s->rows);
    for (int32_t t = 0; t < s->m; t++) {
        if (s->tokens[t] == fake.poison)
            return err_set(e, "token %d is poison", s->tokens[t]);
        b->kv[s->kv_at[t]] = s->tokens[t] + 1 + wrong;
    }
    if (fake.lost) {
        err_set(e, "the fake has fallen off the bus");
        return STEP_LOST;
    }
    if (fake.fail_next > 0) {
        fake.fail_next--;
        return err_set(e, "this step was told to fail");
    }
    if (fake.fail_every > 0 && fake.steps % (uint64_t)fake.fail_every == 0)
        return err_set(e, "every such step was told to fail");
    if (s->report)
        s->report->uncaptured = fake.uncaptured && !o;
    if (o && fake.fail_override)
        return err_set(e, "the candidate failed");
    for (int32_t r = 0; r < s->rows; r++)
        if (fake_row(b, s, r, e))
            return -1;
    return 0;
}

static int fake_step(struct backend *b, const struct step *s, const struct overrides *o,
                     struct err *e)
{
    return fake_run(b, s, o, fake_is_wrong(b), e);
}

/* ---- the pipelined fake -------------------------------------------------------------------- */

static int fake_step_start(struct backend *b, const struct step *s, const struct overrides *o,
                           struct err *e)
{
    bool second = b->inflight[0] != NULL;
    fake.starts++;
    fake.ahead += second;
    if (second && (b->inflight[1] || b->inflight[0]->step == s))
        return err_set(e, "no place for another step");
    for (int32_t t = 0; t < s->m; t++) {
        bool names = s->tokens[t] < 0;
        if (names &&
            (!second || b->inflight[0]->kept_in || -1 - s->tokens[t] >= b->inflight[0]->step->rows))
            return err_set(e, "token %d is a row of no step", s->tokens[t]);
    }
    struct fake_inflight *f = xcalloc(1, sizeof *f);
    f->step = s;
    f->overrides = o;
    f->wrong = fake_is_wrong(b);
    f->kept_in = fake.keep_in > 0 && fake.starts % (uint64_t)fake.keep_in == 0;
    for (int32_t r = 0; r < s->rows; r++) {
        const struct sample_row *row = &s->sample[r];
        f->params[r] = *row->params;
        f->history[r] = xmalloc((size_t)(row->history_n + 1) * sizeof *f->history[r]);
        memcpy(f->history[r], row->history, (size_t)row->history_n * sizeof *f->history[r]);
        f->history[r][row->history_n] = -1; /* the unseen token's place */
    }
    b->inflight[second] = f;
    return f->kept_in;
}

/* Checks what the engine knows by now against what was copied at the start. */
static int fake_restore_row(struct backend *b, struct fake_inflight *f, int32_t r,
                            struct sample_row *row, struct err *e)
{
    const struct sample_row *now = &f->step->sample[r];
    int32_t known = now->history_n - (now->unseen > 0), named = now->unseen - 1;
    *row = *now;
    row->params = &f->params[r];
    if (named >= 0) {
        int32_t token = f->step->tokens[named];
        f->history[r][known] = token < 0 ? b->drawn[-1 - token] : token;
    }
    row->history = f->history[r];
    return memcmp(row->history, now->history, (size_t)now->history_n * 4)
               ? err_set(e, "row %d has another history than its sequence", r)
               : 0;
}

static int fake_step_wait(struct backend *b, const struct step *s, struct err *e)
{
    struct fake_inflight *f = b->inflight[0];
    struct step copy = *s;
    int32_t *tokens = xmalloc((size_t)s->m * sizeof *tokens), drawn[FAKE_ROWS];
    if (!f || f->step != s)
        abort(); /* waited for out of order */
    copy.tokens = tokens;
    copy.sample = xcalloc((size_t)s->rows + 1, sizeof *copy.sample);
    for (int32_t t = 0; t < s->m; t++)
        tokens[t] = s->tokens[t] < 0 ? b->drawn[-1 - s->tokens[t]] : s->tokens[t];
    int rc = 0;
    for (int32_t r = 0; r < s->rows && rc == 0; r++)
        rc = fake_restore_row(b, f, r, &copy.sample[r], e);
    if (rc == 0)
        rc = fake_run(b, &copy, f->overrides, f->wrong, e);
    for (int32_t r = 0; r < s->rows; r++) {
        s->sample[r].out = copy.sample[r].out;
        drawn[r] = copy.sample[r].out.token;
        free(f->history[r]);
    }
    memcpy(b->drawn, drawn, (size_t)s->rows * sizeof *drawn);
    b->inflight[0] = b->inflight[1];
    b->inflight[1] = NULL;
    free(copy.sample);
    free(tokens);
    free(f);
    return rc;
}

#define FAKE_OPS                                                                     \
    .name = "fake", .usual_chunk = 72, .open = fake_open, .close = fake_close,       \
    .machine = fake_machine, .eager = fake_eager, .set_dispatch = fake_set_dispatch, \
    .step = fake_step
static const struct backend_ops fake_ops = {FAKE_OPS};
static const struct backend_ops fake_pipelined_ops = {FAKE_OPS, .step_start = fake_step_start,
                                                      .step_wait = fake_step_wait};

/* The text and the ids that a request must get, worked out one token after the other. Returns the
 * number of tokens; the end-of-generation token is counted and is the last id. */
static int32_t fake_text(const int32_t *prompt, int32_t n, int32_t max_tokens,
                         const struct sampling *sampling, char *text, int32_t *ids)
{
    int32_t *tokens = xmalloc((size_t)(n + max_tokens) * sizeof *tokens), made = 0;
    void *scratch = xmalloc((size_t)sampler_scratch_bytes(TOY_VOCAB));
    memcpy(tokens, prompt, (size_t)n * sizeof *tokens);
    struct tokenizer *t = toy_tokenizer();
    while (made < max_tokens && (made == 0 || ids[made - 1] != TOY_END)) {
        float logits[TOY_VOCAB];
        uint64_t h = 1;
        for (int32_t i = 0; i < n + made; i++)
            h = fake_hash(h, tokens[i]);
        fake_logits(h, logits);
        struct sample_row row = {.params = sampling,
                                 .index = (uint64_t)made,
                                 .history = tokens,
                                 .history_n = n + made,
                                 .prompt_n = n,
                                 .target = -1};
        sampler_run(logits, TOY_VOCAB, &row, scratch);
        ids[made] = tokens[n + made] = row.out.token;
        made++;
    }
    size_t length;
    char *decoded = tokenizer_decode(t, ids, made, false, &length);
    strcpy(text, decoded);
    free(decoded);
    tokenizer_free(t);
    free(tokens);
    free(scratch);
    return made;
}

#endif
