/* SPDX-License-Identifier: Apache-2.0 */
/* executor.h - a sealed process that runs one kernel which a language model wrote.
 *
 * No such text ever runs in the server's address space, nor anywhere unsealed. Its executor is the
 * same program started anew, so nothing of the server is in its memory: no keys, no requests. It
 * opens the model's file by itself and finds its weights there, read-only; it has pages of keys and
 * values only if its region is attention, and those read-only; the seccomp filter lets its threads
 * compute, wait on futexes and end. What a call is given is copied into memory that both share and
 * what it computed is copied out: rows of floats, of which a hostile text can make wrong numbers
 * and nothing else, and which nobody can change once they were taken. No pointer crosses over.
 *
 * A call costs the copies and two hand-overs between processes; docs/measurements.md has what that
 * is. A text that crashes, hangs or ends gives an error here, and its executor is no more.
 *
 * Threads: executor_open() and executor_close() by one that lives as long as the executor, because
 * the kernel of the system ends the process together with the thread that started it;
 * executor_run() by the engine's; executor_broken() by any.
 */
#ifndef WHET_ENGINE_CPU_EXECUTOR_H
#define WHET_ENGINE_CPU_EXECUTOR_H

#include "engine/cpu/bind.h"
#include "engine/cpu/pool.h"
#include "engine/formats.h"

/* Pages of keys and values that executors of attention see. */
struct executor_pages {
    int fd;           /* of the memory, above 2; -1: none */
    const void *base; /* where the server has it */
    int64_t bytes;
};

enum { EXECUTOR_LIVE, EXECUTOR_BENCH, EXECUTOR_PAGES };

struct executor_options {
    const char *program; /* what is started, as `program executor`; NULL: this program */
    const char *object;
    const char *model_path;
    const struct model *model; /* the server's own */
    enum region region;
    const struct format_class *formats; /* of the layers that it runs in; NULL: all of them */
    int32_t team, max_tokens;
    int32_t positions;  /* that a sequence may have */
    int64_t pack_bytes; /* that its repacked weights may have */
    bool settle;        /* put a copy of the region's weights into huge pages */
    struct executor_pages pages[EXECUTOR_PAGES];
};

struct executor;

/* Starts one: returns once it is sealed and has repacked its weights. NULL with the reason. */
struct executor *executor_open(const struct executor_options *o, struct err *err);
void executor_close(struct executor *x); /* ends the process; NULL is fine */

int32_t executor_m_max(const struct executor *x);
/* Of its repacked weights. */
int64_t executor_packed_bytes(const struct executor *x);

/* Runs the kernel on `args` (bound to `layer`; its weights are the executor's own) with copies made
 * by `pool`, and writes the outputs where args point. 0, or -1 and broken for ever. */
int executor_run(struct executor *x, struct pool *pool, int32_t layer,
                 const union region_args *args);
/* NULL, or why it runs no more: "SIGSEGV at 0x10", "system call execve", "hang: ...". */
const char *executor_broken(struct executor *x);
/* Looks whether the process still lives; for who started it. As executor_broken(). */
const char *executor_check(struct executor *x);

/* `whet executor`: the sealed process. stdin is the socket that its work comes by. With
 * --check: exit status 0 if a process can be sealed here. */
int executor_main(int argc, char **argv);

#endif
