/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_checkpoint.c - any bytes as the weights of a quantized checkpoint: opened as a model under
 * the config.json of a golden one that names its tensors as the input does. */
#include <string.h>

#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CONFIG_MOST = 16384 };

static bool has(const uint8_t *data, size_t size, const char *word)
{
    return memmem(data, size, word, strlen(word)) != NULL;
}

/* The checkpoint of tests/golden whose config.json goes with such tensors. */
static const char *like(const uint8_t *data, size_t size)
{
    if (has(data, size, "weight_zero_point"))
        return "ct-pack-channel";
    if (has(data, size, "weight_packed"))
        return "ct-pack";
    if (has(data, size, "g_idx"))
        return "gptq-order";
    if (has(data, size, "qweight"))
        return "awq";
    return has(data, size, "weight_scale_inv") ? "fp8-block" : "fp8-tensor";
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t config[CONFIG_MOST];
    char path[512];

    folder_make();
    snprintf(path, sizeof path, "%s/checkpoints/%s/config.json", GOLDEN, like(data, size));
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(config, 1, sizeof config, f) : 0;
    if (!f || fclose(f) || n == 0)
        abort();
    folder_put("config.json", config, n);
    folder_put("model.safetensors", data, size);
    folder_load(false, data, size);
    return 0;
}
