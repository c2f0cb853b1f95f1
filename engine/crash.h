/* SPDX-License-Identifier: Apache-2.0 */
/* crash.h - which kernels were at work when a fault ended this process.
 *
 * A kernel that serves runs in the server's own process, so a fault in it is the server's end, and
 * the next server would put the same kernel back. What the process knows at that moment is
 * therefore written down: by a handler of its signals, into a file that was opened and given its
 * place on the disk before. The next process that has the file reads it (specializer/blame.c).
 *
 * Another rank of a model (ranks.h) has no store: it tells rank 0, which is still there, and notes
 * it in its own file.
 *
 * Only threads that compute steps (crash_thread()) say anything of kernels: a fault on another, a
 * signal that somebody sent and SIGKILL, which nobody handles, leave the record empty.
 */
#ifndef WHET_ENGINE_CRASH_H
#define WHET_ENGINE_CRASH_H

#include "engine/dispatch.h"

/* Kernels of a step other than eager ones. */
enum { CRASH_KERNELS = 48 };
struct crash_kernels {
    int32_t n;
    const struct kernel *of[CRASH_KERNELS];
};

struct crash_record {
    char what[160]; /* "SIGSEGV", or what a device said */
    bool inside;    /* in the code of the first kernel, and there is no other; else in a step with
                       all of these */
    int32_t n;
    char kernel[CRASH_KERNELS][24]; /* their ids */
};

/* From now on, to its end, the last words of this process are where a fault was (crash_trace.h),
 * before it ends as it would have. Once, before there are other threads. */
void crash_catch(void);

/* From now on a fault of this process leaves a record in a new file at `path`, in a folder that
 * passed safe_folder(), and then ends it as it would have. One at a time. 0 or -1. */
int crash_open(const char *path, struct err *err);
/* The same for another rank, instead: the record is sent to the socket `fd`, behind the `n` bytes
 * of `head`, CRASH_HEAD at most. Of what other threads send there it waits for nothing. 0 or -1. */
enum { CRASH_HEAD = 32 };
int crash_send(int fd, const void *head, size_t n, struct err *err);
/* No longer. A file goes, unless there is a record in it; a socket stays open. */
void crash_close(void);
/* Rank 0, any thread: another rank died and sent this, which crash_sound() has looked over. It is
 * noted as a fault of this process would be, the first one alone. */
void crash_of_rank(const struct crash_record *r, int32_t rank);
/* False: no record, whatever it is; else it can be read as one. */
bool crash_sound(struct crash_record *r);
/* What an earlier process left at `path`: 1 and the record, or 0 if there is none. */
int crash_read(const char *path, struct crash_record *out);

/* Handlers get a stack of their own on the calling thread, until crash_stack_end(): one that has
 * used up the thread's could not say a word. crash_catch() is for the thread that calls it, too. */
void crash_stack(void);
void crash_stack_end(void);
/* The calling thread computes steps, until crash_thread_end(); with a stack as above. */
void crash_thread(void);
void crash_thread_end(void);

/* Engine thread: the step under way has these kernels, NULL: no step is. They stay loaded. */
void crash_step(const struct crash_kernels *step);
/* Engine thread: the threads that compute are in the code of `k`, NULL: of none. */
void crash_runs(const struct kernel *k);
/* Engine thread: a device was lost by what a kernel of the step did there. Nothing ends by this,
 * but nothing can run any more, so it is noted at once. */
void crash_device(const struct crash_kernels *step, const char *what);

#endif
