/* SPDX-License-Identifier: Apache-2.0 */
/* oracle.h - the reference for every region: plain loops, double accumulation, no tricks.
 *
 * The words "correct" and "error" in whet mean: compared with this. Slow on purpose. Any thread.
 */
#ifndef WHET_ENGINE_CPU_ORACLE_H
#define WHET_ENGINE_CPU_ORACLE_H

#include <stdbool.h>

#include "kernels/args.h"

/* Outputs of one region as rows of doubles. attn_in has three outputs (q, k, v), others one. */
struct oracle_out {
    int32_t outputs;
    struct {
        int32_t rows, cols; /* k and v: [m, kv_heads * head_dim], in token order */
        double *value;      /* [rows, cols], malloc'ed */
    } output[3];
};

/* Computes region `r` for `args` (its struct of kernels/args.h) from the inputs alone; args'
 * output pointers are not touched or read. attn reads pages through the page table. k and v of
 * attn_in are not rounded. */
void oracle_run(enum region r, const void *args, struct oracle_out *out);
/* The same where pages hold bf16, if `bf16` is set: attn computes with those values. */
void oracle_run_kv(enum region r, bool bf16, const void *args, struct oracle_out *out);
void oracle_free(struct oracle_out *out);

#endif
