/* SPDX-License-Identifier: Apache-2.0 */
/* Fault drills, state by state: at every step of a kernel's life something is killed or fails, and
 * afterwards the store is whole, its history is legal, nothing ever served that it does not know,
 * and a server that is started again goes on.
 *
 * The loop is the real one on an engine that pretends (fake_engine.h). SQLite says when a kernel is
 * about to change its state: statements are traced, commits hooked, and the file layer is a shim
 * that can stop in the middle of a page. So no line of the program knows of these tests. Every run
 * is a process of its own; what its slots served is in memory that outlives it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "config/log.h"
#include "specializer/candidate/life.h"
#include "tests/unit/specializer/failing_vfs.h"
#include "tests/unit/specializer/fake_stages.h"
#include "tests/unit/specializer/stand_in.h"

enum victim { SERVER, COMPILER, PROBE, ADVISER, DISK, VICTIMS };
static const char *const victim_name[VICTIMS] = {"server", "compiler", "probe", "adviser", "disk"};
enum moment { BEFORE, INSIDE, TORN, AFTER, MOMENTS };
static const char *const moment_name[MOMENTS] = {"before the row is written", "before the commit",
                                                 "in the middle of a page", "after the commit"};
enum { KILLED = 41, WENT_WRONG = 42, SERVED = 64 };
enum { PATIENCE_MS = 300000 }; /* a limit, never reached by a loop that works */

/* What this run is to suffer, and what it did. Shared with the process that looks at it later. */
struct drill {
    enum life state;
    enum victim victim;
    enum moment moment;
    atomic_bool struck;
    char served[SERVED][24]; /* ids of kernels that slots were seen to hold */
    atomic_int serveds;
};
static struct drill *drill;
static struct stand_in adviser;
static char folder[] = "/tmp/whet-test-drills-XXXXXX", store_file[120];

#define CHECK(what)                                                \
    do {                                                           \
        if (!(what)) {                                             \
            print_error("%s:%d: %s\n", __func__, __LINE__, #what); \
            _exit(WENT_WRONG);                                     \
        }                                                          \
    } while (0)

/* ---- striking ------------------------------------------------------------------------------- */

static void strike(void)
{
    if (atomic_exchange(&drill->struck, true))
        return;
    if (drill->victim == SERVER && drill->moment == TORN)
        atomic_store(&tear, true);
    else if (drill->victim == SERVER)
        _exit(KILLED);
    else if (drill->victim == COMPILER)
        atomic_store(&fake.builds_die, 3);
    else if (drill->victim == PROBE)
        atomic_store(&fake.probes_die, 3);
    else if (drill->victim == ADVISER)
        atomic_store(&adviser.mode, STAND_IN_CLOSED);
    else
        atomic_store(&disk_full, 12);
}

static void reached(enum moment moment, int state)
{
    enum moment wanted = drill->victim != SERVER ? AFTER
                         : drill->moment == TORN ? INSIDE
                                                 : drill->moment;
    if (state == (int)drill->state && moment == wanted)
        strike();
}

/* The state that a statement gives a candidate, or -1. */
static int state_in(const char *sql)
{
    if (strncmp(sql, "UPDATE candidate SET state='retired'", 36) == 0)
        return LIFE_RETIRED;
    for (int i = 0; strncmp(sql, "INSERT INTO candidate(", 22) == 0 && i < LIFE_COUNT; i++) {
        char quoted[32];
        snprintf(quoted, sizeof quoted, ",'%s',", life_name((enum life)i));
        if (strstr(sql, quoted))
            return i;
    }
    return -1;
}

/* One connection, and the store's mutex around it: no two transactions at a time. */
static unsigned pending;

static void each_pending(enum moment moment)
{
    for (int i = 0; i < LIFE_COUNT; i++)
        if (pending >> i & 1)
            reached(moment, i);
}

static int on_trace(unsigned kind, void *unused, void *statement, void *unexpanded)
{
    (void)unused, (void)unexpanded;
    char *sql = sqlite3_expanded_sql(statement);
    int state = sql ? state_in(sql) : -1;
    if (kind == SQLITE_TRACE_STMT && state >= 0) {
        pending |= 1u << state;
        reached(BEFORE, state);
    }
    if (kind == SQLITE_TRACE_PROFILE && sql && strcmp(sql, "COMMIT") == 0) {
        each_pending(AFTER);
        pending = 0;
    }
    if (kind == SQLITE_TRACE_PROFILE && sql && strcmp(sql, "ROLLBACK") == 0)
        pending = 0;
    sqlite3_free(sql);
    return 0;
}

static int on_commit(void *unused)
{
    (void)unused;
    each_pending(INSIDE);
    return 0;
}

static int watch_connection(sqlite3 *db, char **message, const void *api)
{
    (void)message, (void)api;
    sqlite3_trace_v2(db, SQLITE_TRACE_STMT | SQLITE_TRACE_PROFILE, on_trace, NULL);
    sqlite3_commit_hook(db, on_commit, NULL);
    return SQLITE_OK;
}

/* ---- a run ---------------------------------------------------------------------------------- */

/* Notes what the slots hold, as long as the process lives. */
static void *note_served(void *unused)
{
    static const char *const slots[] = {"mlp_out/m1", "head/m1"};
    (void)unused;
    while (!atomic_load(&fake.stop)) {
        for (int i = 0; i < 2; i++) {
            const struct kernel *k = serving(slots[i]);
            int n = atomic_load(&drill->serveds);
            bool known = k->origin == ORIGIN_EAGER;
            for (int j = 0; j < n && !known; j++)
                known = strcmp(drill->served[j], k->id) == 0;
            if (known || n == SERVED)
                continue;
            memcpy(drill->served[n], k->id, sizeof drill->served[n]);
            atomic_store(&drill->serveds, n + 1);
        }
        usleep(200);
    }
    return NULL;
}

static struct specializer *start(struct config *config)
{
    static pthread_t notes;
    char url[80], *argv[] = {(char *)"whet", (char *)"--store", store_file, NULL};
    struct err err = {""};
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", adviser.port);
    if (drill->victim == ADVISER)
        setenv("WHET_ADVISER_URL", url, 1);
    setenv("no_proxy", "127.0.0.1", 1);
    CHECK(config_parse(config, 3, argv, &err) == 0);
    struct specializer *s = specializer_start(config, NULL, &err);
    if (!s)
        print_error("%s\n", err.msg);
    CHECK(s != NULL);
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&s->ready); i++)
        usleep(1000);
    CHECK(atomic_load(&s->ready));
    CHECK(pthread_create(&notes, NULL, note_served, NULL) == 0);
    return s;
}

#define SOON(what)                                                  \
    do {                                                            \
        bool so_ = false;                                           \
        for (int i_ = 0; !(so_ = (what)) && i_ < PATIENCE_MS; i_++) \
            usleep(1000);                                           \
        if (!so_) {                                                 \
            print_error("%s: in vain: %s\n", __func__, #what);      \
            _exit(WENT_WRONG);                                      \
        }                                                           \
    } while (0)

/* A faster kernel may take the slot before the one that was seen there is disabled. That one is
 * retired then and stays so; so it is done again, until what was disabled did serve. */
static void disable_what_serves(struct specializer *s)
{
    for (int i = 0; i < 64 && atomic_load(&s->counts.rolled_back[ROLLBACK_OPERATOR]) == 0; i++) {
        char *text = NULL;
        SOON(specialized("mlp_out/m1"));
        specializer_disable(s, serving("mlp_out/m1")->id, "drill", "drill", &text);
        free(text);
    }
}

/* Leads kernels through every state: found, published, retired, rolled back, disabled. */
static void live_through_everything(struct specializer *s)
{
    static char wrong[64][24];
    char *text = NULL;
    atomic_store(&fake.outrun, 1); /* one is deferred on the way */
    SOON(specialized("mlp_out/m1") && specialized("head/m1"));
    specializer_pin(s, "head/m1", "eager", "drill", &text);
    free(text);
    specializer_unpin(s, "head/m1", "drill", &text);
    free(text);
    /* A faster kernel may take the slot before the audit comes: then that one is found wrong. */
    for (int i = 0; i < 64 && atomic_load(&s->counts.rolled_back[ROLLBACK_AUDIT]) == 0; i++) {
        SOON(specialized("mlp_out/m1"));
        snprintf(wrong[i], sizeof wrong[i], "%s", serving("mlp_out/m1")->id);
        atomic_store(&fake.audit_fails, wrong[i]);
        SOON(strcmp(serving("mlp_out/m1")->id, wrong[i]) != 0);
    }
    atomic_store(&fake.audit_fails, NULL);
    disable_what_serves(s);
    SOON(specialized("mlp_out/m1") && specialized("head/m1"));
}

/* The run that suffers. Ends with KILLED, or with 0 when whatever failed was overcome. */
static void suffer(void)
{
    static struct config config;
    failing_vfs_install(KILLED);
    sqlite3_auto_extension((void (*)(void))watch_connection);
    if (drill->victim == ADVISER) {
        stand_in_open(&adviser);
        stand_in_say(&adviser, strdup("{\"version\":1,\"regions\":[]}"));
    }
    CHECK(fake_open() == 0);
    struct specializer *s = start(&config);
    live_through_everything(s);
    SOON(atomic_load(&drill->struck));
    SOON(specialized("mlp_out/m1") && specialized("head/m1"));
    specializer_stop(s);
    CHECK(atomic_load(&fake.loaded) == 0);
    _exit(0);
}

/* ---- looking at what is left ---------------------------------------------------------------- */

struct history {
    char key[24];
    int last; /* state, -1: none */
    bool illegal, was_active;
};
static struct history history[4000];
static int histories;

static struct history *history_of(const char *key)
{
    for (int i = 0; i < histories; i++)
        if (strcmp(history[i].key, key) == 0)
            return &history[i];
    struct history *h = &history[histories++];
    CHECK(histories < 4000);
    *h = (struct history){.last = -1};
    snprintf(h->key, sizeof h->key, "%s", key);
    return h;
}

/* Trace rows come newest first; so each one's successor is known when it is seen. */
static void read_history(void *ctx, const struct trace_row *row)
{
    (void)ctx;
    int state = row->key && row->event ? life_parse(row->event) : -1;
    if (state < 0)
        return;
    struct history *h = history_of(row->key);
    /* A kernel that another one replaced is retired without a line of its own. */
    bool by_crown =
        state == LIFE_ACTIVE && h->last >= 0 && life_allowed(LIFE_RETIRED, (enum life)h->last);
    if (h->last >= 0 && !life_allowed((enum life)state, (enum life)h->last) && !by_crown)
        h->illegal = true;
    h->was_active |= state == LIFE_ACTIVE;
    h->last = state;
}

static int actives[2], unreasoned;

static void look_at(void *ctx, const struct record *r)
{
    (void)ctx;
    unreasoned += r->state == LIFE_REFUSED && !r->reason[0];
    if (r->state != LIFE_ACTIVE)
        return;
    actives[strcmp(r->slot, "head/m1") == 0]++;
    CHECK(history_of(r->key)->was_active);
}

struct winners {
    struct winner winner[64];
    int n;
};

static void keep_winner(void *ctx, const struct winner *w)
{
    struct winners *all = ctx;
    CHECK(all->n < 64);
    all->winner[all->n++] = *w;
}

static void look_at_winners(struct store *s, const char *env)
{
    struct winners all = {.n = 0};
    struct err err = {""};
    CHECK(store_winners(s, env, keep_winner, &all, &err) == 0);
    for (int i = 0; i < all.n; i++) {
        struct record r;
        CHECK(store_get(s, all.winner[i].key, &r, NULL) == 1);
        free(r.log);
        CHECK(r.state == LIFE_ACTIVE);
    }
}

/* Whole, legal, and no kernel served that it does not know as one that was published. */
static void inspect(void)
{
    struct err err = {""};
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    CHECK(sqlite3_open(store_file, &db) == SQLITE_OK);
    CHECK(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &q, NULL) == SQLITE_OK);
    CHECK(sqlite3_step(q) == SQLITE_ROW);
    CHECK(strcmp((const char *)sqlite3_column_text(q, 0), "ok") == 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    struct store *s = store_open(store_file, &err);
    CHECK(s != NULL);
    histories = 0;
    unreasoned = actives[0] = actives[1] = 0;
    CHECK(store_traces(s, NULL, 0, 0, read_history, NULL, &err) == 0);
    for (int i = 0; i < histories; i++) {
        if (history[i].illegal)
            print_error("%s has an impossible history\n", history[i].key);
        CHECK(!history[i].illegal);
    }
    struct record_filter all = {0};
    CHECK(store_each(s, &all, look_at, NULL, &err) == 0);
    CHECK(actives[0] <= 1 && actives[1] <= 1 && unreasoned == 0);
    for (int i = 0; i < atomic_load(&drill->serveds); i++)
        CHECK(history_of(drill->served[i])->was_active);
    sqlite3 *raw = NULL;
    CHECK(sqlite3_open(store_file, &raw) == SQLITE_OK);
    CHECK(sqlite3_prepare_v2(raw, "SELECT DISTINCT env FROM winner", -1, &q, NULL) == SQLITE_OK);
    while (sqlite3_step(q) == SQLITE_ROW)
        look_at_winners(s, (const char *)sqlite3_column_text(q, 0));
    sqlite3_finalize(q);
    sqlite3_close(raw);
    store_close(s);
}

/* The next server, on what is left. */
static void go_on(void)
{
    static struct config config;
    inspect();
    CHECK(fake_open() == 0);
    struct specializer *s = start(&config);
    SOON(specialized("mlp_out/m1") && specialized("head/m1"));
    specializer_stop(s);
    CHECK(atomic_load(&fake.loaded) == 0 && atomic_load(&fake.bad_published) == 0);
    inspect();
    _exit(0);
}

/* ---- the drills ----------------------------------------------------------------------------- */

static int run(void (*what)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        what();
    if (child < 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Returns whether all was as it should be; in a process of its own. */
static bool one_drill(enum victim victim, enum life state, enum moment moment)
{
    drill->victim = victim;
    drill->state = state;
    drill->moment = moment;
    snprintf(store_file, sizeof store_file, "%s/%d-%d-%d/store.db", folder, victim, moment, state);
    int suffered = run(suffer);
    bool struck = atomic_load(&drill->struck);
    int went_on = run(go_on);
    bool right = struck && suffered == (victim == SERVER ? KILLED : 0) && went_on == 0;
    if (!right)
        print_error("%s at %s, %s: struck %d, then %d, next server %d\n", victim_name[victim],
                    life_name(state), moment_name[moment], struck, suffered, went_on);
    return right;
}

/* A drill mostly waits, for deadlines of the loop and for retries: those of all states wait
 * together. */
static void drill_every_state(enum victim victim, enum moment moment)
{
    pid_t child[LIFE_COUNT];
    int wrong = 0;
    fflush(NULL);
    for (int state = 0; state < LIFE_COUNT; state++) {
        child[state] = fork();
        assert_true(child[state] >= 0);
        if (child[state] > 0)
            continue;
        drill =
            mmap(NULL, sizeof *drill, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        bool right = drill != MAP_FAILED && one_drill(victim, (enum life)state, moment);
        fflush(NULL);
        _exit(right ? 0 : WENT_WRONG);
    }
    for (int state = 0; state < LIFE_COUNT; state++) {
        int status = 0;
        if (waitpid(child[state], &status, 0) != child[state] || status != 0)
            wrong++;
    }
    assert_int_equal(wrong, 0);
}

static void server_killed_before_a_state_is_written(void **unused)
{
    (void)unused;
    drill_every_state(SERVER, BEFORE);
}

static void server_killed_before_a_state_is_committed(void **unused)
{
    (void)unused;
    drill_every_state(SERVER, INSIDE);
}

static void server_killed_while_a_page_is_written(void **unused)
{
    (void)unused;
    drill_every_state(SERVER, TORN);
}

static void server_killed_after_a_state_is_committed(void **unused)
{
    (void)unused;
    drill_every_state(SERVER, AFTER);
}

static void compilers_killed_at_every_state(void **unused)
{
    (void)unused;
    drill_every_state(COMPILER, AFTER);
}

static void probes_killed_at_every_state(void **unused)
{
    (void)unused;
    drill_every_state(PROBE, AFTER);
}

static void adviser_killed_at_every_state(void **unused)
{
    (void)unused;
    drill_every_state(ADVISER, AFTER);
}

static void disk_full_at_every_state(void **unused)
{
    (void)unused;
    drill_every_state(DISK, AFTER);
}

static int open_folder(void **unused)
{
    (void)unused;
    log_set_level(LOG_ERROR);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(server_killed_before_a_state_is_written),
        cmocka_unit_test(server_killed_before_a_state_is_committed),
        cmocka_unit_test(server_killed_while_a_page_is_written),
        cmocka_unit_test(server_killed_after_a_state_is_committed),
        cmocka_unit_test(compilers_killed_at_every_state),
        cmocka_unit_test(probes_killed_at_every_state),
        cmocka_unit_test(adviser_killed_at_every_state),
        cmocka_unit_test(disk_full_at_every_state),
    };
    return cmocka_run_group_tests(tests, open_folder, remove_folder);
}
