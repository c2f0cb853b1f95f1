/* SPDX-License-Identifier: Apache-2.0 */
/* build_nvrtc.h - the part of the build stage that knows NVRTC (the rest: build_cc.c). */
#ifndef WHET_SPECIALIZER_BUILD_BUILD_NVRTC_H
#define WHET_SPECIALIZER_BUILD_BUILD_NVRTC_H

#include "specializer/candidate/stage.h"

/* Path of the library that the CUDA module was built with; "" without that module. */
#ifndef WHET_NVRTC
#define WHET_NVRTC ""
#endif

/* specializer.compiler, or the first libnvrtc found that compiles for `target` ("sm_90a"). It is
 * asked in a child of `program`. -1 with a message when there is none. */
int nvrtc_find(const struct config *config, const char *program, const char *target,
               struct compiler *out, struct err *err);

/* Flags every CUDA kernel is built with, NULL-terminated; part of the object key. */
enum { NVRTC_FLAGS = 3 };
void nvrtc_flags(const struct compiler *c, const char *flag[NVRTC_FLAGS]);

/* argv of the build of `c` into `object`, NULL-terminated, in `argv[most]`. `include` is memory for
 * one of the words. */
void nvrtc_command(const char **argv, int most, const struct stage_env *env,
                   const struct candidate *c, const char *object, char *include, size_t n);

#endif
