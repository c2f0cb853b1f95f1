/* SPDX-License-Identifier: Apache-2.0 */
/* runner_private.h - what passes between the two halves of a runner (runner.c, runner_child.c). */
#ifndef WHET_SPECIALIZER_ADMISSION_RUNNER_PRIVATE_H
#define WHET_SPECIALIZER_ADMISSION_RUNNER_PRIVATE_H

#include <stdatomic.h>

#include "engine/fault.h"
#include "specializer/admission/runner.h"

enum operation { OP_SCRATCH, OP_PACK, OP_CALL };
struct command {
    enum operation op;
    struct runner_call call; /* OP_SCRATCH: m and size */
    int32_t weight;
    bool whole;
    void *packed;
};

/* In a shared page; the runner writes, the parent believes no more of it than it must. */
struct report {
    struct runner_facts facts;
    char problem[200]; /* why it could not be loaded, or a rule broken in a call */
    bool outside;      /* the problem at the start is this machine's, not the kernel's */
    bool sealed;
    int64_t answer;
    _Atomic int faults;
    struct fault fault;
};

/* The forked process, to its end. */
_Noreturn void runner_child(const struct runner_options *o, struct report *report, int socket);

#endif
