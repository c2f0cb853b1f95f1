/* test_agent.c - what agent trees start from, and what must not grow from them.
 *
 * Every seed, for one token and for several, obeys the text rules, builds as an agent's kernel does
 * (best instruction set, object without state or system calls) and passes every check of the probe
 * on a model of SmolLM2's proportions. The same way, texts that obey the rules and still cheat are
 * refused by the object's inspection.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/admission/check.h"
#include "specializer/agent/agent_prompt.h"
#include "tests/kernels/shop.h"

/* NULL when text, build and (with `probe`) every check passed; else what refused it. */
static const char *admit(struct shop *s, enum region region, int m, const char *text, bool probe,
                         struct err *err)
{
    struct candidate *c;
    const char *caught = shop_build_text(s, region, m, text, &c, err);
    if (caught)
        return caught;
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
    if (probe && check_kernel(&q, &r, err) != 0)
        caught = "probe";
    unlink(c->object);
    candidate_free(c);
    return caught;
}

static void seeds(struct shop *s)
{
    static const int tokens[] = {1, 6, 48};
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++)
        for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
            struct err err = {""};
            const char *caught = admit(s, (enum region)r, tokens[i],
                                       agent_seed(MACHINE_CPU, (enum region)r), true, &err);
            shop_report(s, !caught, region_name((enum region)r), tokens[i], caught, err.msg);
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
        shop_report(s, right, cheat[i].name, 1, caught, err.msg);
    }
}

int main(void)
{
    struct shop s;
    struct err err = {""};
    if (shop_open(&s, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    seeds(&s);
    cheats(&s);
    int status = shop_verdict(&s);
    shop_close(&s);
    return status;
}
