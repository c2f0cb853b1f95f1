/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - one write(2) a line, so that lines of several threads never mix. */
#include "config/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Atomic int current = LOG_INFO;
static const char *const level_name[] = {"error", "warn", "info", "debug"};

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&current, (int)level, memory_order_relaxed);
}

enum log_level log_level(void)
{
    return (enum log_level)atomic_load_explicit(&current, memory_order_relaxed);
}

int log_level_parse(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(name, level_name[i]) == 0)
            return i;
    return -1;
}

bool log_due(_Atomic uint64_t *n)
{
    uint64_t so_far = atomic_fetch_add(n, 1) + 1;
    return so_far <= 4 || (so_far & (so_far - 1)) == 0;
}

/* Control characters in a message (from a client, a file, a compiler) must not forge lines. */
static void blank_controls(char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < 32 || s[i] == 127)
            s[i] = ' ';
}

void log_write(enum log_level level, const char *module, const char *fmt, ...)
{
    if (level > log_level())
        return;
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s %s: ", now.tv_nsec / 1000000,
                          level_name[level], module);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    size_t room = sizeof line - n - 2, text = m < 0 ? 0 : (size_t)m;
    if (text > room)
        text = room;
    blank_controls(line + n, text);
    n += text;
    line[n++] = '\n';
    ssize_t w = write(STDERR_FILENO, line, n);
    (void)w; /* a closed stderr is no reason to stop serving */
}
