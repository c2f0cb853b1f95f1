/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_gguf.c - any bytes as a GGUF file: parsed, and everything the result offers is read; what
 * parses is also opened as a model, and read as its first step would. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/quant.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void read_values(const struct gguf *g)
{
    for (int64_t i = 0; i < g->values; i++) {
        const char *key = g->value[i].key;
        struct gguf_string s = {NULL, 0}, *list = NULL;
        int32_t *ints = NULL;
        float *floats = NULL;
        int64_t n = 0;
        double d;
        gguf_float(g, key, &d, NULL);
        if (gguf_string(g, key, &s, NULL) > 0 && s.n)
            sink += (uint8_t)s.s[s.n - 1];
        if (gguf_strings(g, key, &list, &n, NULL) > 0)
            for (int64_t j = 0; j < n; j++)
                sink += list[j].n ? (uint8_t)list[j].s[list[j].n - 1] : 0;
        gguf_ints(g, key, &ints, &n, NULL);
        if (gguf_floats(g, key, &floats, &n, NULL) > 0 && n)
            sink += floats[n - 1] > 0;
        free(floats);
        free(list);
        free(ints);
    }
}

static void read_tensors(const struct weights *w)
{
    float row[256];

    for (int64_t i = 0; i < w->tensors; i++) {
        const struct tensor *t = &w->tensor[i];
        const uint8_t *p = t->data;
        int block = dtype_block(t->type);
        sink += p[0] + p[t->bytes - 1];
        dequant_row(t->type, p + t->bytes - dtype_block_bytes(t->type), row, block);
    }
}

/* Through the file system in memory, as model_open() takes a path. */
static void open_as_model(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("fuzz", 0);

    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct model *m = model_open(path, true, NULL, NULL, NULL);
    if (m)
        read_model(m, data, size);
    model_close(m);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct gguf *g = gguf_parse(data, size, "fuzz", &err);

    if (!g)
        return 0;
    read_values(g);
    read_tensors(&g->weights);
    gguf_free(g);
    open_as_model(data, size);
    return 0;
}
