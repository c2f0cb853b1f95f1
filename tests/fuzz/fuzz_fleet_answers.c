/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_fleet_answers.c - any bytes as what a fleet's database answers to everything but rows of
 * kernels: who is there, leases, counts, lists, numbers of rows. Answers are apart by a line with a
 * '%', their rows by ends of lines, columns by tabs; one that begins with '!' failed. Whatever
 * comes, a lease is one that was asked for, pauses are not below none, and what is shown is JSON of
 * plain texts and bounded numbers.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/fleet/fleet_private.h"

enum { CELLS = 16, LINES = 256 };

/* The answer that was given last, cut in place; what is left. */
static char *cell[LINES][CELLS], *left;

static const char *table_value(const struct fleet_rows *rows, int row, int column)
{
    return row >= 0 && row < rows->n && column < CELLS && cell[row][column] ? cell[row][column]
                                                                            : "";
}

static void table_free(struct fleet_rows *rows)
{
    *rows = (struct fleet_rows){.n = 0};
}

/* Cuts `text` at the first `at`; what is behind it, or NULL. */
static char *cut(char *text, char at)
{
    char *end = strchr(text, at);
    if (end)
        *end++ = 0;
    return end;
}

static int table_run(struct fleet_db *db, double seconds, const char *sql, const char *const *value,
                     int n, struct fleet_rows *rows, struct err *err)
{
    (void)db, (void)seconds, (void)sql, (void)value, (void)n;
    char *line = left;
    left = left ? cut(left, '%') : NULL;
    if (!line || *line == '!')
        return err_set(err, "the database says: %.40s", line ? line : "nothing");
    struct fleet_rows none;
    rows = rows ? rows : &none;
    *rows = (struct fleet_rows){.columns = CELLS};
    for (char *next; line && rows->n < LINES; line = next) {
        next = cut(line, '\n');
        memset(cell[rows->n], 0, sizeof cell[rows->n]);
        for (int c = 0; line && c < CELLS; c++) {
            cell[rows->n][c] = line;
            line = cut(line, '\t');
        }
        rows->n++;
    }
    return 0;
}

#define fleet_value table_value
#define fleet_rows_free table_free
#define fleet_db_run table_run
#include "specializer/fleet/fleet_lists.c"
#include "specializer/fleet/fleet_memory.c"
#include "specializer/fleet/fleet_pull.c"
#include "specializer/fleet/fleet_sql.c"
#include "specializer/fleet/fleet_view.c"
#include "tests/unit/specializer/fleet/memory_world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void ask_lease(struct fleet *f)
{
    static const char *const slot[] = {"mlp_out/m1", "attn/m1/c256", "head/m1"};
    enum { SLOTS = sizeof slot / sizeof *slot };
    char got[40];
    bool asked = false;
    if (fleet_take_lease(f->db, &f->self, slot, SLOTS, got, NULL) != 0)
        return;
    for (int i = 0; i < SLOTS; i++)
        asked |= strcmp(got, slot[i]) == 0;
    demand(asked || !got[0]);
}

static void ask_the_rest(struct fleet *f)
{
    bool entered;
    int64_t n;
    fleet_beat(f->db, &f->self, true, 3, &entered, NULL);
    fleet_given(f->db, &n, NULL);
    fleet_renumber(f->db, "env", &n, NULL);
    fleet_prune(f->db, "env", &n, NULL);
}

/* What operators see of it. */
static void is_shown(struct fleet *f)
{
    cJSON *o = fleet_json(f, true);
    char *text = cJSON_PrintUnformatted(o);
    for (const char *c = text; *c; c++)
        demand(*c >= 0x20 && *c < 0x7f);
    cJSON *again = cJSON_Parse(text);
    demand(again != NULL);
    cJSON_Delete(again);
    cJSON_Delete(o);
    free(text);
}

static void look(struct fleet *f)
{
    f->servers = 0;
    f->view_due_ns = 0;
    if (fleet_look(f, NULL) != 0)
        return;
    demand(f->servers >= 0 && f->servers <= 1000000);
    demand(f->view_due_ns >= f->view_ns - 1000000000);
    demand(fleet_hearing_spread(f->servers) >= 0 && fleet_listen_pause(f->servers) > 0);
    is_shown(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct dispatch *slots;
    char *text = xmalloc(size + 1);
    slots = slots ? slots : dispatch_open_names();
    struct fleet *f = memory_open(slots);
    f->texts = true;
    f->back = INT64_MAX;
    memcpy(text, data, size);
    text[size] = 0; /* libpq's values end with NUL, and have none inside */
    log_set_level(LOG_ERROR);
    left = text;
    ask_lease(f);
    look(f);
    fleet_pull_all(f, NULL);
    ask_the_rest(f);
    is_shown(f);
    cJSON_Delete(f->view);
    memory_close(f);
    free(text);
    return 0;
}
