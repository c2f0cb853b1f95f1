/* SPDX-License-Identifier: Apache-2.0 */
/* fleet.c - the thread between this server and the database.
 *
 * It connects and repeats its duties: what was found wrong, the lease, what the store learned, what
 * others learned, that the server is there. To enter the server and to send everything once are
 * duties, too, because a database may be there that cannot be written yet. Each has its own
 * interval; a notification makes it listen at once. A statement that fails is tried again at its
 * next turn, a connection that fails after a pause that doubles up to a minute. Nobody waits for
 * any of it.
 */
#include "specializer/fleet/fleet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/key_file.h"
#include "config/log.h"
#include "engine/crash.h"
#include "engine/plan.h"
#include "specializer/candidate/hash.h"
#include "specializer/fleet/fleet_private.h"
#include "specializer/fleet/fleet_schema.h"

#define CONNECT_S 10.0
#define BYE_S 1.0
#define CLOSE_S 2
#define LEASE_EVERY_S 10
#define LEASE_AGAIN_S 2 /* while this server holds no lease */
#define SAY_EVERY_S 5
#define SEND_EVERY_S 1
#define WRONG_EVERY_S 3600 /* when it is told of some; with all the rest in any case */
#define SEEK_EVERY_S 5
#define STEADY_S 30 /* a connection that lasted so long was a good one */
#define VIEW_EVERY_S 5
#define BEAT_EVERY_S 10
#define PRUNE_EVERY_S 600
#define ALL_EVERY_S 5 /* until it has succeeded once */
enum { BACKOFF_MOST_S = 60 };

static int64_t in(double seconds)
{
    return clock_ns() + (int64_t)(seconds * 1e9);
}

/* ---- what goes wrong ------------------------------------------------------------------------- */

static void trouble(struct fleet *f, const char *what, const struct err *err)
{
    if (atomic_load(&f->stop))
        return;
    atomic_fetch_add(&f->errors, 1);
    pthread_mutex_lock(&f->lock);
    snprintf(f->trouble, sizeof f->trouble, "%.40s: %.150s", what, err->msg);
    pthread_mutex_unlock(&f->lock);
    if (log_due(&f->complaints))
        log_warn("fleet", "%s: %s (%llu times); this server goes on by itself", what, err->msg,
                 (unsigned long long)atomic_load(&f->complaints));
}

static void set_state(struct fleet *f, enum fleet_state state)
{
    pthread_mutex_lock(&f->lock);
    if (f->state != state)
        f->since_ns = clock_ns();
    f->state = state;
    f->lease_state = LEASE_UNASKED;
    f->lease[0] = 0;
    f->wish_new = f->wishes > 0;
    f->wished_ns = clock_ns();
    pthread_mutex_unlock(&f->lock);
    atomic_fetch_add(&f->news, 1);
}

/* ---- one turn -------------------------------------------------------------------------------- */

static void lease_answer(struct fleet *f, int r, int wishes, const char *got, int64_t asked_ns)
{
    pthread_mutex_lock(&f->lock);
    enum lease_state before = f->lease_state;
    bool changed = strcmp(f->lease, got) != 0;
    f->lease_state = r != 0   ? LEASE_FAILED
                     : got[0] ? LEASE_HELD
                     : wishes ? LEASE_TAKEN
                              : LEASE_UNASKED;
    snprintf(f->lease, sizeof f->lease, "%s", got);
    f->lease_until_ns = asked_ns + FLEET_LEASE_S * INT64_C(1000000000);
    if (f->lease_state == LEASE_TAKEN && before != LEASE_TAKEN)
        f->alone_ns = clock_ns();
    pthread_mutex_unlock(&f->lock);
    if (changed || f->lease_state != before)
        atomic_fetch_add(&f->news, 1);
    f->lease_due_ns = in(f->lease_state == LEASE_TAKEN ? LEASE_AGAIN_S : LEASE_EVERY_S);
}

static int lease_turn(struct fleet *f, struct err *err)
{
    char wish[WISHES_MOST][40], got[40] = "";
    const char *slot[WISHES_MOST];
    pthread_mutex_lock(&f->lock);
    int n = f->wishes;
    memcpy(wish, f->wish, sizeof wish);
    f->wish_new = false;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < n; i++)
        slot[i] = wish[i];
    int64_t asked_ns = clock_ns();
    int r = fleet_take_lease(f->db, &f->self, slot, n, got, err);
    lease_answer(f, r, n, got, asked_ns);
    return r;
}

/* Rows of this server may be gone; those that are there do not change. */
static void tell_all_again(struct fleet *f)
{
    f->all_due = f->again_due = true;
    f->again_after = f->all_slot = 0;
    f->again_failed = false;
}

/* Listens and enters itself first, if it could not yet. A row that is gone while it is connected
 * was pruned, since the database's clock was days ahead for a moment, say: what else was is not
 * known. */
static int beat(struct fleet *f, struct err *err)
{
    if (f->process != fleet_db_process(f->db) && fleet_same_session(f->db, f->process, err) != 0) {
        fleet_db_end(f->db);
        return -1;
    }
    if (f->listen_due && fleet_listen(f->db, &f->self, err) != 0)
        return -1;
    f->listen_due = false;
    bool entered = false;
    int64_t heard = f->version >= FLEET_SCHEMA_HEARD ? f->retraction_seq : -1;
    int r = fleet_beat(f->db, &f->self, f->hello_due, heard, &entered, err);
    if (entered && !f->hello_due) {
        log_warn("fleet", "this server's row was gone: all is told anew");
        tell_all_again(f);
    }
    f->hello_due &= r != 0;
    atomic_store(&f->listed, r == 0);
    if (r == 0)
        fleet_read_only_ends(f);
    return r;
}

/* Sequence numbers of another database, or of one restored from a backup, mean nothing here:
 * everything is read anew. */
static void begin_anew(struct fleet *f)
{
    f->seq = f->text_seq = f->retraction_seq = 0;
    f->back = INT64_MAX;
    f->lease_due_ns = f->pull_due_ns = f->send_due_ns = f->view_due_ns = 0;
    f->all_due_ns = f->beat_due_ns = f->say_due_ns = f->seek_due_ns = 0;
    f->wrong_due_ns = in(WRONG_EVERY_S);
    f->listen_due = f->hello_due = true;
    tell_all_again(f);
    f->gone = 0;
    f->prune_due_ns = in(5);
    f->trace_id = -1;
    fleet_forget_numbers(f);
    pthread_mutex_lock(&f->in_use);
    if (!atomic_load(&f->stop))
        store_moved(f->store, &f->trace_id, 0, NULL, NULL, NULL);
    pthread_mutex_unlock(&f->in_use);
}

/* Tables that are restored from a backup under a connection that stays count from where they were
 * then: what comes next has numbers that were read before. */
static int numbers_hold(struct fleet *f, struct err *err)
{
    int64_t given;
    if (fleet_given(f->db, &given, err) != 0)
        return -1;
    if (f->seq > given || f->retraction_seq > given || f->text_seq > given) {
        log_warn("fleet", "the numbers of rows have gone back: all is heard and told anew");
        begin_anew(f);
    }
    return 0;
}

static int pull(struct fleet *f, struct err *err)
{
    f->pulled_ns = f->wrong_ns = clock_ns();
    return numbers_hold(f, err) == 0 ? fleet_pull_all(f, err) : -1;
}

static int pull_wrong(struct fleet *f, struct err *err)
{
    f->wrong_ns = clock_ns();
    return numbers_hold(f, err) == 0 ? fleet_pull_wrong(f, err) : -1;
}

static int prune(struct fleet *f, struct err *err)
{
    int64_t n = 0;
    if (fleet_renumber(f->db, f->self.env, &n, err) != 0)
        return -1;
    if (n > 0)
        log_warn("fleet",
                 "%lld rows had numbers that the sequence whet_seq never gave: they have new ones",
                 (long long)n);
    int r = fleet_prune(f->db, f->self.env, &n, err);
    atomic_fetch_add(&f->pruned, (uint64_t)(n > 0 ? n : 0));
    return r;
}

/* What the thread repeats, and how often. */
static const struct duty {
    const char *name;
    size_t due; /* offset in struct fleet of the time of the next run */
    double every_s;
    int (*run)(struct fleet *f, struct err *err);
} duties[] = {
    {"telling", offsetof(struct fleet, say_due_ns), SAY_EVERY_S, fleet_say_all},
    {"heartbeat", offsetof(struct fleet, beat_due_ns), BEAT_EVERY_S, beat},
    {"lease", offsetof(struct fleet, lease_due_ns), LEASE_EVERY_S, lease_turn},
    {"hearing of what is wrong", offsetof(struct fleet, wrong_due_ns), WRONG_EVERY_S, pull_wrong},
    {"listening", offsetof(struct fleet, pull_due_ns), FLEET_PULL_S, pull},
    {"telling all", offsetof(struct fleet, all_due_ns), ALL_EVERY_S, fleet_send_all},
    {"sending", offsetof(struct fleet, send_due_ns), SEND_EVERY_S, fleet_send_changed},
    {"looking", offsetof(struct fleet, view_due_ns), VIEW_EVERY_S, fleet_look},
    {"pruning", offsetof(struct fleet, prune_due_ns), PRUNE_EVERY_S, prune},
    {"looking for another host", offsetof(struct fleet, seek_due_ns), SEEK_EVERY_S, fleet_seek},
};
enum { DUTIES = sizeof duties / sizeof *duties };

static int64_t *due(struct fleet *f, const struct duty *d)
{
    return (int64_t *)((char *)f + d->due);
}

/* A duty that met a table or a column that is not there, and one day succeeds: what was made anew
 * is empty. */
static void look_whether_gone(struct fleet *f, int duty, bool failed)
{
    const char *state = fleet_db_state(f->db);
    unsigned bit = 1u << duty, before = f->gone;
    if (duties[duty].run == prune)
        return; /* it would succeed minutes later */
    if (!failed)
        f->gone &= ~bit;
    else if (strcmp(state, "42P01") == 0 || strcmp(state, "42703") == 0)
        f->gone |= bit;
    if (before && !f->gone)
        tell_all_again(f);
}

/* Runs every duty that is due; false when the connection is lost. */
static bool turn(struct fleet *f)
{
    struct err err;
    bool fine = true, said = atomic_exchange(&f->said, false);
    pthread_mutex_lock(&f->lock);
    bool asks = f->wish_new;
    pthread_mutex_unlock(&f->lock);
    for (int i = 0; i < DUTIES && fleet_db_alive(f->db) && !atomic_load(&f->stop); i++) {
        int64_t *at = due(f, &duties[i]);
        bool now = clock_ns() >= *at || (asks && duties[i].run == lease_turn) ||
                   (said && duties[i].run == fleet_say_all);
        if (!now)
            continue;
        *at = in(duties[i].every_s); /* the lease sets its own time */
        bool failed = duties[i].run(f, &err) != 0;
        look_whether_gone(f, i, failed);
        if (failed) {
            fleet_read_only_begins(f);
            trouble(f, duties[i].name, &err);
            fine = false;
        }
    }
    if (fine)
        atomic_store(&f->complaints, 0);
    return fleet_db_alive(f->db);
}

static double until_next(struct fleet *f)
{
    int64_t next = in(1);
    for (int i = 0; i < DUTIES; i++)
        next = *due(f, &duties[i]) < next ? *due(f, &duties[i]) : next;
    double s = (double)(next - clock_ns()) * 1e-9;
    return s < 0.005 ? 0.005 : s;
}

static void drain(int fd)
{
    uint64_t n;
    while (read(fd, &n, sizeof n) > 0)
        ;
}

/* ---- a connection ---------------------------------------------------------------------------- */

static bool arrive(struct fleet *f)
{
    struct err err;
    int version;
    f->db = f->next ? f->next : fleet_db_open(&f->address, CONNECT_S, &f->stop, &err);
    f->next = NULL;
    atomic_store(&f->read_only, false);
    if (!f->db || fleet_limit(f->db, &f->process, &err) != 0 || fleet_name_rights(f, &err) != 0 ||
        fleet_tables_ready(f, &version, &err) != 0 || fleet_name_parts(f, &err) != 0) {
        trouble(f, "connecting", &err);
        return false;
    }
    pthread_mutex_lock(&f->lock);
    f->version = version;
    f->trouble[0] = 0;
    pthread_mutex_unlock(&f->lock);
    begin_anew(f);
    atomic_fetch_add(&f->connects, 1);
    if (f->process != fleet_db_process(f->db))
        log_info("fleet", "there is a pooler before the database: it must be one of sessions");
    log_info("fleet", "connected as %s, schema version %d", f->self.name, version);
    return true;
}

/* A database that takes a connection and then ends it is one that is away: only a connection that
 * lasted makes the next pause short. */
static void session(struct fleet *f)
{
    if (arrive(f)) {
        int64_t steady_ns = in(STEADY_S);
        set_state(f, FLEET_ONLINE);
        while (!atomic_load(&f->stop) && turn(f)) {
            fleet_listen_soon(f, fleet_db_wait(f->db, f->wake_fd, until_next(f)));
            drain(f->wake_fd);
        }
        if (!fleet_db_alive(f->db) && !f->next)
            log_info("fleet", "the connection ended");
        if (clock_ns() >= steady_ns)
            f->backoff_s = 1;
    }
    if (f->db && atomic_load(&f->stop) && fleet_db_alive(f->db)) {
        struct err err;
        fleet_db_parting(f->db, BYE_S);
        if (fleet_bye(f->db, &f->self, &err) != 0)
            log_debug("fleet", "no farewell: %s", err.msg);
    }
    fleet_db_close(f->db);
    f->db = NULL;
    atomic_store(&f->listed, false);
    set_state(f, FLEET_AWAY);
}

/* Sleeps between two connections for 0.75 to 1.25 times the pause, so that the servers of a fleet
 * do not reconnect at the same moment. */
static void pause_between(struct fleet *f)
{
    int64_t until = in(f->backoff_s * (0.75 + fleet_by_lot(0.5)));
    f->backoff_s = f->backoff_s * 2 < BACKOFF_MOST_S ? f->backoff_s * 2 : BACKOFF_MOST_S;
    while (!atomic_load(&f->stop) && clock_ns() < until) {
        struct pollfd p = {.fd = f->wake_fd, .events = POLLIN};
        poll(&p, 1, 100);
        drain(f->wake_fd);
        usleep(20000);
    }
}

static void *fleet_thread(void *ctx)
{
    struct fleet *f = ctx;
    pthread_setname_np(pthread_self(), "whet-fleet");
    crash_stack();
    while (!atomic_load(&f->stop)) {
        session(f);
        if (!f->next)
            pause_between(f);
    }
    fleet_db_close(f->next);
    crash_stack_end();
    return NULL;
}

/* ---- open and close -------------------------------------------------------------------------- */

int fleet_check(const struct config *c, struct err *err)
{
    const struct fleet_address a = {c->specializer_fleet, c->specializer_fleet_key_file};
    return a.uri[0] ? fleet_db_check(&a, err) : 0;
}

/* Gives the server its identity: a random number that is drawn once for each store and kept in it,
 * with the path of the store, so that a copy of the file elsewhere is another server. */
static void identify(struct fleet *f)
{
    char host[65] = "", kept[400] = "", place[380];
    gethostname(host, sizeof host - 1);
    snprintf(place, sizeof place, "%s %.300s", host, store_path(f->store));
    if (!store_value(f->store, "fleet_server", kept, sizeof kept) || strlen(kept) < 17 ||
        strcmp(kept + 17, place) != 0 || (kept[KEY_HEX] = 0, !fleet_is_key(kept))) {
        uint64_t random = (uint64_t)clock_ns() ^ (uint64_t)getpid() << 32;
        if (getrandom(&random, sizeof random, 0) < 0)
            log_debug("fleet", "no random numbers: %s", strerror(errno));
        hash_hex(random, kept);
        char *value = xasprintf("%s %s", kept, place);
        store_set(f->store, "fleet_server", value, NULL);
        free(value);
    }
    snprintf(f->self.server, sizeof f->self.server, "%.16s", kept);
    if (f->config->server_port > 0)
        snprintf(f->self.name, sizeof f->self.name, "%s:%d", host, (int)f->config->server_port);
    else
        snprintf(f->self.name, sizeof f->self.name, "%s/%d", host, (int)getpid());
}

static void fleet_free(struct fleet *f)
{
    for (int i = 0; i < dispatch_slots(f->slots); i++)
        free(f->rows[i].row);
    free(f->rows);
    free(f->suspect);
    dispatch_close(f->slots);
    cJSON_Delete(f->view);
    close(f->wake_fd);
    pthread_mutex_destroy(&f->lock);
    pthread_mutex_destroy(&f->in_use);
    free(f);
}

struct fleet *fleet_open(const struct config *c, struct store *store, const char *env,
                         const char *device, const struct dispatch *slots, atomic_bool *imported)
{
    if (!c->specializer_fleet || !c->specializer_fleet[0])
        return NULL;
    struct fleet *f = xcalloc(1, sizeof *f);
    f->config = c;
    f->store = store;
    f->imported = imported;
    f->address = (struct fleet_address){c->specializer_fleet, c->specializer_fleet_key_file};
    f->texts = strcmp(c->specializer_agentic, "on") == 0;
    f->slots = dispatch_copy_names(slots);
    f->rows = xcalloc((size_t)dispatch_slots(f->slots), sizeof *f->rows);
    f->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->backoff_s = 1;
    f->since_ns = clock_ns();
    pthread_mutex_init(&f->lock, NULL);
    pthread_mutex_init(&f->in_use, NULL);
    snprintf(f->self.env, sizeof f->self.env, "%s", env);
    snprintf(f->self.version, sizeof f->self.version, "%s", WHET_VERSION);
    fleet_plain(device, f->self.device);
    identify(f);
    atomic_store(&f->untold, store_words_untold(store));
    key_file_warn("specializer.fleet_key_file", f->address.key_file);
    int rc = f->wake_fd < 0 ? errno : pthread_create(&f->thread, NULL, fleet_thread, f);
    if (rc != 0) {
        log_warn("fleet", "its thread did not start: %s", strerror(rc));
        fleet_free(f);
        return NULL;
    }
    return f;
}

void fleet_close(struct fleet *f)
{
    if (!f)
        return;
    struct timespec until;
    atomic_store(&f->stop, true);
    fleet_wake(f);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLOSE_S;
    if (pthread_timedjoin_np(f->thread, NULL, &until) == 0) {
        fleet_free(f);
        return;
    }
    /* The thread is still in the name resolver, which cannot be interrupted. When it returns it
     * will see `stop` and touch nothing but the struct, which is therefore not freed. */
    pthread_mutex_lock(&f->in_use);
    pthread_detach(f->thread);
    pthread_mutex_unlock(&f->in_use);
    log_warn("fleet", "its thread is left behind: a name is still being looked up");
}
