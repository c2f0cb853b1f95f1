/* SPDX-License-Identifier: Apache-2.0 */
/* status.c - GET /specializer: everything an operator's page shows of the search, in one document.
 *
 * It is asked for every second by every open dashboard, so nothing in it may grow with the store:
 * slots and counters come from memory, the newest rows of the trace by index. Slots are read under
 * the lock for as long as it takes to copy them.
 */
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/table.h"
#include "specializer/operators.h"
#include "specializer/specializer_private.h"
#include "specializer/store/store_json.h"

enum { TRACE_ROWS = 80, REFUSAL_ROWS = 24, VERDICT_ROWS = 12, MARK_ROWS = 64 };
/* Marks are for a chart of the engine's history, which reaches back so far. */
#define MARKS_S 900

static const char *const doing_names[] = {"waiting",     "held_back",    "restoring", "searching",
                                          "asleep",      "builds_spent", "paused",    "frozen",
                                          "no_compiler", "yielding",     "off"};
EVERY_ROW(doing_names, DOINGS);

static void add_row(void *ctx, const struct trace_row *row)
{
    cJSON_AddItemToArray(ctx, trace_json(row));
}

/* The newest rows of some events, one event after the other. */
static cJSON *events_json(struct specializer *s, const char *const *event, int events,
                          int64_t since_s, int limit)
{
    cJSON *a = cJSON_CreateArray();
    for (int i = 0; i < events; i++)
        store_events(s->store, event[i], since_s, limit, add_row, a, NULL);
    return a;
}

static cJSON *funnel_json(struct specializer *s)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < STAGES; i++) {
        cJSON *stage = cJSON_AddObjectToObject(o, stage_name((enum stage)i));
        for (int k = STAGE_PASS; k <= STAGE_RETRY; k++)
            cJSON_AddNumberToObject(stage, outcome_name((enum stage_result)k),
                                    (double)atomic_load(&s->counts.stage[i][k]));
    }
    return o;
}

static cJSON *counts_json(struct specializer *s)
{
    uint64_t back = 0;
    for (int i = 0; i < ROLLBACKS; i++)
        back += atomic_load(&s->counts.rolled_back[i]);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "published", (double)atomic_load(&s->counts.published));
    cJSON_AddNumberToObject(o, "restored", (double)atomic_load(&s->counts.restored));
    cJSON_AddNumberToObject(o, "rolled_back", (double)back);
    cJSON_AddNumberToObject(o, "impossible", (double)atomic_load(&s->counts.impossible));
    cJSON_AddNumberToObject(o, "audit_comparisons", (double)atomic_load(&s->counts.audits));
    cJSON_AddNumberToObject(o, "audit_mismatches", (double)atomic_load(&s->counts.mismatches));
    cJSON_AddNumberToObject(o, "store_errors", (double)store_errors(s->store));
    return o;
}

/* With which table each rank ran its last step; of one that is alone nobody has to ask. */
static void add_ranks(const struct specializer *s, cJSON *o)
{
    int32_t ranks = engine_ranks(s->engine);
    cJSON *a = ranks > 1 ? cJSON_AddArrayToObject(o, "ranks") : NULL;
    for (int32_t i = 0; a && i < ranks; i++) {
        cJSON *r = cJSON_CreateObject();
        cJSON_AddNumberToObject(r, "rank", i);
        cJSON_AddNumberToObject(r, "table", (double)engine_rank_table(s->engine, i));
        cJSON_AddItemToArray(a, r);
    }
}

/* The engine is ready. */
static void add_search_locked(struct specializer *s, cJSON *o)
{
    cJSON_AddBoolToObject(o, "compiler_available", s->has_compiler);
    cJSON_AddStringToObject(o, "compiler", s->compiler.version);
    cJSON_AddStringToObject(o, "device", s->env.machine->device);
    cJSON_AddNumberToObject(o, "time_saved_s", s->locked.saved_s);
    if (s->locked.correlation > -2)
        cJSON_AddNumberToObject(o, "cost_rank_correlation", s->locked.correlation);
    cJSON_AddItemToObject(o, "slots", slots_json_locked(s));
    cJSON_AddItemToObject(o, "layers_without_slots", layers_without_slots_json(s));
    add_ranks(s, o);
    cJSON *disabled = cJSON_AddArrayToObject(o, "disabled");
    for (int i = 0; i < s->locked.disables; i++) {
        cJSON *d = cJSON_CreateObject();
        cJSON_AddStringToObject(d, "kernel", s->locked.disabled[i].what);
        cJSON_AddStringToObject(d, "reason", s->locked.disabled[i].reason);
        cJSON_AddItemToArray(disabled, d);
    }
}

static cJSON *advice_json(struct specializer *s)
{
    static const char *const verdicts[] = {"advice", "advice_rejected", "advice_failed"};
    cJSON *o = adviser_json(s->adviser);
    if (atomic_load(&s->ready) && s->agent) /* set up before that */
        cJSON_AddItemToObject(o, "texts", agent_json(s->agent));
    cJSON_AddItemToObject(o, "verdicts", events_json(s, verdicts, 3, 0, VERDICT_ROWS));
    return o;
}

char *specializer_json(struct specializer *s)
{
    static const char *const refusals[] = {"refused", "deferred"};
    static const char *const marks[] = {"active", "restored", "rolled_back", "disabled", "retired"};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "mode", mode_names[atomic_load(&s->mode)]);
    int doing = atomic_load(&s->doing);
    cJSON_AddStringToObject(o, "doing", doing_names[doing]);
    cJSON_AddBoolToObject(o, "converged", doing == DOING_SLEEP && atomic_load(&s->converged));
    cJSON_AddStringToObject(o, "numerics", numerics_name(s->numerics));
    cJSON_AddStringToObject(o, "strategy", s->strategy->name);
    cJSON_AddNumberToObject(o, "swaps", (double)atomic_load(&s->counts.published));
    cJSON_AddNumberToObject(o, "restored", (double)atomic_load(&s->counts.restored));
    cJSON_AddItemToObject(o, "counts", counts_json(s));
    cJSON_AddItemToObject(o, "funnel", funnel_json(s));
    if (atomic_load(&s->ready)) {
        pthread_mutex_lock(&s->lock);
        add_search_locked(s, o);
        pthread_mutex_unlock(&s->lock);
    }
    int64_t now_s = clock_wall_s();
    cJSON_AddItemToObject(o, "adviser", advice_json(s));
    cJSON_AddItemToObject(o, "fleet", fleet_json(atomic_load(&s->ready) ? s->fleet : NULL, false));
    cJSON_AddItemToObject(o, "marks", events_json(s, marks, 5, now_s - MARKS_S, MARK_ROWS));
    cJSON_AddItemToObject(o, "refusals", events_json(s, refusals, 2, 0, REFUSAL_ROWS));
    cJSON *trace = cJSON_AddArrayToObject(o, "trace");
    store_traces(s->store, NULL, 0, TRACE_ROWS, add_row, trace, NULL);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}
