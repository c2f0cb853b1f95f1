/* SPDX-License-Identifier: Apache-2.0 */
/* build_blame.c - whether a build that failed says anything of the kernel.
 *
 * A compiler's driver that lost one of its parts, or an assembler or linker that found no room,
 * exits by itself and says so. What the compiler prints has the kernel's own words in it, too:
 * messages of its assertions, its lines as they were quoted. So only lines count that a tool says
 * of itself, "cc: fatal error: ..." or "/usr/bin/ld: ...": one about a file goes on with the number
 * of a line there, "k.c:12:1: error: ...", and a quoted one begins with a space. The compiler
 * proper names the kernel's file even where it could not write its own; then the file system is
 * asked. So it is where a file is missed: somebody may have cleared our folders away.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "config/err.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/build/build.h"
#include "specializer/build/build_private.h"
#include "specializer/build/sources.h"

static const char no_room[] = "No space left on device";

static bool is_one_of(const char *const *names, const char *name, size_t n)
{
    bool found = false;
    for (; *names && !found; names++)
        found = strlen(*names) == n && memcmp(*names, name, n) == 0;
    return found;
}

/* A tool by its path: "/usr/bin/x86_64-linux-gnu-gcc-12", "ld.lld"; or what stands in its place
 * where there is no file to name. */
static bool is_tool(const char *name, size_t n)
{
    static const char *const tools[] = {"cc", "gcc", "clang", "cc1",  "collect2",
                                        "as", "ld",  "lld",   "mold", NULL},
                             *const nameless[] = {"LLVM ERROR", "error", "fatal error",
                                                  "{standard input}", NULL};
    if (is_one_of(nameless, name, n) || memchr(name, ' ', n))
        return is_one_of(nameless, name, n);
    const char *slash = memrchr(name, '/', n), *end = name + n;
    name = slash ? slash + 1 : name;
    if (end - name > 3 && memcmp(name, "ld.", 3) == 0)
        return true;
    const char *dash = memrchr(name, '-', (size_t)(end - name));
    if (dash && strspn(dash + 1, "0123456789.") == (size_t)(end - dash - 1)) { /* a version */
        end = dash;
        dash = memrchr(name, '-', (size_t)(end - name));
    }
    name = dash ? dash + 1 : name; /* behind the target's name */
    return is_one_of(tools, name, (size_t)(end - name));
}

/* The assembler speaks of the file that it was handed, which is the compiler's, not the kernel's.
 */
static bool is_assembly(const char *name, size_t n)
{
    return n > 2 && !memchr(name, ' ', n) && memcmp(name + n - 2, ".s", 2) == 0;
}

static bool tool_says_so(const char *line, size_t n)
{
    static const char *const words[] = {no_room, "Killed signal terminated program",
                                        "terminated with signal 9",
                                        "unable to execute command: Killed",
                                        /* no process for a part of the compiler */
                                        "fork: Resource temporarily unavailable",
                                        "posix_spawn failed: Resource temporarily unavailable"};
    const char *colon = memmem(line, n, ": ", 2);
    if (!colon ||
        !(is_tool(line, (size_t)(colon - line)) || is_assembly(line, (size_t)(colon - line))))
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(colon, n - (size_t)(colon - line), words[i], strlen(words[i])))
            return true;
    return false;
}

/* Caller frees. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? xasprintf("%.*s/", (int)(slash - path), path) : xstrdup(".");
}

bool build_has_room(const char *object)
{
    struct statvfs v;
    char *folder = folder_of(object);
    bool room = statvfs(folder, &v) != 0 ||
                (uint64_t)v.f_bavail * v.f_frsize >= (uint64_t)COMPILER_FILE_MOST;
    free(folder);
    return room;
}

bool compiler_was_hindered(const char *log, const char *object)
{
    for (const char *line = log; *line;) {
        size_t n = strcspn(line, "\n");
        if (tool_says_so(line, n))
            return true;
        line += n + (line[n] != 0);
    }
    return strstr(log, no_room) && !build_has_room(object);
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

bool build_has_folder(const char *object)
{
    char *folder = folder_of(object);
    bool there = is_there(folder);
    free(folder);
    return there;
}

int build_files_restore(const struct stage_env *env, const struct candidate *c, struct err *err)
{
    char *folder = folder_of(c->object);
    int rc = 0;
    if (!is_there(folder)) {
        log_warn("specializer", "%s is gone, and made again", folder);
        rc = safe_folder_make(folder, err);
    }
    free(folder);
    if (rc == 0 && env->kernel_dir && c->source && !is_there(c->source)) {
        log_warn("specializer", "%s is gone: all sources are written again", c->source);
        rc = kernel_sources_write(env->kernel_dir, err);
    }
    return rc;
}

/* The compiler says which, in words of its own and of the kernel; so the files themselves are
 * asked. */
bool build_missed_files(const struct stage_env *env, const struct candidate *c, const char *log)
{
    bool missed = false;
    struct err err = {""};
    if (strcasestr(log, "no such file or directory")) {
        missed = !build_has_folder(c->object) || !is_there(c->source);
        if (!missed && env->kernel_dir && !kernel_sources_there(env->kernel_dir)) {
            missed = true;
            log_warn("specializer", "sources in %s are gone: all are written again",
                     env->kernel_dir);
            if (kernel_sources_write(env->kernel_dir, &err) != 0)
                log_error("specializer", "%s", err.msg);
        }
    }
    return missed;
}
