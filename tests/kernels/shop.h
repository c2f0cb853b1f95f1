/* SPDX-License-Identifier: Apache-2.0 */
/* shop.h - what the tests of whole kernels share: a model of SmolLM2's proportions, a compiler, a
 * folder, the real build stage, and lines that say what came of each kernel. One thread. */
#ifndef WHET_TESTS_KERNELS_SHOP_H
#define WHET_TESTS_KERNELS_SHOP_H

#include "specializer/candidate/stage.h"

struct shop {
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct machine machine; /* kernels are for it; of kind MACHINE_CPU unless said otherwise */
    struct model *model;    /* two layers and a small vocabulary, Q4_1 */
    struct key_parts keys;
    char dir[40], *kernels; /* sources; objects lie in dir */
    int right, wrong;
};

/* Kernels for the CPU by the C compiler here; or for an H200 by NVRTC, in a child of `program`,
 * which is whet. 0; or -1 with a message, and nothing to close. */
int shop_open(struct shop *s, struct err *err);
int shop_open_cuda(struct shop *s, const char *program, struct err *err);
void shop_close(struct shop *s);
/* Another model instead, in weights of this format; of blocks of 256: 512 wide, with 8 heads. */
void shop_model(struct shop *s, enum dtype type);

/* The build stage, to its end; the reason is in c->reason. */
bool shop_build(struct shop *s, struct candidate *c);
/* A point of a template for a CPU, and whether it was built. To shop_drop(). */
struct candidate *shop_build_point(struct shop *s, const struct template *t, const struct point *p,
                                   const struct facts *f, bool *built);
/* Removes its object, too. */
void shop_drop(struct candidate *c);
/* A text that a language model wrote: read, and built in its frame. NULL, with the object in
 * *out (candidate_free() it); or "text" or "build": what refused it, with the words. */
const char *shop_build_text(struct shop *s, enum region region, int m, const char *text,
                            struct candidate **out, struct err *err);

/* The same without the rules for texts: what comes behind them must hold by itself. */
const char *shop_build_unread(struct shop *s, enum region region, int m, const char *text,
                              struct candidate **out, struct err *err);

/* One line on stdout; counts it. */
void shop_report(struct shop *s, bool right, const char *name, int m, const char *caught,
                 const char *words);
/* The last line, and the exit status: 0 if there was something and all of it was right. */
int shop_verdict(const struct shop *s);

#endif
