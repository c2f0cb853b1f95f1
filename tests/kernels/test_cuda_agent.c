/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_agent.c - CUDA texts of a language model, without a GPU: the seeds obey the rules, are
 * built by the real build stage (`whet nvrtc`) for sm_90a in buckets of 1, 8 and 32 tokens, for a
 * model with plain heads, with biases and with normed heads, and their cubins have nothing that
 * they may not; so are texts for tensor cores, two of them by a language model; cheats are refused
 * by the rules, by the compiler, or by what is read from the cubin.
 *
 *   WHET_BINARY=build/whet test_cuda_agent
 *
 * What the seeds compute, the device suite asks (tests/device/test_agent_device.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/plan.h"
#include "specializer/agent/agent_cubin.h"
#include "specializer/agent/agent_prompt.h"
#include "tests/kernels/shop.h"
#include "tests/mma_text.h"

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

static void tensor_cores(struct shop *s)
{
    for (int m = 4; m <= 8; m += 4) {
        struct err err = {""};
        const char *caught = admit(s, REGION_MLP_OUT, m, mma_text, &err);
        shop_report(s, !caught, "tensor cores", m, caught, err.msg);
    }
}

/* A model of widths that tiles of 16 rows and clusters divide. */
static const struct model_shape wide = {ARCH_LLAMA, 1,    1024,  16,   8, 64, 2048,
                                        512,        2048, 1e-5f, 1e4f, 0, 1,  {0}};

static void by_a_model(struct shop *s)
{
    struct model *narrow = s->model;
    s->env.model = s->model = model_random(&wide, DTYPE_BF16, 5);
    for (int i = 0; i < GOLDEN_ROWS; i++) {
        const struct golden_row *row = &golden_rows[i];
        struct err err = {""};
        const char *caught = admit(s, row->region, row->m, golden_text(row->name), &err);
        shop_report(s, !caught, row->name, row->m, caught, err.msg);
    }
    model_close(s->model);
    s->env.model = s->model = narrow;
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
    {"blocks of a cluster meet",
     "#define THREADS 32\n#define GRID 8\n#define CLUSTER 8\n"
     "__device__ __forceinline__ void kernel(const struct region_args &a)\n{\n"
     "    __shared__ float met[32];\n    cluster_come();\n    after_previous();\n    "
     "cluster_wait();\n"
     "    store_peer(met + threadIdx.x, threadIdx.x % 8, a.x[threadIdx.x]);\n"
     "    cluster_arrive();\n    cluster_wait();\n    a.y[blockIdx.x] = met[0];\n}\n",
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
    {"raw string", BODY("", "const char *s = R\"(x)\";"), "text", "rule spelling"},
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
    {"variable in parentheses", BODY("__device__ int (calls);", "a.y[1] = (float)calls++;"), "text",
     "line 3: rule state"},
    {"reads a texture", BODY("", "a.y[1] = tex1Dfetch<float>(1ull, 0);"), "text", "rule texture"},
    {"static by another name",
     BODY("struct s { int n; __device__ s() : n(0) {} };\n"
          "__device__ __align__(16) float kept[2];",
          "kept[0] = a.x[0]; a.y[1] = kept[1];"),
     "text", "rule state"},
    {"calls the runtime",
     BODY("__device__ int vprintf(const char *format, void *args);", "vprintf(0, 0);"), "text",
     "rule output: vprintf"},
    {"launches by itself", BODY("", "cudaDeviceSynchronize();"), "text", "rule call"},
    {"places itself", BODY("", "a.y[1] = (float)__smid();"), "text", "rule name: __smid"},
    {"hides behind a separator",
     BODY("", "int n = 1'0; asm volatile(\"trap;\"); int k = '0'; a.y[1] = (float)(n + k);"),
     "text", "rule"},
    {"too many threads", BODY("#undef THREADS\n#define THREADS 2048\n", ""), "text",
     "rule frame: THREADS"},
    {"silences the frame", BODY("#define static_assert(...)\n", ""), "text",
     "rule macro: static_assert"},
    {"lies about its region", BODY("#undef REGION\n#define REGION 4\n", ""), "text",
     "rule frame: REGION"},
    {"lies about its bucket", BODY("#undef M_MAX\n#define M_MAX 8\n", ""), "text",
     "rule frame: M_MAX"},
    {"wants much memory", BODY("#define WORK_BYTES (1ll << 40)\n", ""), "build",
     "bytes to work in"},
    {"spills",
     BODY("", "float v[64]; for (int i = 0; i < 64; i++) v[(int)a.x[i] & 63] = a.in[i];"
              " a.y[1] = v[(int)a.x[64] & 63];"),
     "build", "local memory"},
    {"does not compile", BODY("", "a.y[1] = undefined_name;"), "build", "kernel(7): error"},
};

#define READ(kind, from)                                                                          \
    BODY("", "unsigned v; asm volatile(\"mov.u" kind " %0, %%" from ";\" : \"=r\"(v)); a.y[1] = " \
             "v;")

/* What the rules for texts let nobody write: the cubin is asked about it all the same. */
static const struct {
    const char *name, *body, *word;
} unread[] = {
    {"clock", BODY("", "a.y[1] = (float)clock();"), "reads a clock"},
    {"clock64", BODY("", "a.y[1] = (float)clock64();"), "reads a clock"},
    {"high half of the clock", READ("32", "clock_hi"), "reads a clock"},
    {"global timer", READ("32", "globaltimer_lo"), "reads a clock"},
    {"multiprocessor", READ("32", "smid"), "reads its multiprocessor"},
    {"warp", READ("32", "warpid"), "reads a special register"},
    {"warps", READ("32", "nwarpid"), "reads a special register"},
    {"performance counter", READ("32", "pm0"), "reads a performance counter"},
    {"lane", READ("32", "laneid"), NULL},
    {"lanes below", READ("32", "lanemask_lt"), NULL},
    {"thread", READ("32", "tid.y"), NULL},
    {"zeros",
     BODY("", "double v = 0; for (int i = 0; i < a.counts->m; i++) v += a.x[i];"
              " a.y[1] = (float)v;"),
     NULL},
    {"sleeps", BODY("", "__nanosleep(1000);"), "sleeps"},
    {"traps", BODY("", "if (a.x[0] > 1) __trap();"), "traps"},
    {"event", BODY("", "asm volatile(\"pmevent 3;\");"), "triggers a performance counter"},
    {"texture",
     BODY("", "float x, y, z, w; asm volatile(\"tex.1d.v4.f32.s32 {%0,%1,%2,%3}, [%4, {%5}];\" :"
              " \"=f\"(x), \"=f\"(y), \"=f\"(z), \"=f\"(w) : \"l\"((long long)a.x), \"r\"(3));"
              " a.y[1] = x;"),
     "reads a texture"},
    {"surface",
     BODY("", "int x = 1; asm volatile(\"sust.b.1d.b32.trap [%0, {%1}], %2;\" :: "
              "\"l\"((long long)a.x), \"r\"(3), \"r\"(x));"),
     "writes a surface"},
    {"address as a function", BODY("", "typedef float (*F)(float); a.y[1] = ((F)a.x)(a.x[1]);"),
     "calls through a register"},
    {"one of two functions",
     BODY("typedef float (*F)(float);\n"
          "__device__ __noinline__ float f(float x) { return x * 3; }\n"
          "__device__ __noinline__ float g(float x) { return x / 3; }\n",
          "F h = a.x[0] > 1 ? f : g; a.y[1] = h(a.x[1]);"),
     "local memory"},
    {"calls the runtime",
     BODY("__device__ int vprintf(const char *format, void *args);", "vprintf(0, 0);"), "vprintf"},
    {"kept", BODY("__device__ int (calls);", "a.y[1] = (float)calls++;"),
     "keeps state between launches: calls"},
    {"kept without a symbol",
     BODY("namespace { __device__ float kept[2]; }", "kept[0] = a.x[0]; a.y[1] = kept[1];"),
     "keeps state"},
    {"too many threads", BODY("#undef THREADS\n#define THREADS 2048\n", ""), "whole warps"},
    {"silences the frame",
     BODY("#undef GRID\n#define GRID 3000000\n#define static_assert(...)\n", ""),
     "a grid of 3000000"},
    {"lies about its region", BODY("#undef REGION\n#define REGION 4\n", ""),
     "says it computes region 4"},
    {"lies about its bucket", BODY("#undef M_MAX\n#define M_MAX 8\n", ""), "region 5 for 8 tokens"},
};

static void instructions(struct shop *s)
{
    for (size_t i = 0; i < sizeof unread / sizeof *unread; i++) {
        struct candidate *c;
        struct err err = {""};
        const char *caught = shop_build_unread(s, REGION_MLP_OUT, 1, unread[i].body, &c, &err);
        bool right = unread[i].word ? caught && strstr(err.msg, unread[i].word) : !caught;
        shop_report(s, right, unread[i].name, 1, caught, err.msg);
        if (!caught) {
            unlink(c->object);
            candidate_free(c);
        }
    }
}

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
    tensor_cores(&s);
    by_a_model(&s);
    cheats(&s);
    instructions(&s);
    int status = shop_verdict(&s);
    shop_close(&s);
    return status;
}
