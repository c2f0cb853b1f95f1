/* SPDX-License-Identifier: Apache-2.0 */
/* build_nvrtc.c - NVRTC as a compiler of the command line: `whet nvrtc`.
 *
 *   whet nvrtc LIBRARY --target sm_90a          "NVRTC 13.0", if it can compile for that
 *   whet nvrtc LIBRARY OBJECT SOURCE OPTION...  compiles to a cubin; messages on stderr
 *
 * The library is loaded in this child process only: it is a hundred megabytes of compiler that may
 * crash, hang or leak on a source it has not seen, and the server has no use for it. From here on a
 * CUDA kernel is built like a CPU kernel (build_cc.c): one process of idle priority with limits.
 * Neither driver nor GPU nor the toolkit's headers are needed, so the few functions of the library
 * are declared here (NVRTC's interface has been stable since CUDA 7).
 */
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/build.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/process.h"
#include "config/safe_path.h"

enum { SOURCE_MAX = 4 << 20, EXIT_NO_LIBRARY = 3 };

/* ---- in the child --------------------------------------------------------------------------- */

struct nvrtc {
    void *handle;
    int (*version)(int *major, int *minor);
    int (*archs)(int *n);
    int (*arch)(int *list);
    int (*create)(void **p, const char *text, const char *name, int headers, const char *const *h,
                  const char *const *names);
    int (*compile)(void *p, int options, const char *const *option);
    int (*log_size)(void *p, size_t *n);
    int (*log)(void *p, char *text);
    int (*cubin_size)(void *p, size_t *n);
    int (*cubin)(void *p, char *data);
    const char *(*error)(int code);
};

static int nvrtc_open(struct nvrtc *n, const char *path)
{
    n->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!n->handle) {
        fprintf(stderr, "error: %s\n", dlerror());
        return -1;
    }
    const struct {
        const char *name;
        void *to;
    } functions[] = {
        {"nvrtcVersion", &n->version},        {"nvrtcGetNumSupportedArchs", &n->archs},
        {"nvrtcGetSupportedArchs", &n->arch}, {"nvrtcCreateProgram", &n->create},
        {"nvrtcCompileProgram", &n->compile}, {"nvrtcGetProgramLogSize", &n->log_size},
        {"nvrtcGetProgramLog", &n->log},      {"nvrtcGetCUBINSize", &n->cubin_size},
        {"nvrtcGetCUBIN", &n->cubin},         {"nvrtcGetErrorString", &n->error},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(n->handle, functions[i].name);
        if (!f) {
            fprintf(stderr, "error: %s has no %s\n", path, functions[i].name);
            return -1;
        }
        memcpy(functions[i].to, &f, sizeof f);
    }
    return 0;
}

/* True if it can make cubins for "sm_90a". */
static bool knows(const struct nvrtc *n, const char *target)
{
    int wanted = 0, count = 0;
    if (sscanf(target, "sm_%d", &wanted) != 1 || n->archs(&count) != 0 || count < 1)
        return false;
    int *list = xcalloc((size_t)count, sizeof *list);
    bool found = false;
    if (n->arch(list) == 0)
        for (int i = 0; i < count; i++)
            found |= list[i] == wanted;
    free(list);
    return found;
}

static int say_version(const struct nvrtc *n, const char *target)
{
    int major = 0, minor = 0;
    if (n->version(&major, &minor) != 0 || !knows(n, target)) {
        fprintf(stderr, "error: NVRTC %d.%d cannot compile for %s\n", major, minor, target);
        return 1;
    }
    printf("NVRTC %d.%d\n", major, minor);
    return 0;
}

static char *read_source(const char *path)
{
    FILE *f = fopen(path, "rbe");
    char *text = xcalloc(SOURCE_MAX + 1, 1);
    if (!f || fread(text, 1, SOURCE_MAX, f) == 0) {
        fprintf(stderr, "error: %s: %s\n", path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

static void print_log(const struct nvrtc *n, void *program)
{
    size_t size = 0;
    if (n->log_size(program, &size) != 0 || size < 2)
        return;
    char *text = xcalloc(size + 1, 1);
    if (n->log(program, text) == 0)
        fputs(text, stderr);
    free(text);
}

static int write_cubin(const struct nvrtc *n, void *program, const char *path)
{
    size_t size = 0;
    if (n->cubin_size(program, &size) != 0 || size == 0)
        return -1;
    char *data = xmalloc(size);
    FILE *f = n->cubin(program, data) == 0 ? fopen(path, "wbe") : NULL;
    int rc = f && fwrite(data, 1, size, f) == size ? 0 : -1;
    if (f && fclose(f) != 0)
        rc = -1;
    if (rc != 0)
        fprintf(stderr, "error: %s: %s\n", path, strerror(errno));
    free(data);
    return rc;
}

static int compile(const struct nvrtc *n, const char *object, const char *source, int options,
                   char **option)
{
    void *program = NULL;
    char *text = read_source(source);
    if (!text)
        return 1;
    int code = n->create(&program, text, source, 0, NULL, NULL);
    if (code == 0)
        code = n->compile(program, options, (const char *const *)option);
    if (program)
        print_log(n, program);
    if (code != 0)
        fprintf(stderr, "error: %s\n", n->error(code));
    free(text);
    return code == 0 && write_cubin(n, program, object) == 0 ? 0 : 1;
}

int nvrtc_main(int argc, char **argv)
{
    struct nvrtc n;
    if (argc < 4) {
        fprintf(stderr, "usage: whet nvrtc LIBRARY OBJECT SOURCE OPTION... (started by the "
                        "specializer)\n");
        return 2;
    }
    if (nvrtc_open(&n, argv[1]) != 0)
        return EXIT_NO_LIBRARY;
    if (strcmp(argv[2], "--target") == 0)
        return say_version(&n, argv[3]);
    return compile(&n, argv[2], argv[3], argc - 4, argv + 4);
}

/* ---- in the server -------------------------------------------------------------------------- */

/* 1: there is no such library, or not all of it. */
static int try_library(const char *program, const char *path, const char *target,
                       struct compiler *out, struct err *err)
{
    const char *argv[] = {program, "nvrtc", path, "--target", target, NULL};
    struct process_spec spec = {
        .argv = argv, .wall_s = 60, .cpu_s = 60, .file_bytes = 64 << 20, .output_max = 4096};
    struct process_result r;
    if (strchr(path, '/') && safe_program(path, err) != 0)
        return access(path, F_OK) == 0 ? err_prefix(err, "NVRTC is not used") : 1;
    if (process_run(&spec, &r, err) != 0)
        return -1;
    int rc = 0;
    size_t n = strcspn(r.out, "\n");
    if (r.status != 0 || r.signal != 0 || n == 0)
        rc = err_set(err, "%.*s", (int)strcspn(r.err, "\n"), r.err);
    if (r.signal == 0 && r.status == EXIT_NO_LIBRARY)
        rc = 1;
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->version, sizeof out->version, "%.*s", (int)n, r.out);
    process_result_free(&r);
    return rc;
}

int nvrtc_find(const struct config *config, const char *program, const char *target,
               struct compiler *out, struct err *err)
{
    const char *home = getenv("CUDA_HOME"), *wanted = config->specializer_compiler;
    char in_home[512];
    snprintf(in_home, sizeof in_home, "%s/lib64/libnvrtc.so", home ? home : "/usr/local/cuda");
    const char *const known[] = {WHET_NVRTC, in_home, "libnvrtc.so.13", "libnvrtc.so.12",
                                 "libnvrtc.so"};
    struct err last = {""};
    out->machine = MACHINE_CUDA;
    snprintf(out->arch, sizeof out->arch, "-arch=%s", target);
    if (wanted && *wanted)
        return try_library(program, wanted, target, out, err) == 0 ? 0 : -1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!*known[i])
            continue;
        int found = try_library(program, known[i], target, out, &last);
        if (found == 0)
            return 0;
        if (!*err->msg || found < 0) /* one that is there says more */
            *err = last;
    }
    return err_prefix(err, "no NVRTC works");
}

void nvrtc_flags(const struct compiler *c, const char *flag[NVRTC_FLAGS])
{
    flag[0] = "-std=c++17";
    flag[1] = c->arch;
    flag[2] = NULL;
}

void nvrtc_command(const char **argv, int most, const struct stage_env *env,
                   const struct candidate *c, const char *object, char *include, size_t n)
{
    int at = 0;
    snprintf(include, n, "-I%s", env->kernel_dir);
    argv[at++] = env->program;
    argv[at++] = "nvrtc";
    argv[at++] = env->compiler->path;
    argv[at++] = object;
    argv[at++] = c->source;
    nvrtc_flags(env->compiler, argv + at);
    at += NVRTC_FLAGS - 1;
    argv[at++] = include;
    for (int i = 0; c->define && c->define[i] && at < most - 1; i++)
        argv[at++] = c->define[i];
    argv[at] = NULL;
}
