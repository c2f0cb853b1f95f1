/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_send.c - what the store learned, to the others.
 *
 * The store is the queue: its trace names every candidate that moved, so what happened while the
 * database was away is sent when it is back, and nothing has to be kept for that. After each
 * connect all of this environment goes out once, slot by slot; rows that are there already do not
 * change.
 */
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/agent/agent_source.h"
#include "specializer/candidate/life.h"
#include "specializer/fleet/fleet_private.h"
#include "specializer/store/store_json.h"
#include "specializer/transfer/export_text.h"

enum { BATCH = 100, CHANGES = 500, WINNERS_BEFORE = 2 };

struct outgoing {
    struct fleet *f;
    cJSON *kernels, *texts; /* rows of fleet_publish(), rows of an export */
    bool news;
};

/* What is of use to others: it is being tried, was measured, or refused for what it is. */
static bool worth_telling(const struct record *r)
{
    return template_find(r->template) && r->state != LIFE_DISABLED && r->deaths == 0 &&
           r->served_deaths == 0 &&
           (r->evidence.speed > 0 || r->state == LIFE_REFUSED || r->state == LIFE_PROPOSED);
}

static void gather(void *ctx, const struct record *r)
{
    struct outgoing *o = ctx;
    if (strcmp(r->env, o->f->self.env) != 0)
        return;
    fleet_compare(o->f, r);
    if (worth_telling(r)) {
        cJSON_AddItemToArray(o->kernels, fleet_kernel_json(r));
        o->news |= r->state == LIFE_ACTIVE || r->state == LIFE_PROPOSED;
    } else if (o->f->texts && life_admitted(r->state) && agent_template_find(r->template)) {
        cJSON_AddItemToArray(o->texts, record_json(r));
    }
}

/* -1 is more than 1, and 1 more than 0. */
static int worse(int a, int b)
{
    return a < 0 || b < 0 ? -1 : a | b;
}

bool fleet_row_refused(const struct fleet *f)
{
    const char *state = fleet_db_state(f->db);
    return strncmp(state, "22", 2) == 0 || strncmp(state, "23", 2) == 0;
}

/* 1 if the statement failed for what is in its row; else -1. */
static int how_failed(const struct fleet *f)
{
    return fleet_row_refused(f) ? 1 : -1;
}

static int send_texts(struct outgoing *o, struct err *err)
{
    cJSON *row;
    int r = 0;
    cJSON_ArrayForEach(row, o->texts)
    {
        export_text(o->f->store, row);
        char *body = cJSON_PrintUnformatted(row);
        if (r >= 0 && row_text(cJSON_GetObjectItemCaseSensitive(row, "agent"), "text")[0] &&
            fleet_publish_text(o->f->db, &o->f->self, row_text(row, "slot"),
                               row_text(row, "source_hash"), body, err) != 0)
            r = worse(r, how_failed(o->f));
        free(body);
    }
    return r;
}

/* One that is refused costs the others of its batch nothing. */
static int send_batch(struct outgoing *o, cJSON *batch, struct err *err)
{
    int n = cJSON_GetArraySize(batch), r = 0;
    if (fleet_publish(o->f->db, &o->f->self, batch, o->news && fleet_may_notify(o->f), err) == 0) {
        atomic_fetch_add(&o->f->sent, (uint64_t)n);
        return 0;
    }
    if (n == 1 || how_failed(o->f) < 0)
        return how_failed(o->f);
    while (r >= 0 && cJSON_GetArraySize(batch) > 0) {
        cJSON *one = cJSON_CreateArray();
        cJSON_AddItemToArray(one, cJSON_DetachItemFromArray(batch, 0));
        r = worse(r, send_batch(o, one, err));
        cJSON_Delete(one);
    }
    return r;
}

/* What was gathered, in batches; and frees it. 0, -1 or 1 as fleet_send_all(). */
static int send(struct outgoing *o, struct err *err)
{
    int r = 0, n;
    while (r >= 0 && (n = cJSON_GetArraySize(o->kernels)) > 0) {
        cJSON *batch = cJSON_CreateArray();
        for (int i = 0; i < n && i < BATCH; i++)
            cJSON_AddItemToArray(batch, cJSON_DetachItemFromArray(o->kernels, 0));
        r = worse(r, send_batch(o, batch, err));
        cJSON_Delete(batch);
    }
    if (r >= 0)
        r = worse(r, send_texts(o, err));
    cJSON_Delete(o->kernels);
    cJSON_Delete(o->texts);
    return r;
}

int fleet_send_all(struct fleet *f, struct err *err)
{
    int r = 0;
    while (f->all_due && r >= 0 && !atomic_load(&f->stop)) {
        if (f->all_slot == dispatch_slots(f->slots)) {
            f->all_due = false;
            break;
        }
        struct outgoing o = {f, cJSON_CreateArray(), cJSON_CreateArray(), false};
        struct record_filter of = {.env = f->self.env,
                                   .slot = dispatch_slot_at(f->slots, f->all_slot)->name,
                                   .limit = ROWS_OF_SLOT};
        pthread_mutex_lock(&f->in_use);
        if (!atomic_load(&f->stop))
            store_each(f->store, &of, gather, &o, NULL);
        pthread_mutex_unlock(&f->in_use);
        r = worse(r, send(&o, err));
        f->all_slot += r >= 0;
    }
    return r;
}

static void gather_key(void *ctx, const char *key)
{
    struct outgoing *o = ctx;
    struct record r;
    if (store_get(o->f->store, key, &r, NULL) <= 0)
        return;
    free(r.log);
    gather(o, &r);
    /* The winner before it retired in the same transaction, which says so of the new one alone. */
    struct record_filter before = {.env = o->f->self.env,
                                   .slot = r.slot,
                                   .states = 1u << LIFE_RETIRED,
                                   .limit = WINNERS_BEFORE};
    if (r.state == LIFE_ACTIVE)
        store_each(o->f->store, &before, gather, o, NULL);
}

int fleet_send_changed(struct fleet *f, struct err *err)
{
    struct outgoing o = {f, cJSON_CreateArray(), cJSON_CreateArray(), false};
    int64_t before = f->trace_id;
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        store_moved(f->store, &f->trace_id, CHANGES, gather_key, &o, NULL);
    pthread_mutex_unlock(&f->in_use);
    int r = send(&o, err);
    if (r < 0)
        f->trace_id = before;
    return r;
}
