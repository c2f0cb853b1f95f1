/* SPDX-License-Identifier: Apache-2.0 */
/* start_guard.c - see start_guard.h. */
#include "specializer/start_guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/safe_path.h"

/* Ten minutes, twice as long each time, a day at most. */
enum { FIRST_WAIT_S = 600, LAST_WAIT_S = 86400, COUNT_MOST = 1000 };

int start_guard_ended(const char *path)
{
    char text[8] = "", *end = text;
    int fd = safe_open(path, NULL);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n < 2 || text[0] < '0' || text[0] > '9')
        return 0;
    long count = strtol(text, &end, 10);
    return strcmp(end, "\n") == 0 && count <= COUNT_MOST ? (int)count : 0;
}

int start_guard_begin(const char *path, int ended)
{
    FILE *f = safe_create(path);
    int rc = f && fprintf(f, "%d\n", ended < COUNT_MOST ? ended + 1 : COUNT_MOST) > 0 ? 0 : -1;
    return f && fclose(f) != 0 ? -1 : rc;
}

void start_guard_end(const char *path)
{
    unlink(path);
}

double start_guard_wait_s(int ended)
{
    double wait = FIRST_WAIT_S;
    if (ended < START_ENDS)
        return 0;
    for (int i = START_ENDS; i < ended && wait < LAST_WAIT_S; i++)
        wait *= 2;
    return wait < LAST_WAIT_S ? wait : LAST_WAIT_S;
}
