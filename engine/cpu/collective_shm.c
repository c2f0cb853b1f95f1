/* SPDX-License-Identifier: Apache-2.0 */
/* collective_shm.c - sums and concatenations of what several processes of a host computed.
 *
 * Each rank has a place in shared memory, which all others read: it leaves its numbers there, says
 * so (`arrived`), waits until all have said so, and reads theirs. That is one meeting a call. Each
 * rank has two places and uses them in turn, so whoever is fast may fill the other one while the
 * slow still read: nobody comes back to the first before a meeting at which all were done with it.
 * What is longer than a place goes through it in pieces.
 *
 * Sums are added in the order of ranks by every rank for itself, so all have the same bits.
 *
 * A rank waits spinning for a moment and then sleeps on a futex, a few milliseconds at a time: it
 * looks up again and again whether the world is over, because a process that died wakes nobody.
 * Kernels of reduce have areas of their own (reduce_area.h) behind the places: they meet by slices,
 * on all threads of a team, and come here only to sleep, which ends as any other wait.
 *
 * What a rank arrives with is noted beside its place, so that ranks that do different things (one
 * runs another plan) find that out instead of adding up what does not belong together.
 */
#include "engine/cpu/collective_shm.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/cpu/reduce_area.h"
#include "engine/shard.h"

enum {
    PLACE = 1 << 18, /* floats of a place: 1 MiB, as much as a core's cache holds at most */
    SPINS = 2000,
    NAP_NS = 5000000,
};

static const uint64_t MAGIC = 0x32646c726f777477; /* layout 2 */

/* The cache lines of one rank, which no other rank writes. */
struct line {
    _Atomic uint32_t arrived; /* meetings it has come to */
    _Atomic uint32_t sleepers;
    uint64_t doing[2]; /* by turn: kind and floats of the call */
    char pad[128 - 24];
};
_Static_assert(sizeof(struct line) == 128, "lines of two ranks share no cache line");

struct area {
    uint64_t magic;
    int32_t world;
    _Atomic uint32_t over; /* a rank ended the world */
    char pad[128 - 16];
    struct line line[SHARD_WORLD_MAX];
    float place[]; /* [world][2][PLACE]; behind them the areas of reduce */
};

struct shm {
    struct collective base;
    struct area *area;
    size_t bytes;
    uint32_t meetings;
    int64_t timeout_ns;
    struct reduce_area reduce[REDUCE_USES];
    uint32_t calls[REDUCE_USES];
    pthread_mutex_t lock;
    char why[256]; /* under the lock until `broken` is set */
    _Atomic bool broken;
};

static size_t places_bytes(int32_t world)
{
    return sizeof(struct area) + (size_t)world * 2 * PLACE * sizeof(float);
}

static size_t area_bytes(int32_t world)
{
    return places_bytes(world) + REDUCE_USES * reduce_area_bytes(world);
}

static float *place(const struct shm *s, int32_t rank, uint32_t turn)
{
    return s->area->place + ((int64_t)rank * 2 + turn) * PLACE;
}

/* ---- the end of a world --------------------------------------------------------------------- */

static void wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void shm_abort(struct collective *c, const char *why)
{
    struct shm *s = (struct shm *)c;
    pthread_mutex_lock(&s->lock);
    if (!atomic_load(&s->broken)) {
        snprintf(s->why, sizeof s->why, "%s", why);
        atomic_store(&s->broken, true);
    }
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->area->over, 1);
    for (int32_t r = 0; r < c->world; r++)
        wake(&s->area->line[r].arrived);
}

static const char *shm_broken(struct collective *c)
{
    struct shm *s = (struct shm *)c;
    if (!atomic_load(&s->broken) && atomic_load(&s->area->over))
        shm_abort(c, "another rank gave up");
    return atomic_load(&s->broken) ? s->why : NULL;
}

/* ---- meeting -------------------------------------------------------------------------------- */

static void sleep_on(_Atomic uint32_t *word, _Atomic uint32_t *sleepers, uint32_t seen)
{
    struct timespec nap = {0, NAP_NS};
    atomic_fetch_add(sleepers, 1);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub(sleepers, 1);
}

/* Whether a rank has come to this meeting; counts wrap. */
static bool came(uint32_t arrived, uint32_t meeting)
{
    return (int32_t)(arrived - meeting) >= 0;
}

/* Whether who waits since t0 has waited long enough; then the world is over. */
static bool too_late(struct shm *s, int64_t t0, int32_t rank, const char *what, uint32_t number)
{
    char why[200];
    if (clock_ns() - t0 <= s->timeout_ns)
        return false;
    snprintf(why, sizeof why, "rank %d did not come to %s number %u within %.1f s", rank, what,
             number, (double)s->timeout_ns * 1e-9);
    shm_abort(&s->base, why);
    return true;
}

static int wait_for(struct shm *s, int32_t rank, const char *what, struct err *e)
{
    struct line *l = &s->area->line[rank];
    int64_t t0 = 0;
    for (int spins = 0;; spins++) {
        uint32_t seen = atomic_load_explicit(&l->arrived, memory_order_acquire);
        if (came(seen, s->meetings))
            return 0;
        if (spins < SPINS) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            continue;
        }
        if (shm_broken(&s->base))
            return err_set(e, "%s", s->why);
        t0 = t0 ? t0 : clock_ns();
        if (too_late(s, t0, rank, what, s->meetings))
            return err_set(e, "%s", s->why);
        sleep_on(&l->arrived, &l->sleepers, seen);
    }
}

/* All ranks, each with what it does. The numbers in their places of this turn are to be read
 * afterwards. */
static int meet(struct shm *s, const char *what, uint64_t doing, struct err *e)
{
    struct line *own = &s->area->line[s->base.rank];
    if (shm_broken(&s->base))
        return err_set(e, "%s", s->why);
    uint32_t turn = ++s->meetings & 1;
    own->doing[turn] = doing;
    atomic_store(&own->arrived, s->meetings);
    if (atomic_load(&own->sleepers))
        wake(&own->arrived);
    for (int32_t r = 0; r < s->base.world; r++) {
        if (wait_for(s, r, what, e))
            return -1;
        if (s->area->line[r].doing[turn] != doing) {
            char why[160];
            snprintf(why, sizeof why, "rank %d does not do what rank %d does in %s number %u", r,
                     s->base.rank, what, s->meetings);
            shm_abort(&s->base, why);
            return err_set(e, "%s", why);
        }
    }
    return 0;
}

/* ---- kernels of reduce ---------------------------------------------------------------------- */

/* They have plain words, and atomic operations of their compiler. */
static _Atomic uint32_t *word_of(uint32_t *p)
{
    return (_Atomic uint32_t *)p;
}

static int reduce_wait(const struct reduce_area *a, int32_t rank, int32_t slice, uint32_t meeting)
{
    struct shm *s = a->host;
    _Atomic uint32_t *flag = word_of(a->flag[rank] + slice * REDUCE_FLAG);
    int64_t t0 = clock_ns();
    for (;;) {
        uint32_t seen = atomic_load(flag);
        if (REDUCE_CAME(seen, meeting))
            return 0;
        if (shm_broken(&s->base) || too_late(s, t0, rank, "reduce", *a->calls + 1))
            return -1;
        sleep_on(flag, word_of(a->sleepers[rank]), seen);
    }
}

static void reduce_wake(const struct reduce_area *a, int32_t slice)
{
    wake(word_of(a->flag[a->rank] + slice * REDUCE_FLAG));
}

static struct reduce_area *shm_area(struct collective *c, enum reduce_use use)
{
    return &((struct shm *)c)->reduce[use];
}

static void open_areas(struct shm *s)
{
    char *memory = (char *)s->area + places_bytes(s->base.world);
    for (int i = 0; i < REDUCE_USES; i++) {
        struct reduce_area *a = &s->reduce[i];
        reduce_area_aim(a, memory + (size_t)i * reduce_area_bytes(s->base.world), s->base.rank,
                        s->base.world);
        a->calls = &s->calls[i];
        a->over = (const uint32_t *)&s->area->over;
        a->wait = reduce_wait;
        a->wake = reduce_wake;
        a->host = s;
    }
}

/* ---- the calls ------------------------------------------------------------------------------ */

enum doing { REDUCES = 1, GATHERS, MEETS };

static uint64_t doing(enum doing kind, int64_t n)
{
    return (uint64_t)kind << 56 | (uint64_t)n;
}

static int64_t piece(int64_t left)
{
    return left < PLACE ? left : PLACE;
}

/* Puts as many of the `left` floats at `in` as a place holds where all ranks see them, and waits
 * for theirs: how many, or -1. They lie in place(s, rank, *turn). */
static int64_t share(struct shm *s, const char *what, enum doing kind, const float *in,
                     int64_t left, uint32_t *turn, struct err *e)
{
    int64_t k = piece(left);
    *turn = (s->meetings + 1) & 1;
    memcpy(place(s, s->base.rank, *turn), in, (size_t)k * sizeof *in);
    return meet(s, what, doing(kind, left), e) ? -1 : k;
}

static int shm_reduce(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                      struct err *e)
{
    struct shm *s = (struct shm *)c;
    (void)stream;
    for (int64_t at = 0; at < n; at += PLACE) {
        uint32_t turn;
        int64_t k = share(s, "all_reduce", REDUCES, in + at, n - at, &turn, e);
        if (k < 0)
            return -1;
        memcpy(out + at, place(s, 0, turn), (size_t)k * sizeof *out);
        for (int32_t r = 1; r < c->world; r++) {
            const float *from = place(s, r, turn);
            for (int64_t i = 0; i < k; i++)
                out[at + i] += from[i];
        }
    }
    return 0;
}

static int shm_gather(struct collective *c, const float *in, float *out, int64_t n, void *stream,
                      struct err *e)
{
    struct shm *s = (struct shm *)c;
    (void)stream;
    for (int64_t at = 0; at < n; at += PLACE) {
        uint32_t turn;
        int64_t k = share(s, "all_gather", GATHERS, in + at, n - at, &turn, e);
        if (k < 0)
            return -1;
        for (int32_t r = 0; r < c->world; r++)
            memcpy(out + r * n + at, place(s, r, turn), (size_t)k * sizeof *out);
    }
    return 0;
}

static int shm_barrier(struct collective *c, struct err *e)
{
    return meet((struct shm *)c, "barrier", doing(MEETS, 0), e);
}

static void shm_close(struct collective *c)
{
    struct shm *s = (struct shm *)c;
    if (!s)
        return;
    munmap(s->area, s->bytes);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static const struct collective_ops ops = {
    .name = "shm",
    .all_reduce = shm_reduce,
    .all_gather = shm_gather,
    .area = shm_area,
    .barrier = shm_barrier,
    .broken = shm_broken,
    .abort = shm_abort,
    .close = shm_close,
};

/* ---- opening -------------------------------------------------------------------------------- */

static struct area *map(int fd, int32_t world)
{
    void *at = mmap(NULL, area_bytes(world), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Allocates the memory now: a write to a page for which there is no memory left would raise SIGBUS.
 */
int collective_shm_create(const char *name, int32_t world, struct err *e)
{
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, "shared memory of the ranks: %s", strerror(errno));
    int code = posix_fallocate(fd, 0, (off_t)area_bytes(world));
    struct area *area = code ? NULL : map(fd, world);
    if (area) {
        area->magic = MAGIC;
        area->world = world;
        munmap(area, area_bytes(world));
    } else {
        shm_unlink(name);
        err_set(e, "shared memory of the ranks: %zu MiB: %s (/dev/shm may be too small)",
                area_bytes(world) >> 20, strerror(code ? code : errno));
    }
    close(fd);
    return area ? 0 : -1;
}

struct collective *collective_shm_open(const char *name, int32_t rank, int32_t world,
                                       double timeout_s, struct err *e)
{
    struct stat st;
    int fd = shm_open(name, O_RDWR | O_CLOEXEC, 0);
    bool whole = fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size == area_bytes(world);
    struct area *area = whole ? map(fd, world) : NULL;
    if (area && (area->magic != MAGIC || area->world != world)) {
        munmap(area, area_bytes(world));
        area = NULL;
    }
    if (fd >= 0)
        close(fd);
    if (!area) {
        err_set(e, "rank %d: the shared memory of %d ranks cannot be opened%s%s", rank, world,
                fd < 0 ? ": " : "", fd < 0 ? strerror(errno) : "");
        return NULL;
    }
    struct shm *s = xcalloc(1, sizeof *s);
    s->base = (struct collective){&ops, rank, world};
    s->area = area;
    s->bytes = area_bytes(world);
    s->timeout_ns = (int64_t)(timeout_s * 1e9);
    open_areas(s);
    pthread_mutex_init(&s->lock, NULL);
    return &s->base;
}
