/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_row.c - see fleet_row.h. */
#include "specializer/fleet/fleet_row.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dispatch.h"
#include "specializer/candidate/life.h"

/* No run of one region takes longer, and no kernel is so much faster than eager (in SQL:
 * FLEET_SPEED_IS_ONE). */
#define RUN_S_MOST 100.0
#define SPEED_MOST 10000.0

bool fleet_is_key(const char *text)
{
    return strlen(text) == KEY_HEX && strspn(text, "0123456789abcdef") == KEY_HEX;
}

static bool number(const char *text, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out) && *out >= 0 && *out <= most;
}

static int slot_index(struct dispatch *slots, const char *name)
{
    for (int i = 0; i < dispatch_slots(slots); i++)
        if (strcmp(dispatch_slot_at(slots, i)->name, name) == 0)
            return i;
    return -1;
}

static int wrong(struct err *err, const char *column)
{
    return err_set(err, "a row with a wrong %s", column);
}

int fleet_row_read(const char *const value[FLEET_COLUMNS], struct dispatch *slots,
                   struct fleet_row *out, int *slot, struct err *err)
{
    memset(out, 0, sizeof *out);
    if (!fleet_is_key(value[FLEET_KEY]))
        return wrong(err, "key");
    if (!fleet_is_key(value[FLEET_SERVER]))
        return wrong(err, "server");
    if (!fleet_is_key(value[FLEET_SOURCE]))
        return wrong(err, "source");
    if ((*slot = slot_index(slots, value[FLEET_SLOT])) < 0)
        return wrong(err, "slot");
    int state = life_parse(value[FLEET_STATE]);
    if (state < 0)
        return wrong(err, "state");
    if (!number(value[FLEET_OWN_S], RUN_S_MOST, &out->own_s))
        return wrong(err, "time of a run");
    if (!number(value[FLEET_SPEED], SPEED_MOST, &out->speed))
        return wrong(err, "speed");
    const struct slot *of = dispatch_slot_at(slots, *slot);
    out->template = template_find(value[FLEET_TEMPLATE]);
    if (!out->template || !template_fits(out->template, out->template->machine, of->region, of->m))
        return wrong(err, "template");
    if (strlen(value[FLEET_KNOBS]) >= sizeof((struct record *)0)->knobs ||
        point_parse(out->template, value[FLEET_KNOBS], &out->point, NULL) != 0)
        return wrong(err, "point");
    out->state = (enum life)state;
    out->seq = atoll(value[FLEET_SEQ]);
    memcpy(out->key, value[FLEET_KEY], sizeof out->key);
    memcpy(out->server, value[FLEET_SERVER], sizeof out->server);
    memcpy(out->source, value[FLEET_SOURCE], sizeof out->source);
    return 0;
}

bool fleet_row_won(const struct fleet_row *r)
{
    return r->speed > 0 && (r->state == LIFE_ACTIVE || r->state == LIFE_RETIRED);
}

bool fleet_row_offered(const struct fleet_row *r)
{
    return fleet_row_won(r) ||
           (r->speed > 0 &&
            (r->state == LIFE_BENCHED || r->state == LIFE_SHADOWED || r->state == LIFE_CANARY));
}

bool fleet_row_on_trial(const struct fleet_row *r)
{
    return r->own_s <= 0 &&
           (r->state == LIFE_PROPOSED || r->state == LIFE_BUILT || r->state == LIFE_PROBED);
}
