/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_safetensors.c - any bytes as a safetensors file, read as the only shard of a model; what
 * parses is also opened as one, in a folder whose other files are right. */
#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct weights w = {0};
    struct err err;
    float value;

    if (safetensors_read(data, size, "fuzz", &w, &err) == 0 && weights_seal(&w, "fuzz", &err) == 0)
        for (int64_t i = 0; i < w.tensors; i++) {
            const struct tensor *t = &w.tensor[i];
            const uint8_t *p = t->data;
            sink += p[0] + p[t->bytes - 1];
            if (t->element != ELEMENT_WEIGHT)
                continue;
            dequant_row(t->type, p + t->bytes - dtype_block_bytes(t->type), &value, 1);
            sink += value > 0;
        }
    bool reads = w.tensors > 0;
    weights_free(&w);
    if (reads) {
        folder_make();
        folder_put("model.safetensors", data, size);
        folder_load(false, data, size);
    }
    return 0;
}
