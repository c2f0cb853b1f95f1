/* SPDX-License-Identifier: Apache-2.0 */
/* operators.h - what answers to operators share: admin.c for what they see, operators.c for what
 * they change, status.c for the dashboard. Any thread. */
#ifndef WHET_SPECIALIZER_OPERATORS_H
#define WHET_SPECIALIZER_OPERATORS_H

#include <cjson/cJSON.h>

#include "specializer/specializer.h"

struct slot_search;

extern const char *const mode_names[]; /* of enum specializer_mode, as the store has them */

/* ANSWER_DONE with `o` as text; frees o. *text is the caller's to free, here and below. */
enum specializer_answer answer_json(cJSON *o, char **text);
/* `why`, with what it says in words. */
enum specializer_answer answer_refuse(enum specializer_answer why, char **text, const char *fmt,
                                      ...) __attribute__((format(printf, 3, 4)));
/* True, with a message, as long as there are no slots to speak of. */
bool answer_loading(struct specializer *s, char **text);
/* That there is no such slot; where it has format classes, which slots there are instead. */
enum specializer_answer answer_no_slot(const struct specializer *s, const char *slot, char **text);

/* Under s->lock. */
cJSON *slot_json_locked(struct specializer *s, const struct slot_search *p);
cJSON *slots_json_locked(struct specializer *s);
/* Layers that stay eager because their region has more format classes than have slots. */
cJSON *layers_without_slots_json(const struct specializer *s);

#endif
