/* SPDX-License-Identifier: Apache-2.0 */
/* test_agent_seeds.c - what agent trees start from, and what must not grow from them.
 *
 * Every seed, for one token and for several, obeys the text rules, builds as an agent's kernel does
 * (best instruction set, object without state or system calls) and passes every check of the probe
 * on a model of SmolLM2's proportions; so do texts that a language model wrote. The same way, texts
 * that cheat are refused: by the rules, or where those see nothing by the object's inspection.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/admission/check.h"
#include "specializer/agent/agent_prompt.h"
#include "tests/golden_text.h"
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

static void seed(struct shop *s, enum region r)
{
    static const int tokens[] = {1, 6, 48};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct err err = {""};
        const char *caught = admit(s, r, tokens[i], agent_seed(MACHINE_CPU, r), true, &err);
        shop_report(s, !caught, region_name(r), tokens[i], caught, err.msg);
    }
}

static void seeds(struct shop *s)
{
    for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++)
        seed(s, (enum region)r);
    s->model->shape.kv_bf16 = true; /* what only these two see */
    seed(s, REGION_ATTN_IN);
    seed(s, REGION_ATTN);
    s->model->shape.kv_bf16 = false;
}

/* Whether the processor has what a text's intrinsics are of. */
static bool runs_here(bool vnni)
{
#ifdef __x86_64__
    return vnni ? __builtin_cpu_supports("avx512vnni")
                : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)vnni;
    return false;
#endif
}

/* Texts of a language model: a machine without their instructions has nothing to build them for. */
static void by_a_model(struct shop *s)
{
    static const struct {
        const char *name;
        enum region region;
        int m;
        bool vnni;
    } text[] = {{"mlp_in_vnni.c", REGION_MLP_IN, 1, true},
                {"mlp_in_m8_vnni.c", REGION_MLP_IN, 8, true},
                {"attn_in_m8_vnni.c", REGION_ATTN_IN, 8, true},
                {"attn_m1.c", REGION_ATTN, 1, true},
                {"mlp_in_avx2.c", REGION_MLP_IN, 1, false}};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        if (!runs_here(text[i].vnni))
            continue;
        struct err err = {""};
        const char *caught =
            admit(s, text[i].region, text[i].m, golden_text(text[i].name), true, &err);
        shop_report(s, !caught, text[i].name, text[i].m, caught, err.msg);
    }
}

#define FRAME(top, body)                                                          \
    top "\nstatic int64_t scratch_bytes(int32_t m, int32_t size) { return 0; }\n" \
        "static void run(const void *args, const struct team *team)\n{\n"         \
        "    const struct out_args *a = args;\n    " body "\n}\n"

/* Packs its weights, under the name that the frame gives to its copies. */
static const char packs[] =
    "#define PACKED\n"
    "static int64_t packed_bytes(const struct weight *w)\n"
    "{\n    return (int64_t)w->rows * (K / BLOCK) * BLOCK_BYTES(WTYPE);\n}\n"
    "static void pack(const struct weight *w, void *packed, int32_t row0, int32_t row1)\n"
    "{\n    const int64_t stride = K / BLOCK * BLOCK_BYTES(WTYPE);\n"
    "    memcpy((uint8_t *)packed + row0 * stride, (const uint8_t *)w->data + row0 * stride,\n"
    "           (row1 - row0) * stride);\n}\n"
    "static int64_t scratch_bytes(int32_t m, int32_t size)\n{\n    return m * size * 0;\n}\n"
    "static void run(const void *args, const struct team *team)\n{\n"
    "    const struct out_args *a = args;\n"
    "    const int64_t stride = K / BLOCK * BLOCK_BYTES(WTYPE);\n"
    "    struct share s = share_groups(team, HIDDEN, 0);\n"
    "    for (int t = 0; t < a->m; t++)\n"
    "        for (int g = s.first; g < s.end; g += s.step) {\n"
    "            float y;\n"
    "            rows_dot(WTYPE, (const uint8_t *)a->w.packed + g * stride, stride, 1,\n"
    "                     a->in + (int64_t)t * K, K, 1, K, 0, &y, 1);\n"
    "            a->y[(int64_t)t * HIDDEN + g] = y + a->x[(int64_t)t * HIDDEN + g];\n"
    "        }\n"
    "    team->barrier(team);\n}\n";

static void packed_weights(struct shop *s)
{
    struct err err = {""};
    const char *caught = admit(s, REGION_MLP_OUT, 6, packs, true, &err);
    shop_report(s, !caught, "packed weights", 6, caught, err.msg);
}

/* What cheats and must be refused, by the rules for texts or by its object. */
static void cheats(struct shop *s)
{
    static const struct {
        const char *name, *text, *word, *by;
    } cheat[] = {
        {"static variable", FRAME("", "static int calls; a->y[0] = (float)calls++;"), "calls"},
        {"global array", FRAME("float kept[64];", "a->y[0] = kept[a->m]++;"), "kept"},
        {"initialized state", FRAME("static float kept[2] = {1, 2};", "a->y[0] = kept[a->m]++;"),
         "keeps state"},
        {"other export", FRAME("void helper(void) {}", "helper();"), "exports helper"},
        {"other function", FRAME("int getpid(void);", "a->y[0] = (float)getpid();"),
         "rule call: getpid", "text"},
        {"library's function", FRAME("", "int *p = bsearch(a, a, 1, 1, 0); a->y[0] = (float)*p;"),
         "rule call: bsearch", "text"},
        {"libc by an address",
         FRAME("void *memcpy(void *, const void *, unsigned long);",
               "const char *p = (const char *)&memcpy; a->y[0] = (float)*p;"),
         "rule function: memcpy", "text"},
        {"address by an intrinsic", FRAME("", "a->y[0] = (float)(long)__builtin_memset;"),
         "rule function", "text"},
        {"layout of a template",
         FRAME("#define PACKED\n#undef AGENT_BODY\n#define AGENT_BODY LAYOUT\n", ""),
         "rule entry: AGENT_BODY", "text"},
        {"hidden system call", FRAME("", "a->y[0] = (float)(team->rank ^ 0x050f050f);"),
         "system-call instruction"},
        {"other table", FRAME("const struct cpu_kernel x = {0};", "run(a, team);"),
         "rule entry: cpu_kernel", "text"},
    };
    for (size_t i = 0; i < sizeof cheat / sizeof *cheat; i++) {
        struct err err = {""};
        const char *caught = admit(s, REGION_MLP_OUT, 1, cheat[i].text, false, &err);
        const char *by = cheat[i].by ? cheat[i].by : "build";
        bool right = caught && strcmp(caught, by) == 0 && strstr(err.msg, cheat[i].word);
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
    packed_weights(&s);
    by_a_model(&s);
    cheats(&s);
    int status = shop_verdict(&s);
    shop_close(&s);
    return status;
}
