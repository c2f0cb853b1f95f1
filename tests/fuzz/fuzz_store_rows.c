/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_store_rows.c - any values in the rows of a store: NULL, numbers, blobs and texts of any
 * bytes where something else belongs, as in a file that a disk or a hand has changed and that
 * SQLite still calls whole. What is read of it is bounded, and can be shown, exported and reckoned
 * with.
 *
 * An input is a list of changes: which column, which rows, what kind of value, how many bytes, the
 * bytes. They are made to one store and taken back after it was read.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/evidence.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_json.h"
#include "specializer/store/store_sql.h"
#include "specializer/store/store_words.h"
#include "specializer/transfer/transfer.h"

#include "specializer/adviser/adviser_replay.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/whet-fuzz-rows-XXXXXX";
static struct store *store;

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* ---- the store ------------------------------------------------------------------------------ */

static void clean_up(void)
{
    store_close(store);
    safe_folder_remove(folder);
}

static void add_texts(struct store *s)
{
    for (int32_t i = 0; i < 3; i++) {
        struct agent_node n = {.id = i,
                               .parent = i - 1,
                               .state = AGENT_MEASURED,
                               .speed = 1 + 0.1 * i,
                               .label = (char *)(size_t) "a label",
                               .text = (char *)(size_t) "int x;"};
        snprintf(n.source, sizeof n.source, "source%d", i);
        demand(agent_store_put(s, "env", "mlp_out/m1", &n, NULL) == 0);
    }
}

static void add_rows(struct store *s)
{
    struct err err;
    struct record r = {.state = LIFE_PROPOSED, .env = "env", .slot = "mlp_out/m1", .source = "src"};
    struct llm_call call = {.request = "{\"regions\":[]}", .reply = "{}", .verdict = "accepted"};
    struct store_word word = {.env = "env", .key = "k1", .slot = "mlp_out/m1", .server = "s"};
    snprintf(r.template, sizeof r.template, "mlp_out");
    r.evidence.speed = 1.5;
    snprintf(r.key, sizeof r.key, "k1");
    demand(store_move(s, &r, LIFE_ACTIVE, "why", "who", &err) == 0);
    snprintf(r.key, sizeof r.key, "k2");
    snprintf(r.template, sizeof r.template, "agent_mlp_out");
    snprintf(r.source, sizeof r.source, "source1");
    demand(store_move(s, &r, LIFE_REFUSED, NULL, NULL, &err) == 0);
    demand(store_pin(s, "mlp_out/m1", "k1", "who", &err) == 0);
    demand(store_disable(s, "k2", "a reason", "who", &err) == 0);
    demand(store_set(s, "environment.env", "a machine", &err) == 0);
    demand(store_llm_call(s, &call, &err) == 0);
    demand(store_word_keep(s, &word, &err) == 0);
    add_texts(s);
}

/* One store for all inputs; nothing of it must be there or of a kind: a tampered schema says so. */
static void set_up(void)
{
    struct err err;
    log_set_level(LOG_ERROR);
    demand(mkdtemp(folder) != NULL);
    char *path = xasprintf("%s/x.db", folder);
    store = store_open(path, &err);
    demand(store != NULL);
    demand(store_run(store, &err, "PRAGMA writable_schema=1", "") == 0 &&
           store_run(store, &err,
                     "UPDATE sqlite_master SET sql=replace(replace(replace(sql,' NOT NULL',''),"
                     "' TEXT',''),' REAL','')",
                     "") == 0);
    store_close(store);
    store = store_open(path, &err);
    free(path);
    demand(store != NULL && store_run(store, &err, "PRAGMA synchronous=OFF", "") == 0);
    add_rows(store);
    atexit(clean_up);
}

/* ---- changes -------------------------------------------------------------------------------- */

static const char *const column[] = {"candidate.key",
                                     "candidate.object_key",
                                     "candidate.object_sum",
                                     "candidate.env",
                                     "candidate.source",
                                     "candidate.template",
                                     "candidate.slot",
                                     "candidate.knobs",
                                     "candidate.name",
                                     "candidate.origin",
                                     "candidate.state",
                                     "candidate.bit_equal",
                                     "candidate.predicted_s",
                                     "candidate.evidence",
                                     "candidate.reason",
                                     "candidate.rollbacks",
                                     "candidate.deaths",
                                     "candidate.trial",
                                     "candidate.changed",
                                     "candidate.log",
                                     "candidate.served_deaths",
                                     "candidate.probe_deaths",
                                     "winner.env",
                                     "winner.slot",
                                     "winner.key",
                                     "winner.previous",
                                     "winner.share",
                                     "winner.gain_eager",
                                     "pin.slot",
                                     "pin.kernel",
                                     "disable.what",
                                     "disable.reason",
                                     "setting.name",
                                     "setting.value",
                                     "trace.id",
                                     "trace.at",
                                     "trace.slot",
                                     "trace.key",
                                     "trace.event",
                                     "trace.text",
                                     "trace.who",
                                     "exchange.id",
                                     "exchange.at",
                                     "exchange.request",
                                     "exchange.reply",
                                     "exchange.verdict",
                                     "exchange.seconds",
                                     "exchange.tokens_in",
                                     "exchange.tokens_out",
                                     "agent_node.env",
                                     "agent_node.slot",
                                     "agent_node.id",
                                     "agent_node.parent",
                                     "agent_node.state",
                                     "agent_node.attempts",
                                     "agent_node.debugs",
                                     "agent_node.speed",
                                     "agent_node.label",
                                     "agent_node.plan",
                                     "agent_node.text",
                                     "agent_node.source",
                                     "agent_node.prompts",
                                     "agent_node.reason",
                                     "agent_node.log",
                                     "fleet_word.id",
                                     "fleet_word.at",
                                     "fleet_word.told",
                                     "fleet_word.verdict",
                                     "fleet_word.upheld",
                                     "fleet_word.env",
                                     "fleet_word.key",
                                     "fleet_word.slot",
                                     "fleet_word.words",
                                     "fleet_word.server",
                                     "fleet_word.name"};
enum { COLUMNS = sizeof column / sizeof *column };

/* Of all rows of the table, or of that with the largest value. */
static sqlite3_stmt *change_of(const char *name, bool one)
{
    sqlite3_stmt *q = NULL;
    const char *dot = strchr(name, '.'), *c = dot + 1;
    char *sql = xasprintf("UPDATE OR REPLACE %.*s SET %s=?1 WHERE ?2=0 OR %s=(SELECT max(%s) FROM"
                          " %.*s)",
                          (int)(dot - name), name, c, c, c, (int)(dot - name), name);
    demand(sqlite3_prepare_v2(store->db, sql, -1, &q, NULL) == SQLITE_OK);
    free(sql);
    sqlite3_bind_int(q, 2, one);
    return q;
}

/* Makes the change that `at` begins with; where the next one is. */
static const uint8_t *change(const uint8_t *at, const uint8_t *end)
{
    enum { HEAD = 3 };
    size_t n = at[2];
    const uint8_t *bytes = at + HEAD;
    n = n < (size_t)(end - bytes) ? n : (size_t)(end - bytes);
    char number[32];
    snprintf(number, sizeof number, "%.*s", (int)n, (const char *)bytes);
    sqlite3_stmt *q = change_of(column[at[0] % COLUMNS], at[1] & 0x80);
    switch (at[1] % 6) {
    case 0:
        break; /* NULL */
    case 1:
        sqlite3_bind_int64(q, 1, strtoll(number, NULL, 10));
        break;
    case 2:
        sqlite3_bind_double(q, 1, strtod(number, NULL));
        break;
    case 3:
        sqlite3_bind_text(q, 1, (const char *)bytes, (int)n, SQLITE_TRANSIENT);
        break;
    case 4:
        sqlite3_bind_blob(q, 1, bytes, (int)n, SQLITE_TRANSIENT);
        break;
    case 5:
        sqlite3_bind_zeroblob(q, 1, (int)n << 12);
    }
    sqlite3_step(q); /* refused: then it is as it was */
    sqlite3_finalize(q);
    return bytes + n;
}

/* ---- readers -------------------------------------------------------------------------------- */

static void print_and_delete(cJSON *o)
{
    char *text = cJSON_PrintUnformatted(o);
    demand(text != NULL);
    cJSON *again = cJSON_Parse(text);
    demand(again != NULL);
    cJSON_Delete(again);
    free(text);
    cJSON_Delete(o);
}

static void see_record(void *ctx, const struct record *r)
{
    char words[EVIDENCE_WORDS];
    struct point p;
    const struct template *t = template_find(r->template);
    (void)ctx;
    demand(r->state < LIFE_COUNT && r->origin < ORIGINS);
    for (int life = 0; life < LIFE_COUNT; life++)
        evidence_words(&r->evidence, (enum life)life, words);
    if (t)
        point_parse(t, r->knobs, &p, NULL);
    print_and_delete(record_json(r));
}

static void see_winner(void *ctx, const struct winner *w)
{
    snprintf(ctx, KEY_HEX + 1, "%s", w->key);
    demand(strlen(w->slot) < sizeof w->slot);
}

static void see_pair(void *ctx, const char *name, const char *value)
{
    *(size_t *)ctx += strlen(name) + strlen(value);
}

static void see_trace(void *ctx, const struct trace_row *row)
{
    (void)ctx;
    print_and_delete(trace_json(row));
}

static void see_key(void *ctx, const char *key)
{
    struct record r;
    (void)ctx;
    if (store_get(store, key, &r, NULL) > 0) {
        see_record(NULL, &r);
        free(r.log);
    }
    store_served_death(store, key, NULL);
    store_probe_death(store, key, NULL);
    store_object_used(store, key);
}

static void see_word(void *ctx, const struct store_word *w)
{
    *(size_t *)ctx += strlen(w->words) + strlen(w->name) + strlen(w->key);
}

static void see_tree(void)
{
    struct agent_tree t = {0};
    int measured, dry;
    int32_t node, leader[4];
    if (agent_store_tree(store, "env", "mlp_out/m1", &t, NULL) == 0 && t.nodes > 0) {
        tree_attempts(&t);
        tree_progress(&t, &measured, &dry);
        demand(tree_leaders(&t, leader, 4) <= t.nodes);
        for (int i = 0; i < 20 && tree_next(&t, &node) != AGENT_NOTHING; i++) {
            demand(node >= 0 && node < t.nodes);
            tree_refuse(&t, node, i % 2);
        }
    }
    tree_free(&t);
}

static void see_recording(void)
{
    struct adviser_replay *r = adviser_replay_new();
    store_llm_calls(store, take_row, r, NULL);
    adviser_replay_close(r);
}

static void read_all(void)
{
    static const struct record_filter all = {0};
    char key[KEY_HEX + 1] = "", value[STORE_ENVIRONMENT_MOST];
    size_t n = 0;
    int64_t after = 0;
    store_each(store, &all, see_record, NULL, NULL);
    store_winners(store, "env", see_winner, key, NULL);
    see_key(NULL, key);
    store_pins(store, see_pair, &n, NULL);
    store_disables(store, see_pair, &n, NULL);
    store_value(store, "environment.env", value, sizeof value);
    store_traces(store, NULL, 0, 0, see_trace, NULL, NULL);
    store_moved(store, &after, 100, see_key, NULL, NULL);
    store_words(store, false, "s", 0, 0, 100, see_word, &n, NULL);
    store_words_untold(store);
    store_deaths(store, NULL);
    see_tree();
    see_recording();
    cJSON *o = store_export(store, NULL);
    if (o)
        print_and_delete(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    enum { CHANGES_MOST = 16, LEAST = 3 };
    if (!store)
        set_up();
    demand(store_run(store, NULL, "BEGIN", "") == 0);
    const uint8_t *at = data, *end = data + size;
    for (int i = 0; i < CHANGES_MOST && end - at >= LEAST; i++)
        at = change(at, end);
    read_all();
    demand(store_run(store, NULL, "ROLLBACK", "") == 0);
    return 0;
}
