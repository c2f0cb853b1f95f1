/* export_text.c - see export_text.h. */
#include "specializer/store/export_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_reply.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_span.h"
#include "specializer/agent/agent_tree.h"
#include "specializer/life.h"
#include "specializer/store/store_json.h"

const char *imported_texts(enum machine_kind machine)
{
    return machine == MACHINE_CUDA ? "imported/cuda" : "imported/cpu";
}

void export_text(struct store *s, cJSON *row)
{
    struct agent_node n;
    int state = life_parse(row_text(row, "state"));
    if (state < 0 || !life_admitted((enum life)state) ||
        !agent_template_find(row_text(row, "template")) ||
        store_agent_find(s, row_text(row, "source_hash"), &n, NULL) <= 0)
        return;
    cJSON *o = cJSON_AddObjectToObject(row, "agent");
    cJSON_AddStringToObject(o, "text", n.text);
    cJSON_AddStringToObject(o, "label", n.label ? n.label : "");
    cJSON_AddStringToObject(o, "plan", n.plan ? n.plan : "");
    cJSON_AddStringToObject(o, "prompts", n.prompts);
    tree_node_free(&n);
}

/* At most `most` bytes of what a stranger's model said, as plain ASCII. */
static char *plain(const char *text, size_t most)
{
    char *out = xasprintf("%.*s", (int)(strlen(text) < most ? strlen(text) : most), text);
    for (char *c = out; *c; c++)
        if (*c != '\n' && (*c < 0x20 || *c > 0x7e))
            *c = '?';
    return out;
}

static int keep(struct store *s, const struct template *t, const char *slot, const cJSON *agent,
                struct err *err)
{
    const char *text = row_text(agent, "text");
    char *body = span_strip(text);
    struct agent_node n = {.state = AGENT_READY,
                           .parent = -1,
                           .text = xstrdup(text),
                           .label = plain(row_text(agent, "label"), LABEL_CHARS_MOST),
                           .plan = plain(row_text(agent, "plan"), PLAN_CHARS_MOST)};
    agent_body_hash(body, n.source);
    char *prompts = plain(row_text(agent, "prompts"), sizeof n.prompts - 1);
    snprintf(n.prompts, sizeof n.prompts, "%s", prompts);
    int r = store_agent_import(s, imported_texts(t->machine), slot, &n, err);
    tree_node_free(&n);
    free(body);
    free(prompts);
    return r == 0 ? 1 : -1;
}

int import_text(struct store *s, const cJSON *row, const char *who, struct err *err)
{
    const char *slot = row_text(row, "slot");
    const struct template *t = agent_template_find(row_text(row, "template"));
    const cJSON *agent = cJSON_GetObjectItemCaseSensitive(row, "agent");
    const char *text = row_text(agent, "text");
    int state = life_parse(row_text(row, "state"));
    struct err why = {""};
    if (state < 0 || !life_admitted((enum life)state) || !t || !slot[0] || strlen(slot) >= 40 ||
        !text[0])
        return 0;
    if (agent_text_check(text, strlen(text), agent_language(t->machine), &why) != 0) {
        store_trace(s, slot, NULL, "not_imported", who, "a text for %s: %s", t->id, why.msg);
        return 0;
    }
    int r = keep(s, t, slot, agent, err);
    if (r > 0)
        store_trace(s, slot, NULL, "imported", who, "a text for %s", t->id);
    return r;
}
