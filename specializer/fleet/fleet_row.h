/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_row.h - what another server says of a point, as far as this program can make sense of it.
 *
 * A row of the database is untrusted text. What is kept of it is a slot, a template and a point
 * that this program has itself, and numbers within bounds; the rest is refused by name. Nothing of
 * it is evidence: a row only says what to try first, and what later. Any thread.
 */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_ROW_H
#define WHET_SPECIALIZER_FLEET_FLEET_ROW_H

#include "specializer/candidate/record.h"

/* The columns of a row, in the order in which statements ask for them. */
enum fleet_column {
    FLEET_SEQ,
    FLEET_KEY,
    FLEET_SERVER,
    FLEET_SLOT,
    FLEET_TEMPLATE,
    FLEET_SOURCE,
    FLEET_KNOBS,
    FLEET_STATE,
    FLEET_OWN_S,
    FLEET_SPEED,
    FLEET_COLUMNS
};
#define FLEET_COLUMN_NAMES "seq, key, server, slot, template, source, knobs, state, own_s, speed"

struct fleet_row {
    char key[KEY_HEX + 1], server[KEY_HEX + 1], source[KEY_HEX + 1];
    const struct template *template;
    struct point point;
    enum life state;
    double own_s;   /* median of one run there; 0: was not measured */
    double speed;   /* over eager there; 0: was not measured */
    bool compared;  /* with what was measured here (fleet_compare()) */
    int64_t seq;    /* its number in the database: what was said later has a higher one */
    int64_t serial; /* grows with each row that was taken (fleet.c) */
};

/* One row into `out`, its slot as an index of `slots`. -1 with the column that is wrong. */
int fleet_row_read(const char *const value[FLEET_COLUMNS], struct dispatch *slots,
                   struct fleet_row *out, int *slot, struct err *err);
/* It served somewhere. */
bool fleet_row_won(const struct fleet_row *r);
/* It is on its way there. A server that dies says no more: after so long others may try it. */
bool fleet_row_on_trial(const struct fleet_row *r);
#define FLEET_TRIAL_S 120.0
/* It was measured somewhere and no stage refused it: a first candidate, if it is fast enough. Its
 * server may still be waiting for live steps. */
bool fleet_row_offered(const struct fleet_row *r);
/* True for 16 lower-case hexadecimal digits. */
bool fleet_is_key(const char *text);

#endif
