/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_fleet_rows.c - any bytes as what a fleet's database answers: rows of kernels, and of
 * retractions. A line is a row and its columns have tabs between them; one that begins with '!' is
 * a retraction. What is kept lies within this program's own slots, templates and points, and within
 * bounds, however much is sent.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/fleet/fleet_db.h"
#include "specializer/fleet/fleet_row.h"

enum { CELLS = 16, LINES = 256 };

/* The rows of an answer: lines of `text`, whose tabs and ends of lines are NUL. */
static char *cell[LINES][CELLS];

static const char *table_value(const struct fleet_rows *rows, int row, int column)
{
    return row < rows->n && column < CELLS && cell[row][column] ? cell[row][column] : "";
}

#define fleet_value table_value
#include "specializer/fleet/fleet_memory.c"
#include "tests/unit/specializer/fleet/memory_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void cut(char *line, int row)
{
    memset(cell[row], 0, sizeof cell[row]);
    for (int i = 0; line && i < CELLS; i++) {
        cell[row][i] = line;
        line = strchr(line, '\t');
        if (line)
            *line++ = 0;
    }
}

/* Lines of one kind are one answer, as many as follow each other. */
static void take(struct fleet *f, char *text)
{
    struct fleet_rows rows = {.columns = CELLS};
    bool retractions = false;
    for (char *next; text; text = next) {
        next = strchr(text, '\n');
        if (next)
            *next++ = 0;
        if (rows.n == LINES || (rows.n > 0 && retractions != (text[0] == '!'))) {
            (retractions ? fleet_take_retractions : fleet_take_rows)(f, &rows);
            rows.n = 0;
        }
        retractions = text[0] == '!';
        cut(text + retractions, rows.n++);
    }
    (retractions ? fleet_take_retractions : fleet_take_rows)(f, &rows);
}

/* Every knob has one of its values: the point is written, and read again, as the same. */
static void point_is_ours(const struct template *t, const struct point *p)
{
    char text[sizeof((struct record *)0)->knobs];
    struct point again;
    point_text(t, p, text, sizeof text);
    demand(point_parse(t, text, &again, NULL) == 0);
    demand(memcmp(again.value, p->value, (size_t)t->knobs * sizeof *p->value) == 0);
}

static void row_is_bounded(const struct fleet_row *r, const struct slot *slot)
{
    demand(fleet_is_key(r->key) && fleet_is_key(r->server) && fleet_is_key(r->source));
    demand(r->template && template_fits(r->template, r->template->machine, slot->region, slot->m));
    demand(r->state < LIFE_COUNT);
    demand(isfinite(r->own_s) && r->own_s >= 0 && isfinite(r->speed) && r->speed >= 0);
    demand(!fleet_row_won(r) || fleet_row_offered(r));
    demand(!fleet_row_on_trial(r) || !fleet_row_won(r));
    point_is_ours(r->template, &r->point);
}

static void look_at(void *ctx, const struct fleet_row *r)
{
    int64_t *serial = ctx;
    demand(r->serial > *serial);
    *serial = r->serial;
}

static void what_is_kept_is_bounded(struct fleet *f)
{
    for (int s = 0; s < dispatch_slots(f->slots); s++) {
        const struct slot *slot = dispatch_slot_at(f->slots, s);
        int64_t serial = 0;
        demand(f->rows[s].n <= ROWS_OF_SLOT);
        for (int i = 0; i < f->rows[s].n; i++)
            row_is_bounded(&f->rows[s].row[i], slot);
        if (f->rows[s].n > 0)
            fleet_each(f, slot->name, 0, 0, look_at, &serial);
    }
    demand(f->suspects <= SUSPECTS_MOST && f->poisons <= WRONG_SHOWN && f->peers <= PEERS_MOST);
    for (int i = 0; i < f->poisons; i++)
        demand(strlen(f->poison[i]) < FLEET_WORD);
    struct fleet_suspect x;
    while (fleet_suspect_next(f, &x)) {
        demand(fleet_is_key(x.key) && strlen(x.slot) < sizeof x.slot);
        demand(strlen(x.by) < sizeof x.by && strlen(x.reason) < sizeof x.reason);
        demand(fleet_retracted(f, x.key, x.came_ns - 1) && strlen(x.at) < sizeof x.at);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dispatch *slots;
    char *text = xmalloc(size + 1);
    slots = slots ? slots : dispatch_open_names();
    struct fleet *f = memory_open(slots);
    memcpy(text, data, size);
    text[size] = 0; /* libpq's values end with NUL, and have none inside */
    log_set_level(LOG_ERROR);
    take(f, text);
    what_is_kept_is_bounded(f);
    /* This server measures what the first of them told of. */
    struct record own = {.evidence.speed = 1};
    for (int s = 0; s < dispatch_slots(f->slots); s++)
        if (f->rows[s].n > 0) {
            snprintf(own.slot, sizeof own.slot, "%s", dispatch_slot_at(f->slots, s)->name);
            snprintf(own.key, sizeof own.key, "%s", f->rows[s].row[0].key);
            fleet_compare(f, &own);
        }
    what_is_kept_is_bounded(f);
    memory_close(f);
    free(text);
    return 0;
}
