/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_pull.c - what other servers wrote, page by page, into memory and the store.
 *
 * Rows have numbers that grow, so what is new is what is above the last number. What was there when
 * the connection began is read from the newest on, in as many turns as it takes.
 */
#include <stdlib.h>
#include <string.h>

#include "specializer/fleet/fleet_private.h"
#include "specializer/transfer/transfer.h"

enum { PAGES_MOST = 40 }; /* of one turn */

static int64_t number_of(const struct fleet_rows *rows, int row)
{
    return row >= 0 && row < rows->n ? atoll(fleet_value(rows, row, FLEET_SEQ)) : 0;
}

/* Rows that were there when the connection began, the newest first: of too many they are what is
 * kept, and what a server that joins hears first. */
static int pull_old_kernels(struct fleet *f, struct err *err)
{
    struct fleet_rows rows;
    for (int page = 0; page < PAGES_MOST && f->back > 0; page++) {
        if (fleet_pull_back(f->db, &f->self, f->back, &rows, err) != 0)
            return -1;
        int64_t first = number_of(&rows, 0), last = number_of(&rows, rows.n - 1);
        int n = rows.n;
        fleet_take_rows(f, &rows);
        fleet_rows_free(&rows);
        if (n > 0 && (last > first || first >= f->back || last <= 0))
            return err_set(err, "rows come in no order");
        if (f->back == INT64_MAX)
            f->seq = first;
        f->back = n < FLEET_PAGE ? 0 : last;
    }
    return 0;
}

static int pull_kernels(struct fleet *f, struct err *err)
{
    struct fleet_rows rows;
    if (f->back == INT64_MAX) /* what is new begins where they begin */
        return pull_old_kernels(f, err);
    for (int page = 0; page < PAGES_MOST; page++) {
        if (fleet_pull(f->db, &f->self, f->seq, &rows, err) != 0)
            return -1;
        int n = rows.n;
        int64_t last = number_of(&rows, n - 1);
        fleet_take_rows(f, &rows);
        fleet_rows_free(&rows);
        if (n > 0 && last <= f->seq)
            return err_set(err, "rows come in no order");
        f->seq = n > 0 ? last : f->seq;
        if (n < FLEET_PAGE)
            break;
    }
    return pull_old_kernels(f, err);
}

int fleet_pull_wrong(struct fleet *f, struct err *err)
{
    struct fleet_rows rows;
    if (fleet_pull_retractions(f->db, &f->self, f->retraction_seq, &rows, err) != 0)
        return -1;
    if (rows.n > 0) {
        f->retraction_seq = atoll(fleet_value(&rows, rows.n - 1, 0));
        fleet_heard(f);
    }
    fleet_take_retractions(f, &rows);
    fleet_rows_free(&rows);
    return 0;
}

/* Takes a kernel's text from the database through the same checks as an import. */
static void take_text(struct fleet *f, const char *body)
{
    struct err err = {""};
    char *one = xasprintf("{\"whet_store\":%d,\"kernels\":[%s]}", (int)EXPORT_VERSION, body);
    int taken = -1;
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        taken = store_import(f->store, one, strlen(one), "fleet", &err);
    pthread_mutex_unlock(&f->in_use);
    free(one);
    if (taken > 0) {
        atomic_fetch_add(&f->taken, 1);
        atomic_store(f->imported, true);
    } else {
        fleet_refuse(f, "", taken < 0 ? err.msg : "a text that breaks a rule");
    }
}

static int pull_texts(struct fleet *f, struct err *err)
{
    struct fleet_rows rows;
    if (!f->texts)
        return 0;
    if (fleet_pull_texts(f->db, &f->self, f->text_seq, &rows, err) != 0)
        return -1;
    for (int i = 0; i < rows.n; i++)
        take_text(f, fleet_value(&rows, i, 1));
    if (rows.n > 0)
        f->text_seq = atoll(fleet_value(&rows, rows.n - 1, 0));
    fleet_rows_free(&rows);
    return 0;
}

int fleet_pull_all(struct fleet *f, struct err *err)
{
    return fleet_pull_wrong(f, err) != 0 || pull_kernels(f, err) != 0 ? -1 : pull_texts(f, err);
}
