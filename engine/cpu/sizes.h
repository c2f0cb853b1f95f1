/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.h - how much memory a kernel object asks for, asked where its answer can do no harm.
 *
 * packed_bytes() and scratch_bytes() are functions of the object: code of whoever wrote it. They
 * are called in a sealed child of the calling process, which has one thread and should be small,
 * because it is forked. What the object does instead of answering becomes the reason.
 */
#ifndef WHET_ENGINE_CPU_SIZES_H
#define WHET_ENGINE_CPU_SIZES_H

#include "config/err.h"
#include "engine/formats.h"
#include "engine/model.h"

struct kernel_sizes {
    int64_t (*packed)[3]; /* [all layers]: bytes of the repacked copy of weight i; 0: none */
    int64_t packed_total; /* of all, each in whole cache lines */
    int64_t scratch;      /* the most for any number of tokens up to m_most */
};

/* Of the layers of `formats`, NULL: of all. Answers are checked: none below 0, no packed weights
 * above `most` in all, no absurd scratch. `must_seal`: nothing is called where a process cannot be
 * sealed. 0, or -1 with what the object did. Free with sizes_free(). */
int sizes_ask(const struct cpu_kernel *k, const struct model *model,
              const struct format_class *formats, int32_t m_most, int32_t team, int64_t most,
              bool must_seal, struct kernel_sizes *s, struct err *err);
void sizes_free(struct kernel_sizes *s);

/* `bytes` in whole cache lines, as copies lie behind each other. */
int64_t sizes_lines(int64_t bytes);

#endif
