/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of the frame's names against the files that the frames include: a helper that is
 * missing there could not be called, and a macro that is missing could be defined again by a text.
 * A name that the files have no more is in the way of texts that would use it for their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sources.h"
#include "specializer/agent/agent_names.c"
#include "specializer/candidate/template.h"

enum { FILES_MOST = 40 };

struct frame {
    enum agent_language language;
    const char *file[FILES_MOST];
    int files, functions, macros;
};

static size_t name_length(const char *at)
{
    size_t n = 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_')
        n++;
    return n;
}

/* The name before the first parenthesis of a definition's line. */
static const char *function_name(const char *line, size_t n, size_t *length)
{
    const char *open = memchr(line, '(', n), *at = open;
    while (at && at > line && (isalnum((unsigned char)at[-1]) || at[-1] == '_'))
        at--;
    *length = at ? (size_t)(open - at) : 0;
    return at;
}

static void check_line(struct frame *f, const char *line, size_t n)
{
    static const char *const begins[] = {"INLINE ", "static inline ", "__device__ "};
    size_t k = 0;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (n > strlen(begins[i]) && memcmp(line, begins[i], strlen(begins[i])) == 0)
            name = function_name(line, n, &k);
    if (name && k > 0) {
        f->functions++;
        if (!name_callable(name, k, f->language))
            fail_msg("%.*s is a helper of the frame and not on the list", (int)k, name);
    }
    if (n < 8 || memcmp(line, "#define ", 8) != 0 || !isupper((unsigned char)line[8]))
        return;
    name = line + 8;
    k = name_length(name);
    f->macros++;
    if (!name_frame(name, k, f->language))
        fail_msg("%.*s is a macro of the frame and not on the list", (int)k, name);
}

static const char *source_text(const char *name)
{
    for (int i = 0; i < kernel_source_count; i++)
        if (strcmp(kernel_sources[i].name, name) == 0)
            return kernel_sources[i].text;
    return NULL;
}

static void check_file(struct frame *f, const char *name)
{
    const char *text = source_text(name);
    for (int i = 0; i < f->files; i++)
        if (strcmp(f->file[i], name) == 0)
            return;
    if (!text || strstr(name, ".def")) /* headers of the system; tables */
        return;
    assert_true(f->files < FILES_MOST);
    f->file[f->files++] = strdup(name);
    for (const char *line = text; *line;) {
        size_t n = strcspn(line, "\n");
        char include[80];
        if (sscanf(line, "#include \"%79[^\"]\"", include) == 1)
            check_file(f, include);
        /* What the frame itself defines behind the body is told by the body (name_told()). */
        else if (strcmp(f->file[0], name) != 0)
            check_line(f, line, n);
        line += n + (line[n] == '\n');
    }
}

/* Whether a file of the frame has the word, or one that begins like it if it ends in a star. */
static bool frame_has(const struct frame *f, const char *word)
{
    size_t k = strcspn(word, "*");
    for (int i = 1; i < f->files; i++)
        for (const char *at = source_text(f->file[i]); *at; at += *at != 0) {
            size_t n = name_length(at);
            if (n >= k && memcmp(at, word, k) == 0 && (n == k || word[k] == '*'))
                return true;
            at += n;
        }
    return false;
}

static void check_list(const struct frame *f, const char *const *list)
{
    for (; *list; list++)
        if (!frame_has(f, *list))
            fail_msg("%s is on a list of agent_names.c, and %s includes nothing that has it", *list,
                     f->file[0]);
}

static void check_frame(enum agent_language language, const char *name, int functions, int macros)
{
    struct frame f = {.language = language};
    check_file(&f, name);
    if (f.functions < functions || f.macros < macros)
        fail_msg("%s: only %d functions and %d macros found", name, f.functions, f.macros);
    bool c = language == AGENT_C;
    check_list(&f, c ? frame_functions_c : frame_functions_cuda);
    check_list(&f, c ? frame_macros_c : frame_macros_cuda);
    for (int i = 0; i < f.files; i++)
        free((void *)f.file[i]);
}

static void every_name_of_the_frames_is_listed(void **unused)
{
    (void)unused;
    check_frame(AGENT_C, "cpu/agent.c", 40, 25);
    check_frame(AGENT_CUDA, "cuda/agent.cu", 20, 25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_name_of_the_frames_is_listed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
