/* SPDX-License-Identifier: Apache-2.0 */
/* endcheck.h - the model's logits with a candidate in its place, against the eager run.
 *
 * Kernels that pass alone can drift over thirty layers. In the probe process; the candidate runs in
 * a child of it.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_ENDCHECK_H
#define WHET_SPECIALIZER_ADMISSION_ENDCHECK_H

#include "engine/formats.h"
#include "engine/model.h"
#include "specializer/admission/comparator.h"
#include "specializer/candidate/stage.h"

struct end_result {
    int32_t tokens;
    double max_error; /* largest difference of a logit, relative to the row's largest */
    double kl;        /* mean KL(eager || candidate) over tokens, nats */
    double top1;      /* share of tokens whose first choice is eager's */
    int32_t changed;  /* first choices that are another, and were no tie */
    double spread;    /* rms of eager's logits about their row's mean */
    bool bit_equal;
};

/* Logits [tokens, vocab] of both. `tie`: two logits of eager so close are one choice; 0: eight
 * times the rms of the row's differences. */
void end_compare(const float *eager, const float *own, int32_t tokens, int32_t vocab, double tie,
                 struct end_result *r);
/* `limit`: of the mean divergence, for a precision that allows none of its own. 0, or -1 with what
 * was over it. */
int end_verdict(enum numerics numerics, enum precision precision, double limit,
                const struct end_result *r, struct err *err);

/* `formats` and `m` are the slot's: the candidate runs in the layers of that class (NULL: in all),
 * eager in the others; steps have that many tokens as far as the prompt set allows. `must_seal`:
 * a language model wrote it, so nothing of the object is called where a process cannot be sealed,
 * and its packed weights take `pack_most` bytes at most. `references`: folder of
 * reference_cache.h, where eager's run is kept; NULL: nothing is. 0, or -1 with what was over the
 * limit of `numerics`. */
int end_check(const struct model *model, const char *object, const struct format_class *formats,
              int32_t m, bool must_seal, int64_t pack_most, enum numerics numerics,
              const char *references, struct end_result *result, struct err *err);

/* The same for a backend that can check the whole model, in slices on the engine's thread, with
 * c->kernel. */
enum stage_result end_check_live(const struct stage_env *env, struct candidate *c);

#endif
