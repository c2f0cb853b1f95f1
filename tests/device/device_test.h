/* SPDX-License-Identifier: Apache-2.0 */
/* device_test.h - the device suite: what its files share. One process, one device, no framework:
 * a check that fails prints what was expected and is counted; the exit status says whether any did.
 */
#ifndef WHET_TESTS_DEVICE_DEVICE_TEST_H
#define WHET_TESTS_DEVICE_DEVICE_TEST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/backend.h"
#include "engine/quant.h"

extern const struct backend_ops whet_backend_cuda;

/* Counts one check; prints when it fails (always: also when it passes). */
void check(bool ok, bool always, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

extern int checks_made, checks_failed;
extern const char *part_of; /* only shapes whose names have this in them */

extern bool brief; /* under a tool: some contexts, batches and slots, every kernel once */

/* A backend with its dispatch table. */
struct rig {
    const struct backend_ops *ops;
    struct model *model;
    struct backend *b;
    struct dispatch *d;
};
struct shape_row {
    const char *name;
    struct model_shape shape;
};
extern const struct shape_row device_shapes[];
extern const int device_shape_count;

bool rig_open(struct rig *r, const struct backend_ops *ops, struct model *m, int32_t pages,
              int32_t tokens, int32_t rows);
/* cuda, with an arena for repacked weights. */
bool rig_open_with(struct rig *r, struct model *m, int32_t pages, int32_t tokens, int32_t rows,
                   int64_t pack_bytes);
void rig_close(struct rig *r);
/* "sm_90a": what NVRTC is asked for on this device. Valid until the next call. */
const char *rig_arch(const struct rig *r);

/* A step and everything behind its pointers. */
enum { STEP_TOKENS = 512, STEP_ROWS = 128, STEP_TABLE = 4096 };
struct made_step {
    struct step step;
    int32_t tokens[STEP_TOKENS], position[STEP_TOKENS], kv_at[STEP_TOKENS];
    int32_t row[STEP_ROWS], table[STEP_TABLE];
    struct span span[STEP_TOKENS];
    struct sample_row sample[STEP_ROWS];
};
/* load.c: three known models whole. */
enum { REAL_SHAPES = 3 };
extern const struct shape_row real_shapes[REAL_SHAPES];
/* The template of a region for m tokens at the point its START row names, compiled and loaded; NULL
 * (counted as failed) if that cannot be. */
const struct kernel *load_start(struct rig *r, enum region region, int32_t m);
/* The same of template `id` at a legal point by chance, which moves on with *seed; also NULL where
 * there is none. */
const struct kernel *load_any(struct rig *r, const char *id, int32_t m, uint32_t *seed);

/* The starts of all slots of decodes of m[i] sequences, compiled by all cores from when it begins.
 */
struct starts *starts_begin(struct rig *r, const int32_t *m, int sizes, int32_t context);
/* That of slot number `slot` of the rig's table; NULL: it has none, or (counted as failed) it
 * cannot be built or loaded. */
const struct kernel *starts_load(struct starts *s, struct rig *r, int slot);
void starts_end(struct starts *s);

/* Nothing in it yet, with the pointers set. */
void step_begin(struct made_step *b);

bool file_write(const char *path, const void *data, size_t bytes);
/* Relative RMS of a from b, [n]. */
double logits_difference(const float *a, const float *b, int64_t n);

/* The verdict of the whole admission: 0, or -1 with the reason (admit.c). */
struct check_range;
struct check_result;
int admit(const struct model *model, const char *object, const struct check_range *range,
          struct check_result *result, struct err *e);

/* Deterministic numbers. */
uint64_t rng(uint64_t *state);
float rng_normal(uint64_t *state);
/* [n], rounded to what bf16 has if `bf16`; to be freed. */
float *rng_normals(uint64_t *state, int64_t n, bool bf16);

/* MODEL TOKENS OUT (logits.c); exit status. */
int logits_main(char **argv);

/* products.c: from now on no product is the library's. */
bool test_device_plain_products(const char *root, const char *arch);

/* MODEL (greedy.c); exit status. */
int greedy_main(const char *path);

void test_regions(void);
void test_steps(void);
void test_steps_of(const struct shape_row *row, enum dtype type);
/* The same of a model whose layers are in two formats. */
void test_steps_mixed(const struct shape_row *row, enum dtype type, enum dtype more);
void test_formats(void);
void test_ahead(void);
void test_sampler(void);
void test_kernels(void);
void test_prefill(void);
void test_templates(void);
void test_graphs(void);
void test_probe(void);
void test_probe_formats(void);
void test_agent_device(void);
void test_lt(void);

#endif
