/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_view.c - what operators see of the fleet: a copy in memory, at most a few seconds old, so
 * that no page waits for the database. */
#include <limits.h>

#include "config/clock.h"
#include "config/metrics.h"
#include "config/table.h"
#include "specializer/fleet/fleet_private.h"

/* All servers together take a quarter of a core of the database for looking, as far as AT_LEAST_S
 * allows: of hundreds, each with hundreds of rows, one look takes a tenth of a second. */
#define SHARE 0.25
#define AT_LEAST_S 300.0

/* Of the newest rows, those of servers that took a heartbeat in the last minute. If all are, there
 * may be more: as many as the database counts, where that is a number of servers. */
static int servers_there(const cJSON *view)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(view, "servers"), *row;
    int n = 0;
    cJSON_ArrayForEach(row, list)
    {
        double seen_s = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(row, "seen_s"));
        n += seen_s < 60 && !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(row, "stopped"));
    }
    const cJSON *totals = cJSON_GetObjectItemCaseSensitive(view, "totals");
    double all = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(totals, "servers"));
    return n < cJSON_GetArraySize(list) || !(all > n && all < 1e6) ? n : (int)all;
}

static double pause_s(double took_s, int servers)
{
    double s = took_s * servers / SHARE;
    return s < AT_LEAST_S ? s : AT_LEAST_S;
}

int fleet_look(struct fleet *f, struct err *err)
{
    int64_t from_ns = clock_ns();
    cJSON *view = fleet_view(f->db, f->self.env, err);
    if (!view)
        return -1;
    f->servers = servers_there(view);
    double took_s = (double)(clock_ns() - from_ns) * 1e-9;
    int64_t next_ns = clock_ns() + (int64_t)(pause_s(took_s, f->servers) * 1e9);
    if (f->view_due_ns < next_ns)
        f->view_due_ns = next_ns;
    pthread_mutex_lock(&f->lock);
    cJSON_Delete(f->view);
    f->view = view;
    f->view_ns = clock_ns();
    pthread_mutex_unlock(&f->lock);
    return 0;
}

enum { SHOWN_TO_ALL = 20 };

/* The first of `list`, at most `most`. */
static cJSON *beginning(const cJSON *list, int most)
{
    cJSON *some = cJSON_CreateArray();
    const cJSON *row = list ? list->child : NULL;
    for (; row && most-- > 0; row = row->next)
        cJSON_AddItemToArray(some, cJSON_Duplicate(row, true));
    return some;
}

static void add_view(struct fleet *f, cJSON *o, bool operators)
{
    static const char *const lists[] = {"servers", "leases", "winners", "retractions"};
    cJSON *refused = cJSON_AddArrayToObject(o, "refused_rows");
    for (int i = 0; i < f->poisons; i++)
        cJSON_AddItemToArray(refused, cJSON_CreateString(f->poison[i]));
    cJSON_AddNumberToObject(o, "view_age_s",
                            f->view ? (double)(clock_ns() - f->view_ns) * 1e-9 : -1);
    cJSON *distrusted = cJSON_AddArrayToObject(o, "distrusted");
    for (int i = 0; i < f->peers; i++)
        if (fleet_distrusted(f, f->peer[i].server))
            cJSON_AddItemToArray(distrusted, cJSON_CreateString(f->peer[i].server));
    const cJSON *totals = cJSON_GetObjectItemCaseSensitive(f->view, "totals");
    cJSON_AddItemToObject(o, "totals",
                          totals ? cJSON_Duplicate(totals, true) : cJSON_CreateObject());
    for (int i = 0; i < 4; i++)
        cJSON_AddItemToObject(o, lists[i],
                              beginning(cJSON_GetObjectItemCaseSensitive(f->view, lists[i]),
                                        operators ? INT_MAX : SHOWN_TO_ALL));
}

cJSON *fleet_json(struct fleet *f, bool operators)
{
    static const char *const states[] = {"away", "online"};
    EVERY_ROW(states, FLEET_STATES);
    cJSON *o = cJSON_CreateObject();
    if (!f) {
        cJSON_AddStringToObject(o, "state", "off");
        return o;
    }
    pthread_mutex_lock(&f->lock);
    cJSON_AddStringToObject(o, "state", states[f->state]);
    cJSON_AddNumberToObject(o, "since_s", (double)(clock_ns() - f->since_ns) * 1e-9);
    cJSON_AddBoolToObject(o, "troubled", f->trouble[0] != 0);
    if (operators) /* may name hosts and users of the database */
        cJSON_AddStringToObject(o, "trouble", f->trouble);
    cJSON_AddStringToObject(o, "server", f->self.server);
    cJSON_AddStringToObject(o, "name", f->self.name);
    cJSON_AddStringToObject(o, "env", f->self.env);
    cJSON_AddNumberToObject(o, "schema", f->version);
    cJSON_AddBoolToObject(o, "listed", atomic_load(&f->listed));
    cJSON_AddBoolToObject(o, "read_only", atomic_load(&f->read_only));
    cJSON_AddStringToObject(o, "lease", f->lease_state == LEASE_HELD ? f->lease : "");
    cJSON_AddNumberToObject(o, "sent", (double)atomic_load(&f->sent));
    cJSON_AddNumberToObject(o, "taken", (double)atomic_load(&f->taken));
    cJSON_AddNumberToObject(o, "refused", (double)atomic_load(&f->refused));
    cJSON_AddNumberToObject(o, "untold", atomic_load(&f->untold));
    cJSON_AddNumberToObject(o, "suspects", (double)f->suspects);
    add_view(f, o, operators);
    pthread_mutex_unlock(&f->lock);
    return o;
}

static void value(FILE *out, const char *name, const char *type, const char *help, double v)
{
    metric_head(out, name, type, help);
    metric_value(out, name, NULL, v);
}

void fleet_metrics(struct fleet *f, FILE *out)
{
    static struct fleet nobody; /* what is counted where there is no fleet: nothing */
    bool online = false, lease = false;
    int distrusted = 0;
    if (f) {
        pthread_mutex_lock(&f->lock);
        online = f->state == FLEET_ONLINE;
        lease = f->lease_state == LEASE_HELD;
        for (int i = 0; i < f->peers; i++)
            distrusted += fleet_distrusted(f, f->peer[i].server);
        pthread_mutex_unlock(&f->lock);
    }
    f = f ? f : &nobody;
    value(out, "fleet_connected", "gauge", "1 while the database of the fleet answers", online);
    value(out, "fleet_listed", "gauge",
          "1 while the database of the fleet takes heartbeats: others see this server",
          atomic_load(&f->listed));
    value(out, "fleet_read_only", "gauge",
          "1 while the database of the fleet can only be read: another host is looked for",
          atomic_load(&f->read_only));
    value(out, "fleet_connects_total", "counter", "Connections made to the database of the fleet",
          (double)atomic_load(&f->connects));
    value(out, "fleet_errors_total", "counter",
          "Statements to the database of the fleet, and connections, that failed",
          (double)atomic_load(&f->errors));
    value(out, "fleet_lease", "gauge", "1 while this server holds a slot of the fleet to search",
          lease);
    value(out, "fleet_sent_total", "counter", "Candidates told to other servers",
          (double)atomic_load(&f->sent));
    metric_head(
        out, "fleet_rows_total", "counter",
        "Rows of other servers by outcome (dropped: one of a slot that had more than are kept)");
    metric_value(out, "fleet_rows_total", "outcome=\"taken\"", (double)atomic_load(&f->taken));
    metric_value(out, "fleet_rows_total", "outcome=\"refused\"", (double)atomic_load(&f->refused));
    metric_value(out, "fleet_rows_total", "outcome=\"dropped\"", (double)atomic_load(&f->dropped));
    metric_head(out, "fleet_retractions_total", "counter",
                "Kernels found wrong, by who found them so");
    metric_value(out, "fleet_retractions_total", "by=\"here\"",
                 (double)atomic_load(&f->retracted_here));
    metric_value(out, "fleet_retractions_total", "by=\"others\"",
                 (double)atomic_load(&f->suspected));
    value(out, "fleet_distrusted", "gauge",
          "Other servers whose speeds were not seen here: nothing of theirs is tried", distrusted);
    value(out, "fleet_untold", "gauge",
          "Words on kernels found wrong that the database of the fleet does not have yet",
          atomic_load(&f->untold));
    value(out, "fleet_pruned_total", "counter", "Old rows of the fleet that this server removed",
          (double)atomic_load(&f->pruned));
}
