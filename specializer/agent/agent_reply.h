/* SPDX-License-Identifier: Apache-2.0 */
/* agent_reply.h - what a language model answers when it may write kernels: a plan, or a text.
 *
 * A plan is JSON as strict as the adviser's; a text is one fenced block. Whatever else stands in a
 * reply is an error, not decoration to be cut away: a model that cannot keep to the form will not
 * keep to the contract. Pure.
 */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_REPLY_H
#define WHET_SPECIALIZER_AGENT_AGENT_REPLY_H

#include "specializer/agent/agent_span.h"

enum { PLAN_CHARS_MOST = 2000, LABEL_CHARS_MOST = 80 };

struct agent_plan {
    char label[4 * LABEL_CHARS_MOST + 1];
    char plan[4 * PLAN_CHARS_MOST + 1];
    struct span_lines span[SPANS_MOST];
    int spans;
};

/* 0, or -1 with the fault and a sentence. */
int agent_reply_plan(const char *text, struct agent_plan *out, struct err *err);
/* The JSON schema of a plan, for endpoints that take one. */
extern const char agent_plan_schema[];
/* The text of the only fenced block, or of the whole reply if it has no fence, with plain line
 * ends; NULL with a message. Caller frees. */
char *agent_reply_text(const char *reply, struct err *err);

#endif
