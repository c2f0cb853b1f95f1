/* SPDX-License-Identifier: Apache-2.0 */
/* runner_child.c - the untrusted half: loads the kernel, shuts itself in, runs what it is told.
 *
 * Teams are made of plain threads that wait on semaphores and start together. Calls can be skewed:
 * ranks are held back, by chance, before they start and around the first few barriers, so that a
 * missing barrier or a race shows in a few runs instead of once a month; a timer does the same to
 * rank 0 at any point of its work. Holding back is spinning on the vDSO clock with sched_yield():
 * the sandbox has no sleep.
 *
 * Fault handlers run on stacks of their own and leave signal, address and access in the report.
 * The object is loaded before the process is sealed, because loading takes system calls; none of
 * its functions is called before. Nothing is allocated after, or the filter would take it for an
 * attempt.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/descriptors.h"
#include "config/exec_map.h"
#include "engine/fault.h"
#include "engine/sandbox.h"
#include "specializer/admission/runner_private.h"
#include "specializer/candidate/hash.h"

enum { SKEWED_BARRIERS = 4, EXIT_FAULT = 99 };
static const int64_t packed_limit = 16LL << 40; /* no machine has it; check.c asks this one */

/* ---- faults ------------------------------------------------------------------ */

static struct report *my_report;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    if (atomic_fetch_add(&my_report->faults, 1) == 0)
        fault_note(&my_report->fault, sig, info, context);
    _exit(EXIT_FAULT);
}

/* What a call must leave as it was, since whoever computes next on this thread relies on it: how
 * floats are rounded, which x87 registers are taken (MMX takes all of them), and the direction in
 * which strings are copied. */
struct cpu_state {
    uint64_t floats; /* the control half: rounding, flush to zero, masks; flags may come and go */
    uint32_t x87;    /* its control word, and which registers are taken */
    bool backwards;
};

static struct cpu_state cpu_state(void)
{
    struct cpu_state s = {0};
#if defined(__x86_64__)
    enum { DIRECTION = 1 << 10 };
    uint16_t x87[14]; /* control word, -, status, -, tags, ... */
    __asm__ volatile("fnstenv %0\n\tfldenv %0" : "+m"(x87));
    s.floats = __builtin_ia32_stmxcsr() & ~0x3fU;
    s.x87 = (uint32_t)x87[4] << 16 | x87[0];
    s.backwards = (__builtin_ia32_readeflags_u64() & DIRECTION) != 0;
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(s.floats)); /* flags are in a register of their own */
#endif
    return s;
}

/* After a call: puts back what it changed, so that this process can tell, and tells. */
static void state_kept(struct cpu_state before)
{
    struct cpu_state now = cpu_state();
    const char *changed = NULL;
#if defined(__x86_64__)
    if (now.backwards != before.backwards) {
        __asm__ volatile("cld");
        changed = "left the direction flag set";
    }
    if (now.x87 != before.x87) {
        __asm__ volatile("fninit");
        changed = "left x87 registers taken or their control word changed";
    }
    if (now.floats != before.floats)
        __builtin_ia32_ldmxcsr((uint32_t)before.floats);
#endif
    if (now.floats != before.floats)
        changed = "changed the floating-point control register";
    if (changed)
        snprintf(my_report->problem, sizeof my_report->problem, "%s", changed);
}

/* ---- the team ---------------------------------------------------------------- */

struct crew;
struct member {
    struct crew *crew;
    int32_t rank;
    sem_t start;
    struct team team;
    int32_t barriers;
};

struct crew {
    const struct cpu_kernel *kernel;
    const void *args;
    int32_t size;
    int32_t taken[TEAM_COUNTS]; /* team.taken */
    uint64_t skew;
    int64_t skew_ns; /* longest delay: twice what an undelayed run took */
    sem_t done;
    _Atomic int32_t arrived, generation;
    struct member member[RUNNER_TEAM_MAX];
};

/* Holds a rank back for up to the time of two runs, or not at all, by a throw of dice. */
static void hold_back(const struct member *m, int32_t when)
{
    uint64_t dice = m->crew->skew;
    if (!dice || when > SKEWED_BARRIERS)
        return;
    dice = hash_mix(dice + (uint64_t)m->rank * 977 + (uint64_t)when * 131071);
    if (dice & 1)
        return;
    int64_t until = clock_ns() + (int64_t)(dice >> 8) % m->crew->skew_ns;
    while (clock_ns() < until)
        sched_yield();
}

/* A timer interrupts rank 0 once in a skewed call and holds it back in the middle of what it does,
 * so that other ranks meet its half-written buffers even where there are fewer cores than ranks. */
static struct crew *interrupted;

static void on_timer(int sig)
{
    (void)sig;
    int saved = errno;
    if (interrupted->skew)
        hold_back(&interrupted->member[0], -1);
    errno = saved;
}

static void interrupt_open(struct crew *c)
{
    struct sigaction a = {.sa_handler = on_timer, .sa_flags = SA_RESTART | SA_ONSTACK};
    interrupted = c;
    sigfillset(&a.sa_mask);
    sigdelset(&a.sa_mask, SIGSYS);
    sigaction(SIGALRM, &a, NULL);
}

static void interrupt_soon(const struct crew *c)
{
    if (!c->skew || c->size == 1)
        return;
    int64_t us = 1 + (int64_t)(c->skew >> 16) % (c->skew_ns / 1000);
    struct itimerval once = {{0, 0}, {0, us}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static void meet(struct crew *c)
{
    int32_t generation = atomic_load(&c->generation);
    if (atomic_fetch_add(&c->arrived, 1) + 1 == c->size) {
        atomic_store(&c->arrived, 0);
        atomic_fetch_add(&c->generation, 1);
        return;
    }
    while (atomic_load(&c->generation) == generation)
        sched_yield();
}

static void crew_barrier(const struct team *team)
{
    struct member *m = team->host;
    hold_back(m, ++m->barriers);
    meet(m->crew);
    hold_back(m, ++m->barriers);
}

/* Without skew all ranks start in the same instant, so that what they do to each other shows. */
static void member_run(struct member *m)
{
    m->barriers = 0;
    struct cpu_state before = cpu_state();
    meet(m->crew);
    hold_back(m, 0);
    m->crew->kernel->run(m->crew->args, &m->team);
    state_kept(before);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    fault_stack();
    sem_post(&m->crew->done); /* ready */
    for (;;) {
        while (sem_wait(&m->start) != 0)
            ;
        member_run(m);
        sem_post(&m->crew->done);
    }
    return NULL;
}

static void crew_wait(struct crew *c, int32_t n)
{
    while (n > 0)
        if (sem_wait(&c->done) == 0)
            n--;
}

static int crew_open(struct crew *c, int32_t size)
{
    sem_init(&c->done, 0, 0);
    c->skew_ns = 100000;
    for (int32_t i = 0; i < size; i++) {
        pthread_t thread;
        struct member *m = &c->member[i];
        m->crew = c;
        m->rank = i;
        sem_init(&m->start, 0, 0);
        if (i > 0 && pthread_create(&thread, NULL, member_main, m) != 0)
            return -1;
    }
    crew_wait(c, size - 1);
    return 0;
}

static void crew_run(struct crew *c, int32_t size, void *scratch)
{
    c->size = size;
    for (int32_t i = 0; i < TEAM_COUNTS; i++)
        __atomic_store_n(&c->taken[i], 0, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < size; i++) {
        struct member *m = &c->member[i];
        m->team = (struct team){i, size, crew_barrier, scratch, m, c->taken};
        if (i > 0)
            sem_post(&m->start);
    }
    int64_t start = clock_ns();
    interrupt_soon(c);
    member_run(&c->member[0]);
    int64_t ns = 2 * (clock_ns() - start);
    if (!c->skew)
        c->skew_ns = ns < 2000 ? 2000 : ns > 200000 ? 200000 : ns;
    crew_wait(c, size - 1);
}

/* ---- commands ---------------------------------------------------------------- */

static void problem(const char *text)
{
    snprintf(my_report->problem, sizeof my_report->problem, "%s", text);
}

/* Another day, or on another machine, it may be well. */
static void problem_outside(const char *text)
{
    problem(text);
    my_report->outside = true;
}

/* Scratch lies against the end of the arena, where the wall is; the words before it are a band. */
static void run_call(const struct runner_options *o, struct crew *c, const struct runner_call *call)
{
    int64_t bytes = c->kernel->scratch_bytes(call->m, call->size);
    size_t room = o->scratch ? o->scratch->bytes : 0;
    if (bytes < 0 || (size_t)bytes > room) {
        problem("asks for more scratch than it said before");
        return;
    }
    char *scratch = NULL;
    uint32_t *word = o->scratch ? o->scratch->data : NULL;
    for (size_t i = 0; i < room / 4; i++)
        word[i] = call->scratch_fill;
    size_t start = room - ((size_t)bytes + 63) / 64 * 64;
    if (room)
        scratch = (char *)o->scratch->data + start;
    c->args = case_args(o->cases[call->at]);
    c->skew = call->skew;
    crew_run(c, call->size, scratch);
    for (size_t i = 0; i < start / 4; i++)
        if (word[i] != call->scratch_fill)
            problem("wrote before its scratch");
}

static void run_pack(const struct runner_options *o, const struct crew *c, const struct command *d)
{
    struct weight *w[3];
    int n = case_weights(o->cases[d->call.at], w);
    if (d->weight >= n)
        return;
    if (d->whole) { /* as the backend does it */
        c->kernel->pack(w[d->weight], d->packed, 0, w[d->weight]->rows);
        return;
    }
    /* In two parts, as several threads would. */
    int32_t half = w[d->weight]->rows / 2 / 64 * 64;
    c->kernel->pack(w[d->weight], d->packed, half, w[d->weight]->rows);
    c->kernel->pack(w[d->weight], d->packed, 0, half);
}

static void obey(const struct runner_options *o, struct crew *c, const struct command *d)
{
    struct cpu_state before =
        cpu_state(); /* packing and sizes are asked for on the server's threads */
    if (d->op == OP_CALL)
        run_call(o, c, &d->call);
    else if (d->op == OP_PACK)
        run_pack(o, c, d);
    else
        my_report->answer =
            c->kernel->scratch_bytes ? c->kernel->scratch_bytes(d->call.m, d->call.size) : 0;
    state_kept(before);
}

/* ---- start ------------------------------------------------------------------- */

/* Reads what the object says of itself; calls nothing of it. */
static const struct cpu_kernel *load(const struct runner_options *o)
{
    void *handle = dlopen(o->object, RTLD_NOW | RTLD_LOCAL);
    const struct cpu_kernel *k = handle ? dlsym(handle, "whet_kernel") : NULL;
    if (!k) {
        const char *why = dlerror();
        struct err may_not;
        if (!handle && exec_map_file(o->object, &may_not) != 0) {
            problem_outside(may_not.msg);
            return NULL;
        }
        snprintf(my_report->problem, sizeof my_report->problem, "does not load: %.150s",
                 why ? why : "whet_kernel is null");
        return NULL;
    }
    struct runner_facts *f = &my_report->facts;
    f->abi = k->abi;
    f->region = k->region;
    f->m_max = k->m_max;
    f->packs = k->packed_bytes && k->pack;
    if (k->layout)
        snprintf(f->layout, sizeof f->layout, "%.79s", k->layout);
    if (k->abi != WHET_CPU_ABI)
        problem("was built for another interface version");
    else if (!k->run || !k->scratch_bytes || k->m_max < 1)
        problem("lacks run, scratch_bytes or a positive m_max");
    else if (!k->packed_bytes != !k->pack)
        problem("has only one of pack and packed_bytes");
    else if (f->packs && !k->layout)
        problem("packs weights but names no layout");
    return my_report->problem[0] ? NULL : k;
}

/* Sealed: the first call of the object. */
static void ask_packed_bytes(const struct runner_options *o, const struct cpu_kernel *k)
{
    struct runner_facts *f = &my_report->facts;
    struct weight *w[3];
    int n = f->packs && o->n > 0 ? case_weights(o->cases[0], w) : 0;
    struct cpu_state before = cpu_state();
    for (int i = 0; i < n; i++) {
        f->packed_bytes[i] = k->packed_bytes(w[i]);
        if (f->packed_bytes[i] < 0 || f->packed_bytes[i] > packed_limit)
            problem("asks for an absurd size of packed weights");
    }
    state_kept(before);
}

/* Files 0 to 2 become /dev/null, 3 the socket, all others are closed. */
static int only_socket(int socket)
{
    int null = descriptor_nowhere(O_RDWR), high = fcntl(socket, F_DUPFD, 10);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    dup2(high, 3);
    descriptors_close_from(4);
    return 3;
}

static void allow_tiles(void)
{
#if defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA); /* fails without AMX */
#endif
}

void runner_child(const struct runner_options *o, struct report *report, int socket)
{
    static struct crew crew;
    my_report = report;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    socket = only_socket(socket);
    fault_stack();
    fault_catch(on_fault);
    allow_tiles();
    crew.kernel = load(o);
    if (crew.kernel && crew_open(&crew, o->team_max) != 0)
        problem_outside("no threads for the team");
    interrupt_open(&crew);
    report->sealed = sandbox_enter((struct sandbox){.fd = socket, .timer = true});
    if (!report->sealed && o->must_seal) {
        problem_outside("cannot be sealed in: this machine or build has no seccomp");
        crew.kernel = NULL;
    }
    if (crew.kernel)
        ask_packed_bytes(o, crew.kernel);
    struct command d;
    char done = 'd';
    if (write(socket, &done, 1) != 1)
        _exit(1);
    while (crew.kernel && read(socket, &d, sizeof d) == (ssize_t)sizeof d) {
        obey(o, &crew, &d);
        if (write(socket, &done, 1) != 1)
            break;
    }
    _exit(0);
}
