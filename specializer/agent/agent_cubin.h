/* SPDX-License-Identifier: Apache-2.0 */
/* agent_cubin.h - what a cubin of a language model's text may contain: the frame's one entry and
 * its description, nothing that is called from outside, no memory of its own. Pure; any thread. */
#ifndef WHET_SPECIALIZER_AGENT_AGENT_CUBIN_H
#define WHET_SPECIALIZER_AGENT_AGENT_CUBIN_H

#include <stddef.h>

#include "config/err.h"
#include "kernels/cuda.h"

/* 0; or -1 naming what was found: another entry, an undefined function (printf, malloc, launches),
 * device variables (state between launches), instructions that a text has no use for
 * (agent_sass.h), or a damaged file. */
int agent_cubin_inspect(const void *data, size_t n, struct err *err);

/* The same of a file, and that what it says of itself (`info`, as cubin_inspect() read it) is what
 * the frame would say. */
int agent_cubin_check(const char *path, const struct cuda_kernel_info *info, int32_t region,
                      int32_t m_max, struct err *err);

#endif
