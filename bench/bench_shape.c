/* bench_shape.c - models by name, with random weights: what a machine does with a shape when the
 * model's files are not there. Speed does not depend on the values of weights. */
#include <string.h>

#include "bench/bench_private.h"

#define LLAMA3               \
    {                        \
        true, 32, 1, 4, 8192 \
    }

static const struct {
    const char *name;
    struct model_shape shape;
} shapes[] = {
    {"smollm2-135m", {ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5f, 1e5f, 0, 1, {0}}},
    {"llama-3.2-1b",
     {ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 1e-5f, 5e5f, 0, 1, LLAMA3}},
    {"qwen3-1.7b", {ARCH_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3-4b", {ARCH_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e-6f, 1e6f, 0, 1, {0}}},
};

const struct model_shape *bench_shape(const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i].shape;
    return NULL;
}
