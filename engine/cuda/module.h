/* SPDX-License-Identifier: Apache-2.0 */
/* module.h - what the program and the cuda module must agree on before one calls the other.
 *
 * They are two files, and one may be replaced without the other. The module exports this as
 * `whet_cuda_build`, and find.c takes only a module that says the same as itself: the version, and
 * how large is what both read. Two states of one version in which nothing changed its size are not
 * told apart.
 */
#ifndef WHET_ENGINE_CUDA_MODULE_H
#define WHET_ENGINE_CUDA_MODULE_H

#include <stdint.h>

#include "config/err.h"
#include "engine/backend.h"
#include "engine/model.h"
#include "engine/plan.h"

struct module_build {
    char version[32];
    uint64_t ops, options, step, hook, bench_job, model_check, kernel, slot, machine, model;
};

#define MODULE_BUILD(version)                                                                     \
    {                                                                                             \
        version, sizeof(struct backend_ops), sizeof(struct backend_options), sizeof(struct step), \
            sizeof(struct hook), sizeof(struct bench_job), sizeof(struct model_check),            \
            sizeof(struct kernel), sizeof(struct slot), sizeof(struct machine),                   \
            sizeof(struct model)                                                                  \
    }

/* Whether the module at `path`, which says `its` (NULL: nothing), is of this program's build: 0, or
 * -1 with both versions in `err`. */
int module_check(const struct module_build *its, const char *path, struct err *err);

#endif
