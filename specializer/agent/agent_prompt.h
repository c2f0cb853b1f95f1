/* SPDX-License-Identifier: Apache-2.0 */
/* agent_prompt.h - what a language model is told when it may write a kernel.
 *
 * The words are files (specializer/prompts), the facts are filled in here: the contract with the
 * region's own argument struct and shapes, the measured profile, the leaders and the dead ends of
 * the tree. Facts about this machine and model shape only; nothing that a request contained.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_PROMPT_H
#define WHET_SPECIALIZER_AGENT_AGENT_PROMPT_H

#include "specializer/agent/agent_tree.h"
#include "specializer/search/space.h"

/* The texts of another slot. */
struct agent_kin {
    const char *slot;
    const struct agent_tree *tree;
    int32_t format; /* of its weights, as the facts' WTYPE; -1: it has none, or it is not known */
};

/* What is known of the slot under work. */
struct agent_view {
    const char *slot;          /* "mlp_in/m1" */
    const struct facts *facts; /* of its region here */
    enum numerics numerics;
    int32_t m_from, context; /* smallest m of the bucket; context bucket or 0 */
    int32_t isa, threads;    /* a CPU's */
    const struct machine *machine;
    const char *incumbent;
    double min_gain;                                  /* over it, to be published */
    double share, run_s, roofline_s, m, context_mean; /* live means */
    struct region_cost work;                          /* of one run at them */
    const char *compiler;                             /* which, and its flags; NULL: not known */
    /* What is told of the kernel that serves and of what else was measured here; NULL: nothing. */
    const char *serving, *source, *tuned;
    const struct agent_kin *kin; /* [kins] */
    int kins;
};

/* Hash of all of them together. */
void prompts_hash(char out[17]);

struct prompt_value {
    const char *name, *value;
};
/* The file with every {{name}} replaced; NULL with a message for a name without value. */
char *prompt_fill(const char *file, const struct prompt_value *v, int n, struct err *err);

/* The first text of a slot's tree. */
const char *agent_seed(enum machine_kind machine, enum region region);

/* The system message, and the user message of each task. NULL with a message. Caller frees. */
char *agent_prompt_system(const struct agent_view *v, struct err *err);
char *agent_prompt_plan(const struct agent_view *v, const struct agent_tree *t, int32_t parent,
                        struct err *err);
char *agent_prompt_code(const struct agent_tree *t, int32_t node, struct err *err);
char *agent_prompt_debug(const struct agent_tree *t, int32_t node, struct err *err);

#endif
