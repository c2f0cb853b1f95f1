/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_private.h - the inside of struct fleet: what its thread has alone, and what is under
 * `lock`. */
#ifndef WHET_SPECIALIZER_FLEET_FLEET_PRIVATE_H
#define WHET_SPECIALIZER_FLEET_FLEET_PRIVATE_H

#include <pthread.h>
#include <sys/eventfd.h>

#include "engine/dispatch.h"
#include "specializer/fleet/fleet.h"
#include "specializer/fleet/fleet_sql.h"
#include "specializer/store/store_words.h"

/* Bounds of what is kept of others, whatever they send. */
enum {
    ROWS_OF_SLOT = 512,
    SUSPECTS_MOST = 1024,
    SAYINGS_MOST = 64,
    PEERS_MOST = 256,
    MISSES_ENOUGH = 4, /* wrong speeds of a server, more than right ones: it is left alone */
    WISHES_MOST = 64,
    WRONG_SHOWN = 8 /* refused rows in the log and on the page */
};

enum fleet_state { FLEET_AWAY, FLEET_ONLINE, FLEET_STATES };

/* What is known of other servers for one slot. */
struct slot_rows {
    struct fleet_row *row;
    int n;
    int64_t came_ns; /* when the last one came */
};

/* How often another server's speeds were seen here too. */
struct peer {
    char server[KEY_HEX + 1];
    int hits, misses;
};

enum lease_state { LEASE_UNASKED, LEASE_HELD, LEASE_TAKEN, LEASE_FAILED };

struct fleet {
    const struct config *config;
    struct store *store;
    struct fleet_address address;
    struct fleet_self self;
    struct dispatch *slots;
    atomic_bool *imported;
    bool texts; /* specializer.agentic is on */
    pthread_t thread;
    int wake_fd;
    atomic_bool stop;
    pthread_mutex_t in_use; /* held while the thread is in the store: it may be left behind */

    /* fleet thread */
    struct fleet_db *db;
    struct fleet_db *next; /* the connection to go on with, or NULL */
    int servers;           /* that are there, by the last look */
    int64_t seq, text_seq, retraction_seq, trace_id;
    int64_t back; /* rows below this number were not read yet; 0: all were */
    int64_t lease_due_ns, send_due_ns, all_due_ns, pull_due_ns, view_due_ns, beat_due_ns,
        prune_due_ns, say_due_ns, wrong_due_ns, seek_due_ns;
    double seek_s;                       /* the next pause between two searches for another host */
    int64_t pulled_ns;                   /* when it listened last */
    int64_t wrong_ns, noted_ns;          /* when it asked what is wrong; when somebody notified */
    bool listen_due, hello_due, all_due; /* what a connection begins with, until it succeeds */
    int process;                         /* of the database, that serves the connection */
    int all_slot;                        /* the first whose rows were not all sent */
    int64_t again_after;                 /* where that has come to */
    unsigned gone;                       /* duties that met something that was not there, as bits */
    bool again_failed;                   /* for some of it, on the way there */
    bool again_due; /* what was told to other connections was not yet told to this one */
    int backoff_s;
    _Atomic uint64_t complaints, forgotten;

    _Atomic uint64_t news, errors, connects, sent, taken, refused, dropped, retracted_here,
        suspected, pruned;
    atomic_bool said;      /* something is to be told, since the thread looked */
    atomic_int untold;     /* words that the database does not have yet */
    atomic_bool listed;    /* the database took the last heartbeat: others see this server */
    atomic_bool read_only; /* it said that nothing can be written */

    pthread_mutex_t lock;
    /* lock, from here on */
    enum fleet_state state;
    int version; /* of the schema there */
    int64_t since_ns;
    char trouble[FLEET_WORD]; /* the last error; "": none since it is online */
    char poison[WRONG_SHOWN][FLEET_WORD];
    int poisons;
    struct slot_rows *rows; /* [slots] */
    int64_t serial;
    struct fleet_suspect *suspect;
    int suspects, asked; /* of them given to the specializer */
    struct peer peer[PEERS_MOST];
    int peers;
    struct store_word saying[SAYINGS_MOST]; /* which the store did not take */
    int sayings;
    char wish[WISHES_MOST][40];
    int wishes;
    bool wish_new;
    int64_t wished_ns; /* when the first wish without an answer came */
    enum lease_state lease_state;
    char lease[40];
    int64_t lease_until_ns, alone_ns; /* when it began to hold none though it asked */
    cJSON *view;
    int64_t view_ns;
};

/* ---- fleet_memory.c: what is kept of others -------------------------------------------------- */
void fleet_take_rows(struct fleet *f, const struct fleet_rows *rows);
/* The database may be another than the one that numbered what is kept: all of it is old. */
void fleet_forget_numbers(struct fleet *f);
void fleet_take_retractions(struct fleet *f, const struct fleet_rows *rows);
/* This server measured a point itself: whoever spoke of it was right, or was not. */
void fleet_compare(struct fleet *f, const struct record *own);
/* A row or a text that was not taken: counted, and shown a few times. */
void fleet_refuse(struct fleet *f, const char *server, const char *why);

/* ---- fleet_room.c: which row goes where there are too many ----------------------------------- */

/* Kernels that serve here, by the store. */
struct serving {
    char (*key)[KEY_HEX + 1];
    int n;
};
bool fleet_serves(const struct serving *s, const char *key);
/* Nobody listens to the server any more. Lock held. */
/* Ends the thread's wait; any thread. A counter that is full takes no more: the thread is awake. */
static inline void fleet_wake(struct fleet *f)
{
    eventfd_write(f->wake_fd, 1);
}

bool fleet_distrusted(const struct fleet *f, const char *server);
/* Which row of a full slot makes room for `r`; NULL: none does, `r` itself is missed least. The
 * newest never does, nor the few words about a kernel that serves here; one that serves makes room
 * for none but winners. Lock held. */
struct fleet_row *fleet_who_goes(const struct fleet *f, struct slot_rows *s,
                                 const struct fleet_row *r, const struct serving *serving);

/* ---- fleet_pull.c: what others wrote --------------------------------------------------------- */
int fleet_pull_all(struct fleet *f, struct err *err);
/* Of it only which kernels were found wrong. */
int fleet_pull_wrong(struct fleet *f, struct err *err);

/* ---- fleet_pace.c: how often, by how many servers there are ---------------------------------- */

#define FLEET_PULL_S 5.0 /* a server listens so often whatever it is told */
/* A number from 0 to `seconds`. */
double fleet_by_lot(double seconds);
/* Seconds between two times that one of so many servers listens because it was told to; and within
 * which all of them ask what is wrong. */
double fleet_listen_pause(int servers);
double fleet_hearing_spread(int servers);
/* Others have said something (enum fleet_note): the time of the next turn. */
void fleet_listen_soon(struct fleet *f, unsigned notes);
/* Others are to see that it has heard, soon. */
void fleet_heard(struct fleet *f);
/* Whether others are told that there is something new; if not, they find it within FLEET_PULL_S. */
bool fleet_may_notify(struct fleet *f);

/* ---- fleet_host.c: what is wrong with a database that answers -------------------------------- */

/* Rights that the role has not, and parts of the tables that are not there, cost what rests on
 * them, and a line in the log with each connection. */
int fleet_name_rights(struct fleet *f, struct err *err);
int fleet_name_parts(struct fleet *f, struct err *err);
/* As fleet_schema_ready(), and 0 for older tables that may not be brought up and will do. */
int fleet_tables_ready(struct fleet *f, int *version, struct err *err);
/* A statement failed; one that writes succeeded. */
void fleet_read_only_begins(struct fleet *f);
void fleet_read_only_ends(struct fleet *f);
/* While the database can only be read: tries for one that can be written, which is f->next then,
 * and ends the connection. */
int fleet_seek(struct fleet *f, struct err *err);

/* ---- fleet_send.c: what the store learned --------------------------------------------------- */
/* Everything of this environment, once a connection (all_due); what changed since. -1: what was not
 * sent is tried again with the next turn; 1: all was sent but what the database refuses for what it
 * is. Both with a message. */
int fleet_send_all(struct fleet *f, struct err *err);
int fleet_send_changed(struct fleet *f, struct err *err);

/* The last statement failed for what is in its row (SQL's classes 22 and 23), which would fail
 * again. */
bool fleet_row_refused(const struct fleet *f);

/* ---- fleet_words.c: what is said of kernels that are wrong ----------------------------------- */
/* All that is still to be told, and what was told to another connection. -1 with a message, if
 * something has to wait; what is refused is logged and given up. */
int fleet_say_all(struct fleet *f, struct err *err);

/* fleet_view.c: f->view anew. */
int fleet_look(struct fleet *f, struct err *err);

#endif
