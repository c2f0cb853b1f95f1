/* SPDX-License-Identifier: Apache-2.0 */
/* guarded.h - buffers that notice when somebody steps outside.
 *
 * A buffer lies against the end of its own mapping: with `guard`, inaccessible pages stand on both
 * sides, so a write or read beyond them crashes; the slack between the buffer and the pages is a
 * band of NaN bits that guarded_intact() checks. Data is 64-byte aligned.
 */
#ifndef WHET_ENGINE_CPU_GUARDED_H
#define WHET_ENGINE_CPU_GUARDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct guarded {
    char *map; /* whole mapping, guard pages included; NULL: no buffer */
    size_t map_bytes;
    char *body; /* the accessible part */
    size_t body_bytes;
    void *data;
    size_t bytes;
};

/* Zeroed data, NaN bands. Aborts when memory is gone. bytes may be 0. */
void guarded_open(struct guarded *g, size_t bytes, bool guard);
void guarded_close(struct guarded *g);
/* Makes the body read-only, or writable again. No buffer: nothing. */
void guarded_readonly(struct guarded *g, bool readonly);
/* Fills data and bands with NaN bits. */
void guarded_poison(struct guarded *g);
/* True if the bands are as guarded_open() left them. */
bool guarded_intact(const struct guarded *g);
/* FNV-1a over the data, 8 bytes at a time, with the upper half mixed in. */
uint64_t guarded_checksum(const struct guarded *g);

#endif
