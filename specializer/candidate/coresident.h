/* SPDX-License-Identifier: Apache-2.0 */
/* coresident.h - the kernels that serve around one in a step: those of other regions at the same M.
 *
 * Whole steps are fast or slow with a kernel among these, so a verdict on time names them. Plain
 * data, no thread of its own.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_CORESIDENT_H
#define WHET_SPECIALIZER_CANDIDATE_CORESIDENT_H

#include <cjson/cJSON.h>

#include "engine/dispatch.h"

/* Every slot of an M bucket fits. */
enum { CORESIDENTS_MOST = REGION_NODES * FORMAT_CLASSES + CONTEXT_BUCKETS };

/* Those that are not eager, in the order of the dispatch table. */
struct coresidents {
    int32_t n;
    struct coresident {
        char slot[40];
        char key[9]; /* the beginning of the kernel's id */
    } kernel[CORESIDENTS_MOST];
};

/* Adds what is in the slot now, unless that is eager. */
void coresidents_add(struct coresidents *set, const struct slot *slot);
/* Equal for sets of the same kernels in the same slots. */
uint64_t coresidents_hash(const struct coresidents *set);
/* Beside the slot serves what the set has there: the same kernel, or eager. */
bool coresidents_has(const struct coresidents *set, const struct slot *slot);
/* {"mlp_in/m8": "01234567"}; reading takes anything and leaves out what it cannot be. */
cJSON *coresidents_json(const struct coresidents *set);
void coresidents_read(struct coresidents *set, const cJSON *json);

#endif
