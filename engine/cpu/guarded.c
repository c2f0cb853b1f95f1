/* SPDX-License-Identifier: Apache-2.0 */
/* guarded.c - one mapping a buffer: [PROT_NONE] [band | data | band] [PROT_NONE].
 *
 * The data ends where the last page ends (rounded to 64 bytes), because running past the end is
 * the common mistake; what is left in front becomes the front band. Buffers are few and live for a
 * case, so a mapping each costs nothing that matters. Mappings are shared, so that a process forked
 * to run an untrusted kernel writes into the arena that its parent reads.
 */
#include "engine/cpu/guarded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 64 };

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

void guarded_open(struct guarded *g, size_t bytes, bool guard)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), wall = guard ? page : 0;
    size_t data = round_up(bytes, ALIGN), tail = guard ? 0 : ALIGN;
    g->body_bytes = round_up(ALIGN + data + tail, page);
    g->map_bytes = g->body_bytes + 2 * wall;
    g->map = mmap(NULL, g->map_bytes, guard ? PROT_NONE : PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED ||
        (guard && mprotect(g->map + wall, g->body_bytes, PROT_READ | PROT_WRITE) != 0)) {
        fprintf(stderr, "whet: out of memory mapping %zu bytes\n", g->map_bytes);
        abort();
    }
    g->body = g->map + wall;
    g->data = g->body + g->body_bytes - tail - data;
    g->bytes = bytes;
    size_t front = (size_t)((char *)g->data - g->body);
    memset(g->body, 0xff, front);
    memset((char *)g->data + bytes, 0xff, g->body_bytes - front - bytes);
}

void guarded_close(struct guarded *g)
{
    if (g->map)
        munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

void guarded_readonly(struct guarded *g, bool readonly)
{
    if (g->map)
        mprotect(g->body, g->body_bytes, readonly ? PROT_READ : PROT_READ | PROT_WRITE);
}

void guarded_poison(struct guarded *g)
{
    if (g->map)
        memset(g->body, 0xff, g->body_bytes);
}

static bool all_ones(const char *p, const char *end)
{
    for (; p < end; p++)
        if (*p != (char)0xff)
            return false;
    return true;
}

bool guarded_intact(const struct guarded *g)
{
    const char *data = g->data;
    return !g->map ||
           (all_ones(g->body, data) && all_ones(data + g->bytes, g->body + g->body_bytes));
}

uint64_t guarded_checksum(const struct guarded *g)
{
    uint64_t h = 0xcbf29ce484222325, word;
    const char *p = g->data;
    size_t i = 0;
    for (; i + 8 <= g->bytes; i += 8) {
        memcpy(&word, p + i, 8);
        h = (h ^ word) * 0x100000001b3;
        h ^= h >> 32; /* or the top bits of two words could change and cancel out */
    }
    for (; i < g->bytes; i++)
        h = (h ^ (unsigned char)p[i]) * 0x100000001b3;
    return h;
}
