/* SPDX-License-Identifier: Apache-2.0 */
/* target.c - see target.h: the table. */
#include "specializer/candidate/target.h"

#include <string.h>

static const struct target targets[] = {
    [MACHINE_CPU] = {.name = "cpu",
                     .source = "c",
                     .object = "so",
                     .imported = "imported/cpu",
                     .peak = "f32_gflop_s",
                     .compiler_setting = "compiler",
                     .objects_mapped = true,
                     .texts_sealed = true,
                     .known_by_distance = true,
                     .texts_may_be_bit_equal = true,
                     .shares_cores = true,
                     .opens_together = true,
                     .seen_s =
                         0.3, /* the very first step reads a prompt and says little of others */
                     .decodes_most = 64,
                     .canary_audit_every = 8,
                     .watch_every_factor = 1,
                     .benches_one_layer = true,
                     .shadow_wide_always = true},
    /* A GPU's steps are a tenth as long, and one that is looked at is longer by more. Eager's order
     * of sums is a library's there. */
    [MACHINE_CUDA] = {.name = "cuda",
                      .source = "cu",
                      .object = "cubin",
                      .imported = "imported/cuda",
                      .peak = "bf16_tensor_gflop_s",
                      .device_weights = true,
                      .device_target = true,
                      .weights_drawn_again = true,
                      .attention_first = true,
                      .compiler_library = true,
                      .compiler_setting = "nvrtc",
                      .compiler_counts_registers = true,
                      .texts_beside_requests = true,
                      .prober = true,
                      .bandwidth_uncached = true,
                      .space_near_starts = true,
                      .seen_s = 1.5, /* many clients' first prompts take as long */
                      .decodes_most = 512,
                      .canary_audit_every = 32,
                      .watch_every_factor = 8},
};

const struct target *target_of(enum machine_kind kind)
{
    return &targets[kind];
}

int32_t target_compilers(const struct target *t, int32_t asked, int32_t cores)
{
    enum { MOST = 8 };
    int32_t some = cores / 4 < MOST ? cores / 4 : MOST;
    if (asked > 0)
        return asked;
    return t->shares_cores || some < 1 ? 1 : some;
}

bool target_find(const char *name, enum machine_kind *kind)
{
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (strcmp(targets[i].name, name) == 0) {
            *kind = (enum machine_kind)i;
            return true;
        }
    return false;
}
