/* SPDX-License-Identifier: Apache-2.0 */
/* header.c - where precompiled headers lie, and when one may be used.
 *
 * Its name is a hash of compiler, version, flags, instruction set and text, so a header of anything
 * else is simply not found. gcc looks for itself whether the file is its own and was made with
 * these flags, and otherwise reads the text beside it; clang ends with an error, and the build runs
 * once more without (build_cc.c). So the worst that a stale or damaged header can do is cost time,
 * and what is built passes the same admission as ever.
 *
 * Two files: KEY.h, the text, and KEY.h.gch, which both compilers look for when they are told
 * -include KEY.h. An empty KEY.h.gch says that it was tried in vain.
 */
#include "specializer/build/header.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/safe_path.h"
#include "specializer/build/build.h"
#include "specializer/candidate/hash.h"

static const char text[] = "#include <stddef.h>\n"
                           "#include <stdint.h>\n"
                           "#if defined(__x86_64__)\n"
                           "#include <immintrin.h>\n"
                           "#elif defined(__aarch64__)\n"
                           "#include <arm_neon.h>\n"
                           "#endif\n";

static const char family[] = "intrinsics-";
enum { PREFIX = sizeof family + 16 };

static bool of_instruction_set(const char *flag)
{
    return strncmp(flag, "-m", 2) == 0;
}

/* Given these, a driver that only reads a header wants to link. */
static bool for_the_linker(const char *flag)
{
    return strcmp(flag, "-shared") == 0 || strcmp(flag, "-nostdlib") == 0 ||
           strncmp(flag, "-Wl,", 4) == 0;
}

/* What all headers of one compiler begin with. */
static void name_of(const struct compiler *compiler, char out[PREFIX])
{
    char key[17];
    uint64_t h = hash_text(hash_text(HASH_START, compiler->path), compiler->version);
    h = hash_text(h, text);
    for (int i = 0; build_flags[i]; i++)
        h = hash_text(h, build_flags[i]);
    hash_hex(h, key);
    snprintf(out, PREFIX, "%s%s", family, key);
}

/* False when these flags name no instruction set: there are no intrinsics then. */
static bool hash_instruction_set(char *const *define, char out[17])
{
    uint64_t h = HASH_START;
    for (; define && *define; define++)
        if (of_instruction_set(*define))
            h = hash_text(h, *define);
    hash_hex(h, out);
    return h != HASH_START;
}

static void compiled_path(const struct header *h, char *out, size_t n)
{
    snprintf(out, n, "%s.gch", h->path);
}

/* The text stays as it is once it is there: clang holds its age against the compiled one. */
static int write_text(const char *path)
{
    char temporary[560];
    if (access(path, R_OK) == 0)
        return 0;
    snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)getpid());
    FILE *f = safe_create(temporary);
    if (!f)
        return -1;
    bool whole = fputs(text, f) >= 0;
    if (fclose(f) == 0 && whole && rename(temporary, path) == 0)
        return 0;
    unlink(temporary);
    return -1;
}

struct header header_look(const struct compiler *compiler, const char *dir, char *const *define)
{
    struct header h = {HEADER_NONE, ""};
    char name[PREFIX], set[17], compiled[560];
    struct stat st;
    name_of(compiler, name);
    if (!dir || !hash_instruction_set(define, set) ||
        snprintf(h.path, sizeof h.path, "%s/%s-%s.h", dir, name, set) >= (int)sizeof h.path)
        return h;
    compiled_path(&h, compiled, sizeof compiled);
    bool there = stat(compiled, &st) == 0, vain = there && st.st_size == 0;
    if (!vain && write_text(h.path) == 0)
        h.state = there ? HEADER_READY : HEADER_MISSING;
    return h;
}

void header_command(const struct header *h, const struct compiler *compiler, char *const *define,
                    const char *temporary, const char **argv, int n)
{
    int at = 0;
    argv[at++] = compiler->path;
    for (int i = 0; build_flags[i]; i++)
        if (!for_the_linker(build_flags[i]))
            argv[at++] = build_flags[i];
    for (; *define && at < n - 6; define++)
        if (of_instruction_set(*define))
            argv[at++] = *define;
    argv[at++] = "-x";
    argv[at++] = "c-header";
    argv[at++] = "-o";
    argv[at++] = temporary;
    argv[at++] = h->path;
    argv[at] = NULL;
}

void header_put(struct header *h, const char *temporary)
{
    char compiled[560];
    compiled_path(h, compiled, sizeof compiled);
    h->state = rename(temporary, compiled) == 0 ? HEADER_READY : HEADER_NONE;
}

void header_give_up(struct header *h)
{
    char compiled[560];
    compiled_path(h, compiled, sizeof compiled);
    FILE *f = safe_create(compiled); /* a new one: a compiler may be reading the old */
    if (f)
        fclose(f);
    h->state = HEADER_NONE;
}

void header_prune(const struct compiler *compiler, const char *dir)
{
    char name[PREFIX], path[1024];
    struct dirent *e;
    struct stat st;
    DIR *d = opendir(dir);
    name_of(compiler, name);
    while (d && (e = readdir(d)) != NULL) {
        if (strncmp(e->d_name, family, strlen(family)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        bool other = strncmp(e->d_name, name, strlen(name)) != 0;
        if (other || (stat(path, &st) == 0 && st.st_size == 0))
            unlink(path);
    }
    if (d)
        closedir(d);
}
