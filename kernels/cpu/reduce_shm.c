/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_shm.c - reduce on ranks of one machine: out = sum over ranks of x + residual.
 *
 * x, residual and out [M, n]; a rank's place in the area (args.h) takes all of x. Rows are one long
 * array here, cut into slices of SLICE floats; thread t of the SPLIT that take part has every
 * SPLIT-th one. What a rank moves, in floats for each of its M n:
 *
 *   SHOTS=1  x into its place; then the places of all ranks, and the residual, are read: world + 2
 *            reads and 2 writes, one meeting
 *   SHOTS=2  the same, but of its share of a slice only, whose sums go where its x was; then all
 *            shares and the residual: 4 reads and 2 writes and a bit, two meetings
 *
 * Invariant: every addition is in the order of ranks, the residual last, so all ranks have the same
 * bits, and those of the eager kernel, whatever the knobs. A rank writes to its own place and its
 * own flags alone. Before a thread waits for anybody it has given all that others wait for, so
 * ranks may have teams of different sizes.
 *
 * When the world is over, a thread leaves at once (wait() says so). Nobody waits at a barrier of
 * the team.
 */
#include "cpu/lib/shape.h"

/* ---- knobs -------------------------------------------------------------------------------- */

/* cpu/reduce_shm.def has them; whoever compiles this gives each a value. */

/* ---- legality ----------------------------------------------------------------------------- */

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/reduce_shm.def"

/* ---- code --------------------------------------------------------------------------------- */

#if NT
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))

enum { SPINS = 4000, WIDE = 64 };

/* Of slices and shares: floats [from, to). */
struct range {
    int64_t from, to;
};

INLINE struct range slice_range(const struct reduce_args *a, int32_t slice)
{
    int64_t all = (int64_t)a->m * a->n, from = (int64_t)slice * SLICE;
    return (struct range){from, from + SLICE < all ? from + SLICE : all};
}

/* Rank r's share of a slice, in whole vectors of 16. */
INLINE struct range share_range(struct range s, int32_t r, int32_t world)
{
    int64_t units = (s.to - s.from) / 16;
    return (struct range){s.from + units * r / world * 16, s.from + units * (r + 1) / world * 16};
}

/* Into this rank's place, from where others read it. */
INLINE void give(float *restrict to, const float *restrict from, struct range r)
{
#if NT && ISA == 2
    for (int64_t i = r.from; i < r.to; i += 16)
        _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
    _mm_sfence();
#elif NT
    for (int64_t i = r.from; i < r.to; i += 8)
        _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
    _mm_sfence();
#else
    for (int64_t i = r.from; i < r.to; i++)
        to[i] = from[i];
#endif
}

INLINE void arrive(const struct reduce_area *a, int32_t slice, uint32_t meeting)
{
    __atomic_store_n(a->flag[a->rank] + slice * REDUCE_FLAG, meeting, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(a->sleepers[a->rank], __ATOMIC_SEQ_CST))
        a->wake(a, slice);
}

INLINE int wait_for(const struct reduce_area *a, int32_t rank, int32_t slice, uint32_t meeting)
{
    const uint32_t *flag = a->flag[rank] + slice * REDUCE_FLAG;
    for (int spins = 0; spins < SPINS; spins++) {
        if (REDUCE_CAME(__atomic_load_n(flag, __ATOMIC_ACQUIRE), meeting))
            return 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    return a->wait(a, rank, slice, meeting);
}

INLINE int wait_for_all(const struct reduce_area *a, int32_t slice, uint32_t meeting)
{
    for (int32_t r = 0; r < a->world; r++)
        if (r != a->rank && wait_for(a, r, slice, meeting))
            return -1;
    return 0;
}

/* sum = the ranks' floats from i on, `count` of them, up to WIDE. */
INLINE void add_ranks(const struct reduce_area *a, uint32_t turn, int64_t i, int count, float *sum)
{
    const float *first = a->place[0][turn] + i;
    for (int k = 0; k < count; k++)
        sum[k] = first[k];
    for (int32_t r = 1; r < a->world; r++) {
        const float *next = a->place[r][turn] + i;
        for (int k = 0; k < count; k++)
            sum[k] += next[k];
    }
}

/* to = the sums of a range, and the residual, unless it is null. */
INLINE void add_range(const struct reduce_args *a, uint32_t turn, struct range r,
                      const float *residual, float *to)
{
    float sum[WIDE];
    int64_t i = r.from;
    for (; i + WIDE <= r.to; i += WIDE) {
        add_ranks(a->area, turn, i, WIDE, sum);
        for (int k = 0; k < WIDE; k++)
            to[i + k] = residual ? sum[k] + residual[i + k] : sum[k];
    }
    if (i < r.to) {
        int count = (int)(r.to - i);
        add_ranks(a->area, turn, i, count, sum);
        for (int k = 0; k < count; k++)
            to[i + k] = residual ? sum[k] + residual[i + k] : sum[k];
    }
}

/* The second shot: out = what each rank has summed, + residual. */
INLINE void take(const struct reduce_args *a, uint32_t turn, struct range s)
{
    for (int32_t r = 0; r < a->area->world; r++) {
        struct range share = share_range(s, r, a->area->world);
        const float *restrict sum = a->area->place[r][turn], *restrict residual = a->residual;
        float *restrict out = a->out;
        for (int64_t i = share.from; i < share.to; i++)
            out[i] = sum[i] + residual[i];
    }
}

static void run(const void *args, const struct team *team)
{
    const struct reduce_args *a = args;
    const struct reduce_area *area = a->area;
    const uint32_t call = *area->calls + 1, turn = call & 1;
    const int32_t slices = (int32_t)(((int64_t)a->m * a->n + SLICE - 1) / SLICE);
    const int32_t workers = SPLIT && SPLIT < team->size ? SPLIT : team->size;
    float *own = area->place[area->rank][turn];
    if (team->rank >= workers)
        return;
    for (int32_t s = team->rank; s < slices; s += workers) {
        give(own, a->x, slice_range(a, s));
        arrive(area, s, REDUCE_MEETING(call, 0));
    }
    for (int32_t s = team->rank; s < slices; s += workers) {
        struct range all = slice_range(a, s);
        if (wait_for_all(area, s, REDUCE_MEETING(call, 0)))
            return;
        if (SHOTS == 1) {
            add_range(a, turn, all, a->residual, a->out);
            continue;
        }
        add_range(a, turn, share_range(all, area->rank, area->world), 0, own);
        arrive(area, s, REDUCE_MEETING(call, 1));
    }
    for (int32_t s = team->rank; SHOTS == 2 && s < slices; s += workers) {
        if (wait_for_all(area, s, REDUCE_MEETING(call, 1)))
            return;
        take(a, turn, slice_range(a, s));
    }
}

static int64_t scratch_bytes(int32_t m, int32_t size)
{
    (void)m;
    (void)size;
    return 0;
}

/* ---- entry -------------------------------------------------------------------------------- */

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
};
