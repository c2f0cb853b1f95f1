/* SPDX-License-Identifier: Apache-2.0 */
/* test_probe_sums.c - the probe of projections that add other ranks' numbers (probe_sums.c) lets a
 * good one pass and refuses planted bad ones, without a GPU: memory is the host's, and a kernel a
 * thread that keeps to kernels/peer.h but for what is planted in it. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/peer_area.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/walk.h"

enum { HIDDEN = 64, TOKENS = 3, NUMBERS = HIDDEN * TOKENS };

/* What is planted; each bit is one. */
enum planted {
    NO_WAIT = 1 << 0,        /* adds what lies in the places */
    KEEPS = 1 << 1,          /* they stay full */
    OWN_FIRST = 1 << 2,      /* other bits on other ranks */
    RESIDUAL_FIRST = 1 << 3, /* other bits */
    NO_RESIDUAL = 1 << 4,
    SHORT = 1 << 5,        /* leaves the last number out */
    PAST_END = 1 << 6,     /* of its output */
    BEFORE = 1 << 7,       /* of its output */
    OUTSIDE = 1 << 8,      /* behind another rank's area */
    OTHER_TURN = 1 << 9,   /* sends in the other one */
    ONE_RANK = 1 << 10,    /* sends to one rank only */
    TAKES_TWICE = 1 << 11, /* waits for a number that it has had: the last unit of two threads */
    SPINS = 1 << 12,       /* when the world is over, too */
};
static unsigned planted;

/* ---- a runtime of one thread ------------------------------------------------------------------
 */

/* A kernel's arguments are its thread's own: one that never ends goes on beside the next. */
struct job {
    const float *x;
    float *y;
    struct cuda_sum sum;
    unsigned planted;
};
static pthread_t thread;
static bool started;
static int finished;
/* With which a kernel is awaited: cores may be taken. One of those that never end is not. */
#define PATIENCE_NS INT64_C(60000000000)
#define HOPELESS_NS INT64_C(300000000)

static uint32_t *word(const struct job *j, int on, int of, int turn, int64_t i)
{
    const struct peer_area *p = &j->sum.area;
    size_t items = REDUCE_SLOT(REDUCE_WORDS, p->world, p->numbers, turn, of);
    return (uint32_t *)p->memory[on] + items * 4 + i;
}

static float product(int64_t i)
{
    return (float)(i % 17) * 0.37f - 2.9f;
}

/* False: the world is over. */
static bool take(const struct job *j, int from, int64_t i, float *v)
{
    uint32_t *at = word(j, j->sum.area.rank, from, j->sum.turn, i), w;
    while ((w = __atomic_load_n(at, __ATOMIC_ACQUIRE)) == REDUCE_EMPTY && !(j->planted & NO_WAIT)) {
        if (__atomic_load_n(j->sum.area.over, __ATOMIC_ACQUIRE) && !(j->planted & SPINS))
            return false;
        sched_yield();
    }
    memcpy(v, &w, 4);
    if (!(j->planted & KEEPS))
        __atomic_store_n(at, REDUCE_EMPTY, __ATOMIC_RELEASE);
    return true;
}

static void send(const struct job *j, int64_t i)
{
    const struct peer_area *p = &j->sum.area;
    float v = product(i);
    uint32_t w;
    memcpy(&w, &v, 4);
    for (int k = 1; k < p->world - !!(j->planted & ONE_RANK); k++) {
        int on = (p->rank + k) % p->world;
        __atomic_store_n(word(j, on, p->rank, j->sum.turn ^ !!(j->planted & OTHER_TURN), i), w,
                         __ATOMIC_RELEASE);
        if (j->planted & OUTSIDE)
            word(j, on, p->world, 1, 0)[REDUCE_ITEMS(REDUCE_WORDS, NUMBERS) * 4] = w;
    }
}

static bool add(const struct job *j, int64_t i)
{
    const struct peer_area *p = &j->sum.area;
    float sum = j->planted & RESIDUAL_FIRST ? j->x[i] : 0, v;
    bool first = !(j->planted & RESIDUAL_FIRST);
    for (int k = 0; k < p->world; k++) {
        int r = j->planted & OWN_FIRST ? (p->rank + k) % p->world : k;
        v = product(i);
        if (r != p->rank && !take(j, r, i, &v))
            return false;
        sum = first ? v : sum + v;
        first = false;
    }
    j->y[i] = j->planted & (RESIDUAL_FIRST | NO_RESIDUAL) ? sum : sum + j->x[i];
    return true;
}

static void *kernel(void *arg)
{
    struct job *j = arg;
    int world = j->sum.area.world;
    for (int64_t i = 0; i < NUMBERS && !world; i++)
        j->y[i] = product(i) + j->x[i];
    for (int64_t i = 0; i < NUMBERS && world; i++)
        send(j, i);
    for (int64_t i = 0; i < NUMBERS - !!(j->planted & SHORT) && world; i++)
        if (!add(j, i))
            break;
    if (j->planted & TAKES_TWICE && world)
        add(j, 0);
    if (j->planted & PAST_END)
        j->y[NUMBERS] = 1;
    if (j->planted & BEFORE)
        j->y[-1] = 1;
    free(j);
    __atomic_store_n(&finished, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int start(const struct walk *w)
{
    struct job *j = xmalloc(sizeof *j);
    *j = (struct job){w->x, w->y, w->fused, planted};
    finished = 0;
    started = pthread_create(&thread, NULL, kernel, j) == 0;
    return started ? 0 : -1;
}

/* `hopeless`: what is waited for in vain. */
static const char *hopeless;

static enum device_verdict wait_for(struct device_probe *p, const char *what, struct err *e)
{
    bool in_vain = hopeless && strstr(what, hopeless);
    int64_t until = clock_ns() + (in_vain ? HOPELESS_NS : PATIENCE_NS);
    while (!__atomic_load_n(&finished, __ATOMIC_ACQUIRE)) {
        if (clock_ns() > until) {
            p->dead = true;
            err_set(e, "%s did not end", what);
            return DEVICE_FAULT;
        }
        usleep(100);
    }
    pthread_join(thread, NULL);
    return DEVICE_OK;
}

/* Whether the kernel has ended. One that does not wait has by now, however late its thread came to
 * run; one that waits has not. */
static cudaError_t query(void)
{
    while ((planted & NO_WAIT) && !__atomic_load_n(&finished, __ATOMIC_ACQUIRE))
        usleep(100);
    return __atomic_load_n(&finished, __ATOMIC_ACQUIRE) ? cudaSuccess : cudaErrorNotReady;
}

static cudaError_t give(void **to, size_t n)
{
    *to = calloc(1, n);
    return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t copy(void *to, const void *from, size_t n)
{
    if (n == sizeof(float)) /* a number that comes late, while the kernel looks */
        __atomic_store_n((uint32_t *)to, *(const uint32_t *)from, __ATOMIC_RELEASE);
    else
        memcpy(to, from, n);
    return cudaSuccess;
}

static bool several = true;
#define peer_gpus_known(n) (several && (n) == 2)
#define probe_wait(p, limit, what, e) wait_for(p, what, e)
#define case_walk(p, w, choice) (memset(w, 0, sizeof *(w)), (void)(choice))
#define walk_region(w, k, r, layer, e) ((void)(e), start(w))
#define cudaMalloc(to, n) give(to, n)
#define cudaFree(p) free(p)
#define cudaHostAlloc(to, n, flags) give((void **)(to), n)
#define cudaHostGetDevicePointer(to, of, flags) ((void)(*(to) = (void *)(of)), cudaSuccess)
#define cudaFreeHost(p) free(p)
#define cudaMemcpy(to, from, n, kind) copy(to, from, n)
#define cudaMemcpyAsync(to, from, n, kind, stream) ((void)(stream), copy(to, from, n))
#define cudaMemset(to, value, n) ((void)memset(to, value, n), cudaSuccess)
#define cudaDeviceSynchronize() cudaSuccess
#define cudaStreamSynchronize(s) cudaSuccess
#define cudaStreamCreateWithFlags(to, flags) ((void)(*(to) = NULL), cudaSuccess)
#define cudaStreamDestroy(s) ((void)(s))
#define cudaStreamQuery(s) query()
#define cudaGetLastError() ((void)0)
#include "engine/cuda/probe_sums.c"

/* ---- the probe over them --------------------------------------------------------------------- */

static enum device_verdict probe(unsigned plant, enum region r, int sums, struct err *e)
{
    struct loaded l = {.info = {.m_max = TOKENS, .sums = sums}};
    struct backend b = {.stream = NULL};
    struct device_probe p = {.o = {.region = r}, .b = &b, .loaded = &l, .y_cols = HIDDEN};
    planted = plant;
    started = false;
    *e = (struct err){""};
    return probe_sums(&p, e);
}

static void a_good_one_passes(void **state)
{
    struct err e;
    (void)state;
    enum device_verdict v = probe(0, REGION_MLP_OUT, 1, &e);
    if (v != DEVICE_OK)
        print_error("%s\n", e.msg);
    assert_int_equal(v, DEVICE_OK);
    assert_true(started);
    assert_int_equal(probe(0, REGION_ATTN_OUT, 1, &e), DEVICE_OK);
    assert_true(started);
    assert_int_equal(probe(0, REGION_MLP_OUT, 0, &e),
                     DEVICE_OK); /* adds nobody's: nothing to see */
    assert_false(started);
    assert_int_equal(probe(0, REGION_REDUCE, 1, &e), DEVICE_OK); /* probe_reduce.c's */
    assert_false(started);
    several = false;
    assert_int_equal(probe(0, REGION_MLP_OUT, 1, &e), DEVICE_OK);
    assert_false(started);
    several = true;
}

static void bad_ones_are_refused(void **state)
{
    static const struct {
        unsigned planted;
        const char *why;
    } bad[] = {
        {NO_WAIT, "did not wait"},
        {KEEPS, "left words on rank 0"},
        {OWN_FIRST, "the sum in the order of ranks"},
        {RESIDUAL_FIRST, "the sum in the order of ranks"},
        {NO_RESIDUAL, "the sum in the order of ranks"},
        {SHORT, "the sum in the order of ranks"},
        {PAST_END, "outside of its output"},
        {BEFORE, "outside of its output"},
        {OUTSIDE, "outside of rank 1's area"},
        {OTHER_TURN, "sent"},
        {ONE_RANK, "sent"},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        enum device_verdict v = probe(bad[i].planted, REGION_MLP_OUT, 1, &e);
        if (v != DEVICE_FAULT || !strstr(e.msg, bad[i].why))
            print_error("%zu: %d, %s; expected %s\n", i, (int)v, e.msg, bad[i].why);
        assert_int_equal(v, DEVICE_FAULT);
        assert_non_null(strstr(e.msg, bad[i].why));
    }
}

/* Their threads go on for ever. */
static void what_does_not_end_is_refused(void **state)
{
    struct err e;
    (void)state;
    hopeless = "with other ranks";
    assert_int_equal(probe(TAKES_TWICE | SPINS, REGION_MLP_OUT, 1, &e), DEVICE_FAULT);
    assert_non_null(strstr(e.msg, "with other ranks did not end"));
}

static void what_waits_when_the_world_is_over_is_refused(void **state)
{
    struct err e;
    (void)state;
    hopeless = "when the world is over";
    assert_int_equal(probe(SPINS, REGION_MLP_OUT, 1, &e), DEVICE_FAULT);
    assert_non_null(strstr(e.msg, "when the world is over, did not end"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_one_passes),
        cmocka_unit_test(bad_ones_are_refused),
        cmocka_unit_test(what_waits_when_the_world_is_over_is_refused),
        cmocka_unit_test(what_does_not_end_is_refused),
    };
    _exit(cmocka_run_group_tests(tests, NULL, NULL)); /* threads still wait */
}
