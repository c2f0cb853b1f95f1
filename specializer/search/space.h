/* SPDX-License-Identifier: Apache-2.0 */
/* space.h - the legal points of every kernel template (candidate/template.h), for one slot.
 *
 * A space has the templates of one machine only, which the facts name. It lists the legal points
 * of all templates of a slot's region as ids 0 .. size-1, each with a predicted time. Nothing but
 * the predictions changes once it is open. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_SEARCH_SPACE_H
#define WHET_SPECIALIZER_SEARCH_SPACE_H

#include "specializer/candidate/template.h"

struct cost;

enum { SPACE_MOST = 60000, RAW_MOST = 4000000 };

struct space;

/* Under NUMERICS_BIT_EQUAL only points that declare the eager kernel's bits are in it. More than
 * SPACE_MOST legal points are thinned evenly on a CPU; on a GPU, and of a template with more than
 * RAW_MOST combinations of knob values, what lies within three knobs of its start or default is in
 * it and an even sample of the rest. May be empty. */
struct space *space_open(const struct facts *f, enum region region, int m, enum numerics numerics);
/* Without `starts` as if the templates had no START rows: what is sampled lies about defaults
 * alone. */
struct space *space_open_starts(const struct facts *f, enum region region, int m,
                                enum numerics numerics, bool starts);
/* A space of exactly these points: one that was written down, whatever space_open() would sample
 * today. NULL if two are the same or one is not legal. */
struct space *space_listed(const struct facts *f, const struct template *const *t,
                           const struct point *p, int n);
/* Leaves only the points whose byte in keep[size] is not 0: studies of a part of a space. Ids
 * change; for the sole owner, before anything else knows them. */
void space_keep(struct space *s, const unsigned char *keep);
/* The same points with predictions of its own. */
struct space *space_copy(const struct space *s);
/* Another owner: it takes one space_close() more. */
struct space *space_share(struct space *s);
void space_close(struct space *s);

int space_size(const struct space *s);
const struct facts *space_facts(const struct space *s);
const struct template *space_template(const struct space *s, int32_t id);
void space_point(const struct space *s, int32_t id, struct point *out);
/* -1: none of the space's, as a language model's kernel never is. */
int32_t space_find(const struct space *s, const struct template *t, const struct point *p);
/* The point's family, 0 .. space_families()-1: its template and the FAMILY rows of
 * kernels/roles.def. Points of one family differ in degree, families differ in kind. */
int space_family(const struct space *s, int32_t id);
int template_family(const struct template *t, const struct point *p);
int space_families(void);
/* Knobs in which two points differ; more than KNOBS_MAX for points of different templates. */
int space_distance(const struct space *s, int32_t a, int32_t b);
/* Points that differ from `id` in one knob, which has the next higher or lower value that is legal
 * there. Writes at most 2 * KNOBS_MAX ids, returns how many. */
int space_neighbours(const struct space *s, int32_t id, int32_t *out);

/* Predicted seconds of one run; and all of them anew after the cost model learned. `cost` is
 * borrowed until the next time. */
double space_predicted(const struct space *s, int32_t id);
void space_predict(struct space *s, const struct cost *cost);
/* The model that made the predictions; NULL before there are any. */
const struct cost *space_cost(const struct space *s);
/* Sorts ids by predicted time, fastest first. */
void space_sort(const struct space *s, int32_t *id, int n);

#endif
