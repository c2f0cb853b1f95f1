/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_db.c - see fleet_db.h.
 *
 * Every wait is poll() on libpq's socket in pieces of a tenth of a second, so that a server that
 * stops is not held up by a database that does not answer. libpq itself waits in one place, the
 * resolver; for it the thread that calls is one that nobody has to wait for (fleet.c).
 *
 * The bytes of an answer are counted as they arrive: libpq would gather a row of any size in
 * memory, and a database that lies may send one.
 */
#include "specializer/fleet/fleet_db.h"

#include <errno.h>
#include <libpq-fe.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "config/clock.h"
#include "specializer/fleet/fleet_address.h"

enum { SLICE_MS = 100 };

struct fleet_db {
    PGconn *conn; /* NULL: the connection has ended */
    const atomic_bool *stop;
    int64_t parting_ns; /* 0: none yet */
    char state[6];
};

static void nothing_said(void *ctx, const PGresult *r)
{
    (void)ctx;
    (void)r; /* libpq would print notices to stderr */
}

/* ---- waiting -------------------------------------------------------------------------------- */

static bool stopping(const struct fleet_db *db)
{
    return db->stop && atomic_load(db->stop);
}

static int ended(struct fleet_db *db, struct err *err, const char *what)
{
    char words[FLEET_WORD];
    fleet_plain(what, words);
    PQfinish(db->conn);
    db->conn = NULL;
    return err_set(err, "%s", words[0] ? words : "the connection ended");
}

/* Waits until the socket is ready for `events`: 1, 0 at the deadline, -1 if the server stops. */
static int wait_ready(struct fleet_db *db, short events, int64_t deadline_ns)
{
    for (;;) {
        int64_t left_ms = (deadline_ns - clock_ns()) / 1000000;
        if (stopping(db))
            return -1;
        if (left_ms <= 0)
            return 0;
        struct pollfd p = {.fd = PQsocket(db->conn), .events = events};
        if (p.fd < 0 || poll(&p, 1, left_ms < SLICE_MS ? (int)left_ms : SLICE_MS) > 0)
            return 1; /* libpq reports how it ended */
    }
}

static int must_wait(struct fleet_db *db, short events, int64_t deadline_ns, const char *what,
                     struct err *err)
{
    int r = wait_ready(db, events, deadline_ns);
    return r > 0 ? 0 : ended(db, err, r < 0 ? "the server stops" : what);
}

/* ---- connecting ----------------------------------------------------------------------------- */

/* The hosts of an address. libpq goes on to the next by itself only where a host refuses; for one
 * that says nothing its asynchronous calls leave that to the caller, so each is tried alone. */
struct hosts {
    const char *host, *hostaddr, *port; /* lists, as in the address; NULL: libpq's own choice */
    int n;                              /* 1: the lists as they are */
};

static const char *option(const PQconninfoOption *all, const char *keyword)
{
    for (; all->keyword; all++)
        if (strcmp(all->keyword, keyword) == 0)
            return all->val;
    return NULL;
}

static int items(const char *list)
{
    int n = list && *list ? 1 : 0;
    for (; list && *list; list++)
        n += *list == ',';
    return n;
}

/* The i-th of a list of `n`; of a list of one (a port), that one. */
static char *item(const char *list, int n, int i)
{
    if (!list)
        return NULL;
    for (; items(list) == n && i > 0; i--)
        list += strcspn(list, ",") + 1;
    return xstrndup(list, strcspn(list, ","));
}

/* Lists that do not fit together are left to libpq, which says so. */
static struct hosts hosts_of(const PQconninfoOption *all)
{
    struct hosts h = {option(all, "host"), option(all, "hostaddr"), option(all, "port"), 1};
    int names = items(h.host), addresses = items(h.hostaddr), ports = items(h.port);
    int n = addresses > 0 ? addresses : names;
    if (n > 1 && (names == n || names == 0) && (ports == n || ports <= 1))
        h.n = n;
    return h;
}

/* Names and values for PQconnectStartParams(). */
struct parameters {
    const char *name[64], *value[64];
    int n;
};

static void put(struct parameters *p, const char *name, const char *value)
{
    if (!value || p->n == (int)(sizeof p->name / sizeof *p->name) - 1)
        return;
    p->name[p->n] = name;
    p->value[p->n++] = value;
    p->name[p->n] = p->value[p->n] = NULL;
}

/* Begins to connect to the i-th host. `attrs`: instead of target_session_attrs, or NULL. */
static PGconn *begin(const struct fleet_address *a, const PQconninfoOption *all, int i,
                     const char *attrs, struct err *err)
{
    struct parameters p = {.n = 0};
    char password[FLEET_PASSWORD_MOST] = "";
    struct hosts h = hosts_of(all);
    if (*a->key_file && fleet_password_read(a->key_file, password, err) != 0)
        return NULL;
    for (const PQconninfoOption *o = all; o->keyword; o++)
        put(&p, o->keyword, o->val);
    char *own[] = {h.n > 1 ? item(h.host, h.n, i) : NULL, h.n > 1 ? item(h.hostaddr, h.n, i) : NULL,
                   h.n > 1 ? item(h.port, h.n, i) : NULL};
    put(&p, "host", own[0]); /* the last word counts */
    put(&p, "hostaddr", own[1]);
    put(&p, "port", own[2]);
    put(&p, "target_session_attrs", attrs);
    put(&p, "fallback_application_name", "whet");
    put(&p, "client_encoding", "UTF8");
    put(&p, "password", password[0] ? password : NULL);
    PGconn *conn = PQconnectStartParams(p.name, p.value, 0);
    explicit_bzero(password, sizeof password);
    for (size_t k = 0; k < sizeof own / sizeof *own; k++)
        free(own[k]);
    if (!conn)
        err_set(err, "no memory for a connection");
    return conn;
}

static int connect_poll(struct fleet_db *db, int64_t deadline_ns, struct err *err)
{
    PostgresPollingStatusType at = PGRES_POLLING_WRITING;
    if (PQstatus(db->conn) == CONNECTION_BAD)
        return ended(db, err, PQerrorMessage(db->conn));
    while (at != PGRES_POLLING_OK) {
        short events = at == PGRES_POLLING_READING ? POLLIN : POLLOUT;
        if (must_wait(db, events, deadline_ns, "no connection in time", err) != 0)
            return -1;
        at = PQconnectPoll(db->conn);
        if (at == PGRES_POLLING_FAILED)
            return ended(db, err, PQerrorMessage(db->conn));
    }
    return 0;
}

/* How long one host may take: what the address or the environment says, else `seconds`. */
static double host_seconds(const PQconninfoOption *all, double seconds)
{
    const char *said = option(all, "connect_timeout");
    said = said ? said : getenv("PGCONNECT_TIMEOUT");
    int s = said ? atoi(said) : 0;
    return s > 0 ? s : seconds;
}

static bool try_host(struct fleet_db *db, const struct fleet_address *a,
                     const PQconninfoOption *all, int i, const char *attrs, double seconds,
                     struct err *err)
{
    struct hosts h = hosts_of(all);
    db->conn = begin(a, all, i, attrs, err);
    if (!db->conn)
        return false;
    if (connect_poll(db, clock_ns() + (int64_t)(host_seconds(all, seconds) * 1e9), err) == 0)
        return true;
    char *name = h.n > 1 ? item(h.hostaddr ? h.hostaddr : h.host, h.n, i) : NULL;
    if (name)
        err_prefix(err, "%.60s", name);
    free(name);
    return false;
}

/* One host after the other; `err` has what was wrong with the first and the last. A standby is
 * preferred by asking all of them for one first. `wanted`: instead of target_session_attrs, or
 * NULL. */
static bool try_hosts(struct fleet_db *db, const struct fleet_address *a,
                      const PQconninfoOption *all, const char *wanted, double seconds,
                      struct err *err)
{
    int n = hosts_of(all).n;
    const char *attrs = wanted ? wanted : option(all, "target_session_attrs");
    bool twice = n > 1 && attrs && strcmp(attrs, "prefer-standby") == 0;
    struct err first = {.msg = ""};
    for (int i = 0; i < (twice ? 2 * n : n); i++) {
        if (try_host(db, a, all, i % n, !twice ? wanted : i < n ? "standby" : "any", seconds, err))
            return true;
        if (stopping(db))
            return false;
        if (i == 0)
            first = *err;
    }
    if (n > 1)
        err_prefix(err, "none of %d hosts: %.90s; ...", n, first.msg);
    return false;
}

/* The address asks for a database that cannot be written. */
static bool wants_to_read(const PQconninfoOption *all)
{
    const char *attrs = option(all, "target_session_attrs");
    return attrs && (strcmp(attrs, "read-only") == 0 || strcmp(attrs, "standby") == 0 ||
                     strcmp(attrs, "prefer-standby") == 0);
}

static struct fleet_db *open_with(const struct fleet_address *a, bool writable, double seconds,
                                  const atomic_bool *stop, struct err *err)
{
    PQconninfoOption *all = fleet_address_parse(a, err);
    if (!all)
        return NULL;
    struct fleet_db *db = xcalloc(1, sizeof *db);
    bool there = false;
    db->stop = stop;
    if (!writable)
        there = try_hosts(db, a, all, NULL, seconds, err);
    else if (wants_to_read(all))
        err_set(err, "the address asks for a database that cannot be written");
    else
        there = try_hosts(db, a, all, "read-write", seconds, err);
    PQconninfoFree(all);
    if (there) {
        PQsetNoticeReceiver(db->conn, nothing_said, NULL);
        PQsetnonblocking(db->conn, 1);
        return db;
    }
    fleet_db_close(db);
    return NULL;
}

struct fleet_db *fleet_db_open(const struct fleet_address *a, double seconds,
                               const atomic_bool *stop, struct err *err)
{
    return open_with(a, false, seconds, stop, err);
}

struct fleet_db *fleet_db_open_writable(const struct fleet_address *a, double seconds,
                                        const atomic_bool *stop, struct err *err)
{
    return open_with(a, true, seconds, stop, err);
}

void fleet_db_close(struct fleet_db *db)
{
    if (!db)
        return;
    PQfinish(db->conn);
    free(db);
}

bool fleet_db_alive(const struct fleet_db *db)
{
    return db->conn != NULL;
}

void fleet_db_end(struct fleet_db *db)
{
    PQfinish(db->conn);
    db->conn = NULL;
}

int fleet_db_process(const struct fleet_db *db)
{
    return db->conn ? PQbackendPID(db->conn) : 0;
}

void fleet_db_parting(struct fleet_db *db, double seconds)
{
    db->stop = NULL;
    db->parting_ns = clock_ns() + (int64_t)(seconds * 1e9);
}

/* ---- statements ----------------------------------------------------------------------------- */

static int send_all(struct fleet_db *db, int64_t deadline_ns, struct err *err)
{
    int left;
    while ((left = PQflush(db->conn)) > 0)
        if (must_wait(db, POLLOUT | POLLIN, deadline_ns, "no answer in time", err) != 0 ||
            (PQconsumeInput(db->conn) == 0 && ended(db, err, PQerrorMessage(db->conn)) != 0))
            return -1;
    return left == 0 ? 0 : ended(db, err, PQerrorMessage(db->conn));
}

/* What has arrived so far on a TCP connection; -1 on another (a Unix socket). */
static int64_t arrived(const struct fleet_db *db)
{
    struct tcp_info t = {0};
    socklen_t n = sizeof t;
    bool tcp = getsockopt(PQsocket(db->conn), IPPROTO_TCP, TCP_INFO, &t, &n) == 0 &&
               n >= offsetof(struct tcp_info, tcpi_bytes_received) + sizeof t.tcpi_bytes_received;
    return tcp ? (int64_t)t.tcpi_bytes_received : -1;
}

/* The bytes of one answer, or of the notifications that one wait reads. */
struct count {
    int64_t from;  /* arrived() when it began, or -1 */
    int64_t bytes; /* at least so many, where nobody counts */
};

static struct count count_begin(const struct fleet_db *db)
{
    return (struct count){arrived(db), 0};
}

/* Reads what has arrived. What is left to be read afterwards says little of how much was read: more
 * may have come meanwhile. A read takes READ_LEAST of what is there in any case. */
static int consume(struct fleet_db *db, struct count *c, struct err *err)
{
    enum { READ_LEAST = 8192 };
    int before = 0, after = 0;
    ioctl(PQsocket(db->conn), FIONREAD, &before);
    if (PQconsumeInput(db->conn) == 0)
        return ended(db, err, PQerrorMessage(db->conn));
    ioctl(PQsocket(db->conn), FIONREAD, &after);
    int least = before < READ_LEAST ? before : READ_LEAST;
    c->bytes += before - after > least ? before - after : least;
    int64_t bytes = c->from >= 0 ? arrived(db) - c->from : c->bytes;
    return bytes <= FLEET_ANSWER_BYTES ? 0 : ended(db, err, "an answer of too many bytes");
}

/* The last result of the statement; what came before it is dropped. NULL: the connection ended. */
static PGresult *receive(struct fleet_db *db, int64_t deadline_ns, struct err *err)
{
    PGresult *last = NULL, *r;
    struct count count = count_begin(db);
    for (;;) {
        while (PQisBusy(db->conn))
            if (must_wait(db, POLLIN, deadline_ns, "no answer in time", err) != 0 ||
                consume(db, &count, err) != 0) {
                PQclear(last);
                return NULL;
            }
        if (!(r = PQgetResult(db->conn)))
            break;
        ExecStatusType kind = PQresultStatus(r);
        PQclear(last);
        last = r;
        if (kind == PGRES_COPY_IN || kind == PGRES_COPY_OUT || kind == PGRES_COPY_BOTH)
            break; /* no statement of this program is a COPY */
    }
    if (!last)
        ended(db, err, "no answer");
    return last;
}

int fleet_db_run(struct fleet_db *db, double seconds, const char *sql, const char *const *value,
                 int n, struct fleet_rows *rows, struct err *err)
{
    int64_t deadline_ns = clock_ns() + (int64_t)(seconds * 1e9);
    if (db->parting_ns && deadline_ns > db->parting_ns)
        deadline_ns = db->parting_ns;
    char words[FLEET_WORD];
    db->state[0] = 0;
    if (rows)
        *rows = (struct fleet_rows){0};
    if (!db->conn)
        return err_set(err, "the connection ended");
    /* Statements without parameters may be several, as in a migration. */
    int sent = n > 0 ? PQsendQueryParams(db->conn, sql, n, NULL, value, NULL, NULL, 0)
                     : PQsendQuery(db->conn, sql);
    if (!sent)
        return ended(db, err, PQerrorMessage(db->conn));
    PGresult *r = send_all(db, deadline_ns, err) == 0 ? receive(db, deadline_ns, err) : NULL;
    if (!r)
        return -1;
    ExecStatusType kind = PQresultStatus(r);
    if (kind != PGRES_TUPLES_OK && kind != PGRES_COMMAND_OK) {
        const char *state = PQresultErrorField(r, PG_DIAG_SQLSTATE);
        const char *what = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
        snprintf(db->state, sizeof db->state, "%s", state ? state : "");
        fleet_plain(what ? what : PQresultErrorMessage(r), words);
        PQclear(r);
        err_set(err, "%s", words[0] ? words : "the database did not do it");
        if (PQstatus(db->conn) != CONNECTION_OK || PQtransactionStatus(db->conn) == PQTRANS_ACTIVE)
            ended(db, NULL, "");
        return -1;
    }
    if (rows)
        *rows = (struct fleet_rows){r, PQntuples(r), PQnfields(r)};
    else
        PQclear(r);
    return 0;
}

const char *fleet_value(const struct fleet_rows *rows, int row, int column)
{
    if (!rows->result || row < 0 || row >= rows->n || column < 0 || column >= rows->columns ||
        PQfformat(rows->result, column) != 0)
        return "";
    return PQgetvalue(rows->result, row, column);
}

void fleet_rows_free(struct fleet_rows *rows)
{
    PQclear(rows->result);
    *rows = (struct fleet_rows){0};
}

const char *fleet_db_state(const struct fleet_db *db)
{
    return db->state;
}

/* ---- notifications -------------------------------------------------------------------------- */

/* A session that listens hears what it said itself, too. */
static unsigned notified(struct fleet_db *db)
{
    unsigned of = 0;
    PGnotify *n;
    while (db->conn && (n = PQnotifies(db->conn)) != NULL) {
        if (n->be_pid != PQbackendPID(db->conn))
            of |= strcmp(n->extra, FLEET_NOTE_OF_WRONG) == 0 ? FLEET_NOTE_WRONG : FLEET_NOTE_KERNEL;
        PQfreemem(n);
    }
    return of;
}

unsigned fleet_db_wait(struct fleet_db *db, int wake_fd, double seconds)
{
    if (!db->conn)
        return 0;
    unsigned of = notified(db);
    if (of) /* it arrived with an answer and is already here */
        return of;
    struct count count = count_begin(db);
    struct pollfd p[] = {{.fd = PQsocket(db->conn), .events = POLLIN},
                         {.fd = wake_fd, .events = POLLIN}};
    poll(p, 2, (int)(seconds * 1000));
    if (p[0].revents && consume(db, &count, NULL) == 0)
        return notified(db);
    return 0;
}
