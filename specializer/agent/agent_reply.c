/* SPDX-License-Identifier: Apache-2.0 */
/* agent_reply.c - see agent_reply.h. */
#include "specializer/agent/agent_reply.h"

#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/reply_json.h"
#include "specializer/agent/agent_text.h"

const char agent_plan_schema[] =
    "{\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"version\",\"label\",\"plan\",\"spans\"],\"properties\":{"
    "\"version\":{\"type\":\"integer\",\"enum\":[1]},"
    "\"label\":{\"type\":\"string\"},\"plan\":{\"type\":\"string\"},"
    "\"spans\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"additionalProperties\":false,"
    "\"required\":[\"first\",\"last\"],\"properties\":{"
    "\"first\":{\"type\":\"integer\"},\"last\":{\"type\":\"integer\"}}}}}}";

static int read_span(const struct reading *r, const cJSON *o, struct span_lines *out)
{
    static const struct reply_field span[] = {{"first", REPLY_NUMBER}, {"last", REPLY_NUMBER}};
    const cJSON *at[2];
    if (reply_fields(r, o, "a span", span, 2, at) != 0)
        return -1;
    for (int i = 0; i < 2; i++)
        if (at[i]->valuedouble != (double)at[i]->valueint)
            return reply_bad(r, REPLY_TYPE, "\"%s\" is not a line number", span[i].name);
    *out = (struct span_lines){at[0]->valueint, at[1]->valueint};
    return 0;
}

int agent_reply_plan(const char *text, struct agent_plan *out, struct err *err)
{
    static const struct reply_field top[] = {{"version", REPLY_NUMBER},
                                             {"label", REPLY_STRING},
                                             {"plan", REPLY_STRING},
                                             {"spans", REPLY_LIST}};
    enum reply_fault fault;
    const struct reading r = {&fault, err};
    const cJSON *at[4], *v;
    cJSON *o = reply_document(&r, text, strlen(text), top, 4, at);
    if (!o)
        return -1;
    memset(out, 0, sizeof *out);
    int rc = 0, spans = cJSON_GetArraySize(at[3]);
    if (reply_copy_text(&r, at[1], "the label", LABEL_CHARS_MOST, out->label, sizeof out->label) ||
        reply_copy_text(&r, at[2], "the plan", PLAN_CHARS_MOST, out->plan, sizeof out->plan))
        rc = -1;
    else if (spans < 1 || spans > SPANS_MOST)
        rc = reply_bad(&r, REPLY_TOO_LONG, "%d spans; 1 to %d", spans, SPANS_MOST);
    cJSON_ArrayForEach(v, at[3])
    {
        if (rc == 0)
            rc = read_span(&r, v, &out->span[out->spans++]);
    }
    cJSON_Delete(o);
    return rc;
}

/* Line ends of other systems become plain ones. */
static char *plain_lines(const char *at, size_t n)
{
    char *out = xcalloc(n + 2, 1);
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (at[i] != '\r')
            out[used++] = at[i];
    if (used > 0 && out[used - 1] != '\n')
        out[used] = '\n';
    return out;
}

static bool is_blank(const char *at, const char *end)
{
    while (at < end && strchr(" \t\r\n", *at))
        at++;
    return at == end;
}

char *agent_reply_text(const char *reply, struct err *err)
{
    static const char fence[] = "```";
    size_t n = strlen(reply);
    if (n > 2 * AGENT_TEXT_MOST) {
        err_set(err, "the reply has %zu bytes", n);
        return NULL;
    }
    const char *open = strstr(reply, fence);
    if (!open)
        return plain_lines(reply, n);
    const char *body = strchr(open, '\n');
    const char *close = body ? strstr(body, fence) : NULL;
    if (!close) {
        err_set(err, "the fenced block has no end");
        return NULL;
    }
    if (!is_blank(reply, open) || !is_blank(close + 3, reply + n)) {
        err_set(err, "the reply is more than one fenced block");
        return NULL;
    }
    return plain_lines(body + 1, (size_t)(close - body - 1));
}
