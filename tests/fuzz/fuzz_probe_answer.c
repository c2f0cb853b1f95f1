/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_probe_answer.c - any bytes as what the process says that ran a kernel which nobody trusts
 * yet. What is taken for an answer has numbers that are some, texts that end, and is the same
 * answer when it is written and read again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/admission/probe_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void answer_is_one(const struct probe_answer *a)
{
    const struct evidence *e = &a->evidence;
    const double number[] = {e->own_max, e->own_rms, e->eager_max,    e->eager_rms,
                             a->kl,      a->top1,    e->refusal.value};
    demand(a->verdict == PROBE_PASS || a->verdict == PROBE_REFUSE || a->verdict == PROBE_ERROR);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        demand(isfinite(number[i]));
    demand(e->probe_cases >= 0);
    demand((unsigned)e->refusal.cause < CAUSES && (unsigned)e->refusal.stage < STAGES);
    demand(strlen(a->stage) < sizeof a->stage && strlen(a->reason) < sizeof a->reason);
    demand(strlen(e->worst) < sizeof e->worst);
    demand(strlen(e->refusal.in_case) < sizeof e->refusal.in_case);
}

static void written_it_is_the_same(const struct probe_answer *a)
{
    struct probe_answer again;
    char *text = probe_answer_text(a);
    demand(probe_answer_parse(&again, text) == 0);
    answer_is_one(&again);
    demand(again.verdict == a->verdict && again.killed == a->killed && again.sealed == a->sealed);
    demand(again.evidence.bit_equal == a->evidence.bit_equal);
    demand(again.evidence.probe_cases == a->evidence.probe_cases);
    demand(again.evidence.refusal.cause == a->evidence.refusal.cause);
    demand(strcmp(again.stage, a->stage) == 0 && strcmp(again.reason, a->reason) == 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct probe_answer a;
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    if (probe_answer_parse(&a, text) == 0) {
        answer_is_one(&a);
        written_it_is_the_same(&a);
    }
    free(text);
    return 0;
}
