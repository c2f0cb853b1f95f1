/* test_cuda_agent.c - CUDA texts of a language model, without a GPU: the seeds obey the rules,
 * compile in their frame for sm_90a and have nothing in their cubins that they may not; cheats are
 * refused by the rules, or by the inspection of the cubin.
 *
 *   test_cuda_agent SOURCE_ROOT
 */
#include <nvrtc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/args.h"
#include "specializer/agent/agent_cubin.h"
#include "specializer/agent/agent_text.h"

static const char *root;
static int right, wrong;

static char *read_file(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 18);
    if (!f || !text || !fread(text, 1, (1 << 18) - 1, f)) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(f);
    return text;
}

/* Text, frame and shape to a cubin (malloc'ed), or NULL with the compiler's words. */
static char *compile(const char *body, int region, int m, size_t *size, struct err *err)
{
    char include[4200], at_region[32], at_m[32];
    const char *header[] = {body}, *name[] = {"agent/body.cu"};
    snprintf(include, sizeof include, "-I%s/kernels", root);
    snprintf(at_region, sizeof at_region, "-DREGION=%d", region);
    snprintf(at_m, sizeof at_m, "-DM_MAX=%d", m);
    const char *option[] = {"-std=c++17", "-arch=sm_90a", include,
                            at_region,    at_m,           "-DAGENT_BODY=\"agent/body.cu\""};
    char *frame = read_file("kernels/agent.cu"), *cubin = NULL;
    nvrtcProgram p;
    if (nvrtcCreateProgram(&p, frame, "agent.cu", 1, header, name) != NVRTC_SUCCESS)
        exit(1);
    if (nvrtcCompileProgram(p, 6, option) == NVRTC_SUCCESS) {
        nvrtcGetCUBINSize(p, size);
        cubin = malloc(*size);
        if (!cubin || nvrtcGetCUBIN(p, cubin) != NVRTC_SUCCESS)
            exit(1);
    } else {
        char log[8192] = "";
        size_t n = 0;
        if (nvrtcGetProgramLogSize(p, &n) == NVRTC_SUCCESS && n < sizeof log)
            nvrtcGetProgramLog(p, log);
        err_set(err, "%.400s", log);
    }
    nvrtcDestroyProgram(&p);
    free(frame);
    return cubin;
}

/* "text", "compiler" or "cubin": what refused it; NULL: nothing did. */
static const char *admit(const char *body, int region, int m, struct err *err)
{
    size_t n = 0;
    if (agent_text_check(body, strlen(body), AGENT_CUDA, err) != 0)
        return "text";
    char *cubin = compile(body, region, m, &n, err);
    if (!cubin)
        return "compiler";
    int rc = agent_cubin_inspect(cubin, n, err);
    for (size_t cut = 0; rc == 0 && cut < n; cut += 211) { /* damage: an answer, never a crash */
        struct err ignored;
        agent_cubin_inspect(cubin, cut, &ignored);
    }
    free(cubin);
    return rc == 0 ? NULL : "cubin";
}

static void expect(const char *name, const char *body, int region, int m, const char *by,
                   const char *word)
{
    struct err err = {""};
    const char *caught = admit(body, region, m, &err);
    bool ok = by ? caught && strcmp(caught, by) == 0 && strstr(err.msg, word) : !caught;
    printf("%-5s %-24s region %d M %-3d %s %s\n", ok ? "ok" : "WRONG", name, region, m,
           caught ? caught : "passed", err.msg);
    right += ok;
    wrong += !ok;
}

#define BODY(top, inside)                                                        \
    "#define THREADS 32\n#define GRID 1\n" top                                   \
    "\n__device__ __forceinline__ void kernel(const struct region_args &a)\n{\n" \
    "    after_previous();\n    " inside "\n    a.y[threadIdx.x] = a.x[threadIdx.x];\n}\n"

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *body, *by, *word;
    } cheat[] = {
        {"good", BODY("", ""), NULL, ""},
        {"shared memory",
         BODY("", "__shared__ float s[32]; s[threadIdx.x] = 1.0f; __syncthreads();"
                  " a.y[0] = s[31];"),
         NULL, ""},
        {"assembly", BODY("", "asm volatile(\"trap;\");"), "text", "rule assembly"},
        {"include", BODY("#include <cuda_fp16.h>\n", ""), "text", "rule directive: #include"},
        {"host code", BODY("__host__ int f() { return 1; }", ""), "text", "rule name: __host__"},
        {"launches", BODY("__global__ void other() {}", ""), "text", "rule name: __global__"},
        {"constant memory", BODY("__constant__ float c[4];", ""), "text",
         "rule name: __constant__"},
        {"managed memory", BODY("__managed__ int n;", ""), "text", "rule name: __managed__"},
        {"raw string", BODY("", "const char *s = R\"(x)\";"), "text", "rule string"},
        {"prints", BODY("", "printf(0);"), "text", "rule output"},
        {"allocates", BODY("", "int *p = new int[4]; a.y[1] = *p;"), "text", "rule allocation"},
        {"sleeps", BODY("", "__nanosleep(1000);"), "text", "rule name: __nanosleep"},
        {"reads the clock", BODY("", "a.y[1] = clock64();"), "text", "rule clock"},
        {"traps", BODY("", "__trap();"), "text", "rule name: __trap"},
        {"virtual table", BODY("struct s { virtual int f(); };", ""), "text", "rule function"},
        {"device variable", BODY("__device__ int calls;", "a.y[1] = (float)calls++;"), "cubin",
         "keeps state between launches: calls"},
        {"initialized variable",
         BODY("__device__ float kept[2] = {1, 2};", "kept[0] = a.x[0];"
                                                    " a.y[1] = kept[1];"),
         "cubin", "keeps state"},
        {"static in a function", BODY("", "static int calls; a.y[1] = (float)calls++;"), "cubin",
         "keeps state"},
        {"too many threads", BODY("#undef THREADS\n#define THREADS 2048\n", ""), "compiler",
         "whole warps"},
    };
    if (argc < 2)
        return 2;
    root = argv[1];
    char *out = read_file("specializer/prompts/seed_out.cu");
    char *mlp = read_file("specializer/prompts/seed_mlp_in.cu");
    for (int m = 1; m <= 32; m *= 8) {
        expect("seed_out.cu", out, REGION_ATTN_OUT, m, NULL, "");
        expect("seed_out.cu", out, REGION_MLP_OUT, m, NULL, "");
        expect("seed_mlp_in.cu", mlp, REGION_MLP_IN, m, NULL, "");
    }
    for (size_t i = 0; i < sizeof cheat / sizeof *cheat; i++)
        expect(cheat[i].name, cheat[i].body, REGION_MLP_OUT, 1, cheat[i].by, cheat[i].word);
    free(out);
    free(mlp);
    printf("%d passed, %d failed\n", right, wrong);
    return wrong > 0 || right == 0;
}
