/* SPDX-License-Identifier: Apache-2.0 */
/* speculate.h - how many tokens to guess for whom, in the next step.
 *
 * A decode step reads all weights for one token of each sequence. Given guesses for the tokens that
 * follow, the same step computes their positions too, and every guess that turns out to be what the
 * sampler draws saves a step. Nothing changes but the time: each position draws with the numbers
 * that belong to it (sampler.h: seed and index), and what follows the first wrong guess is thrown
 * away. So a sampled answer is not merely distributed as without guesses, as rejection sampling
 * would have it (Leviathan et al. 2023, Chen et al. 2023): it is the same answer, as far as kernels
 * of different widths round alike. Guesses come from a lookup (lookup.h) or a draft model
 * (draft.h). Where that must hold to the last bit, `same_bits` says up to which width they do, and
 * no step is made wider.
 *
 * Guesses are not free: a step of five tokens takes longer than one of a single token, how much
 * depends on the machine and on the kernels that serve now. So times of decode steps are learned by
 * width, the share of right guesses by how well the place they come from matches and by sequence,
 * and the guesses of a step are those that make most tokens a second of it. What was lost by wrong
 * ones is kept account of, and may not exceed a fiftieth of the time: where nothing is ever
 * accepted, speculation costs 2 %.
 *
 * Engine thread only.
 */
#ifndef WHET_ENGINE_SPECULATE_H
#define WHET_ENGINE_SPECULATE_H

#include "engine/draft.h"
#include "engine/scheduler.h"

/* Guessed for one sequence in a step at most; and the widest step that has guesses. */
enum { SPECULATE_MOST = 15, SPECULATE_WIDTH = 64 };
_Static_assert((int)DRAFT_STEPS <= (int)SPECULATE_MOST && (int)DRAFT_WIDTH >= (int)SPECULATE_WIDTH,
               "what the draft model guesses can be checked");

struct speculator;

/* same_bits: 0: any width up to SPECULATE_WIDTH; otherwise the widest step with guesses. */
struct speculator *speculate_open(int32_t same_bits);
void speculate_close(struct speculator *s);

/* From now on steps of up to so many tokens, and no wider ones, are known to give each token the
 * same bits; 0: none. Sequences that want them (sequence.bit_equal) have guesses in such steps
 * alone. */
void speculate_equal(struct speculator *s, int32_t width);
/* Whether a step of so many tokens gives the bits that the tokens have without guesses. */
bool speculate_is_equal(const struct speculator *s, int32_t width);

/* From now on guesses may also come from a draft model, of which a step costs about `cost` of the
 * served one's before anything is known. `tokens` 0: as many as pay; otherwise always so many, for
 * every sequence that speculates, whatever it costs. NULL: no longer. */
void speculate_use_draft(struct speculator *s, struct draft *d, double cost, int32_t tokens);

/* Guesses for the running sequences that only decode: their `guesses`, and behind their tokens what
 * they are. With `ahead` some of their tokens are not known yet: then nothing is guessed, and true
 * is returned if it would pay to know them first. Otherwise true if something was guessed, or the
 * draft model has something to do before the step: that is in speculate_jobs(), to be run by
 * draft_run() before the scheduler's plan, and what it took to be told to speculate_drafted(). */
bool speculate_plan(struct speculator *s, struct scheduler *scheduler, bool ahead);
const struct drafting *speculate_jobs(const struct speculator *s, int32_t *jobs);
void speculate_drafted(struct speculator *s, const struct draft_steps *done);
/* What steps of the draft model take, at nobody's cost. */
void speculate_draft_times(struct speculator *s, const struct draft_steps *done);

/* Whether the sequence's last guesses are the draft model's. */
bool speculate_is_draft(const struct sequence *seq);
/* Of a step that has landed: item `i` of the schedule had `right` guesses right. */
void speculate_score(struct speculator *s, struct sequence *seq, int32_t guesses, int32_t right);
/* A step of decodes alone took `ns`, and was disturbed by nothing; `extra` tokens came from
 * guesses. */
void speculate_time(struct speculator *s, const struct schedule *done, int32_t extra, int64_t ns);
/* Some slot has another kernel than when times were learned. */
void speculate_forget(struct speculator *s);

/* Seconds that a decode step of `width` tokens takes, as far as is known; 0: nothing is. */
double speculate_step_s(const struct speculator *s, int32_t width);

#endif
