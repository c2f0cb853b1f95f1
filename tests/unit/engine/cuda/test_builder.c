/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cuda/graph.c with its builder thread: steps that begin while the one before them
 * runs, kernels that come, are tried, published, rolled back and unloaded meanwhile, and a runtime
 * that only pretends, and now and then has no memory. What must hold whoever is first: no
 * executable is touched while it runs, no kernel is freed that somebody still captures or could
 * launch, no kernel runs in a step that may not have it, everything asked for is made in the end,
 * and every kernel that was unloaded is freed in the end.
 */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/step.h"
#include "engine/cuda/walk.h"

enum { STEPS = SANITIZED ? 3000 : 20000, KERNELS = 4000, ALIVE = 0x600d };

/* ---- a runtime without a device ------------------------------------------------------------- */

struct executable {
    int state; /* ALIVE */
    _Atomic int running;
    const struct kernel *kernel[REGION_NODES];
};

static struct {
    _Atomic bool short_of_memory;
    _Atomic int wrong, made, updated;
    const struct kernel_choice *captured; /* builder thread */
} world;

static void must(bool holds)
{
    if (!holds)
        atomic_fetch_add(&world.wrong, 1);
}

static int random_below(unsigned *seed, int n)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (int)(*seed >> 8) % n;
}

struct test_kernel; /* a kernel of the test */
static bool alive(const struct kernel *k);

static int pretend_walk(struct walk *w)
{
    static unsigned seed = 1;
    world.captured = w->choice;
    int longest = random_below(&seed, 8) ? 60 : 1000;
    for (int i = 0; i < 4; i++) {
        for (int r = 0; r < REGION_NODES; r++)
            must(alive(w->choice->kernel[r]));
        usleep((useconds_t)random_below(&seed, longest));
    }
    return 0;
}

static cudaError_t pretend_instantiate(cudaGraphExec_t *exec)
{
    if (atomic_load(&world.short_of_memory))
        return cudaErrorMemoryAllocation;
    struct executable *x = xcalloc(1, sizeof *x);
    x->state = ALIVE;
    memcpy(x->kernel, world.captured->kernel, sizeof x->kernel);
    *exec = (cudaGraphExec_t)(void *)x;
    atomic_fetch_add(&world.made, 1);
    return cudaSuccess;
}

static struct executable *executable_of(cudaGraphExec_t exec)
{
    struct executable *x = (struct executable *)(void *)exec;
    must(x->state == ALIVE);
    return x;
}

static cudaError_t pretend_update(cudaGraphExec_t exec)
{
    struct executable *x = executable_of(exec);
    must(atomic_load(&x->running) == 0);
    for (int r = 0; r < REGION_NODES; r++)
        must(alive(x->kernel[r])); /* nodes of theirs are replaced */
    memcpy(x->kernel, world.captured->kernel, sizeof x->kernel);
    atomic_fetch_add(&world.updated, 1);
    return cudaSuccess;
}

static cudaError_t pretend_destroy(cudaGraphExec_t exec)
{
    struct executable *x = executable_of(exec);
    must(atomic_load(&x->running) == 0);
    x->state = 0;
    free(x);
    return cudaSuccess;
}

#define transfer_open(w, e) ((void)(w), 0)
#define transfer_close(w, e) ((void)(w), 0)
#define walk_step(w, e) pretend_walk(w)
#define cudaStreamBeginCapture(stream, mode) ((void)(stream), cudaSuccess)
#define cudaStreamEndCapture(stream, graph) ((void)(stream), *(graph) = NULL, cudaSuccess)
#define cudaGraphInstantiate(exec, graph, flags) ((void)(graph), pretend_instantiate(exec))
#define cudaGraphExecUpdate(exec, graph, info) ((void)(graph), (void)(info), pretend_update(exec))
#define cudaGraphExecDestroy(exec) pretend_destroy(exec)
#define cudaGraphUpload(exec, stream) (executable_of(exec), (void)(stream), cudaSuccess)
#define cudaStreamSynchronize(stream) ((void)(stream), cudaSuccess)
#define cudaStreamCreateWithFlags(stream, flags) (*(stream) = (cudaStream_t)(void *)1, cudaSuccess)
#define cudaStreamDestroy(stream) (void)(stream)
#define cudaGetLastError() (void)0
#include "engine/cuda/graph.c"

/* ---- kernels -------------------------------------------------------------------------------- */

/* In the order of their lives. DROPPED: nobody puts it into a slot or tries it any more. */
enum life { UNUSED, TRIED, SERVES, DROPPED, FREED };
static struct test_kernel {
    struct kernel kernel;
    struct loaded code;
    _Atomic int life;
    _Atomic bool published, bad; /* ever; rolled back for what it computes */
    _Atomic uint64_t unloaded;   /* before this step began; 0: not yet */
} test_kernel[KERNELS];
static struct kernel eager[REGION_NODES];

static bool alive(const struct kernel *k)
{
    const struct test_kernel *s = (const struct test_kernel *)(const void *)k;
    return !k->backend || atomic_load(&s->life) != FREED;
}

/* The slots of two regions: what serves in each, and what a canary tries. */
static struct {
    _Atomic(struct test_kernel *) serves[2], tried;
    _Atomic int tried_in;   /* which of the two */
    _Atomic uint64_t begun; /* steps */
    _Atomic bool stop;
} table;
static const enum region region_of[2] = {REGION_ATTN_OUT, REGION_MLP_IN};

/* ---- the specializer ------------------------------------------------------------------------ */

static void wait_steps(uint64_t n)
{
    for (uint64_t from = atomic_load(&table.begun);
         atomic_load(&table.begun) < from + n && !atomic_load(&table.stop);)
        usleep(20);
}

static void drop(struct test_kernel *s, struct backend *b)
{
    if (!s)
        return;
    atomic_store(&s->life, DROPPED);
    wait_steps(3); /* until no step can begin with it */
    cuda_unload(b, &s->kernel);
    atomic_store(&s->unloaded, atomic_load(&table.begun) + 1);
}

static void one_life(struct backend *b, struct test_kernel *s, unsigned *seed)
{
    int at = random_below(seed, 2);
    s->kernel.region = region_of[at];
    s->kernel.backend = &s->code;
    s->code.kernel = &s->kernel;
    s->code.info.launches = 1;
    s->code.info.launch[0].cluster = random_below(seed, 3) ? 1 : 2;
    s->code.number = (uint64_t)(s - test_kernel) + 1;
    atomic_store(&s->life, TRIED);
    atomic_store(&table.tried_in, at);
    atomic_store(&table.tried, s);
    wait_steps((uint64_t)random_below(seed, 40));
    atomic_store(&table.tried, NULL);
    wait_steps(3);
    if (random_below(seed, 3) == 0) { /* refused */
        drop(s, b);
        return;
    }
    struct test_kernel *before = atomic_load(&table.serves[at]);
    atomic_store(&s->life, SERVES);
    atomic_store(&s->published, true);
    atomic_store(&table.serves[at], s);
    wait_steps((uint64_t)random_below(seed, 60));
    if (random_below(seed, 3) == 0) { /* it is wrong */
        atomic_store(&table.serves[at], random_below(seed, 2) ? before : NULL);
        wait_steps(2);
        atomic_store(&s->bad, true);
        if (atomic_load(&table.serves[at]) != before)
            drop(before, b);
        drop(s, b);
    } else {
        drop(before, b);
    }
}

static void *specializer(void *arg)
{
    unsigned seed = 7;
    for (int i = 0; i < KERNELS && !atomic_load(&table.stop); i++)
        one_life(arg, &test_kernel[i], &seed);
    return NULL;
}

/* ---- the engine ----------------------------------------------------------------------------- */

static struct kernel_choice chosen(int context, struct test_kernel *trial, int trial_in)
{
    struct kernel_choice c = {
        .m = 1, .rows = 1, .context = context, .decode = true, .trial = trial};
    for (int r = 0; r < REGION_NODES; r++)
        c.kernel[r] = &eager[r];
    for (int i = 0; i < 2; i++) {
        struct test_kernel *s = atomic_load(&table.serves[i]);
        if (trial && trial_in == i)
            s = trial;
        if (s)
            c.kernel[region_of[i]] = &s->kernel;
    }
    return c;
}

/* May this graph run in a step that wanted `c`? */
static void judge(const struct variant *v, const struct kernel_choice *c)
{
    const struct executable *x = executable_of(v->exec);
    must(memcmp(x->kernel, v->choice.kernel, sizeof x->kernel) == 0);
    for (int i = 0; i < 2; i++) {
        const struct kernel *k = v->choice.kernel[region_of[i]];
        const struct test_kernel *s = (const struct test_kernel *)(const void *)k;
        must(alive(k));
        if (k == c->kernel[region_of[i]] || !k->backend)
            continue;
        must(atomic_load(&s->published)); /* a canary's, in a step that is none of its own */
        uint64_t unloaded = atomic_load(&s->unloaded);
        must(!atomic_load(&s->bad) || !unloaded || atomic_load(&table.begun) <= unloaded);
    }
}

static void reap(struct backend *b)
{
    pthread_mutex_lock(&b->load_lock);
    for (struct loaded **at = &b->retired; *at;) {
        struct loaded *l = *at;
        if (graph_uses(b, l->kernel, true)) {
            at = &l->next_retired;
            continue;
        }
        *at = l->next_retired;
        atomic_store(&((struct test_kernel *)(void *)l->kernel)->life, FREED);
    }
    pthread_mutex_unlock(&b->load_lock);
}

struct engine_thread {
    struct backend *b;
    struct executable *flying[2];
    unsigned seed;
    int parity, uncaptured, stood_in, tried;
};

static void land(struct executable **x)
{
    if (*x)
        atomic_fetch_sub(&(*x)->running, 1);
    *x = NULL;
}

static void step(struct engine_thread *e)
{
    static const int contexts[] = {256, 256, 256, 256, 256, 512, 512, 1024};
    struct backend *b = e->b;
    int context = contexts[random_below(&e->seed, 8)], in = atomic_load(&table.tried_in);
    struct test_kernel *trial = random_below(&e->seed, 2) ? atomic_load(&table.tried) : NULL;
    struct kernel_choice c = chosen(context, trial, in);
    if (trial && !graph_there(b, &c))
        c = chosen(context, NULL, 0);
    b->steps++;
    e->tried += c.trial;
    struct variant *v = graph_get(b, &c);
    land(&e->flying[e->parity]); /* the step before the last has ended */
    if (v) {
        judge(v, &c);
        e->stood_in += memcmp(v->choice.kernel, c.kernel, sizeof c.kernel) != 0;
        e->flying[e->parity] = executable_of(v->exec);
        atomic_fetch_add(&e->flying[e->parity]->running, 1);
    }
    e->uncaptured += !v;
    e->parity = !e->parity;
    atomic_fetch_add(&table.begun, 1);
    usleep((useconds_t)random_below(&e->seed, 40));
}

static void rest(struct engine_thread *e)
{
    land(&e->flying[e->parity]);
    land(&e->flying[!e->parity]);
    reap(e->b);
    atomic_fetch_add(&table.begun, 3);
}

/* The very graph of the cell, after as many steps as a failure has to be left alone for. */
static bool settles(struct engine_thread *e, int context)
{
    int64_t until = clock_ns() + INT64_C(30000000000); /* a machine may have much to do */
    for (int i = 0; i < FAILED_STEPS || clock_ns() < until; i++) {
        struct kernel_choice c = chosen(context, NULL, 0);
        e->b->steps++;
        struct variant *v = graph_get(e->b, &c);
        if (v && memcmp(v->choice.kernel, c.kernel, sizeof c.kernel) == 0)
            return true;
        usleep(100);
    }
    return false;
}

static void kernels_come_and_go_under_steps_that_run(void **state)
{
    (void)state;
    struct backend *b = xcalloc(1, sizeof *b);
    struct engine_thread e = {.b = b, .seed = 3};
    struct err err;
    pthread_t thread;
    for (int r = 0; r < REGION_NODES; r++)
        eager[r].region = (enum region)r;
    pthread_mutex_init(&b->load_lock, NULL);
    assert_int_equal(graph_open(b, &err), 0);
    pthread_create(&thread, NULL, specializer, b);
    for (int i = 0; i < STEPS; i++) {
        step(&e);
        atomic_store(&world.short_of_memory, i % 5000 > 4700);
        if (i % (i / 1000 % 2 ? 40 : 500) == 39)
            rest(&e); /* cells fill up only where this is seldom */
    }
    atomic_store(&world.short_of_memory, false);
    atomic_store(&table.stop, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&world.wrong), 0);
    print_message("%d steps: %d tried, %d stood in, %d uncaptured; %d graphs made, %d updated\n",
                  (int)STEPS, e.tried, e.stood_in, e.uncaptured, atomic_load(&world.made),
                  atomic_load(&world.updated));
    assert_true(e.tried > 0 && e.stood_in > 0 && e.uncaptured < STEPS); /* it was about something */
    assert_true(atomic_load(&world.made) > 0 && atomic_load(&world.updated) > 0);
    assert_true(settles(&e, 256) && settles(&e, 512) && settles(&e, 1024));
    rest(&e); /* the builder may still be busy, the newest graph of a cell old */
    assert_true(settles(&e, 256) && settles(&e, 512) && settles(&e, 1024));
    rest(&e);
    assert_null(b->retired);
    graph_close(b);
    assert_int_equal(atomic_load(&world.wrong), 0);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_come_and_go_under_steps_that_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
