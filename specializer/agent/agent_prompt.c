/* SPDX-License-Identifier: Apache-2.0 */
/* agent_prompt.c - see agent_prompt.h. */
#include "specializer/agent/agent_prompt.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "kernels/sources.h"
#include "specializer/adviser/adviser_request.h"
#include "specializer/agent/agent_context.h"
#include "specializer/agent/agent_header.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_span.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/template_tables.h"

extern const struct kernel_source prompt_sources[];
extern const int prompt_source_count;

enum { LOG_MOST = 2500 };

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
    FILE *f = xmemstream(&out, &size);
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
    static const char *const file[REGION_NODES] = {
        [REGION_ATTN_IN] = "seed_attn_in", [REGION_ATTN] = "seed_attn",
        [REGION_ATTN_OUT] = "seed_out",    [REGION_MLP_IN] = "seed_mlp_in",
        [REGION_MLP_OUT] = "seed_out",     [REGION_HEAD] = "seed_head"};
    char name[32];
    if (!file[region])
        return "";
    snprintf(name, sizeof name, "%s.%s", file[region], target_of(machine)->source);
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
    static const char *const own[REGION_NODES] = {
        [REGION_ATTN_IN] = "attn_in_args {", [REGION_ATTN] = "attn_args {",
        [REGION_ATTN_OUT] = "out_args {",    [REGION_MLP_IN] = "mlp_in_args {",
        [REGION_MLP_OUT] = "out_args {",     [REGION_HEAD] = "head_args {"};
    /* In order; without a name: the region's own, whose name begins with `prefix`. */
    static const struct {
        const char *prefix;
        struct {
            const char *header, *name;
        } part[4];
    } told[] = {[MACHINE_CPU] = {"",
                                 {{"args.h", "weight {"},
                                  {"args.h", "span {"},
                                  {"args.h", NULL},
                                  {"args.h", "team {"}}},
                [MACHINE_CUDA] = {"cuda_",
                                  {{"cuda.h", "cuda_counts {"},
                                   {"args.h", "span {"},
                                   {"cuda.h", "cuda_work {"},
                                   {"cuda.h", NULL}}}};
    char *out = NULL, begin[48];
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    for (size_t i = 0; i < sizeof told->part / sizeof *told->part; i++) {
        const char *name = told[machine].part[i].name;
        snprintf(begin, sizeof begin, "struct %s%s", name ? "" : told[machine].prefix,
                 name ? name : own[region]);
        cut(f, told[machine].part[i].header, begin);
    }
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

static void put_constant(void *out, const char *name, int32_t value)
{
    if (strcmp(name, "M_MAX") != 0)
        fprintf(out, "%s%s=%d", strcmp(name, "REGION") == 0 ? "" : ", ", name, value);
}

/* What the compiler gets as -D, REGION first. */
static char *constants_text(const struct facts *f)
{
    char *out = NULL;
    size_t size = 0;
    FILE *s = xmemstream(&out, &size);
    facts_shapes(f, facts_kind(f), put_constant, s);
    fclose(s);
    return out;
}

/* A header that the frame includes, as it is compiled for an instruction set, behind what it uses
 * of cpu/lib/kv.h. */
static char *helpers_text(const struct facts *f, int32_t isa)
{
    const char *name = f->REGION == REGION_ATTN_IN ? "cpu/lib/qkv.h"
                       : f->REGION == REGION_ATTN  ? "cpu/lib/paged.h"
                                                   : NULL;
    if (!name)
        return xstrdup("");
    char *header = agent_header(kernel_source_text(name), isa);
    char *text = xasprintf(
        "/* An element of keys and values in their pages: kv_element, which is %s. kv_load(p): 16\n"
        " * of them as a vf; kv_round(f): one of a float%s. */\n%s",
        f->KV_BF16 ? "uint16_t, bf16" : "float",
        f->KV_BF16 ? ", to nearest even, as values in the cache must be" : "", header);
    free(header);
    return text;
}

static const char *rule_text(enum numerics n)
{
    return n == NUMERICS_BIT_EQUAL
               ? "0: the very bits of the eager kernel, whose order of arithmetic lanes.h fixes "
                 "(sums "
                 "in 16 lanes of fused multiply-adds, folded 8, 4, 2, 1)"
               : "twice that of the eager kernel, both against a double-precision oracle: the "
                 "largest "
                 "and the root mean square over the row, relative to the row's scale";
}

/* "gcc 12.2, with -O3 ..." */
static const char *or_unknown(const char *text)
{
    return text && text[0] ? text : "not known";
}

/* What a contract of one machine needs and the other's has no use for is "". */
char *agent_prompt_system(const struct agent_view *v, struct err *err)
{
    const struct facts *f = v->facts;
    const enum region region = (enum region)f->REGION;
    const enum machine_kind machine = facts_kind(f);
    char contract_file[32], principles_file[32], m_from[16], m[16], threads[16], isa[16],
        context[80] = "";
    char *args = args_text(machine, region), *operation = operation_text(f);
    char *constants = constants_text(f), *helpers = helpers_text(f, v->isa);
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
        {"compiler", or_unknown(v->compiler)},
        {"helpers", helpers},
        {"rule", rule_text(v->numerics)},
    };
    const char *kind = target_of(machine)->name;
    snprintf(contract_file, sizeof contract_file, "contract_%s.md", kind);
    snprintf(principles_file, sizeof principles_file, "principles_%s.md", kind);
    char *contract = prompt_fill(contract_file, value, sizeof value / sizeof *value, err);
    char *out = contract ? xasprintf("%s%s", contract, prompt_file(principles_file)) : NULL;
    free(contract);
    free(args);
    free(operation);
    free(constants);
    free(helpers);
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

char *agent_prompt_plan(const struct agent_view *v, const struct agent_tree *t, int32_t parent,
                        struct err *err)
{
    const struct agent_node *p = &t->node[parent];
    char run[32], roofline[32], speed[300], gain[32];
    char *body = span_strip(p->text), *numbered = span_number(body);
    char *made[] = {profile_text(v),
                    device_text(v),
                    context_leaders(t),
                    context_dead(t),
                    context_children(t, parent),
                    context_kin(v),
                    context_reference(v, t, parent)};
    snprintf(run, sizeof run, "%.4g", v->run_s * 1e6);
    snprintf(roofline, sizeof roofline, "%.4g", v->roofline_s * 1e6);
    snprintf(speed, sizeof speed, "%.3f%s%.240s", p->speed, p->reason ? "; " : "",
             p->reason ? p->reason : "");
    snprintf(gain, sizeof gain, "%.3g", v->min_gain * 100);
    const struct prompt_value value[] = {{"slot", v->slot},
                                         {"serving", v->serving ? v->serving : v->incumbent},
                                         {"run_us", run},
                                         {"roofline_us", roofline},
                                         {"speed", speed},
                                         {"min_gain", gain},
                                         {"tuned", v->tuned ? v->tuned : "- none yet\n"},
                                         {"profile", made[0]},
                                         {"device", made[1]},
                                         {"leaders", made[2]},
                                         {"dead", made[3]},
                                         {"children", made[4]},
                                         {"kin", made[5]},
                                         {"reference", made[6]},
                                         {"serving_source", v->source ? v->source : ""},
                                         {"numbered", numbered}};
    char *out = prompt_fill("plan.md", value, sizeof value / sizeof *value, err);
    free(body);
    free(numbered);
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        free(made[i]);
    return out;
}

char *agent_prompt_code(const struct agent_tree *t, int32_t node, struct err *err)
{
    const struct agent_node *n = &t->node[node];
    char *others = context_code(t, node);
    const struct prompt_value value[] = {
        {"plan", n->plan}, {"others", others}, {"marked", n->text}};
    char *out = prompt_fill("code.md", value, 3, err);
    free(others);
    return out;
}

char *agent_prompt_debug(const struct agent_tree *t, int32_t node, struct err *err)
{
    const struct agent_node *n = &t->node[node];
    char *log = n->log && n->log[0]
                    ? xasprintf("Its words:\n%.*s\n", whole_characters(n->log, LOG_MOST), n->log)
                    : xstrdup("");
    char *others = context_debug(t, node), *numbered = span_number(n->text);
    const struct prompt_value value[] = {{"plan", n->plan},
                                         {"reason", n->reason ? n->reason : ""},
                                         {"log", log},
                                         {"others", others},
                                         {"numbered", numbered}};
    char *out = prompt_fill("debug.md", value, 5, err);
    free(log);
    free(others);
    free(numbered);
    return out;
}
