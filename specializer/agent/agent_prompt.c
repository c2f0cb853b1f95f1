/* SPDX-License-Identifier: Apache-2.0 */
/* agent_prompt.c - see agent_prompt.h. */
#include "specializer/agent/agent_prompt.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "kernels/sources.h"
#include "specializer/adviser/adviser_request.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_span.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/template_tables.h"

extern const struct kernel_source prompt_sources[];
extern const int prompt_source_count;

enum { LEADERS = 3, DEADS = 6, LOG_MOST = 2500, PLAN_MOST = 300 };

/* ---- files --------------------------------------------------------------------------------- */

/* The text of a file of prompts, or "". */
static const char *prompt_file(const char *name)
{
    for (int i = 0; i < prompt_source_count; i++)
        if (strcmp(prompt_sources[i].name + strlen("prompts/"), name) == 0)
            return prompt_sources[i].text;
    return "";
}

void prompts_hash(char out[17])
{
    uint64_t h = HASH_START;
    for (int i = 0; i < prompt_source_count; i++)
        h = hash_text(hash_text(h, prompt_sources[i].name), prompt_sources[i].text);
    hash_hex(h, out);
}

static const char *value_of(const struct prompt_value *v, int n, const char *name, size_t k)
{
    for (int i = 0; i < n; i++)
        if (strlen(v[i].name) == k && memcmp(v[i].name, name, k) == 0)
            return v[i].value;
    return NULL;
}

char *prompt_fill(const char *file, const struct prompt_value *v, int n, struct err *err)
{
    const char *at = prompt_file(file), *open;
    char *out = NULL;
    size_t size = 0;
    bool ok = *at != 0 || err_set(err, "prompt %s is empty", file) == 0;
    FILE *f = open_memstream(&out, &size);
    while (ok && (open = strstr(at, "{{")) != NULL) {
        const char *close = strstr(open, "}}");
        const char *value = close ? value_of(v, n, open + 2, (size_t)(close - open - 2)) : NULL;
        fwrite(at, 1, (size_t)(open - at), f);
        if (value)
            fputs(value, f);
        else
            ok = err_set(err, "prompt %s: no value for %.40s", file, open) == 0;
        at = close ? close + 2 : open + 2;
    }
    if (ok)
        fputs(at, f);
    fclose(f);
    if (ok)
        return out;
    free(out);
    return NULL;
}

const char *agent_seed(enum machine_kind machine, enum region region)
{
    static const char *const file[REGION_COUNT] = {
        [REGION_ATTN_IN] = "seed_attn_in", [REGION_ATTN] = "seed_attn",
        [REGION_ATTN_OUT] = "seed_out",    [REGION_MLP_IN] = "seed_mlp_in",
        [REGION_MLP_OUT] = "seed_out",     [REGION_HEAD] = "seed_head"};
    char name[32];
    if (!file[region])
        return "";
    snprintf(name, sizeof name, "%s.%s", file[region], machine == MACHINE_CUDA ? "cu" : "c");
    return prompt_file(name);
}

/* ---- the contract -------------------------------------------------------------------------- */

/* The definition that starts with this line in a header, up to its closing brace. */
static void cut(FILE *out, const char *header, const char *begin)
{
    const char *at = strstr(kernel_source_text(header), begin);
    const char *end = at ? strstr(at, "\n};\n") : NULL;
    if (end)
        fprintf(out, "%.*s\n", (int)(end + 4 - at), at);
}

static char *args_text(enum machine_kind machine, enum region region)
{
    static const char *const own[REGION_COUNT] = {
        [REGION_ATTN_IN] = "attn_in_args {", [REGION_ATTN] = "attn_args {",
        [REGION_ATTN_OUT] = "out_args {",    [REGION_MLP_IN] = "mlp_in_args {",
        [REGION_MLP_OUT] = "out_args {",     [REGION_HEAD] = "head_args {"};
    const bool cuda = machine == MACHINE_CUDA;
    char *out = NULL, begin[40];
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    snprintf(begin, sizeof begin, "struct %s%s", cuda ? "cuda_" : "", own[region]);
    cut(f, cuda ? "cuda.h" : "args.h", cuda ? "struct cuda_counts {" : "struct weight {");
    cut(f, "args.h", "struct span {");
    if (cuda)
        cut(f, "cuda.h", "struct cuda_work {");
    cut(f, cuda ? "cuda.h" : "args.h", begin);
    if (!cuda)
        cut(f, "args.h", "struct team {");
    fclose(f);
    return out;
}

static char *operation_text(const struct facts *f)
{
    cJSON *o = cJSON_CreateObject();
    adviser_put_operation(f, o);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static void put_constant(FILE *out, const char *name, int32_t value)
{
    if (strcmp(name, "M_MAX") != 0)
        fprintf(out, "%s%s=%d", strcmp(name, "REGION") == 0 ? "" : ", ", name, value);
}

/* What the compiler gets as -D, REGION first. */
static char *constants_text(const struct facts *f)
{
    char *out = NULL;
    size_t size = 0;
    FILE *s = open_memstream(&out, &size);
    if (facts_kind(f) == MACHINE_CUDA) {
#define SHAPE(name, value, help) put_constant(s, #name, f->name);
#include "kernels/templates_cuda.def"
    } else {
#define SHAPE(name, value, help) put_constant(s, #name, f->name);
#include "kernels/templates.def"
    }
    fclose(s);
    return out;
}

static const char *rule_text(enum numerics n)
{
    return n == NUMERICS_BIT_EQUAL
               ? "0: the very bits of the eager kernel, whose order of arithmetic lanes.h fixes "
                 "(sums "
                 "in 16 lanes of fused multiply-adds, folded 8, 4, 2, 1)"
               : "twice that of the eager kernel against a double-precision oracle";
}

/* What a contract of one machine needs and the other's has no use for is "". */
char *agent_prompt_system(const struct agent_view *v, struct err *err)
{
    const struct facts *f = v->facts;
    const enum region region = (enum region)f->REGION;
    const enum machine_kind machine = facts_kind(f);
    const bool cuda = machine == MACHINE_CUDA;
    char m_from[16], m[16], threads[16], isa[16], context[80] = "";
    char *args = args_text(machine, region), *operation = operation_text(f);
    char *constants = constants_text(f);
    snprintf(m_from, sizeof m_from, "%d", v->m_from);
    snprintf(m, sizeof m, "%d", f->M_MAX);
    snprintf(threads, sizeof threads, "%d", v->threads);
    snprintf(isa, sizeof isa, "%d", v->isa);
    if (v->context > 0)
        snprintf(context, sizeof context, " and contexts of up to %d positions", v->context);
    const struct prompt_value value[] = {
        {"region", region_name(region)},
        {"m_from", m_from},
        {"m", m},
        {"context", context},
        {"operation", operation},
        {"args", args},
        {"threads", threads},
        {"constants", constants},
        {"isa", isa},
        {"isa_name", isa_name(v->isa)},
        {"target", v->machine->target},
        {"helpers", region == REGION_ATTN_IN ? kernel_source_text("cpu/lib/qkv.h")
                    : region == REGION_ATTN  ? kernel_source_text("cpu/lib/paged.h")
                                             : ""},
        {"rule", rule_text(v->numerics)},
    };
    char *contract = prompt_fill(cuda ? "contract_cuda.md" : "contract_cpu.md", value,
                                 sizeof value / sizeof *value, err);
    const char *principles = prompt_file(cuda ? "principles_cuda.md" : "principles_cpu.md");
    char *out = contract ? xasprintf("%s%s", contract, principles) : NULL;
    free(contract);
    free(args);
    free(operation);
    free(constants);
    return out;
}

/* ---- tasks --------------------------------------------------------------------------------- */

static char *profile_text(const struct agent_view *v)
{
    double run = v->run_s > 0 ? v->run_s : 1, bytes = machine_bytes(v->machine, &v->work);
    double flops = (double)v->work.flops;
    return xasprintf("Live means: m %.1f, context %.0f; %.1f %% of step time; "
                     "%.2f MB and %.2f MFLOP a run, so %.1f GB/s and %.1f GFLOP/s now.",
                     v->m, v->context_mean, v->share * 100, bytes * 1e-6, flops * 1e-6,
                     bytes / run * 1e-9, flops / run * 1e-9);
}

/* What an adviser is told of the machine, as JSON. */
static char *device_text(const struct agent_view *v)
{
    cJSON *o = cJSON_CreateObject();
    adviser_put_device(v->machine, v->facts, v->threads, o);
    char *text = cJSON_PrintUnformatted(cJSON_GetObjectItem(o, "device"));
    cJSON_Delete(o);
    return text;
}

/* At most `most` bytes of `text`, and no half of a character. */
static int whole_characters(const char *text, int most)
{
    size_t n = strlen(text);
    if (n <= (size_t)most)
        return (int)n;
    for (n = (size_t)most; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
        n--;
    return (int)n;
}

static char *leaders_text(const struct agent_tree *t)
{
    int32_t id[LEADERS];
    int n = tree_leaders(t, id, LEADERS);
    char *out = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&out, &size);
    for (int i = 0; i < n; i++) {
        const struct agent_node *l = &t->node[id[i]];
        fprintf(f, "- %.3f: %s", l->speed, l->label ? l->label : "the seed");
        if (l->plan)
            fprintf(f, ": %.*s", whole_characters(l->plan, PLAN_MOST), l->plan);
        fputc('\n', f);
    }
    fputs(n == 0 ? "- nothing is measured yet\n" : "", f);
    fclose(f);
    return out;
}

/* The newest refusals: what was tried, and why it was no good. */
static char *dead_text(const struct agent_tree *t)
{
    char *out = NULL;
    size_t size = 0;
    int n = 0;
    FILE *f = open_memstream(&out, &size);
    for (int i = t->nodes - 1; i >= 0 && n < DEADS; i--) {
        const struct agent_node *d = &t->node[i];
        if (d->state != AGENT_FAILED)
            continue;
        fprintf(f, "- %s: %s\n", d->label ? d->label : "a plan", d->reason ? d->reason : "");
        n++;
    }
    fputs(n == 0 ? "- none yet\n" : "", f);
    fclose(f);
    return out;
}

char *agent_prompt_plan(const struct agent_view *v, const struct agent_tree *t, int32_t parent,
                        struct err *err)
{
    const struct agent_node *p = &t->node[parent];
    char run[32], roofline[32], speed[32], gain[32];
    char *body = span_strip(p->text), *numbered = span_number(body), *profile = profile_text(v);
    char *leaders = leaders_text(t), *dead = dead_text(t), *device = device_text(v);
    snprintf(run, sizeof run, "%.4g", v->run_s * 1e6);
    snprintf(roofline, sizeof roofline, "%.4g", v->roofline_s * 1e6);
    snprintf(speed, sizeof speed, "%.3f", p->speed);
    snprintf(gain, sizeof gain, "%.3g", v->min_gain * 100);
    const struct prompt_value value[] = {{"slot", v->slot},     {"incumbent", v->incumbent},
                                         {"run_us", run},       {"roofline_us", roofline},
                                         {"speed", speed},      {"profile", profile},
                                         {"min_gain", gain},    {"device", device},
                                         {"leaders", leaders},  {"dead", dead},
                                         {"numbered", numbered}};
    char *out = prompt_fill("plan.md", value, sizeof value / sizeof *value, err);
    free(body);
    free(numbered);
    free(profile);
    free(device);
    free(leaders);
    free(dead);
    return out;
}

char *agent_prompt_code(const struct agent_tree *t, int32_t node, struct err *err)
{
    const struct agent_node *n = &t->node[node];
    const struct prompt_value value[] = {{"plan", n->plan}, {"marked", n->text}};
    return prompt_fill("code.md", value, 2, err);
}

char *agent_prompt_debug(const struct agent_tree *t, int32_t node, struct err *err)
{
    const struct agent_node *n = &t->node[node];
    char *log =
        n->log && n->log[0] ? xasprintf("Its words:\n%.*s\n", LOG_MOST, n->log) : xstrdup("");
    const struct prompt_value value[] = {{"plan", n->plan},
                                         {"reason", n->reason ? n->reason : ""},
                                         {"log", log},
                                         {"marked", n->text}};
    char *out = prompt_fill("debug.md", value, 4, err);
    free(log);
    return out;
}
