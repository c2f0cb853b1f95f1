/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_link.h - messages between rank 0 and the others, over TCP.
 *
 * A message is a kind and some bytes. What comes from a socket is not believed: a frame that is
 * none, or longer than the reader allows, is an error. Times are of clock_ns(); 0: no end. One
 * thread at a time for each direction of a socket.
 */
#ifndef WHET_ENGINE_RANKS_LINK_H
#define WHET_ENGINE_RANKS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

enum link_kind {
    LINK_JOIN = 1, /* a rank says who it is */
    LINK_WELCOME,  /* it is one of this world */
    LINK_REFUSED,  /* it is not; why, as text */
    LINK_PART,     /* it has its part of the model, and room for so much */
    LINK_SET_UP,   /* how all of them open their backends */
    LINK_READY,    /* it has opened its own */
    LINK_STEP,     /* run this */
    LINK_END,      /* no more will come */
    LINK_LOST,     /* it cannot go on; why, as text */
    LINK_LOAD,     /* rank 0: load this kernel, which a later step may name */
    LINK_UNLOAD,   /* rank 0: no step will name it any more */
    LINK_LOADED,   /* another rank has, or cannot */
    LINK_BROKE,    /* a kernel runs no more there; eager does in its place */
    LINK_TABLE,    /* the table that its last step ran with */
    LINK_TIME,     /* rank 0: run this kernel of reduce, all at once */
    LINK_PING,     /* rank 0: whoever is there says LINK_ALIVE */
    LINK_ALIVE,    /* and who starts says so unasked, while it gets on with it */
    LINK_WISH,     /* rank 0: it has its part too, and would open its backend so */
    LINK_CRASH,    /* another rank dies of a fault (struct crash_record); its last message */
    LINK_KINDS
};

struct link_message {
    enum link_kind kind;
    size_t n;
    char *data; /* malloc'ed, 64-byte aligned, NUL behind it */
};
void link_message_free(struct link_message *m);

/* A socket that listens at host and port (0: any, which *port then says): at `host` alone if that
 * is an address of this machine, or localhost; else, as for a name, *everywhere: at all addresses
 * of this machine, IPv4 and IPv6. Connections of a socket made here end when their other end has
 * not been heard of for 25 s, though its host may be what is gone. */
int link_listen(const char *host, int32_t *port, bool *everywhere, struct err *err);
/* The next that connects; -1 with a message at `until`. `who` is its address. */
int link_accept(int listener, int64_t until, char *who, size_t n, struct err *err);
/* Tries again until somebody listens there. */
int link_connect(const char *host, int32_t port, int64_t until, struct err *err);

/* The bytes that go before `n` bytes of this kind, for who sends them in a signal's handler. */
enum { LINK_HEAD = 16 };
void link_head(enum link_kind kind, size_t n, char head[LINK_HEAD]);
int link_send(int fd, enum link_kind kind, const void *data, size_t n, int64_t until,
              struct err *err);
/* Whether link_receive() with that `most` would return at once. LINK_WHOLE: it would; LINK_BEGUN:
 * not yet, but something is there. */
enum { LINK_NOTHING, LINK_BEGUN, LINK_WHOLE };
int link_there(int fd, size_t most);
/* A message of at most `most` bytes; nothing is allocated before as much has been announced and
 * allowed. -1 with a message; *gone tells an other end that has closed. */
int link_receive(int fd, size_t most, int64_t until, struct link_message *m, bool *gone,
                 struct err *err);

#endif
