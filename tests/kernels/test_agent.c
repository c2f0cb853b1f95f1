/* test_agent.c - what agent trees start from, and what must not grow from them.
 *
 * Every seed, for one token and for several, obeys the text rules, builds as an agent's kernel does
 * (best instruction set, object without state or system calls) and passes every check of the probe
 * on a model of SmolLM2's proportions. The same way, texts that obey the rules and still cheat are
 * refused by the object's inspection.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/admission/check.h"
#include "specializer/agent/agent_prompt.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_text.h"
#include "specializer/stages.h"

static const struct model_shape shape = {.arch = ARCH_LLAMA,
                                         .layers = 2,
                                         .hidden = 576,
                                         .heads = 9,
                                         .kv_heads = 3,
                                         .head_dim = 64,
                                         .ffn = 1536,
                                         .vocab = 1999,
                                         .max_context = 2048,
                                         .eps = 1e-5f,
                                         .rope_base = 1e4f,
                                         .rope_interleaved = true};

struct shop {
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct model *model;
    struct key_parts keys;
    char dir[40], *kernels;
    int right, wrong;
};

static bool build(struct shop *s, struct candidate *c)
{
    struct err err = {""};
    struct build *b = build_start(&s->env, c, &err);
    enum stage_result r = b ? STAGE_RUNNING : STAGE_RETRY;
    if (!b)
        snprintf(c->reason, sizeof c->reason, "%.200s", err.msg);
    while (b && (r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    return r == STAGE_PASS;
}

/* NULL when text, build and (with `probe`) every check passed; else what refused it. */
static const char *admit(struct shop *s, enum region region, int m, const char *text, bool probe,
                         struct err *err)
{
    struct facts f;
    struct point p;
    struct slot slot = {.region = region, .m = m};
    char hash[17];
    const char *caught = NULL;
    const struct template *t = agent_template(region);
    if (agent_text_check(text, strlen(text), AGENT_C, err) != 0)
        return "text";
    facts_fill(&f, s->model, region, m, NUMERICS_TOLERANCE);
    agent_body_hash(text, hash);
    if (!agent_point(t, &f, &p) || agent_body_write(s->kernels, hash, text, err) != 0)
        return "point";
    snprintf(slot.name, sizeof slot.name, "test/m%d", m);
    struct candidate *c = candidate_new_agent(&s->keys, t, &p, &f, &slot, hash);
    if (!build(s, c)) {
        err_set(err, "%s %.300s", c->reason, c->log ? c->log : "");
        caught = "build";
    }
    struct check_request q = {
        .model = s->model,
        .object = c->object,
        .range = {region, m > 1 ? m - 1 : 1, m, region == REGION_ATTN ? 256 : 0},
        .threads = 2,
        .full = true,
        .rule = {.factor = 2},
        .seed = 11,
    };
    struct check_result r = {0};
    if (!caught && probe && check_kernel(&q, &r, err) != 0)
        caught = "probe";
    unlink(c->object);
    candidate_free(c);
    return caught;
}

static void report(struct shop *s, bool right, const char *name, int m, const char *caught,
                   const struct err *err)
{
    printf("%-5s %-24s m=%-4d %s %s\n", right ? "ok" : "WRONG", name, m, caught ? caught : "passed",
           err->msg);
    fflush(stdout);
    s->right += right;
    s->wrong += !right;
}

static void seeds(struct shop *s)
{
    static const int tokens[] = {1, 6, 48};
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            struct err err = {""};
            const char *caught =
                admit(s, (enum region)r, tokens[i], agent_seed((enum region)r), true, &err);
            report(s, !caught, region_name((enum region)r), tokens[i], caught, &err);
        }
}

#define FRAME(top, body)                                                          \
    top "\nstatic int64_t scratch_bytes(int32_t m, int32_t size) { return 0; }\n" \
        "static void run(const void *args, const struct team *team)\n{\n"         \
        "    const struct out_args *a = args;\n    " body "\n}\n"

/* What obeys the rules for texts and must fail on its object. */
static void cheats(struct shop *s)
{
    static const struct {
        const char *name, *text, *word;
    } cheat[] = {
        {"static variable", FRAME("", "static int calls; a->y[0] = (float)calls++;"), "calls"},
        {"global array", FRAME("float kept[64];", "a->y[0] = kept[a->m]++;"), "kept"},
        {"initialized state", FRAME("static float kept[2] = {1, 2};", "a->y[0] = kept[a->m]++;"),
         "keeps state"},
        {"other export", FRAME("void helper(void) {}", "helper();"), "exports helper"},
        {"other function", FRAME("int getpid(void);", "a->y[0] = (float)getpid();"),
         "refers to getpid"},
        {"hidden system call", FRAME("", "a->y[0] = (float)(team->rank ^ 0x050f050f);"),
         "system-call instruction"},
        {"other table", FRAME("const struct cpu_kernel x = {0};", "run(a, team);"), "exports x"},
    };
    for (size_t i = 0; i < sizeof cheat / sizeof *cheat; i++) {
        struct err err = {""};
        const char *caught = admit(s, REGION_MLP_OUT, 1, cheat[i].text, false, &err);
        bool right = caught && strcmp(caught, "build") == 0 && strstr(err.msg, cheat[i].word);
        report(s, right, cheat[i].name, 1, caught, &err);
    }
}

static int shop_open(struct shop *s, struct err *err)
{
    char *none[] = {"test_agent"};
    strcpy(s->dir, "/tmp/whet-agent-XXXXXX");
    if (config_parse(&s->config, 1, none, err) != 0 ||
        compiler_find(&s->config, &s->compiler, err) != 0 || !mkdtemp(s->dir))
        return -1;
    s->kernels = xasprintf("%s/kernels", s->dir);
    s->keys.object_dir = s->dir;
    s->keys.kernel_dir = s->kernels;
    s->model = model_random(&shape, DTYPE_Q4_1, 5);
    s->env = (struct stage_env){.config = &s->config,
                                .compiler = &s->compiler,
                                .model = s->model,
                                .kernel_dir = s->kernels};
    return kernel_sources_write(s->kernels, err);
}

int main(void)
{
    struct shop s = {.right = 0};
    struct err err = {""};
    if (shop_open(&s, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    seeds(&s);
    cheats(&s);
    printf("%d passed, %d failed\n", s.right, s.wrong);
    model_close(s.model);
    config_free(&s.config);
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", s.dir);
    free(s.kernels);
    return system(command) != 0 || s.wrong > 0 || s.right == 0;
}
