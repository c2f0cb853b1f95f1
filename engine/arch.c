/* SPDX-License-Identifier: Apache-2.0 */
/* arch.c - the table of architectures.
 *
 * All are a Llama: RMS norm, grouped queries, RoPE, SwiGLU. Qwen2 has biases on q, k and v,
 * Qwen3 norms q and k in every head instead. Mistral is a Llama that Hugging Face names otherwise.
 */
#include "engine/arch.h"

#include <stdio.h>
#include <string.h>

#include "config/table.h"

static const struct arch_traits traits[] = {
    [ARCH_LLAMA] = {.gguf = "llama",
                    .gguf_interleaved = true,
                    .checkpoint = {{.name = "LlamaForCausalLM"},
                                   {.name = "MistralForCausalLM",
                                    .kv_heads = 8,
                                    .window = 4096,
                                    .windowed = true}}},
    [ARCH_QWEN2] = {.gguf = "qwen2",
                    .qkv_bias = true,
                    .checkpoint = {{.name = "Qwen2ForCausalLM",
                                    .kv_heads = 32,
                                    .window = 4096,
                                    .first_windowed = 28}}},
    [ARCH_QWEN3] = {.gguf = "qwen3",
                    .qk_norm = true,
                    .checkpoint = {{.name = "Qwen3ForCausalLM",
                                    .kv_heads = 32,
                                    .head_dim = 128,
                                    .window = 4096,
                                    .first_windowed = 28}}},
};
EVERY_ROW(traits, ARCH_COUNT);

bool arch_known(int64_t arch)
{
    return arch >= 0 && arch < ARCH_COUNT;
}

const struct arch_traits *arch_traits(enum arch arch)
{
    return &traits[arch];
}

int arch_of_gguf(const char *name, size_t n)
{
    for (int a = 0; a < ARCH_COUNT; a++)
        if (strlen(traits[a].gguf) == n && memcmp(traits[a].gguf, name, n) == 0)
            return a;
    return -1;
}

int arch_of_checkpoint(const char *name, const struct arch_checkpoint **checkpoint)
{
    for (int a = 0; a < ARCH_COUNT; a++)
        for (int i = 0; i < ARCH_CHECKPOINTS; i++) {
            const struct arch_checkpoint *c = &traits[a].checkpoint[i];
            if (c->name && strcmp(c->name, name) == 0) {
                *checkpoint = c;
                return a;
            }
        }
    return -1;
}

static void list(char *out, size_t n, const char *name)
{
    size_t at = strlen(out);
    if (name)
        snprintf(out + at, n - at, "%s%s", at ? ", " : "", name);
}

void arch_list_gguf(char *out, size_t n)
{
    out[0] = 0;
    for (int a = 0; a < ARCH_COUNT; a++)
        list(out, n, traits[a].gguf);
}

void arch_list_checkpoints(char *out, size_t n)
{
    out[0] = 0;
    for (int a = 0; a < ARCH_COUNT; a++)
        for (int i = 0; i < ARCH_CHECKPOINTS; i++)
            list(out, n, traits[a].checkpoint[i].name);
}
