/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_capture.c - any bytes as a file of captured inputs, which a process reads that runs kernels
 * on trial. What is taken for one has every array that its region reads, and names no place
 * outside of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "specializer/admission/capture_file.c"
#include "tests/unit/specializer/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct model_shape shape = {SMALL_MODEL};
static volatile uint8_t sink;

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* Reads all of them, as a case made of the capture would. */
static void see(struct capture *c, const struct head *h)
{
    struct array a[ARRAYS];
    demand(c->region >= 0 && c->region < REGION_NODES && c->m > 0 && c->spans >= 0);
    arrays_of(c, &shape, h->table, a);
    for (int i = 0; i < ARRAYS; i++) {
        const uint8_t *bytes = *a[i].at;
        demand(!(needed(c->region) >> i & 1) || bytes);
        for (int64_t at = 0; bytes && (h->present >> i & 1) && at < a[i].bytes; at += 64)
            sink = bytes[at];
    }
    for (int32_t i = 0; c->region == REGION_ATTN && i < c->spans; i++) {
        const struct span *s = &c->span[i];
        demand(s->first + s->count <= c->m);
        for (int32_t p = 0; p < (s->context + KV_PAGE - 1) / KV_PAGE; p++)
            demand(c->page_table[s->pages_at + p] < c->pages);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[32];
    struct head h = {0};
    struct err err = {""};
    int fd = memfd_create("capture", MFD_CLOEXEC);
    demand(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct capture *c = capture_load(path, &shape, &err);
    demand(c || strstr(err.msg, path));
    if (c) {
        memcpy(&h, data, sizeof h);
        see(c, &h);
        capture_free(c);
        free(c);
    }
    close(fd);
    return 0;
}
