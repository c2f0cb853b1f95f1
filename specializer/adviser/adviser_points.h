/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_points.h - how the points of a space are told to a language model: templates with what
 * can vary in them, candidates with their ties, what is one legal change away, what other slots
 * taught. Inside of adviser_request.c.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_POINTS_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_POINTS_H

#include "specializer/adviser/adviser_request.h"

/* "templates" of `o`: knobs with the values that occur in the space; one that cannot vary has
 * `only` instead, one that no prediction depends on is `blind`. `help`: with what they mean. */
void adviser_put_templates(const struct space *s, bool help, cJSON *o);
/* "candidates" of `region`: down the ranking, up to `most`, untried; points of a family that are
 * predicted alike are one. */
void adviser_put_candidates(const struct advice_request *r, const struct advice *ranking, int most,
                            cJSON *region);
/* "steps" of `o`: for each knob the other values that it can have in this point. */
void adviser_put_values(const struct space *s, int32_t id, cJSON *o);
/* "steps" of `o`: the points one change away with their speeds or predicted times. */
void adviser_put_steps(const struct advice_request *r, int32_t id, cJSON *o);
/* "lessons" of `region`: up to `most` results of other slots. */
void adviser_put_lessons(const struct advice_request *r, int most, cJSON *region);

/* True if the space has points of `t`. */
bool adviser_has_template(const struct space *s, const struct template *t);
void adviser_put_number(cJSON *o, const char *name, double v);
void adviser_put_microseconds(cJSON *o, const char *name, double seconds);
void adviser_put_id(const struct space *s, cJSON *o, const char *name, int32_t id);
cJSON *adviser_add_object(cJSON *list);

#endif
