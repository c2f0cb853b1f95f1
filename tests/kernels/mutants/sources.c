/* SPDX-License-Identifier: Apache-2.0 */
/* sources.c - see sources.h.
 *
 * Which lines matter is the compiler's to say, in two runs: -E keeps a line or not, and the debug
 * lines of -S -O1 tell which lines of a header made code. A header holds much that a template has
 * no use for, and mutating that only costs compilers' time.
 */
#include "tests/kernels/mutants/sources.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/process.h"

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    char *text = NULL;
    size_t n = 0, used = 0;
    do {
        text = xrealloc(text, used + 65536);
        used += n = fread(text + used, 1, 65535, f);
        text[used] = 0;
    } while (n > 0);
    fclose(f);
    return text;
}

static struct source *file_named(struct sources *s, const char *name)
{
    for (int i = 0; i < s->files; i++)
        if (strcmp(s->file[i].name, name) == 0)
            return &s->file[i];
    return NULL;
}

/* The template's source and what it includes of cpu/lib. */
static void collect(struct sources *s, const char *name)
{
    if (s->files == SOURCES_MAX || file_named(s, name))
        return;
    char *path = xasprintf("%s/%s", s->folder, name);
    struct source *f = &s->file[s->files++];
    memset(f, 0, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->text = read_text(path);
    free(path);
    for (const char *p = f->text; p && (p = strstr(p, "#include \"cpu/lib/")); p++) {
        char included[80];
        snprintf(included, sizeof included, "%.*s", (int)strcspn(p + 10, "\""), p + 10);
        collect(s, included);
    }
}

/* The compiler's output with `how` (-E, or -S with debug lines); malloc'ed, or NULL. */
static char *compiler_says(struct sources *s, const char *const *how)
{
    const char *argv[160];
    int n = 0;
    argv[n++] = s->compiler;
    for (; *how; how++)
        argv[n++] = *how;
    argv[n++] = "-I";
    argv[n++] = s->folder;
    for (int i = 0; s->define[i] && n < 150; i++)
        argv[n++] = s->define[i];
    argv[n++] = s->main;
    argv[n] = NULL;
    struct process_spec spec = {.argv = argv, .wall_s = 300, .output_max = 64 << 20};
    struct process_result r = {0};
    struct err err;
    if (process_run(&spec, &r, &err) != 0)
        return NULL;
    free(r.err);
    return r.out;
}

static struct source *file_at(struct sources *s, const char *path)
{
    size_t base = strlen(s->folder);
    const char *name = strncmp(path, s->folder, base) == 0 ? path + base + 1 : path;
    return file_named(s, name);
}

static char *next_line(char **at)
{
    char *line = *at, *end = line ? strchr(line, '\n') : NULL;
    if (end)
        *end++ = 0;
    *at = end && *end ? end : NULL;
    return line;
}

/* Lines that the preprocessor keeps. */
static void mark_kept(struct sources *s)
{
    static const char *const how[] = {"-E", NULL};
    char *text = compiler_says(s, how), *at = text, *line, path[512];
    struct source *f = NULL;
    long number = 0;
    while ((line = next_line(&at)) != NULL) {
        if (sscanf(line, "# %ld \"%511[^\"]\"", &number, path) == 2) {
            f = file_at(s, path);
            continue;
        }
        if (f && number > 0 && number < SOURCE_LINES_MAX && *line)
            f->active[number] = true;
        number++;
    }
    free(text);
}

/* Of these, in headers, the ones that made code, and constants. */
static void mark_used(struct sources *s)
{
    static const char *const how[] = {"-S", "-O1", "-g", "-o", "-", NULL};
    char *text = compiler_says(s, how), *at = text, *line, path[512], folder[512] = "";
    static bool used[SOURCES_MAX][SOURCE_LINES_MAX];
    int file_of[256];
    memset(used, 0, sizeof used);
    memset(file_of, -1, sizeof file_of);
    while ((line = next_line(&at)) != NULL) {
        long file, number;
        if (sscanf(line, " .file %ld \"%511[^\"]\" \"%511[^\"]\"", &file, folder, path) == 3 ||
            sscanf(line, " .file %ld \"%511[^\"]\"", &file, path) == 2) {
            struct source *f = file_at(s, path);
            if (f && file >= 0 && file < 256)
                file_of[file] = (int)(f - s->file);
        } else if (sscanf(line, " .loc %ld %ld", &file, &number) == 2 && file >= 0 && file < 256 &&
                   file_of[file] >= 0 && number > 0 && number < SOURCE_LINES_MAX) {
            used[file_of[file]][number] = true;
        }
    }
    free(text);
    for (int i = 1; i < s->files; i++) {
        const char *p = s->file[i].text;
        for (int n = 1; p && n < SOURCE_LINES_MAX;
             n++, p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
            size_t indent = strspn(p, " ");
            size_t name = strspn(p + indent, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
            bool constant = indent > 0 && name > 0 && strncmp(p + indent + name, " = ", 3) == 0;
            s->file[i].active[n] &= used[i][n] || constant || strncmp(p, "enum {", 6) == 0;
        }
    }
}

void sources_open(struct sources *s, const char *folder, const char *name, const char *compiler,
                  char *const *define)
{
    *s = (struct sources){.folder = folder, .compiler = compiler, .define = define};
    s->main = xasprintf("%s/%s", folder, name);
    collect(s, name);
    mark_kept(s);
    mark_used(s);
    for (int i = 0; i < s->files; i++)
        mutations_of(s->file[i].text, s->file[i].active, &s->file[i].list);
}

void sources_close(struct sources *s)
{
    for (int i = 0; i < s->files; i++) {
        mutations_free(&s->file[i].list);
        free(s->file[i].text);
    }
    free(s->main);
    s->main = NULL;
    s->files = 0;
}

bool source_write(const struct sources *s, const struct source *f, const char *text)
{
    char *path = xasprintf("%s/%s", s->folder, f->name);
    FILE *out = fopen(path, "we");
    bool ok = out && fputs(text, out) >= 0;
    free(path);
    return out && fclose(out) == 0 && ok;
}
