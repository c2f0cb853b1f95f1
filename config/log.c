/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - one write(2) a line, so that lines of several threads never mix, and none that waits for
 * whoever reads them. */
#include "config/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MOST = 2048 };

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

/* The well-formed UTF-8 of one character at `s` (Unicode 15, table 3-7): its bytes, and *code. 0:
 * it is none. */
static size_t character(const unsigned char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t bytes = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (bytes == 0 || bytes > n || s[0] > 0xF4)
        return 0;
    *code = bytes == 1 ? s[0] : s[0] & (0xFFu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
        *code = *code << 6 | (s[i] & 0x3F);
    }
    bool surrogate = *code >= 0xD800 && *code <= 0xDFFF;
    return *code < least[bytes] || surrogate || *code > 0x10FFFF ? 0 : bytes;
}

/* Ends a line, steers a terminal, or turns the direction of writing. */
static bool steers(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0x200E ||
           c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

/* What comes from a client, a file or a compiler must not forge lines. */
static void blank_controls(char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t code;
        size_t bytes = character((const unsigned char *)s + i, n - i, &code);
        if (bytes == 0 || steers(code))
            memset(s + i, ' ', bytes ? bytes : 1);
        i += bytes ? bytes : 1;
    }
}

/* ---- writing -------------------------------------------------------------------------------- */

/* One writer at a time, so that what poll() says of a pipe is still so when it is written to. */
static pthread_mutex_t writer = PTHREAD_MUTEX_INITIALIZER;
static uint64_t lost; /* lines, since one was written; under that lock */

/* Whether a line can be written without waiting: a pipe or a terminal that nobody reads is full at
 * some time, and who waits for its reader (a stuck log collector, Ctrl-S) serves nobody. A reader
 * that is only late gets a moment, until the first line is lost. Files are always ready, and of a
 * closed descriptor write() itself says so. */
static bool ready(void)
{
    enum { MOMENT_MS = 200 };
    struct pollfd out = {STDERR_FILENO, POLLOUT, 0};
    int n;
    do
        n = poll(&out, 1, lost ? 0 : MOMENT_MS);
    while (n < 0 && errno == EINTR);
    return n != 0;
}

/* When, how bad and who: what every line begins with. */
static size_t begin_line(char line[LINE_MOST], enum log_level level, const char *module)
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, LINE_MOST, "%Y-%m-%dT%H:%M:%S", &tm);
    return n + (size_t)snprintf(line + n, LINE_MOST - n, ".%03ldZ %-5s %s: ", now.tv_nsec / 1000000,
                                level_name[level], module);
}

static void write_line(const char *line, size_t n)
{
    char gap[LINE_MOST];
    ssize_t w = 0; /* a closed stderr is no reason to stop serving */
    pthread_mutex_lock(&writer);
    if (lost > 0 && ready()) {
        size_t m = begin_line(gap, LOG_WARN, "log");
        m += (size_t)snprintf(gap + m, sizeof gap - m,
                              "%llu lines are missing here: nobody read them\n",
                              (unsigned long long)lost);
        w = write(STDERR_FILENO, gap, m);
        lost = 0;
    }
    if (lost == 0 && ready())
        w = write(STDERR_FILENO, line, n);
    else
        lost++;
    pthread_mutex_unlock(&writer);
    (void)w;
}

void log_write(enum log_level level, const char *module, const char *fmt, ...)
{
    if (level > log_level())
        return;
    char line[LINE_MOST];
    size_t n = begin_line(line, level, module);
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
    write_line(line, n);
}
