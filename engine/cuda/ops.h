/* SPDX-License-Identifier: Apache-2.0 */
/* ops.h - the functions of the backend's table (struct backend_ops in engine/backend.h).
 *
 * Their contracts are there; device.c has the table.
 */
#ifndef WHET_ENGINE_CUDA_OPS_H
#define WHET_ENGINE_CUDA_OPS_H

#include "engine/backend.h"
#include "engine/device_probe.h"

/* loaded.c */
struct kernel *cuda_load(struct backend *b, const struct kernel_object *o, struct err *e);
void cuda_unload(struct backend *b, struct kernel *k);

/* step.c */
bool cuda_ready(struct backend *b, const struct step *s, const struct overrides *o);
int cuda_step(struct backend *b, const struct step *s, const struct overrides *o, struct err *e);
int cuda_step_start(struct backend *b, const struct step *s, const struct overrides *o,
                    struct err *e);
int cuda_step_wait(struct backend *b, const struct step *s, struct err *e);

/* hook.c */
int cuda_hook(struct backend *b, struct hook *t);

/* bench_job.c */
int cuda_bench_begin(struct backend *b, struct bench_job *job, struct err *e);
int cuda_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e);
void cuda_bench_end(struct backend *b, struct bench_job *job);

/* reduce.c */
bool cuda_trial(struct backend *b, const struct step *s, struct step_trial *trial);
int cuda_time_reduce(struct backend *b, const struct kernel *k, int32_t m, int32_t calls,
                     int64_t *ns, struct err *e);

/* model_check.c */
int cuda_check_model(struct backend *b, struct model_check *r, struct err *e);

/* probe.c */
extern const struct device_probe_ops cuda_probe;

#endif
