/* SPDX-License-Identifier: Apache-2.0 */
/* test_probe_reduce.c - the probe of kernels of reduce (probe_reduce*.c) lets good ones pass and
 * refuses planted bad ones, without a GPU: a stream is a thread here, memory is the host's, and a
 * kernel a function that keeps to kernels/peer.h but for what is planted in it. */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/cuda/loaded.h"
#include "engine/cuda/ops.h"
#include "engine/cuda/peer_area.h"
#include "engine/cuda/probe_private.h"
#include "engine/cuda/probe_reduce.h"

/* ---- a runtime of threads -------------------------------------------------------------------- */

enum { TASKS = 64 };

struct task {
    void (*run)(const void *args); /* NULL: an event */
    union {
        struct peer_reduce_args reduce;
        struct probe_produce_args produce;
    } args;
    int *event;
};

struct stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct task task[TASKS];
    int first, last;
    bool stop;
};

static int gpus, nvlink = 1, streams_open;

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first < s->last) {
        if (s->first == s->last) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        struct task t = s->task[s->first % TASKS];
        pthread_mutex_unlock(&s->lock);
        if (t.run)
            t.run(&t.args);
        else
            __atomic_store_n(t.event, 1, __ATOMIC_RELEASE);
        pthread_mutex_lock(&s->lock);
        s->first++;
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static cudaError_t stream_create(cudaStream_t *to)
{
    struct stream *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_create(&s->thread, NULL, stream_main, s);
    streams_open++;
    *to = (cudaStream_t)(void *)s;
    return cudaSuccess;
}

static cudaError_t stream_destroy(cudaStream_t of)
{
    struct stream *s = (struct stream *)(void *)of;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
    streams_open--;
    return cudaSuccess;
}

static void push(cudaStream_t to, const struct task *t)
{
    struct stream *s = (struct stream *)(void *)to;
    pthread_mutex_lock(&s->lock);
    assert_true(s->last - s->first < TASKS);
    s->task[s->last++ % TASKS] = *t;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

static cudaError_t event_record(cudaEvent_t e, cudaStream_t s)
{
    struct task t = {.event = (int *)(void *)e};
    __atomic_store_n(t.event, 0, __ATOMIC_RELEASE);
    push(s, &t);
    return cudaSuccess;
}

static cudaError_t event_query(cudaEvent_t e)
{
    return __atomic_load_n((int *)(void *)e, __ATOMIC_ACQUIRE) ? cudaSuccess : cudaErrorNotReady;
}

static void produce_task(const void *args)
{
    const struct probe_produce_args *a = args;
    struct timespec t = {0, (long)*a->delay_ns};
    if (t.tv_nsec)
        nanosleep(&t, NULL);
    for (int i = 0; i < a->segments; i++)
        if (a->segment[i].from)
            memcpy(a->segment[i].to, a->segment[i].from, (size_t)a->segment[i].bytes);
        else
            memset(a->segment[i].to, 0xff, (size_t)a->segment[i].bytes);
}

static char produce_tool, kernel_entry;
static void kernel_task(const void *args);

static cudaError_t launch_kernel(const cudaLaunchConfig_t *c, const void *f, void **parameter)
{
    struct task t = {.run = kernel_task};
    if (f == &produce_tool) {
        t.run = produce_task;
        memcpy(&t.args.produce, parameter[0], sizeof t.args.produce);
    } else {
        assert_ptr_equal(f, &kernel_entry);
        memcpy(&t.args.reduce, parameter[0], sizeof t.args.reduce);
    }
    push(c->stream, &t);
    return cudaSuccess;
}

static cudaError_t take_memory(void **to, size_t bytes)
{
    *to = calloc(1, bytes);
    return *to ? cudaSuccess : cudaErrorMemoryAllocation;
}

static cudaError_t set_device(int n)
{
    return n < gpus ? cudaSuccess : cudaErrorInvalidDevice;
}

#define GIVE(to, value) ((void)(*(to) = (value)), cudaSuccess)
#define cudaGetDeviceCount(to) GIVE(to, gpus)
#define cudaSetDevice(n) set_device(n)
#define cudaDeviceCanAccessPeer(to, a, b) GIVE(to, 1)
#define cudaDeviceEnablePeerAccess(n, flags) ((n) < gpus ? cudaSuccess : cudaErrorInvalidDevice)
#define cudaDeviceGetP2PAttribute(to, what, a, b) GIVE(to, nvlink)
#define cudaStreamCreateWithFlags(to, flags) stream_create(to)
#define cudaStreamDestroy(s) stream_destroy(s)
#define cudaEventCreateWithFlags(to, flags) take_memory((void **)(to), sizeof(int))
#define cudaEventDestroy(e) free(e)
#define cudaEventRecord(e, s) event_record(e, s)
#define cudaEventQuery(e) event_query(e)
#define cudaMalloc(to, bytes) take_memory(to, bytes)
#define cudaFree(p) free(p)
#define cudaHostAlloc(to, bytes, flags) take_memory(to, bytes)
#define cudaHostGetDevicePointer(to, of, flags) GIVE(to, (void *)(of))
#define cudaFreeHost(p) free(p)
#define cudaMemcpy(to, from, n, kind) ((void)memcpy(to, from, n), cudaSuccess)
#define cudaMemset(to, value, n) ((void)memset(to, value, n), cudaSuccess)
#define cudaDeviceSynchronize() cudaSuccess
#define cudaGetLastError() ((void)0)
#define cudaFuncGetAttributes(to, f) GIVE(to, (struct cudaFuncAttributes){.localSizeBytes = stack})
#define cudaLaunchKernelExC(c, f, parameter) launch_kernel(c, f, parameter)

/* ---- kernels --------------------------------------------------------------------------------- */

/* What is planted; each bit is one. */
enum planted {
    NO_WAIT = 1 << 0,        /* adds what lies in the places */
    ONE_TURN = 1 << 1,       /* all calls in one turn */
    OWN_COUNT = 1 << 2,      /* counts its calls by itself */
    NO_COUNT = 1 << 3,       /* leaves the counts as they are */
    ONE_COUNT = 1 << 4,      /* one of them goes on, the others do not */
    NO_CLEAN = 1 << 5,       /* old words stay for ever */
    RESIDUAL_FIRST = 1 << 6, /* other bits */
    OWN_FIRST = 1 << 7,      /* other bits on other ranks */
    SHORT = 1 << 8,          /* leaves the last number out */
    PAST_END = 1 << 9,
    BEFORE = 1 << 10,
    SPINS = 1 << 11,    /* waits on when the world is over */
    WRAPS = 1 << 12,    /* has a call 0 */
    STRAYS = 1 << 13,   /* into another way's memory */
    OUTSIDE = 1 << 14,  /* behind the area */
    GIVES_UP = 1 << 15, /* waits for a while only */
    KEEPS = 1 << 16,    /* places of words stay full */
    TWICE = 1 << 17,    /* a word is sent to two places */
    OTHER_TURN = 1 << 18,
};
static unsigned planted;
static int way, stack, m_max = 4;
static uint32_t own_count[REDUCE_PEERS];

enum { HIDDEN = 64 };

/* `call`: of REDUCE_WORDS, the turn. */
static uint32_t *item(const struct peer_reduce_args *a, int on, int slot, uint32_t call, int64_t i)
{
    int32_t world = a->area.world, numbers = a->area.numbers;
    uint32_t turn = planted & ONE_TURN ? 0 : (call & 1) ^ !!(planted & OTHER_TURN);
    size_t at = REDUCE_SLOT(way, world, numbers, (int32_t)turn, slot) + (size_t)i;
    return (uint32_t *)a->area.memory[on] + 4 * at;
}

/* Where number i lies in a slot, and the flag that stands for it, in words. */
static int64_t word_of(int64_t i)
{
    return way == REDUCE_LL ? 2 * i : i / REDUCE_LINE * 32 + i % REDUCE_LINE;
}

static int64_t flag_of(int64_t i)
{
    return way == REDUCE_LL ? 2 * i + 1 : i / REDUCE_LINE * 32 + 31;
}

static int64_t items_of(int64_t n)
{
    return way == REDUCE_LL ? n / 2 : (n + REDUCE_LINE - 1) / REDUCE_LINE * 8;
}

static void give(const struct peer_reduce_args *a, uint32_t call, int64_t n)
{
    for (int r = 0; r < a->area.world; r++) {
        uint32_t *to = item(a, r, a->area.rank, call, 0);
        for (int64_t i = 0; i < n && r != a->area.rank; i++) {
            if (way == REDUCE_LL128 && i % REDUCE_LINE == 0) /* all of a line is written */
                memset(to + word_of(i), 0, 128);
            memcpy(to + word_of(i), a->x + i, 4);
            if (i + 1 == n || flag_of(i + 1) != flag_of(i))
                __atomic_store_n(to + flag_of(i), call, __ATOMIC_RELEASE);
        }
    }
}

static bool await(const struct peer_reduce_args *a, int from, uint32_t call, int64_t i, float *v)
{
    const uint32_t *at = item(a, a->area.rank, from, call, 0);
    for (int looks = 0; !(planted & NO_WAIT); looks++) {
        if (__atomic_load_n(at + flag_of(i), __ATOMIC_ACQUIRE) == call)
            break;
        if (__atomic_load_n(a->area.over, __ATOMIC_ACQUIRE) && !(planted & SPINS))
            return false;
        if (planted & GIVES_UP && looks > 100)
            return false;
        sched_yield();
    }
    memcpy(v, at + word_of(i), 4);
    return true;
}

static bool add(const struct peer_reduce_args *a, uint32_t call, int64_t n)
{
    for (int64_t i = 0; i < n - !!(planted & SHORT); i++) {
        float sum = planted & RESIDUAL_FIRST ? a->residual[i] : 0, v;
        bool first = !(planted & RESIDUAL_FIRST);
        for (int k = 0; k < a->area.world; k++) {
            int r = planted & OWN_FIRST ? (a->area.rank + k) % a->area.world : k;
            v = a->x[i];
            if (r != a->area.rank && !await(a, r, call, i, &v))
                return false;
            sum = first ? v : sum + v;
            first = false;
        }
        a->out[i] = planted & RESIDUAL_FIRST ? sum : sum + a->residual[i];
    }
    return true;
}

static void clean(const struct peer_reduce_args *a, uint32_t call, int64_t n)
{
    for (int s = 0; s <= a->area.world; s++)
        for (int64_t i = 0; i < REDUCE_ITEMS(way, a->area.numbers); i++)
            if (s == a->area.rank || s == a->area.world || i >= items_of(n))
                memset(item(a, a->area.rank, s, call, i), 0, 16);
}

/* As kernels/cuda/lib/words.cuh. */
static void words_task(const struct peer_reduce_args *a)
{
    uint32_t turn = (uint32_t)a->turn, word;
    int64_t n = (int64_t)a->m * HIDDEN;
    for (int r = 0; r < a->area.world; r++)
        for (int64_t i = 0; i < n && r != a->area.rank; i++) {
            memcpy(&word, a->x + i, 4);
            __atomic_store_n(item(a, r, a->area.rank, turn, 0) + i, word, __ATOMIC_RELEASE);
            if (planted & TWICE && i == 0)
                *item(a, r, a->area.world, turn, 0) = word;
        }
    for (int64_t i = 0; i < n - !!(planted & SHORT); i++) {
        float sum = 0, v;
        for (int r = 0; r < a->area.world; r++) {
            v = a->x[i];
            if (r != a->area.rank) {
                uint32_t *at = item(a, a->area.rank, r, turn, 0) + i;
                while ((word = __atomic_load_n(at, __ATOMIC_ACQUIRE)) == REDUCE_EMPTY &&
                       !(planted & NO_WAIT)) {
                    if (__atomic_load_n(a->area.over, __ATOMIC_ACQUIRE))
                        return;
                    sched_yield();
                }
                memcpy(&v, &word, 4);
                if (!(planted & KEEPS))
                    __atomic_store_n(at, REDUCE_EMPTY, __ATOMIC_RELEASE);
            }
            sum = r ? sum + v : v;
        }
        a->out[i] = sum + a->residual[i];
    }
    if (planted & STRAYS)
        *(uint32_t *)a->area.memory[a->area.rank] = 1;
    if (planted & OWN_COUNT)
        a->area.calls[0]++;
}

static void kernel_task(const void *args)
{
    const struct peer_reduce_args *a = args;
    if (way == REDUCE_WORDS) {
        words_task(a);
        return;
    }
    uint32_t *calls = a->area.calls + way * REDUCE_COUNTS, call = *calls + 1;
    int64_t n = (int64_t)a->m * HIDDEN;
    if (call == 0 && !(planted & WRAPS))
        call = 2;
    if (planted & OWN_COUNT)
        call = ++own_count[a->area.rank];
    give(a, call, n);
    add(a, call, n);
    if (call % REDUCE_CLEAN < 2 && !(planted & NO_CLEAN))
        clean(a, call, n);
    if (planted & PAST_END)
        a->out[n] = 1;
    if (planted & BEFORE)
        a->out[-1] = 1;
    if (planted & STRAYS)
        *(uint32_t *)a->area.memory[a->area.rank] = 1;
    if (planted & OUTSIDE)
        ((char *)a->area.memory[a->area.rank])[peer_area_bytes(a->area.world, a->area.numbers)] = 1;
    call = planted & OWN_COUNT ? *calls + 1 + (*calls + 1 == 0) * 2 : call;
    for (int i = 0; i < REDUCE_COUNTS && !(planted & NO_COUNT); i++)
        if (i == 0 || !(planted & ONE_COUNT))
            calls[i] = call;
}

/* ---- the probe over them --------------------------------------------------------------------- */

static struct kernel *open_fake(void)
{
    static struct loaded l;
    static struct kernel k = {.region = REGION_REDUCE, .backend = &l};
    l = (struct loaded){.info = {.m_max = m_max, .launches = 1, .launch = {{{1, 1, 1}, 32}}}};
    l.info.sums = way == REDUCE_WORDS;
    l.entry[0] = (cudaKernel_t)(void *)&kernel_entry;
    return &k;
}
#define loaded_open(b, o, packs, e) ((void)(o), open_fake())
#define cuda_unload(b, k) ((void)(b), (void)(k))
#define loaded_reap(b, all) ((void)(b))
#include "engine/cuda/probe_reduce_gpus.c"

static bool hangs; /* the kernel, until the world is over, or it is found out before that */

/* What hangs, or spins when the world is over, is awaited in vain. */
static int wait_for_party(struct party *p, int32_t from, int32_t to, double limit_s, struct err *e)
{
    bool in_vain = hangs || ((planted & SPINS) && *(volatile uint32_t *)p->over);
    return party_wait(p, from, to, in_vain && limit_s > 0.3 ? 0.3 : limit_s, e);
}

#define after probe_after
#define slice probe_slice
#define rounds probe_rounds
#define party_wait(p, from, to, limit_s, e) wait_for_party(p, from, to, limit_s, e)
#include "engine/cuda/probe_reduce.c"
#undef slice

static int slices_begun, slices_ended;

static void count_begin(void *ctx)
{
    (void)ctx;
    slices_begun++;
}

static void count_end(void *ctx)
{
    (void)ctx;
    slices_ended++;
}

static enum device_verdict probe(unsigned plant, int world, bool full, char *why)
{
    struct device_session s = {.slices = {count_begin, NULL, count_end, NULL}};
    struct device_reduce q = {"", world, HIDDEN, 3, 4, full, 11};
    struct err e = {""};
    int32_t calls = 0;
    bool spent = false;
    s.tool[TOOL_PRODUCE] = (cudaKernel_t)(void *)&produce_tool;
    planted = plant;
    memset(own_count, 0, sizeof own_count);
    enum device_verdict v = probe_reduce(&s, &q, &calls, &spent, &e);
    snprintf(why, sizeof e.msg, "%s", e.msg);
    assert_int_equal(slices_begun, slices_ended);
    assert_true(spent == !!(plant & SPINS));
    if (!spent)
        assert_int_equal(streams_open, 0);
    return v;
}

static void good_kernels_pass(void **state)
{
    char why[sizeof(struct err)];
    (void)state;
    probe_reduce_s = 60;
    for (gpus = 2; gpus <= 4; gpus++) {
        way = gpus % 2 ? REDUCE_LL : REDUCE_LL128;
        enum device_verdict v = probe(0, gpus, gpus == 2, why);
        if (v != DEVICE_OK)
            print_error("%s\n", why);
        assert_int_equal(v, DEVICE_OK);
    }
}

static void words_pass_and_planted_ones_do_not(void **state)
{
    static const struct {
        unsigned planted;
        const char *why;
    } bad[] = {
        {NO_WAIT, "element"},
        {ONE_TURN, ""},
        {OTHER_TURN, "and the call's turn is"},
        {KEEPS, "words in turn"},
        {TWICE, "words in turn"},
        {SHORT, "the sum in the order of ranks"},
        {STRAYS, "wrote to way 0"},
        {OWN_COUNT, "has count 0 of way 0"},
    };
    char why[sizeof(struct err)];
    (void)state;
    probe_reduce_s = 60;
    way = REDUCE_WORDS;
    for (gpus = 2; gpus <= 4; gpus++) {
        enum device_verdict v = probe(0, gpus, gpus == 2, why);
        if (v != DEVICE_OK)
            print_error("%s\n", why);
        assert_int_equal(v, DEVICE_OK);
    }
    gpus = 3;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hangs = !bad[i].why[0];
        enum device_verdict v = probe(bad[i].planted, 3, true, why);
        hangs = false;
        if (v != DEVICE_FAULT || !strstr(why, bad[i].why))
            print_error("%zu: %d, %s; expected %s\n", i, (int)v, why, bad[i].why);
        assert_int_equal(v, DEVICE_FAULT);
        assert_non_null(strstr(why, bad[i].why));
    }
}

static void bad_kernels_are_refused(void **state)
{
    static const struct {
        unsigned planted;
        const char *why;
    } bad[] = {
        {NO_WAIT, "element"},
        {ONE_TURN, "wrote to way 0, turn 0"},
        {OWN_COUNT, "place is used too early or too late"},
        {NO_COUNT, "counts no calls"},
        {ONE_COUNT, "has count 1 of way 0"},
        {NO_CLEAN, "which cleans, left"},
        {RESIDUAL_FIRST, "the sum in the order of ranks"},
        {OWN_FIRST, "the sum in the order of ranks"},
        {SHORT, "the sum in the order of ranks"},
        {PAST_END, "behind its output"},
        {BEFORE, "before its output"},
        {WRAPS, "has count 0 of way 0"},
        {STRAYS, "wrote to way 0"},
        {OUTSIDE, "outside of rank 0's area"},
        {GIVES_UP, ""},
    };
    char why[sizeof(struct err)];
    (void)state;
    probe_reduce_s = 60;
    gpus = 3;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        way = bad[i].planted == STRAYS ? REDUCE_LL128 : REDUCE_LL;
        hangs = !bad[i].why[0];
        enum device_verdict v = probe(bad[i].planted, 3, true, why);
        hangs = false;
        if (v != DEVICE_FAULT || !strstr(why, bad[i].why))
            print_error("%zu: %d, %s; expected %s\n", i, (int)v, why, bad[i].why);
        assert_int_equal(v, DEVICE_FAULT);
        assert_non_null(strstr(why, bad[i].why));
    }
}

static void what_cannot_be_probed_is_no_fault_of_the_kernel(void **state)
{
    char why[sizeof(struct err)];
    (void)state;
    way = REDUCE_LL;
    gpus = 2;
    assert_int_equal(probe(0, 3, true, why), DEVICE_ERROR);
    assert_non_null(strstr(why, "the probe sees 2 GPUs"));
    assert_int_equal(probe(0, REDUCE_PEERS + 1, true, why), DEVICE_ERROR);
    m_max = 3;
    assert_int_equal(probe(0, 2, true, why), DEVICE_FAULT);
    assert_non_null(strstr(why, "takes 3 tokens"));
    m_max = 4;
    stack = 8;
    assert_int_equal(probe(0, 2, true, why), DEVICE_FAULT);
    assert_non_null(strstr(why, "local memory"));
    stack = 0;
}

static void lines_need_links_that_do_not_cut_them(void **state)
{
    char why[sizeof(struct err)];
    (void)state;
    gpus = 2;
    nvlink = 0;
    way = REDUCE_LL128;
    assert_int_equal(probe(0, 2, true, why), DEVICE_FAULT);
    assert_non_null(strstr(why, "no NVLink"));
    way = REDUCE_LL;
    assert_int_equal(probe(0, 2, true, why), DEVICE_OK);
    nvlink = 1;
}

/* Last: its thread goes on for ever. Whatever else it does is awaited with patience. */
static void a_kernel_that_waits_for_ever_spends_the_process(void **state)
{
    char why[sizeof(struct err)];
    (void)state;
    probe_reduce_s = 60;
    way = REDUCE_LL;
    gpus = 2;
    assert_int_equal(probe(SPINS, 2, false, why), DEVICE_FAULT);
    assert_non_null(strstr(why, "hang"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_kernels_pass),
        cmocka_unit_test(words_pass_and_planted_ones_do_not),
        cmocka_unit_test(bad_kernels_are_refused),
        cmocka_unit_test(what_cannot_be_probed_is_no_fault_of_the_kernel),
        cmocka_unit_test(lines_need_links_that_do_not_cut_them),
        cmocka_unit_test(a_kernel_that_waits_for_ever_spends_the_process),
    };
    _exit(cmocka_run_group_tests(tests, NULL, NULL)); /* a thread still waits */
}
