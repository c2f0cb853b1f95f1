/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h - the texts of one template that may be mutated, and which edits of them mean
 * something.
 *
 * A template's source and what it includes of cpu/lib, in a folder of the caller's. With the knobs
 * and shape of one build, much of that text is not compiled or makes no code: only edits of the
 * lines that do are listed. One thread; folder, compiler and define are borrowed.
 */
#ifndef WHET_TESTS_KERNELS_MUTANTS_SOURCES_H
#define WHET_TESTS_KERNELS_MUTANTS_SOURCES_H

#include "tests/kernels/mutants/mutate.h"

enum { SOURCES_MAX = 24, SOURCE_LINES_MAX = 2000 };

struct source {
    char name[80]; /* below the folder */
    char *text;
    bool active[SOURCE_LINES_MAX]; /* lines that mean something, from 1 */
    struct mutations list;
};

struct sources {
    const char *folder, *compiler;
    char *const *define; /* -D flags of the build, up to NULL */
    char *main;          /* path of the template's source */
    struct source file[SOURCES_MAX];
    int files;
};

/* `name` is the template's source below `folder`. */
void sources_open(struct sources *s, const char *folder, const char *name, const char *compiler,
                  char *const *define);
void sources_close(struct sources *s);
/* Puts `text` into the file's place; the list stays that of f->text. */
bool source_write(const struct sources *s, const struct source *f, const char *text);

#endif
