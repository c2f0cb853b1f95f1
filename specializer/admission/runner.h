/* SPDX-License-Identifier: Apache-2.0 */
/* runner.h - a process that runs an untrusted kernel on cases while its parent judges.
 *
 * The runner is forked by the probe: it inherits the cases (whose arenas are shared mappings and
 * whose inputs are read-only), loads the object, shuts itself in with seccomp and only then calls
 * what the parent asks for, one call at a time. The parent alone reads outputs, computes references
 * and decides; nothing the kernel does in the runner's memory can reach those. One thread.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_RUNNER_H
#define WHET_SPECIALIZER_ADMISSION_RUNNER_H

#include "engine/cpu/case.h"
#include "engine/cpu/guarded.h"

/* Teams as large as engine.threads may be: what is to serve with a team is tried with it. */
enum { RUNNER_TEAM_MAX = 256, RUNNER_CASES_MAX = 64 };

/* What the object says of itself. */
struct runner_facts {
    int32_t abi, region, m_max;
    bool packs;
    char layout[80];
    int64_t packed_bytes[3]; /* of the weights of the first case */
};

struct runner_options {
    const char *object;
    struct kernel_case *const *cases;
    int32_t n;
    int32_t team_max;
    bool must_seal;          /* call nothing of the object where there is no seccomp */
    struct guarded *scratch; /* shared arena, at least as large as any call needs; or NULL */
    double watchdog_s;       /* CPU seconds of one call and rank; also seconds of sleep */
};

struct runner;

/* Forks and loads. NULL with the reason in `err`: err->msg says what the object did. */
struct runner *runner_open(const struct runner_options *o, struct err *err);
/* Ends the process. */
void runner_close(struct runner *r);
/* True if seccomp is in force in the runner. */
bool runner_sealed(const struct runner *r);
const struct runner_facts *runner_facts(const struct runner *r);

/* Bytes of scratch for m tokens and a team of `size`; -1 when the runner died or the answer is
 * absurd, with the reason. */
int64_t runner_scratch(struct runner *r, int32_t m, int32_t size, struct err *err);
/* Lets the object pack weight `i` of case `at` into `packed`, all rows in one call or in two. 0 or
 * -1 with the reason. */
int runner_pack(struct runner *r, int32_t at, int32_t i, bool whole, void *packed, struct err *err);

struct runner_call {
    int32_t at;            /* index of the case */
    int32_t m, size;       /* its tokens; threads of the team */
    uint32_t scratch_fill; /* every word of the scratch before the call */
    uint64_t skew;     /* 0: none; else a seed for delays of ranks before and between barriers */
    double watchdog_s; /* 0: the runner's */
};
/* Runs the kernel once. 0, or -1 with what happened in words: "SIGSEGV reading 0x... (outside its
 * buffers)", "hang: ...", "system call openat", "ended the process", ... */
int runner_call(struct runner *r, const struct runner_call *c, struct err *err);

#endif
