/* agent_source.c - see agent_source.h. */
#include "specializer/agent/agent_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "specializer/hash.h"

#define TABLE_FACTS "kernels/templates.def"
#define TABLE agent
#define TABLE_DEF "kernels/cpu/agent.def"
#include "specializer/search/space_table.h"

#define ROW(id, region)                                                                         \
    {                                                                                           \
        "agent_" id, "agent", "text of a language model", MACHINE_CPU, region, 1, 2048,         \
            knobs_agent, knobs_n_agent, legal_agent, biteq_agent, precision_agent, start_agent, \
            rules_agent                                                                         \
    }

static const struct template templates[] = {
    ROW("attn_in", REGION_ATTN_IN),   ROW("attn", REGION_ATTN),
    ROW("attn_out", REGION_ATTN_OUT), ROW("mlp_in", REGION_MLP_IN),
    ROW("mlp_out", REGION_MLP_OUT),   ROW("head", REGION_HEAD),
};

enum { TEMPLATES = sizeof templates / sizeof *templates };

const struct template *agent_template(enum region region)
{
    for (int i = 0; i < TEMPLATES; i++)
        if (templates[i].region == region)
            return &templates[i];
    return NULL;
}

const struct template *agent_template_find(const char *id)
{
    for (int i = 0; i < TEMPLATES; i++)
        if (strcmp(templates[i].id, id) == 0)
            return &templates[i];
    return NULL;
}

bool agent_point(const struct template *t, const struct facts *f, struct point *out)
{
    for (int i = t->knob[0].values - 1; i >= 0; i--) {
        *out = (struct point){{t->knob[0].value[i]}};
        if (!t->legal(out, f))
            return true;
    }
    return false;
}

void agent_body_hash(const char *body, char out[17])
{
    hash_hex(hash_text(HASH_START, body), out);
}

void agent_body_name(const char *hash, char out[40])
{
    snprintf(out, 40, "agent/%.16s.c", hash);
}

int agent_body_write(const char *kernel_dir, const char *hash, const char *body, struct err *err)
{
    char name[40];
    agent_body_name(hash, name);
    char *dir = xasprintf("%s/agent", kernel_dir), *path = xasprintf("%s/%s", kernel_dir, name);
    char *part = xasprintf("%s.part", path);
    FILE *f = mkdir(dir, 0700) == 0 || errno == EEXIST ? fopen(part, "we") : NULL;
    bool ok = f && fprintf(f, "#line 1 \"kernel\"\n%s", body) > 0;
    if (f && fclose(f) != 0)
        ok = false;
    ok = ok && rename(part, path) == 0;
    if (!ok)
        err_set(err, "kernel source %s cannot be written: %s", path, strerror(errno));
    free(dir);
    free(path);
    free(part);
    return ok ? 0 : -1;
}
