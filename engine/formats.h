/* SPDX-License-Identifier: Apache-2.0 */
/* formats.h - which layers of a region have their weights in the same formats.
 *
 * A kernel is compiled for the formats of the matrices that it reads, and quantizers give half of
 * the layers' ffn_down more bits than the other half. So the layers of a region fall into format
 * classes: those of one class have the same formats, matrix by matrix, and each class has slots of
 * its own (dispatch.h). Of a region whose layers are all alike nothing of this is seen: its class
 * is NULL here and everywhere, and has all of its runs.
 *
 * What counts on a GPU is the format that the device keeps (device_type() in plan.h), which may
 * depend on a step's tokens. A fused region is one kernel for two regions: it has slots only where
 * its layers are all alike in both.
 *
 * Nothing here changes once it is made; any thread.
 */
#ifndef WHET_ENGINE_FORMATS_H
#define WHET_ENGINE_FORMATS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/plan.h"

/* So many classes of a region have slots: those with the most bytes. The layers of further ones
 * stay eager. */
enum { FORMAT_CLASSES = 4, FORMAT_NAME = 24 };

struct format_class {
    char name[FORMAT_NAME]; /* "q6_k"; where matrices differ, all of them: "q4_k-q4_k-q6_k" */
    int32_t layers;         /* how many there are, */
    int32_t layer[];        /* [layers] and which, ascending */
};

/* The class's runs in a step of a model with so many layers, how many layers they are in, and
 * which. `c` NULL: all runs of region r. */
static inline int32_t class_runs(const struct format_class *c, enum region r, int32_t layers)
{
    return c ? c->layers : region_runs(r, layers);
}

static inline int32_t class_layers(const struct format_class *c, enum region r, int32_t layers)
{
    return c ? c->layers : region_info(r)->once ? 1 : layers;
}

static inline int32_t class_layer(const struct format_class *c, int32_t i)
{
    return c ? c->layer[i] : i;
}

bool class_has(const struct format_class *c, int32_t layer);
/* The place of one of its layers among them. */
int32_t class_index(const struct format_class *c, int32_t layer);

/* The formats of a region's matrices in a layer of the file, in the order of bind_weights();
 * returns how many there are. */
int region_formats(const struct model *m, enum region r, int32_t layer, enum dtype out[3]);

/* The formats that the name of a class of the region stands for; returns how many there are, 0: no
 * class of it is called so. */
int formats_parse(enum region r, const char *name, enum dtype out[3]);

/* The class of `layer` on such a machine, in steps of `tokens` tokens: how a process that has the
 * model and no dispatch table finds it. NULL: all layers are alike. To be freed with free(). */
struct format_class *class_of_layer(const struct model *m, enum machine_kind kind, enum region r,
                                    int32_t layer, int tokens);

/* All classes of a model. */
struct formats;
struct formats *formats_open(const struct model *m, enum machine_kind kind);
void formats_close(struct formats *f); /* NULL is fine */

/* How many classes of a region have slots of `tokens` tokens: at least 1, but of a fused region
 * perhaps 0. `f` NULL here and below: the layers of all regions are alike. */
int formats_classes(const struct formats *f, enum region r, int tokens);
/* Class i of them; NULL: the one class of a region whose layers are alike. */
const struct format_class *formats_class(const struct formats *f, enum region r, int tokens, int i);
/* The class with so many layers of which `layer` is the first, for whatever number of tokens; NULL:
 * there is none. */
const struct format_class *formats_find(const struct formats *f, enum region r, int32_t layer,
                                        int32_t layers);
/* The layers of a region that have no class with slots. */
int32_t formats_beyond(const struct formats *f, enum region r, int tokens);

/* Where a step keeps what is of one class: arrays of STEP_PLACES have all regions, then the second
 * classes of all regions, and so on; what is of layers without slots comes last. So a model whose
 * layers are alike has what is of region r in place r, and nothing behind REGION_NODES. */
enum { STEP_PLACES = (FORMAT_CLASSES + 1) * REGION_NODES };
int formats_place(const struct formats *f, enum region r, int32_t layer, int tokens);
/* The layer in the middle of those that share its place, of `layers` in all. */
int32_t formats_middle(const struct formats *f, enum region r, int32_t layer, int tokens,
                       int32_t layers);
static inline enum region place_region(int place)
{
    return (enum region)(place % REGION_NODES);
}

#endif
