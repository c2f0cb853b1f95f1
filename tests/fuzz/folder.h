/* SPDX-License-Identifier: Apache-2.0 */
/* folder.h - a model's folder in which one file is the fuzzer's input. */
#ifndef WHET_TESTS_FUZZ_FOLDER_H
#define WHET_TESTS_FUZZ_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/tokenizer.h"

static char folder[] = "/tmp/whet-fuzz-XXXXXX";

static inline void folder_remove(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command))
        perror(command);
}

/* Once a process: a copy of tests/golden/tiny-qwen3, gone when the process ends in order. */
static inline void folder_make(void)
{
    static bool made;
    char command[512];
    if (made)
        return;
    made = true;
    if (!mkdtemp(folder))
        abort();
    snprintf(command, sizeof command, "cp %s/tiny-qwen3/* %s", GOLDEN, folder);
    if (system(command))
        abort();
    atexit(folder_remove);
}

static inline void folder_put(const char *name, const uint8_t *data, size_t size)
{
    char path[96];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        abort();
}

static volatile double model_sink;

/* What a first step would ask of a model: every weight's ends, the rotary frequencies, a prompt. */
static inline void read_model(const struct model *m, const uint8_t *text, size_t n)
{
    double frequency[512];
    int32_t *ids;
    struct err err;

    for (int32_t i = 0; i < m->shape.layers; i++) {
        const struct weight *w[] = {&m->layer[i].wq, &m->layer[i].wo, &m->layer[i].down};
        for (int k = 0; k < 3; k++)
            model_sink += *(const uint8_t *)w[k]->data;
        model_sink += (double)m->layer[i].attn_norm[m->shape.hidden - 1];
    }
    model_sink += (double)m->final_norm[0];
    model_rope_frequencies(&m->shape, frequency);
    model_sink += frequency[0];
    if (m->tokenizer && tokenizer_encode(m->tokenizer, (const char *)text, n < 500 ? n : 500, true,
                                         &ids, &err) >= 0)
        free(ids);
}

static inline void folder_load(bool with_tokenizer, const uint8_t *text, size_t n)
{
    struct err err;
    struct model *m = model_open(folder, with_tokenizer, NULL, NULL, &err);
    if (m)
        read_model(m, text, n);
    model_close(m);
}

#endif
