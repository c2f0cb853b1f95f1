/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_wire.h - what the messages between ranks say, and a step as bytes.
 *
 * Ranks are the same program on machines of one kind (a JOIN with another version is refused), so
 * structs travel as they lie in memory. A step is checked when it arrives all the same: what one
 * rank would run and another refuse must be found before they meet in a collective.
 */
#ifndef WHET_ENGINE_RANKS_WIRE_H
#define WHET_ENGINE_RANKS_WIRE_H

#include <stdbool.h>

#include "engine/backend.h"

enum { WIRE_VERSION = 8, WIRE_TEXT = 400, KERNEL_BYTES_MOST = 64 << 20, TIMED_MOST = 1024 };

/* LINK_JOIN. Texts end with a NUL. */
struct wire_join {
    int32_t version, rank, world;
    char program[64]; /* version and build */
    char host[64];    /* the same for ranks of one machine */
    char secret[72];  /* WHET_RANKS_SECRET, or empty */
    int64_t pid;
    unsigned char cpus[128]; /* that it may run on, as sched_getaffinity(2) says it */
};
/* LINK_WELCOME */
struct wire_welcome {
    int32_t local_ranks; /* ranks of its machine */
    int32_t same_cpus;   /* of those, the ranks that may run on the same CPUs as it */
    int32_t one_host;    /* all are on one */
};
/* LINK_PART, after LINK_WISH */
struct wire_part {
    char hash[24]; /* of the whole model */
    char backend[16];
    char device[48];              /* the same for ranks that share one; empty: not known */
    int64_t kv_room, page_bytes;  /* bytes of its device for pages (0: any number), and of a page */
    uint64_t shape[REGION_NODES]; /* by region: the same where ranks can run the same kernel */
};
/* LINK_WISH: what rank 0 would open its backend with, by which the others reckon their room;
 * LINK_SET_UP: what all open theirs with. */
struct wire_setup {
    char id[RANKS_ID]; /* LINK_WISH: not made yet */
    int32_t kv_pages, max_tokens, max_rows, own_formats, bf16_copies, e4m3_products, kv_bf16;
};

/* LINK_LOAD, and behind it the `bytes` of the object: ranks of one machine need not see the same
 * files. Rank 0 counts the kernels of a world from 1; 0 is eager. */
struct wire_kernel {
    int32_t number, region, origin;
    int16_t layer, layers; /* of its format class: the first, and how many; 0: all of the region */
    int64_t bytes;
    unsigned char sha256[32]; /* of the object */
    char id[24], name[160], entry[64];
};
/* LINK_UNLOAD is the number alone. LINK_LOADED, LINK_BROKE: what became of that kernel on a rank.
 */
struct wire_answer {
    int32_t number;
    int32_t outside; /* LINK_LOADED: why it could not says nothing of the kernel */
    char why[240];   /* LINK_LOADED: empty if it is loaded */
};
/* LINK_TABLE */
struct wire_version {
    int64_t step, version;
};

/* LINK_TIME: all ranks run a kernel of reduce so many times (backend_ops.time_reduce). */
struct wire_timing {
    int32_t kernel, m, calls;
};

/* Which kernels a step runs. Tables have the same slots on all ranks; a change is announced with
 * the first step that runs with it, and makes the next version. */
struct wire_change {
    int32_t slot, kernel;
};
struct wire_table {
    int64_t step, version;      /* of the step: counted from 1; of the table, from 0 */
    int32_t trial_slot, trial;  /* a canary's: the slot and its kernel; -1, 0: none */
    int32_t beside_run, beside; /* a kernel that runs beside that of reduce, in that run of it
                                   (struct step_trial); -1, 0: none */
    int32_t changes;
    const struct wire_change *change; /* [changes] */
};

struct wire_buffer {
    char *data;
    size_t n, room;
};
void wire_buffer_free(struct wire_buffer *b);

/* The step without what only rank 0 needs (`sample`, `report`), into `b`. */
void wire_pack(const struct step *s, const struct wire_table *t, struct wire_buffer *b);

/* What a rank was opened for. */
struct wire_limits {
    int32_t max_tokens, max_rows, kv_pages, vocab, max_context, slots;
};
/* Points `s` and `t` into `data`, 64-byte aligned, which they need as long as they live. `sample`
 * is NULL. -1 with a message naming what is out of bounds. */
int wire_unpack(const char *data, size_t n, const struct wire_limits *l, struct step *s,
                struct wire_table *t, struct err *err);
/* -1 with a message naming what is out of bounds. */
int wire_read_timing(const char *data, size_t n, const struct wire_limits *l, struct wire_timing *t,
                     struct err *err);
/* A kernel, and its bytes, which point into `data`. -1 with a message. */
int wire_read_kernel(const char *data, size_t n, struct wire_kernel *k, const char **bytes,
                     struct err *err);
/* Bytes of the longest step within the limits. */
size_t wire_most(const struct wire_limits *l);

#endif
