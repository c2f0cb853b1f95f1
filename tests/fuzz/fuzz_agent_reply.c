/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_agent_reply.c - any bytes as the replies of a model that writes kernels: as a plan, as a
 * fenced text, and as a text whose spans were rewritten. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_reply.h"
#include "specializer/agent/agent_span.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char before[] = "int a;\n// [span 1]\nint b;\n// [end 1]\nint c;\n// [span 2]\n"
                             "int d;\nint e;\n// [end 2]\nint f;\n";

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void check_plan(const char *reply)
{
    struct agent_plan *plan = calloc(1, sizeof *plan);
    struct err err;
    if (agent_reply_plan(reply, plan, &err) == 0) {
        demand(plan->spans >= 1 && plan->spans <= SPANS_MOST);
        demand(strlen(plan->label) < sizeof plan->label && strlen(plan->plan) < sizeof plan->plan);
        char *marked = span_mark("1\n2\n3\n4\n", plan->span, plan->spans, &err);
        if (marked) {
            char *stripped = span_strip(marked);
            demand(strcmp(stripped, "1\n2\n3\n4\n") == 0);
            demand(span_verify(marked, marked, &err) == 0);
            free(stripped);
        }
        free(marked);
    }
    free(plan);
}

static void check_text(const char *reply)
{
    struct err err;
    char *text = agent_reply_text(reply, &err);
    if (!text)
        return;
    demand(!strchr(text, '\r'));
    char *applied = span_apply(before, text, &err);
    if (applied) {
        /* Every line that nobody could change is there, in order. */
        const char *at = applied;
        static const char *const kept[] = {"int a;",   "[span 1]", "[end 1]", "int c;",
                                           "[span 2]", "[end 2]",  "int f;"};
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
            demand((at = strstr(at, kept[i])) != NULL);
    }
    free(applied);
    char *stripped = span_strip(text), *numbered = span_number(text);
    demand(strlen(stripped) <= strlen(text) + 1 && strlen(numbered) >= strlen(stripped));
    free(stripped);
    free(numbered);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *reply = malloc(size + 1);
    memcpy(reply, data, size);
    reply[size] = 0;
    check_plan(reply);
    check_text(reply);
    free(reply);
    return 0;
}
