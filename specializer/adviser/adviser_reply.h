/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_reply.h - what a language model answered, checked into the structure that the heuristic
 * fills too.
 *
 * The form is version 1 of docs/adviser.md and nothing else: one JSON document, alone or in one
 * Markdown fence. Whatever is unknown, missing, repeated or of another type rejects the whole
 * reply; half of an answer from somebody who does not keep to the form is worth nothing. But an id
 * that is not in the space voids itself alone: fifteen points that are meant and one slip are no
 * reason to ask again. Pure functions; no thread, no I/O.
 */
#ifndef WHET_SPECIALIZER_ADVISER_ADVISER_REPLY_H
#define WHET_SPECIALIZER_ADVISER_ADVISER_REPLY_H

#include "specializer/adviser/adviser.h"

enum { REPLY_VERSION = 1, REPLY_BYTES_MOST = 256 * 1024, REPLY_DEPTH_MOST = 8 };
enum { NOTE_CHARS_MOST = 200, RISKS_MOST = 64 };

/* Why a reply was rejected: constant, name in metrics and verdicts. */
#define REPLY_FAULT_LIST(F)             \
    F(EMPTY, "empty")                   \
    F(TOO_LARGE, "too_large")           \
    F(NOT_TEXT, "not_text")             \
    F(TOO_DEEP, "too_deep")             \
    F(SYNTAX, "syntax")                 \
    F(TRAILING, "trailing_text")        \
    F(DUPLICATE_KEY, "duplicate_key")   \
    F(WRONG_VERSION, "version")         \
    F(UNKNOWN_FIELD, "unknown_field")   \
    F(MISSING_FIELD, "missing_field")   \
    F(TYPE, "type")                     \
    F(UNKNOWN_REGION, "unknown_region") \
    F(UNKNOWN_ID, "unknown_id")         \
    F(REPEATED, "repeated")             \
    F(UNKNOWN_KNOB, "unknown_knob")     \
    F(UNKNOWN_VALUE, "unknown_value")   \
    F(UNKNOWN_KIND, "unknown_kind")     \
    F(TOO_LONG, "too_long")

enum reply_fault {
#define F(id, name) REPLY_##id,
    REPLY_FAULT_LIST(F)
#undef F
        REPLY_FAULTS
};
const char *reply_fault_name(enum reply_fault f);

/* What one region of a reply may speak about. */
struct reply_terms {
    const char *region;
    const void *ctx;
    /* The point that an id names, or -1: not in the space. */
    int32_t (*find)(const void *ctx, const char *id);
    /* Values of a knob into out[KNOB_VALUES]: of one template, or if that is NULL of all; how many,
     * 0: there is no such knob. */
    int (*values)(const void *ctx, const char *template, const char *knob, int32_t *out);
};

/* Reads advice on `regions` regions; out[i] is filled for terms[i] (zeroed if the reply does not
 * speak of it). Ids that are not in the space, or are repeated, are left out and named in `err`; a
 * list of which no id is left rejects the reply. 0; or -1 with nothing in `out`, the fault and a
 * sentence. */
int adviser_reply_parse(const char *text, size_t n, const struct reply_terms *terms, int regions,
                        struct advice *out, enum reply_fault *fault, struct err *err);

/* The other document: sequences of knob changes for nodes of a search tree (strategy mcts).
 *   {"version":1,"nodes":[{"node":"id","changes":["ROWS=4","PACK=1"]}]}
 * Same strictness, but for the words of `changes`: what is no KNOB=value of the space is dropped,
 * and a node that is no point, while another is.
 * Returns the number of nodes (at most `most`), or -1 as above. */
int adviser_moves_parse(const char *text, size_t n, const struct reply_terms *terms,
                        struct moves *out, int most, enum reply_fault *fault, struct err *err);

#endif
