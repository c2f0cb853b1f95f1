/* SPDX-License-Identifier: Apache-2.0 */
/* export_text.c - see export_text.h. */
#include "specializer/transfer/export_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_reply.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_span.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_json.h"

void export_text(struct store *s, cJSON *row)
{
    struct agent_node n;
    int state = life_parse(row_text(row, "state"));
    if (state < 0 || !life_admitted((enum life)state) ||
        !agent_template_find(row_text(row, "template")) ||
        agent_store_find(s, row_text(row, "source_hash"), &n, NULL) <= 0)
        return;
    cJSON *o = cJSON_AddObjectToObject(row, "agent");
    cJSON_AddStringToObject(o, "text", n.text);
    cJSON_AddStringToObject(o, "label", n.label ? n.label : "");
    cJSON_AddStringToObject(o, "plan", n.plan ? n.plan : "");
    cJSON_AddStringToObject(o, "prompts", n.prompts);
    tree_node_free(&n);
}

/* At most `most` bytes of what another store's model said, as plain ASCII. */
static char *plain(const char *text, size_t most)
{
    char *out = xasprintf("%.*s", (int)(strlen(text) < most ? strlen(text) : most), text);
    for (char *c = out; *c; c++)
        if (*c != '\n' && (*c < 0x20 || *c > 0x7e))
            *c = '?';
    return out;
}

int import_node(const struct template *t, const cJSON *agent, struct agent_node *out,
                struct err *err)
{
    const char *text = row_text(agent, "text");
    *out = (struct agent_node){.state = AGENT_READY, .parent = -1};
    if (agent_text_check(text, strlen(text), agent_language(t->machine), err) != 0)
        return -1;
    char *body = span_strip(text), *prompts = plain(row_text(agent, "prompts"), KEY_HEX);
    out->text = xstrdup(text);
    out->label = plain(row_text(agent, "label"), LABEL_CHARS_MOST);
    out->plan = plain(row_text(agent, "plan"), PLAN_CHARS_MOST);
    agent_body_hash(body, out->source);
    snprintf(out->prompts, sizeof out->prompts, "%s", prompts);
    free(body);
    free(prompts);
    return 0;
}
