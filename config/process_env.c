/* SPDX-License-Identifier: Apache-2.0 */
/* process_env.c - see process_env.h.
 *
 * A compiler finds its assembler and linker by PATH and libraries by LD_LIBRARY_PATH, so a folder
 * there that just anybody can write to, or one that depends on where the server was started, is a
 * way to run a program as our user. Such folders are left out, for us as for the child.
 */
#include "config/process_env.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/safe_path.h"

/* The folders of a list "A:B" in which nobody but those whom the operator trusts can put programs;
 * malloc'ed. `err` gets why the last one was left out. NULL: they could not be looked at. */
static char *safe_list(const char *list, struct err *err)
{
    char *out = xcalloc(strlen(list) + 1, 1);
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ":");
        char *folder = xasprintf("%.*s", (int)n, p);
        errno = 0;
        if (n > 0 && safe_programs(folder, err) == 0) {
            strcat(out, *out ? ":" : "");
            strcat(out, folder);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
            free(folder);
            free(out);
            return NULL;
        }
        free(folder);
        p += n + (p[n] == ':');
    }
    return out;
}

static const char *path_of_us(void)
{
    const char *path = getenv("PATH");
    return path ? path : "/usr/local/bin:/usr/bin:/bin";
}

/* The variables that compilers, the loader and sanitizers need, and those that say which GPU is
 * device 0 here and how OpenBLAS multiplies: a probe must compute where and as we do. Nothing that
 * may hold a secret. */
int process_environment(const char *temporary, char *out[ENVIRONMENT_MAX + 1], struct err *err)
{
    static const char *const keep[] = {
        "HOME",           "OPENBLAS_CORETYPE",      "ASAN_OPTIONS",         "UBSAN_OPTIONS",
        "TSAN_OPTIONS",   "LSAN_OPTIONS",           "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "WHET_RANK_GPUS", "CUDA_MPS_PIPE_DIRECTORY"};
    int n = 0;
    _Static_assert(sizeof keep / sizeof *keep + 4 <= ENVIRONMENT_MAX, "and those below");
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        const char *value = getenv(keep[i]);
        if (value)
            out[n++] = xasprintf("%s=%s", keep[i], value);
    }
    const char *const of[] = {path_of_us(), getenv("LD_LIBRARY_PATH")};
    for (int i = 0; i < 2; i++) {
        char *list = of[i] ? safe_list(of[i], err) : xstrdup("");
        if (list && (*list || i == 0))
            out[n++] = xasprintf("%s=%s", i == 0 ? "PATH" : "LD_LIBRARY_PATH", list);
        out[n] = NULL;
        if (!list)
            return -1;
        free(list);
    }
    out[n++] = xasprintf("TMPDIR=%s", temporary ? temporary : safe_temporary());
    out[n++] = xstrdup("LC_ALL=C");
    out[n] = NULL;
    return 0;
}

char *process_program(const char *name, struct err *err)
{
    struct err left_out = {""};
    if (strchr(name, '/')) {
        if (access(name, X_OK) == 0)
            return xstrdup(name);
        err_set(err, "%.200s: not found or not executable", name);
        return NULL;
    }
    char *list = safe_list(path_of_us(), &left_out), *found = NULL;
    for (const char *p = list; p && *p && !found;) {
        size_t n = strcspn(p, ":");
        found = xasprintf("%.*s/%s", (int)n, p, name);
        if (access(found, X_OK) != 0) {
            free(found);
            found = NULL;
        }
        p += n + (p[n] == ':');
    }
    free(list);
    if (!found)
        err_set(err, "%.200s: not found or not executable%s%.250s", name,
                left_out.msg[0] ? "; of PATH not used: " : "", left_out.msg);
    return found;
}
