/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - reads the tensor directory of a safetensors file. */
#ifndef WHET_ENGINE_SAFETENSORS_H
#define WHET_ENGINE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/filemap.h"
#include "engine/weights.h"

/* Appends the tensors in `size` bytes at `data` (kept by the caller as long as `w` is used) to
 * `w`; the caller seals it after the last shard. F32, F16 and BF16 are weights, F8_E4M3, I32
 * and I64 parts of quantized ones. -1 with a message naming
 * `file` and the tensor at fault; `w` may then hold some of the tensors. */
int safetensors_read(const uint8_t *data, size_t size, const char *file, struct weights *w,
                     struct err *err);
/* The same for a mapped file, whose header is read and not looked at in the mapping: nobody can cut
 * it off meanwhile. */
int safetensors_open(const struct filemap *map, struct weights *w, struct err *err);

#endif
