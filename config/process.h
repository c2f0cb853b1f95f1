/* SPDX-License-Identifier: Apache-2.0 */
/* process.h - child processes that cannot hurt the server: compilers, probes, executors.
 *
 * A child runs in its own process group at low priority under resource limits, with nothing or one
 * end of a socket as stdin and its output captured up to a bound. Started, then polled: nothing
 * here waits except process_run(). Every child that process_start() returned is reaped by
 * process_end() at the latest, and the kernel kills it when the thread that started it dies. One
 * thread at a time per struct process.
 */
#ifndef WHET_CONFIG_PROCESS_H
#define WHET_CONFIG_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/err.h"

enum process_priority {
    PROCESS_NORMAL,
    PROCESS_LOW,  /* nice 19 */
    PROCESS_IDLE, /* SCHED_IDLE, on half of the cores: runs when nothing else wants the core */
    PROCESS_IDLE_ANYWHERE, /* on all of them */
};

struct process_spec {
    const char *const *argv; /* argv[0] is looked up on PATH unless it has a slash */
    enum process_priority priority;
    double wall_s;         /* the group is killed after this long; 0: no limit */
    int32_t cpu_s;         /* RLIMIT_CPU of each process; 0: no limit */
    int64_t address_bytes; /* RLIMIT_AS; 0: no limit */
    int64_t file_bytes;    /* largest file a child may write; 0: no limit */
    size_t output_max;     /* bytes kept of each stream; the rest is read and dropped */
    int input; /* what the child has as stdin, above 2; stays the caller's; 0: nothing */
    const char *temporary;   /* folder for its temporary files; NULL: where ours are */
    const atomic_bool *stop; /* process_run() gives up once it is set; NULL: never */
};

struct process_result {
    char *out, *err; /* what it wrote, NUL-terminated */
    size_t out_n, err_n;
    bool truncated; /* more came than output_max */
    bool timed_out; /* killed because of wall_s */
    bool cpu_out;   /* killed because of cpu_s */
    int signal;     /* that ended it, or 0 */
    int status;     /* exit status when signal is 0 */
    double wall_s, cpu_s;
};

struct process;

/* NULL with a message naming the program when it cannot be started. */
struct process *process_start(const struct process_spec *spec, struct err *err);
/* Reads what the child wrote and enforces wall_s. True once it and its group are gone. */
bool process_poll(struct process *p);
/* Valid after process_poll() returned true; lives until process_end(). */
const struct process_result *process_result(const struct process *p);
/* Kills what still runs, waits for it, frees. NULL is fine. */
void process_end(struct process *p);

pid_t process_pid(const struct process *p);

/* Processes of low priority that share the cores with the compute threads, which wait in another
 * way while there are any (engine/cpu/gate.h). Counted here as children come and go; +1 and -1 by
 * who knows of others. Any thread. */
int32_t process_guests(void);
void process_guests_add(int32_t change);

/* Starts and waits. The caller frees the streams with process_result_free(). 0, or -1: it could not
 * be started, or was ended because of `stop`. */
int process_run(const struct process_spec *spec, struct process_result *result, struct err *err);
void process_result_free(struct process_result *r);

/* "exit status 1", "killed by SIGSEGV", "timed out after 2.0 s" into buf; returns buf. */
const char *process_describe(const struct process_result *r, char *buf, size_t n);

#endif
