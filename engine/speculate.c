/* SPDX-License-Identifier: Apache-2.0 */
/* speculate.c - see speculate.h. */
#include "engine/speculate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/lookup.h"

/* The account of lost time, in steps without guesses: what it begins with, what every token adds,
 * and what it holds at most. */
#define ACCOUNT_START 2.0
#define ACCOUNT_SHARE 0.02
#define ACCOUNT_MOST 4.0

/* Guesses must promise this much more tokens a second. */
#define WORTH 1.03

/* A width that was never seen is thought to cost this much more for each token beyond the widest
 * known one: little, so that it is tried once. */
#define UNSEEN 0.06

/* Weights: of a new time among the old ones of its width, of what is known of guesses in general
 * beside what a sequence has shown itself, of a sequence's past with each token. */
#define NEW_TIME 0.2
#define GENERAL 3.0
#define FADING 0.99

/* A place that matches by so many tokens is of class i if it is below class_end[i]. */
static const int32_t class_end[] = {3, 4, 6, 10, 16, LOOKUP_MATCH + 1};
static const double class_share[] = {0.35, 0.45, 0.55, 0.65, 0.75, 0.85}; /* before any was seen */
enum { CLASSES = sizeof class_end / sizeof *class_end, GENERAL_SEEN = 400, GENERAL_FIRST = 8 };

struct speculator {
    int32_t widest;
    double ns[SPECULATE_WIDTH + 1];        /* of a step of decodes, by width; 0: not known */
    double tried[CLASSES], right[CLASSES]; /* guesses, of all sequences */
    double account;
    struct sequence **seq; /* [size] of the plan being made */
    int32_t size;
};

struct speculator *speculate_open(int32_t same_bits)
{
    struct speculator *s = xcalloc(1, sizeof *s);
    s->widest = same_bits > 0 && same_bits < SPECULATE_WIDTH ? same_bits : SPECULATE_WIDTH;
    s->account = ACCOUNT_START;
    for (int i = 0; i < CLASSES; i++) {
        s->tried[i] = GENERAL_FIRST;
        s->right[i] = GENERAL_FIRST * class_share[i];
    }
    return s;
}

void speculate_close(struct speculator *s)
{
    if (s)
        free(s->seq);
    free(s);
}

/* ---- what a step costs --------------------------------------------------------------------- */

/* In nanoseconds where any width is known, else relative. */
static double step_ns(const struct speculator *s, int32_t width)
{
    int32_t below = width, above = width;
    while (below > 0 && s->ns[below] == 0)
        below--;
    while (above <= SPECULATE_WIDTH && s->ns[above] == 0)
        above++;
    bool more = above <= SPECULATE_WIDTH;
    if (below == 0 && !more)
        return 1 + UNSEEN * width;
    if (below == 0)
        return s->ns[above] * (0.5 + 0.5 * width / above);
    if (!more)
        return s->ns[below] * (1 + UNSEEN * (width - below));
    if (above == below)
        return s->ns[width];
    double part = (double)(width - below) / (above - below);
    return s->ns[below] + part * (s->ns[above] - s->ns[below]);
}

double speculate_step_s(const struct speculator *s, int32_t width)
{
    for (int32_t w = 1; w <= SPECULATE_WIDTH; w++)
        if (s->ns[w] > 0)
            return step_ns(s, width) * 1e-9;
    return 0;
}

void speculate_forget(struct speculator *s)
{
    memset(s->ns, 0, sizeof s->ns);
}

void speculate_time(struct speculator *s, const struct schedule *done, int32_t extra, int64_t ns)
{
    int32_t width = done->tokens, plain = done->items;
    if (width > SPECULATE_WIDTH || plain < 1 || ns <= 0)
        return;
    double *known = &s->ns[width], now = (double)ns;
    if (*known == 0)
        *known = now;
    else /* one that was held up by something else says little */
        *known += NEW_TIME * (fmin(now, 2 * *known) - *known);
    /* Steps that this one stood for, and steps that it took. */
    double saved = (double)(plain + extra) / plain;
    double took = width > plain ? step_ns(s, width) / step_ns(s, plain) : 1;
    s->account = fmin(s->account + saved * (1 + ACCOUNT_SHARE) - took, ACCOUNT_MOST);
}

/* ---- how likely a guess is right ----------------------------------------------------------- */

static int class_of(int32_t match)
{
    int c = 0;
    while (c < CLASSES - 1 && match >= class_end[c])
        c++;
    return c;
}

/* A sequence remembers long and short matches apart: code quotes, prose does not. */
static struct guess_record *record_of(struct sequence *seq, int class)
{
    return &seq->record[class >= CLASSES / 2];
}

static double likely(const struct speculator *s, struct sequence *seq)
{
    int class = class_of(seq->match);
    const struct guess_record *own = record_of(seq, class);
    double general = s->right[class] / s->tried[class];
    return fmin((own->right + GENERAL * general) / (own->tried + GENERAL), 0.98);
}

void speculate_score(struct speculator *s, struct sequence *seq, int32_t guesses, int32_t right)
{
    int class = class_of(seq->match);
    struct guess_record *own = record_of(seq, class);
    double tried = right + (right < guesses); /* those behind the first wrong one say nothing */
    own->tried += tried;
    own->right += right;
    s->tried[class] += tried;
    s->right[class] += right;
    if (s->tried[class] > GENERAL_SEEN) {
        s->tried[class] /= 2;
        s->right[class] /= 2;
    }
}

/* ---- the next step ------------------------------------------------------------------------- */

static bool may_guess(const struct sequence *seq)
{
    return seq->speculates && sequence_length(seq) - seq->prompt_n >= seq->min_tokens;
}

/* Looks for guesses; the sequence's `guesses` is how many there could be. */
static void guess(struct speculator *s, struct sequence *seq, int32_t room)
{
    int32_t left = sequence_longest(seq) - sequence_length(seq) - 1;
    int32_t most = left < room ? left : room;
    most = most < SPECULATE_MOST ? most : SPECULATE_MOST;
    seq->guesses = 0;
    if (!may_guess(seq) || most <= 0)
        return;
    if (!seq->lookup)
        seq->lookup = lookup_open(seq->predicted, seq->predicted_n);
    sequence_room(seq, most);
    for (int i = 0; i < 2; i++) {
        seq->record[i].tried *= FADING;
        seq->record[i].right *= FADING;
    }
    seq->guesses = lookup_guess(seq->lookup, seq->tokens, seq->n, seq->prompt_n, most, &seq->match);
    seq->likely = likely(s, seq);
}

/* Who has the best next guess, having `taken`; NULL: nobody has one left. */
static struct sequence *best_next(struct sequence *const *seq, int32_t n)
{
    struct sequence *best = NULL;
    for (int32_t i = 0; i < n; i++)
        if (seq[i]->taken < seq[i]->guesses && (!best || seq[i]->chance > best->chance))
            best = seq[i];
    return best;
}

static double take(struct sequence *seq)
{
    double chance = seq->chance;
    seq->taken++;
    seq->chance *= seq->likely;
    return chance;
}

static void begin(struct sequence *const *seq, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        seq[i]->taken = 0;
        seq[i]->chance = seq[i]->likely;
    }
}

/* How many guesses of `n` sequences together make most tokens a second: 0 if none are worth it. */
static int32_t best_number(const struct speculator *s, struct sequence *const *seq, int32_t n)
{
    double tokens = n, plain = step_ns(s, n), best = WORTH * tokens / plain;
    int32_t number = 0;
    struct sequence *next;
    begin(seq, n);
    for (int32_t extra = 1; n + extra <= s->widest && (next = best_next(seq, n)); extra++) {
        double ns = step_ns(s, n + extra);
        tokens += take(next);
        if (ns / plain - 1 <= s->account && tokens / ns > best) {
            best = tokens / ns;
            number = extra;
        }
    }
    return number;
}

bool speculate_plan(struct speculator *s, struct scheduler *scheduler, bool ahead)
{
    int32_t running = scheduler_running(scheduler), n;
    if (s->size < running) {
        s->size = 2 * running;
        s->seq = xrealloc(s->seq, (size_t)s->size * sizeof(struct sequence *));
    }
    n = scheduler_decoding(scheduler, s->seq);
    if (n == 0 || n >= s->widest)
        return false;
    for (int32_t i = 0; i < n; i++)
        guess(s, s->seq[i], s->widest - n);
    int32_t number = best_number(s, s->seq, n);
    begin(s->seq, n);
    for (int32_t i = 0; i < number; i++)
        take(best_next(s->seq, n));
    for (int32_t i = 0; i < n; i++)
        s->seq[i]->guesses = ahead ? 0 : s->seq[i]->taken;
    return number > 0;
}
