/* SPDX-License-Identifier: Apache-2.0 */
/* executor_private.h - what passes between the two halves of an executor (executor.c in the server,
 * executor_main.c in the process), and where it lies (executor_area.c). */
#ifndef WHET_ENGINE_CPU_EXECUTOR_PRIVATE_H
#define WHET_ENGINE_CPU_EXECUTOR_PRIVATE_H

#include "engine/cpu/executor.h"
#include "engine/cpu/gate.h"
#include "engine/fault.h"

/* Where things lie in the shared memory: bytes from its start. Both sides compute it. What the
 * process writes comes first, what it only reads begins at `inputs`, in whole pages. */
struct area {
    int64_t out, k, v; /* outputs: q, a, y, h or logits; rows of keys and values in pages */
    int64_t inputs;
    int64_t x, in, cosine, sine, span, table;
    int64_t table_numbers; /* that `table` has room for */
    int64_t bytes;
};
struct area area_of(const struct model_shape *s, enum region r, int32_t max_tokens,
                    int32_t positions);

/* One message on the socket, with the descriptors of the area and of the pages. */
struct executor_setup {
    int32_t bytes;         /* sizeof: both are the same program */
    int32_t region, layer; /* one of the format class that it is for; -1: it is for all layers */
    int32_t team, max_tokens, positions;
    int32_t pages; /* descriptors of pages that follow the area's */
    bool settle, spread;
    bool kv_bf16; /* model_shape.kv_bf16 of the server */
    int64_t area_bytes, area_inputs;
    int64_t pack_bytes, page_bytes[EXECUTOR_PAGES];
    char model[4096], object[4096];
};

enum executor_state { EXECUTOR_STARTS, EXECUTOR_READY, EXECUTOR_REFUSED, EXECUTOR_FAULT };

/* At the start of the area. The server writes `command` and `call`; the process everything else,
 * and nothing of that is believed beyond what it says of itself. */
struct executor_control {
    struct gate command, done;
    struct {
        int32_t m, layer, spans;
        int32_t guests; /* process_guests() of the server */
        int32_t pages;  /* EXECUTOR_LIVE or EXECUTOR_BENCH */
        bool alone;     /* executor_alone() */
        int64_t k_at, v_at;
    } call;
    _Atomic int32_t state; /* enum executor_state */
    int32_t m_max;
    int64_t packed_bytes;
    struct fault fault; /* FAULT */
    char problem[200];  /* REFUSED */
};

/* ---- the server's half ---------------------------------------------------------------------- */

struct process;

struct executor {
    struct process *process;
    pid_t pid;
    struct executor_control *control; /* at the start of the area */
    struct area area;
    struct model_shape shape;
    enum region region;
    int32_t team, m_max;
    int32_t cores; /* that there were when it was opened */
    int32_t ranks; /* counted among those of all executors */
    int64_t packed_bytes;
    double work_s; /* generous CPU time of one token */
    struct executor_pages pages[EXECUTOR_PAGES];
    struct gate_wait wait;
    _Atomic int broken; /* 0, 1 while `why` is written, 2 */
    char why[200];
};

/* Whether the machine has a core for each rank of the server and of all executors: then nobody is
 * in the way of another by spinning. Any thread. */
bool executor_alone(const struct executor *x);
/* It runs no more; the first reason stays. Any thread. */
void executor_broke(struct executor *x, const char *why);
/* Waits until `done` is no longer `seen`, for as long as the process lives, uses no more than
 * `cpu_s` of CPU time and does not sleep for `sleep_s`. -1: broken, and the process is no more. */
int executor_await(struct executor *x, uint32_t seen, double cpu_s, double sleep_s);

#endif
