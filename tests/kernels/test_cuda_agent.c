/* test_cuda_agent.c - CUDA texts of a language model, without a GPU: the seeds obey the rules, are
 * built by the real build stage (`whet nvrtc`) for sm_90a in buckets of 1, 8 and 32 tokens, for a
 * model with plain heads, with biases and with normed heads, and their cubins have nothing that
 * they may not; cheats are refused by the rules, by the compiler, or by what is read from the
 * cubin.
 *
 *   WHET_BINARY=build/whet test_cuda_agent
 *
 * What the seeds compute, the device suite asks (tests/device/test_agent.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/agent/agent_cubin.h"
#include "specializer/agent/agent_prompt.h"
#include "tests/kernels/shop.h"

/* What a damaged cubin gets is an answer, never a crash. */
static bool survives_damage(const char *path)
{
    enum { MOST = 1 << 20, STEP = 211 };
    struct err err;
    FILE *f = fopen(path, "rb");
    char *data = malloc(MOST);
    size_t n = f && data ? fread(data, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    bool whole = n > 0 && agent_cubin_inspect(data, n, &err) == 0;
    for (size_t cut = 0; cut < n; cut += STEP)
        agent_cubin_inspect(data, cut, &err);
    for (size_t at = 0; at < n; at += STEP) {
        data[at] = (char)~data[at];
        agent_cubin_inspect(data, n, &err);
        data[at] = (char)~data[at];
    }
    free(data);
    return whole;
}

static const char *admit(struct shop *s, enum region region, int m, const char *text,
                         struct err *err)
{
    struct candidate *c;
    const char *caught = shop_build_text(s, region, m, text, &c, err);
    if (caught)
        return caught;
    if (!survives_damage(c->object))
        caught = "damage";
    unlink(c->object);
    candidate_free(c);
    return caught;
}

static void seeds(struct shop *s)
{
    static const int tokens[] = {1, 8, 32};
    struct layer *layer = &s->model->layer[0];
    static float any[256];
    for (int variant = 0; variant < 3; variant++) {
        layer->bq = variant == 1 ? any : NULL; /* only whether there are some is looked at */
        layer->q_norm = variant == 2 ? any : NULL;
        for (int r = REGION_ATTN_IN; r <= REGION_HEAD; r++)
            for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
                struct err err = {""};
                if (variant > 0 && r != REGION_ATTN_IN)
                    continue;
                const char *seed = agent_seed(MACHINE_CUDA, (enum region)r);
                const char *caught = admit(s, (enum region)r, tokens[i], seed, &err);
                shop_report(s, !caught, region_name((enum region)r), tokens[i], caught, err.msg);
            }
    }
    layer->bq = layer->q_norm = NULL;
}

#define BODY(top, inside)                                                        \
    "#define THREADS 32\n#define GRID 1\n" top                                   \
    "\n__device__ __forceinline__ void kernel(const struct region_args &a)\n{\n" \
    "    after_previous();\n    " inside "\n    a.y[threadIdx.x] = a.x[threadIdx.x];\n}\n"

static const struct {
    const char *name, *body, *by, *word;
} texts[] = {
    {"good", BODY("", ""), NULL, ""},
    {"shared memory",
     BODY("", "__shared__ float s[32]; s[threadIdx.x] = 1.0f; __syncthreads(); a.y[0] = s[31];"),
     NULL, ""},
    {"dynamic shared memory",
     BODY("#define SMEM 65536\n", "float *s = (float *)dynamic_shared; s[threadIdx.x] = 1.0f;"
                                  " __syncthreads(); a.y[0] = s[31];"),
     NULL, ""},
    {"constants", BODY("enum { M = 4 };", "constexpr int n = 2 * M; a.y[n] = (float)M;"), NULL, ""},
    {"a constant with an address", BODY("constexpr int n = 4;", "a.y[n] = (float)n;"), "build",
     "enum or #define"},
    {"helper of its own",
     BODY("static __device__ __noinline__ float f(float x) { return x * x; }", "a.y[1] = f(2.0f);"),
     NULL, ""},
    {"assembly", BODY("", "asm volatile(\"trap;\");"), "text", "rule assembly"},
    {"include", BODY("#include <cuda_fp16.h>\n", ""), "text", "rule directive: #include"},
    {"host code", BODY("__host__ int f() { return 1; }", ""), "text", "rule name: __host__"},
    {"launches", BODY("__global__ void other() {}", ""), "text", "rule name: __global__"},
    {"constant memory", BODY("__constant__ float c[4];", ""), "text", "rule name: __constant__"},
    {"managed memory", BODY("__managed__ int n;", ""), "text", "rule name: __managed__"},
    {"raw string", BODY("", "const char *s = R\"(x)\";"), "text", "rule string"},
    {"prints", BODY("", "printf(0);"), "text", "rule output"},
    {"allocates", BODY("", "int *p = new int[4]; a.y[1] = *p;"), "text", "rule allocation"},
    {"sleeps", BODY("", "__nanosleep(1000);"), "text", "rule name: __nanosleep"},
    {"reads the clock", BODY("", "a.y[1] = clock64();"), "text", "rule clock"},
    {"traps", BODY("", "__trap();"), "text", "rule name: __trap"},
    {"virtual table", BODY("struct s { virtual int f(); };", ""), "text", "rule function"},
    {"caches by pointer",
     BODY("__device__ const float *last;", "if (last == a.x) return; last = a.x;"), "text",
     "line 3: rule state: a __device__ variable"},
    {"device variable", BODY("__device__ int calls;", "a.y[1] = (float)calls++;"), "text",
     "rule state"},
    {"static in a function", BODY("", "static int calls; a.y[1] = (float)calls++;"), "text",
     "line 7: rule state: a static variable"},
    {"variable in parentheses", BODY("__device__ int (calls);", "a.y[1] = (float)calls++;"),
     "build", "keeps state between launches: calls"},
    {"static by another name",
     BODY("struct s { int n; __device__ s() : n(0) {} };\n"
          "__device__ __align__(16) float kept[2];",
          "kept[0] = a.x[0]; a.y[1] = kept[1];"),
     "text", "rule state"},
    {"calls the runtime",
     BODY("__device__ int vprintf(const char *format, void *args);", "vprintf(0, 0);"), "build",
     "vprintf"},
    {"too many threads", BODY("#undef THREADS\n#define THREADS 2048\n", ""), "build",
     "whole warps"},
    {"silences the frame",
     BODY("#undef GRID\n#define GRID 3000000\n"
          "#define static_assert(...)\n",
          ""),
     "build", "a grid of 3000000"},
    {"lies about its region", BODY("#undef REGION\n#define REGION 4\n", ""), "build",
     "says it computes region 4"},
    {"lies about its bucket", BODY("#undef M_MAX\n#define M_MAX 8\n", ""), "build",
     "region 5 for 8 tokens"},
    {"wants much memory", BODY("#define WORK_BYTES (1ll << 40)\n", ""), "build",
     "bytes to work in"},
    {"spills",
     BODY("", "float v[64]; for (int i = 0; i < 64; i++) v[(int)a.x[i] & 63] = a.in[i];"
              " a.y[1] = v[(int)a.x[64] & 63];"),
     "build", "local memory"},
    {"does not compile", BODY("", "undefined_name(1);"), "build", "kernel(7): error"},
};

static void cheats(struct shop *s)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {""};
        const char *by = texts[i].by, *caught = admit(s, REGION_MLP_OUT, 1, texts[i].body, &err);
        bool right =
            by ? caught && strcmp(caught, by) == 0 && strstr(err.msg, texts[i].word) : !caught;
        shop_report(s, right, texts[i].name, 1, caught, err.msg);
    }
}

int main(void)
{
    struct shop s;
    struct err err = {""};
    const char *program = getenv("WHET_BINARY");
    if (!program || shop_open_cuda(&s, program, &err) != 0) {
        printf("%s\n", program ? err.msg : "WHET_BINARY is not set");
        return 1;
    }
    seeds(&s);
    cheats(&s);
    int status = shop_verdict(&s);
    shop_close(&s);
    return status;
}
