/* SPDX-License-Identifier: Apache-2.0 */
/* arch.h - what is true of a whole model architecture, whatever the sizes of the model.
 *
 * One row for each (arch.c). Who opens, draws or computes a model asks for a trait and never which
 * architecture it is, so that another one is a row and, if it computes something new, a trait.
 */
#ifndef WHET_ENGINE_ARCH_H
#define WHET_ENGINE_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The number is part of every model's hash: new ones go to the end. */
enum arch { ARCH_LLAMA, ARCH_QWEN2, ARCH_QWEN3, ARCH_COUNT };

/* How Hugging Face names a checkpoint of the architecture, and what its config.json leaves out. */
struct arch_checkpoint {
    const char *name;           /* in "architectures" */
    int32_t kv_heads, head_dim; /* where the field is absent; 0: follows from the others */
    int32_t window;             /* sliding_window where the field is absent; 0: none */
    int32_t first_windowed;     /* max_window_layers where the field is absent */
    bool windowed;              /* sliding_window applies whatever use_sliding_window says */
};

enum { ARCH_CHECKPOINTS = 2 };

struct arch_traits {
    const char *gguf;      /* general.architecture, and the prefix of its keys */
    bool gguf_interleaved; /* converters store q and k rows in interleaved rotary order */
    bool qkv_bias;         /* q, k and v have biases; where they need not, a file may have them */
    bool qk_norm;          /* q and k of every head are normed before RoPE */
    struct arch_checkpoint checkpoint[ARCH_CHECKPOINTS]; /* unused ones have no name */
};

/* Whether a number that came from outside is an architecture. */
bool arch_known(int64_t arch);
/* Never NULL. */
const struct arch_traits *arch_traits(enum arch arch);

/* The architecture of that name, or -1; `n` bytes, not terminated. */
int arch_of_gguf(const char *name, size_t n);
/* The same for a name in "architectures", with what the checkpoint leaves out. */
int arch_of_checkpoint(const char *name, const struct arch_checkpoint **checkpoint);
/* All names that are known, for a message: "llama, qwen2, ...". */
void arch_list_gguf(char *out, size_t n);
void arch_list_checkpoints(char *out, size_t n);

#endif
