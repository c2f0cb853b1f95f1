/* SPDX-License-Identifier: Apache-2.0 */
/* golden_text.h - the texts that a language model wrote, for tests (tests/golden/agentic). */
#ifndef WHET_TESTS_GOLDEN_TEXT_H
#define WHET_TESTS_GOLDEN_TEXT_H

#include <stdio.h>
#include <stdlib.h>

#include "kernels/args.h"

/* One of them, by its file's name; "" if there is none. Valid until the next call. */
static inline const char *golden_text(const char *name)
{
    enum { MOST = 64 * 1024 };
    static char text[MOST + 1];
    char path[512];
    const char *root = getenv("WHET_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/tests/golden/agentic/%s", root ? root : ".", name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, MOST, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    return text;
}

#endif
