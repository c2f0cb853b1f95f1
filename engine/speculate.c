/* SPDX-License-Identifier: Apache-2.0 */
/* speculate.c - see speculate.h. */
#include "engine/speculate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/lookup.h"
#include "engine/speculate_private.h"

/* A step has guesses only if they promise so many times the tokens per second. */
#define WORTH 1.03

/* The acceptance over all sequences counts as much as so many guesses of the sequence itself, and
 * with each token the past of a sequence counts so much of what it did. */
#define GENERAL 3.0
#define FADING 0.99

/* A place that matches by so many tokens is of class i if it is below class_end[i]. */
static const int32_t class_end[] = {3, 4, 6, 10, 16, LOOKUP_MATCH + 1};
/* Acceptance that is assumed before any guess was checked; the last one is of the draft model. */
static const double class_share[] = {0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.6};
enum { GENERAL_SEEN = 400, GENERAL_FIRST = 8 };
_Static_assert(sizeof class_end / sizeof *class_end == CLASS_DRAFT, "classes of matches");
_Static_assert(sizeof class_share / sizeof *class_share == CLASSES, "classes of guesses");

/* Each plan, what is known of the draft model's guesses goes so far back to what was thought at
 * first, so that one that was given up is tried again some day. */
#define FORGIVING 0.001

/* The accounts of lost time, of guesses found by lookup and of those of the draft model, which
 * must read a prompt before it can make any. */
static const struct {
    double start, most;
} accounts[] = {{2, 4}, {24, 48}};
#define ACCOUNT_SHARE 0.02

struct speculator *speculate_open(int32_t same_bits)
{
    struct speculator *s = xcalloc(1, sizeof *s);
    s->widest = same_bits > 0 && same_bits < SPECULATE_WIDTH ? same_bits : SPECULATE_WIDTH;
    for (int i = 0; i < 2; i++)
        s->account[i] = accounts[i].start;
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

void speculate_equal(struct speculator *s, int32_t width)
{
    s->equal = width;
}

bool speculate_is_equal(const struct speculator *s, int32_t width)
{
    return width <= s->equal;
}

/* ---- what a step costs --------------------------------------------------------------------- */

double speculate_ns(const struct speculator *s, int32_t width)
{
    return step_times_ns(&s->times, width);
}

double speculate_step_s(const struct speculator *s, int32_t width)
{
    return step_times_known(&s->times) ? speculate_ns(s, width) * 1e-9 : 0;
}

void speculate_forget(struct speculator *s)
{
    step_times_forget(&s->times);
}

void speculate_time(struct speculator *s, const struct schedule *done, int32_t extra, int64_t ns)
{
    int32_t width = done->tokens, plain = done->items;
    if (width > SPECULATE_WIDTH || plain < 1 || ns <= 0)
        return;
    step_times_learn(&s->times, width, ns);
    /* Steps that this one stood for, and steps that it took. */
    double saved = (double)(plain + extra) / plain, one = speculate_ns(s, plain);
    double took = (width > plain ? speculate_ns(s, width) / one : 1) + s->drafting_ns / one;
    bool drafted = s->drafting_ns > 0;
    s->drafting_ns = 0;
    double share = s->draft ? ACCOUNT_SHARE / 2 : ACCOUNT_SHARE; /* for each of two kinds */
    for (int i = 0; i < 2; i++) {
        double more = saved * share + (i == drafted ? saved - took : 0);
        s->account[i] = fmin(s->account[i] + more, accounts[i].most);
    }
}

/* ---- how likely a guess is right ----------------------------------------------------------- */

static int class_of(int32_t match)
{
    int c = 0;
    if (match == MATCH_DRAFT)
        return CLASS_DRAFT;
    while (c < CLASS_DRAFT - 1 && match >= class_end[c])
        c++;
    return c;
}

/* A sequence remembers long and short matches apart: code quotes, prose does not. */
static struct guess_record *record_of(struct sequence *seq, int class)
{
    return &seq->record[class == CLASS_DRAFT ? 2 : class >= CLASS_DRAFT / 2];
}

double speculate_likely(const struct speculator *s, struct sequence *seq, int32_t match)
{
    int class = class_of(match);
    const struct guess_record *own = record_of(seq, class);
    double general = s->right[class] / s->tried[class];
    return fmin((own->right + GENERAL * general) / (own->tried + GENERAL), 0.98);
}

void speculate_score(struct speculator *s, struct sequence *seq, int32_t guesses, int32_t right)
{
    int class = class_of(seq->match);
    struct guess_record *own = record_of(seq, class);
    /* Guesses behind the first wrong one are not counted. */
    double tried = right + (right < guesses);
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

int32_t speculate_left(const struct sequence *seq)
{
    bool may = seq->speculates && sequence_length(seq) - seq->prompt_n >= seq->min_tokens;
    return may ? sequence_longest(seq) - sequence_length(seq) - 1 : 0;
}

/* Looks for guesses; the sequence's `guesses` is how many there could be. */
static void guess(struct speculator *s, struct sequence *seq, int32_t room)
{
    int32_t left = speculate_left(seq);
    int32_t most = left < room ? left : room;
    most = most < SPECULATE_MOST ? most : SPECULATE_MOST;
    seq->guesses = 0;
    if (most <= 0)
        return;
    if (!seq->lookup)
        seq->lookup = lookup_open(seq->predicted, seq->predicted_n);
    sequence_room(seq, most);
    for (int i = 0; i < 3; i++) {
        seq->record[i].tried *= FADING;
        seq->record[i].right *= FADING;
    }
    seq->guesses = lookup_guess(seq->lookup, seq->tokens, seq->n, seq->prompt_n, most, &seq->match);
    seq->likely = speculate_likely(s, seq, seq->match);
}

/* The sequence with the best next guess, having `taken`; NULL: none has one left. */
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

double speculate_best(const struct speculator *s, int32_t n, const struct before *before,
                      double least, int32_t *number)
{
    double tokens = n, plain = speculate_ns(s, n), best = least;
    struct sequence *next;
    *number = 0;
    begin(s->seq, n);
    for (int32_t extra = 1; n + extra <= s->limit && (next = best_next(s->seq, n)); extra++) {
        double ns = speculate_ns(s, n + extra);
        tokens += take(next);
        if ((ns + before->real_ns) / plain - 1 <= before->account &&
            tokens / (ns + before->ns) > best) {
            best = tokens / (ns + before->ns);
            *number = extra;
        }
    }
    return best;
}

static void forgive(struct speculator *s)
{
    double share = class_share[CLASS_DRAFT];
    double *tried = &s->tried[CLASS_DRAFT], *right = &s->right[CLASS_DRAFT];
    *tried += FORGIVING * (GENERAL_FIRST - *tried);
    *right += FORGIVING * (GENERAL_FIRST * share - *right);
}

/* The widest step that the sequences may have together: one that wants no other bits would have
 * them from its neighbours' guesses as well. */
static int32_t limit_of(const struct speculator *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (s->seq[i]->bit_equal && s->equal < s->widest)
            return s->equal;
    return s->widest;
}

bool speculate_plan(struct speculator *s, struct scheduler *scheduler, bool ahead)
{
    int32_t running = scheduler_running(scheduler), n, number;
    s->jobs = 0;
    if (s->size < running) {
        s->size = 2 * running;
        s->seq = xrealloc(s->seq, (size_t)s->size * sizeof(struct sequence *));
    }
    n = scheduler_decoding(scheduler, s->seq);
    s->limit = limit_of(s, n);
    if (n == 0 || n >= s->limit)
        return false;
    for (int32_t i = 0; i < n; i++)
        guess(s, s->seq[i], s->limit - n);
    struct before nothing = {.account = s->account[0]};
    double rate = speculate_best(s, n, &nothing, WORTH * n / speculate_ns(s, n), &number);
    bool reads = false;
    if (s->draft) {
        forgive(s);
        reads = speculate_plan_drafts(s, n, rate, &number);
    }
    begin(s->seq, n);
    for (int32_t i = 0; i < number; i++)
        take(best_next(s->seq, n));
    for (int32_t i = 0; i < n; i++)
        s->seq[i]->guesses = ahead ? 0 : s->seq[i]->taken;
    if (ahead)
        s->jobs = 0;
    else if (s->draft)
        speculate_give_jobs(s, scheduler, n);
    return number > 0 || reads;
}
