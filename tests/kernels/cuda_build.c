/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_build.c - NVRTC for the tests of CUDA kernels. */
#include "tests/kernels/cuda_build.h"

#include <nvrtc.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 64, SOURCE = 1 << 18 };

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? calloc(SOURCE, 1) : NULL;
    if (text && fread(text, 1, SOURCE - 1, f) == 0) {
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

static void explain(nvrtcProgram p, nvrtcResult r, char *why)
{
    size_t n = 0;
    nvrtcGetProgramLogSize(p, &n);
    char *log = calloc(n + 1, 1);
    if (log)
        nvrtcGetProgramLog(p, log);
    snprintf(why, WHY_SIZE, "%s: %.900s", nvrtcGetErrorString(r), log ? log : "");
    free(log);
}

char *cuda_build(const char *root, const char *path, const char *arch, const char *const *option,
                 int n, size_t *size, char *why)
{
    char include[4200], target[64], *text = read_text(path), *cubin = NULL;
    const char *all[MOST + 4] = {"-std=c++17", target, include, "-lineinfo"};
    nvrtcProgram p;
    snprintf(include, sizeof include, "-I%s/kernels", root);
    snprintf(target, sizeof target, "-arch=%s", arch);
    snprintf(why, WHY_SIZE, "%s cannot be read", path);
    if (!text || n > MOST)
        return NULL;
    for (int i = 0; i < n; i++)
        all[4 + i] = option[i];
    nvrtcResult r = nvrtcCreateProgram(&p, text, path, 0, NULL, NULL);
    if (!r)
        r = nvrtcCompileProgram(p, 4 + n, all);
    if (r)
        explain(p, r, why);
    else if (!nvrtcGetCUBINSize(p, size) && (cubin = malloc(*size + 1)) &&
             nvrtcGetCUBIN(p, cubin)) {
        free(cubin);
        cubin = NULL;
    }
    nvrtcDestroyProgram(&p);
    free(text);
    return cubin;
}
