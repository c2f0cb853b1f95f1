/* SPDX-License-Identifier: Apache-2.0 */
/* speculate_draft.c - when the draft model guesses, for whom, and how many tokens.
 *
 * Lookup comes first: it costs nothing. The draft model guesses for sequences for which nothing
 * was found, or nothing as likely to be right. Every token it guesses costs one of its steps, so
 * for each number of them the most tokens a second are worked out, and the best number is taken.
 *
 * Before it can guess it must have read the sequence. A few tokens are read in the step that also
 * guesses; a prompt is read in pieces, one before each step, and only if what is expected of the
 * guesses pays for it within what is left of the answer.
 *
 * All that is kept account of as the other guesses are (speculate.c), but the account is larger
 * because of prompts: before the draft model has shown that it is of use, it may cost two dozen
 * steps, once; then each may cost a hundredth of the time.
 */
#include "engine/speculate_private.h"

/* A piece of an answer's rest that is looked forward to, in tokens; tokens that are read in every
 * step, more or less; and tokens that a step with guesses makes, about. */
enum { FORWARD = 512, USUAL_READ = 1, USUAL_TOKENS = 4 };

void speculate_use_draft(struct speculator *s, struct draft *d, double cost, int32_t tokens)
{
    s->draft = d;
    s->cost = cost;
    s->tokens = tokens < DRAFT_STEPS ? tokens : DRAFT_STEPS;
    s->jobs = 0;
}

const struct drafting *speculate_jobs(const struct speculator *s, int32_t *jobs)
{
    *jobs = s->jobs;
    return s->job;
}

void speculate_draft_times(struct speculator *s, const struct draft_steps *done)
{
    for (int32_t i = 0; i < done->n; i++)
        step_times_learn(&s->draft_times, done->width[i], done->ns[i]);
}

void speculate_drafted(struct speculator *s, const struct draft_steps *done)
{
    speculate_draft_times(s, done);
    for (int32_t i = 0; i < done->n; i++)
        s->drafting_ns += (double)done->ns[i];
}

bool speculate_is_draft(const struct sequence *seq)
{
    return seq->match == MATCH_DRAFT;
}

/* In the unit of speculate_ns(). */
static double draft_ns(const struct speculator *s, int32_t width)
{
    if (step_times_known(&s->times) && step_times_known(&s->draft_times))
        return step_times_ns(&s->draft_times, width);
    return s->cost * speculate_ns(s, width);
}

/* The sequences that the draft model could guess for, summed up for one plan. */
struct candidates {
    int32_t n, read;       /* sequences, and tokens that must be read before */
    int32_t left;          /* tokens of their answers that may follow, of all */
    struct sequence *late; /* one that is too far behind, and by how much */
    int32_t behind;
};

/* How many tokens can be guessed for it by the draft model. */
static int32_t room_of(const struct speculator *s, const struct sequence *seq)
{
    int32_t left = speculate_left(seq), room = draft_room(s->draft, seq);
    return left < room ? left : room;
}

static struct candidates find(struct speculator *s, int32_t n)
{
    struct candidates c = {0};
    for (int32_t i = 0; i < n; i++) {
        struct sequence *seq = s->seq[i];
        seq->found = seq->guesses;
        seq->found_likely = seq->likely;
        seq->drafts = false;
        seq->draft_beyond = 0; /* positions of guesses that were never checked */
        double likely = speculate_likely(s, seq, MATCH_DRAFT);
        if (room_of(s, seq) <= 0 || (seq->found > 0 && seq->likely >= likely))
            continue;
        int32_t behind = draft_behind(s->draft, seq), others = n - i - 1;
        if (behind > 0 && c.read + behind + others <= DRAFT_READ) {
            int32_t left = speculate_left(seq);
            seq->drafts = true;
            c.n++;
            c.read += behind;
            c.left += left < FORWARD ? left : FORWARD;
        } else if (behind > 0 && !c.late) {
            c.late = seq;
            c.behind = behind;
        }
    }
    return c;
}

/* Up to `k` guesses of the draft model for each that it may guess for; 0: what lookup found. */
static void suppose(struct speculator *s, int32_t n, int32_t k)
{
    for (int32_t i = 0; i < n; i++) {
        struct sequence *seq = s->seq[i];
        int32_t room = room_of(s, seq);
        bool drafts = seq->drafts && k > 0;
        seq->guesses = !drafts ? seq->found : k < room ? k : room;
        seq->likely = drafts ? speculate_likely(s, seq, MATCH_DRAFT) : seq->found_likely;
    }
}

/* A long prompt that the draft model reads serves all steps that follow, so only a part of its time
 * counts against this one. */
static struct before before_step(const struct speculator *s, const struct candidates *c, int32_t k)
{
    int32_t usual = c->n + USUAL_READ < c->read ? c->n + USUAL_READ : c->read;
    double steps = (double)c->left / (c->n * USUAL_TOKENS);
    double first = draft_ns(s, c->read), more = first - draft_ns(s, usual);
    struct before b = {.account = s->account[1]};
    b.real_ns = first + (k - 1) * draft_ns(s, c->n);
    b.ns = b.real_ns - (steps > 1 ? more * (1 - 1 / steps) : 0);
    return b;
}

/* Guesses for all sequences, as many as fit the step; costs are not weighed. */
static int32_t fixed_number(struct speculator *s, int32_t n)
{
    int32_t all = 0;
    suppose(s, n, s->tokens);
    for (int32_t i = 0; i < n; i++)
        all += s->seq[i]->guesses;
    return all < s->limit - n ? all : s->limit - n;
}

/* Whether the time that guesses would save for the sequence `late` pays for the tokens that the
 * draft model must read first. */
static bool reading_pays(const struct speculator *s, const struct candidates *c, int32_t read)
{
    double likely = speculate_likely(s, c->late, MATCH_DRAFT), tokens = 1, chance = 1;
    double one = speculate_ns(s, 1), gain = 1;
    for (int32_t k = 1; k <= DRAFT_STEPS && 1 + k <= s->limit; k++) {
        tokens += chance *= likely;
        double ns = speculate_ns(s, 1 + k) + k * draft_ns(s, 1);
        gain = tokens * one / ns > gain ? tokens * one / ns : gain;
    }
    int32_t left = speculate_left(c->late) < FORWARD ? speculate_left(c->late) : FORWARD;
    double saved = left * one * (1 - 1 / gain);
    return saved > draft_ns(s, c->behind) && draft_ns(s, read) / one <= s->account[1];
}

bool speculate_plan_drafts(struct speculator *s, int32_t n, double rate, int32_t *number)
{
    struct candidates c = find(s, n);
    int32_t best = 0, made;
    if (s->tokens > 0 && c.n > 0) {
        *number = fixed_number(s, n);
        best = s->tokens;
    }
    for (int32_t k = 1, worse = 0; s->tokens == 0 && c.n > 0 && k <= DRAFT_STEPS && worse < 2;
         k++) {
        struct before before = before_step(s, &c, k);
        suppose(s, n, k);
        double now = speculate_best(s, n, &before, rate, &made);
        worse = made > 0 ? 0 : worse + 1;
        if (made > 0) {
            rate = now;
            *number = made;
            best = k;
        }
    }
    suppose(s, n, best);
    for (int32_t i = 0; best == 0 && i < n; i++)
        s->seq[i]->drafts = false;
    int32_t read = DRAFT_READ - (best > 0 ? c.read : 0);
    /* The last token of the sequence may have no page yet. */
    read = read < c.behind - 1 ? read : c.behind - 1;
    if (!c.late || read <= 0 || (s->tokens == 0 && !reading_pays(s, &c, read)))
        return false;
    s->job[s->jobs++] = (struct drafting){.seq = c.late, .read = read};
    return true;
}

void speculate_give_jobs(struct speculator *s, struct scheduler *scheduler, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        struct sequence *seq = s->seq[i];
        if (!seq->drafts)
            continue;
        int32_t wanted = seq->taken;
        seq->guesses = 0;
        if (wanted == 0)
            continue;
        int32_t room = scheduler_reserve(scheduler, seq, wanted);
        if (room < wanted)
            wanted = room;
        if (wanted <= 0)
            continue;
        seq->match = MATCH_DRAFT;
        s->job[s->jobs++] =
            (struct drafting){.seq = seq, .read = draft_behind(s->draft, seq), .guesses = wanted};
    }
}
