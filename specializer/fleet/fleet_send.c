/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_send.c - what the store learned, to the others.
 *
 * The store is the queue: its trace names every candidate that moved, so what happened while the
 * database was away is sent when it is back, and nothing has to be kept for that. After each
 * connect all of this environment goes out once; rows that are there already do not change.
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

static int send_texts(struct outgoing *o, struct err *err)
{
    cJSON *row;
    int r = 0;
    cJSON_ArrayForEach(row, o->texts)
    {
        export_text(o->f->store, row);
        char *body = cJSON_PrintUnformatted(row);
        if (r == 0 && row_text(cJSON_GetObjectItemCaseSensitive(row, "agent"), "text")[0])
            r = fleet_publish_text(o->f->db, &o->f->self, row_text(row, "slot"),
                                   row_text(row, "source_hash"), body, err);
        free(body);
    }
    return r;
}

/* What was gathered, in batches; and frees it. */
static int send(struct outgoing *o, struct err *err)
{
    int r = 0, n;
    while (r == 0 && (n = cJSON_GetArraySize(o->kernels)) > 0) {
        cJSON *batch = cJSON_CreateArray();
        for (int i = 0; i < n && i < BATCH; i++)
            cJSON_AddItemToArray(batch, cJSON_DetachItemFromArray(o->kernels, 0));
        atomic_fetch_add(&o->f->sent, (uint64_t)cJSON_GetArraySize(batch));
        r = fleet_publish(o->f->db, &o->f->self, batch, o->news, err);
        cJSON_Delete(batch);
    }
    if (r == 0)
        r = send_texts(o, err);
    cJSON_Delete(o->kernels);
    cJSON_Delete(o->texts);
    return r;
}

int fleet_send_all(struct fleet *f, struct err *err)
{
    for (int i = 0; i < dispatch_slots(f->slots) && !atomic_load(&f->stop); i++) {
        struct outgoing o = {f, cJSON_CreateArray(), cJSON_CreateArray(), false};
        struct record_filter of = {
            .env = f->self.env, .slot = dispatch_slot_at(f->slots, i)->name, .limit = ROWS_OF_SLOT};
        pthread_mutex_lock(&f->in_use);
        if (!atomic_load(&f->stop))
            store_each(f->store, &of, gather, &o, NULL);
        pthread_mutex_unlock(&f->in_use);
        if (send(&o, err) != 0)
            return -1;
    }
    return 0;
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
    const char *state = fleet_db_state(f->db);
    /* Again, with the next try; unless it is the rows that are refused (SQL's classes 22 and 23).
     */
    if (r != 0 && strncmp(state, "22", 2) != 0 && strncmp(state, "23", 2) != 0)
        f->trace_id = before;
    return r;
}
