/* SPDX-License-Identifier: Apache-2.0 */
/* agent_source.c - see agent_source.h. */
#include "specializer/agent/agent_source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "specializer/agent/agent_span.h"
#include "specializer/candidate/hash.h"

#define TABLE_FACTS "kernels/templates.def"
#define TABLE agent
#define TABLE_DEF "kernels/cpu/agent.def"
#include "specializer/candidate/template_table.h"

#undef TABLE_FACTS
#define TABLE_FACTS "kernels/templates_cuda.def"
#define TABLE agent_cuda
#define TABLE_DEF "kernels/cuda/agent.def"
#include "specializer/candidate/template_table.h"

/* On a GPU wider steps stay eager, whose matrix products no text without tensor cores comes near.
 */
enum { CPU_M_MOST = 2048, CUDA_M_MOST = 32 };

#define ROW(kind, table, id, region, m_most)                                                    \
    {                                                                                           \
        id, "agent", "text of a language model", kind, false, region, 1, m_most, knobs_##table, \
            knobs_n_##table, roles_##table, legal_##table, biteq_##table, precision_##table,    \
            start_##table, rules_##table                                                        \
    }
#define CPU(id, region) ROW(MACHINE_CPU, agent, "agent_" id, region, CPU_M_MOST)
#define CUDA(id, region) ROW(MACHINE_CUDA, agent_cuda, "agent_cuda_" id, region, CUDA_M_MOST)

static const struct template templates[] = {
    CPU("attn_in", REGION_ATTN_IN),    CPU("attn", REGION_ATTN),
    CPU("attn_out", REGION_ATTN_OUT),  CPU("mlp_in", REGION_MLP_IN),
    CPU("mlp_out", REGION_MLP_OUT),    CPU("head", REGION_HEAD),
    CUDA("attn_in", REGION_ATTN_IN),   CUDA("attn", REGION_ATTN),
    CUDA("attn_out", REGION_ATTN_OUT), CUDA("mlp_in", REGION_MLP_IN),
    CUDA("mlp_out", REGION_MLP_OUT),   CUDA("head", REGION_HEAD),
};

enum { TEMPLATES = sizeof templates / sizeof *templates };

const struct template *agent_template(enum machine_kind machine, enum region region)
{
    for (int i = 0; i < TEMPLATES; i++)
        if (templates[i].machine == machine && templates[i].region == region)
            return &templates[i];
    return NULL;
}

enum agent_language agent_language(enum machine_kind machine)
{
    static const enum agent_language languages[] = {
        [MACHINE_CPU] = AGENT_C, [MACHINE_CUDA] = AGENT_CUDA};
    return languages[machine];
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

bool agent_text_has_hash(const char *text, const char *hash)
{
    char own[17], *body = span_strip(text);
    agent_body_hash(body, own);
    free(body);
    return strcmp(own, hash) == 0;
}

int agent_body_write(const char *kernel_dir, enum machine_kind machine, const char *hash,
                     const char *body, struct err *err)
{
    char name[40];
    candidate_body_name(machine, hash, name);
    char *dir = xasprintf("%s/agent", kernel_dir), *path = xasprintf("%s/%s", kernel_dir, name);
    char *part = xasprintf("%s.part", path);
    /* All of the way: somebody may have cleared the folder of the sources away while we run. */
    bool made = safe_folder_make(dir, err) == 0;
    FILE *f = made ? fopen(part, "we") : NULL;
    bool ok = f && fprintf(f, "#line 1 \"kernel\"\n%s", body) > 0;
    if (f && fclose(f) != 0)
        ok = false;
    ok = ok && rename(part, path) == 0;
    if (made && !ok)
        err_set(err, "kernel source %s cannot be written: %s", path, strerror(errno));
    free(dir);
    free(path);
    free(part);
    return ok ? 0 : -1;
}
