/* SPDX-License-Identifier: Apache-2.0 */
/* module.c - the build that this module is of, for find.c (module.h). */
#include "engine/cuda/module.h"

__attribute__((visibility("default"))) extern const struct module_build whet_cuda_build;
const struct module_build whet_cuda_build = MODULE_BUILD(WHET_VERSION);
