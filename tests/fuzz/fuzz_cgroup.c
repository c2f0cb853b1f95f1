/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_cgroup.c - any bytes as what a system says of its cgroups: /proc/self/cgroup, then
 * mountinfo, then what every file of every group holds, with zero bytes between them. Whatever it
 * is, a limit that comes of it is one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES = 3 };
static char *text[FILES];

static FILE *open_text(const char *path, const char *mode)
{
    size_t n = strlen(path);
    int i = n >= 9 && strcmp(path + n - 9, "mountinfo") == 0             ? 1
            : n >= 17 && strcmp(path + n - 17, "/proc/self/cgroup") == 0 ? 0
                                                                         : 2;
    (void)mode;
    return text[i] && text[i][0] ? fmemopen(text[i], strlen(text[i]), "r") : NULL;
}

#define fopen open_text
#include "config/cgroup.c"
#undef fopen

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool (*const ask[])(const char *, struct cgroup_limit *) = {cgroup_memory, cgroup_cpu,
                                                                cgroup_tasks};
    char *all = calloc(size + FILES, 1);
    demand(all != NULL);
    memcpy(all, data, size);
    for (int i = 0; i < FILES; i++)
        text[i] = i == 0 ? all : text[i - 1] + strlen(text[i - 1]) + 1;
    for (size_t i = 0; i < sizeof ask / sizeof *ask; i++) {
        struct cgroup_limit l;
        if (!ask[i]("", &l))
            continue;
        demand(l.limit >= 0 && l.room >= 0 && l.room <= l.limit);
        demand(strlen(l.file) < sizeof l.file);
    }
    free(all);
    return 0;
}
