/* SPDX-License-Identifier: Apache-2.0 */
/* load.c - a candidate's object becomes a kernel of this process. */
#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/pipeline/stages.h"
#include "specializer/store/store.h"

enum stage_result load_run(const struct stage_env *env, struct store *marks, struct candidate *c)
{
    struct err err = {""};
    if (c->kernel)
        return STAGE_PASS;
    if (marks && store_trial(marks, c->key, true, &err) != 0) {
        log_error("specializer", "%s", err.msg);
        candidate_explain(c, STAGE_LOAD, CAUSE_OTHER, 0, "%s", err.msg);
        return STAGE_RETRY;
    }
    struct kernel_object object = {
        .path = c->object,
        .entry = "whet_kernel",
        .region = c->slot->region,
        .formats = c->slot->formats,
        .origin = c->origin,
        .id = c->key,
        .name = c->name,
        .text = c->body[0] != 0,
    };
    /* What is loaded runs: it must be a file that we wrote and nobody else can have changed. */
    if (safe_file(c->object, &err) == 0)
        c->kernel = env->ops->load(env->backend, &object, &err);
    if (c->kernel) { /* what it says of itself counts if the probe saw it */
        c->kernel->bit_equal = c->bit_equal && c->evidence.bit_equal;
        return STAGE_PASS;
    }
    if (marks)
        store_trial(marks, c->key, false, NULL);
    candidate_explain(c, STAGE_LOAD, CAUSE_OTHER, 0, "%s", err.msg);
    return err.outside ? STAGE_RETRY : STAGE_REFUSE;
}
