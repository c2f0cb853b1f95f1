/* SPDX-License-Identifier: Apache-2.0 */
/* probe_reduce.c - what a kernel of reduce must get right before ranks may meet in it.
 *
 * One process has the GPUs of all ranks and runs the kernel on each as a rank would
 * (probe_reduce_gpus.c). Bits of all ranks must be those of the sum in the order of ranks, the
 * residual last, computed here. Rounds of calls differ in who is late and in how: with a
 * predecessor before each call that writes its inputs late, on one rank later than on the others,
 * or one call right behind the other, which finds a place that is used too early. Sizes of a
 * round's calls differ, and counts of calls jump between rounds as if other kernels had been there:
 * whoever counts by itself is soon in the wrong turn.
 *
 * What a race would show only now and then is looked at in memory instead. All of it is nobody's at
 * first; a call may have changed one way's memory alone, of its own turn alone, and must have left
 * all counts of that way one higher and all others as they were. In a call that cleans nothing of
 * its turn may be left. Counts wrap. Words (REDUCE_WORDS) have no counts: all their places must be
 * empty after each call, and what is sent to a rank that never comes must lie in the call's turn,
 * each number once. Last, each rank in turn never comes: the others must be
 * waiting after a while, and end when the world is over.
 */
#include "engine/cuda/probe_reduce.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/err.h"
#include "engine/cuda/device.h"
#include "engine/cuda/peer_area.h"

enum { ROUNDS = 12, SHORT_ROUNDS = 4, LATE_NS = 200000, LONELY_NS = 2000000 };
double probe_reduce_s = 0.5; /* calls take microseconds; a delay, 0.2 ms */

static int refuse(struct party *p, const char *what, struct err *e)
{
    return err_set(e, "round %d: %s", p->round, what);
}

/* ---- what all ranks must have --------------------------------------------------------------- */

static int check_call(struct party *p, int32_t rank, int i, struct err *e)
{
    const char *base = p->gpu[rank].out_host + (size_t)i * party_out_stride(p);
    const float *out = (const float *)(const void *)(base + PARTY_BAND);
    int64_t n = (int64_t)p->m[i] * p->q->hidden;
    for (int64_t k = 0; k < n; k++) {
        float sum = p->gpu[0].x_host[i * p->most + k];
        for (int32_t r = 1; r < p->world; r++)
            sum += p->gpu[r].x_host[i * p->most + k];
        sum += p->residual_host[i * p->most + k];
        if (memcmp(&out[k], &sum, sizeof sum) != 0)
            return err_set(
                e,
                "rank %d of %d, round %d, call %d of %d tokens: element %lld is %.9g, the "
                "sum in the order of ranks is %.9g",
                rank, p->world, p->round, i, p->m[i], (long long)k, (double)out[k], (double)sum);
    }
    for (const char *at = (const char *)(out + n); at < base + party_out_stride(p) + PARTY_BAND;
         at++)
        if (*at != (char)PARTY_PATTERN)
            return refuse(p, "wrote behind its output", e);
    for (int k = 0; k < PARTY_BAND; k++)
        if (base[k] != (char)PARTY_PATTERN)
            return refuse(p, "wrote before its output", e);
    return 0;
}

static uint32_t after(uint32_t count, int calls)
{
    for (; calls > 0; calls--)
        count = count + 1 ? count + 1 : 2;
    return count;
}

/* That one way's counts went on by `calls`, the same on all ranks; which way that is stays so. */
static int check_counts(struct party *p, uint32_t count[REDUCE_PEERS][REDUCE_WAYS][REDUCE_COUNTS],
                        int calls, struct err *e)
{
    for (int w = 0; w < REDUCE_WAYS && p->way < 0; w++)
        if (count[0][w][0] != p->count[w])
            p->way = w;
    if (p->way < 0)
        return refuse(p, "counts no calls", e);
    if (p->way != REDUCE_WORDS)
        p->count[p->way] = after(p->count[p->way], calls);
    for (int32_t r = 0; r < p->world; r++)
        for (int w = 0; w < REDUCE_WAYS; w++)
            for (int i = 0; i < REDUCE_COUNTS; i++)
                if (count[r][w][i] != p->count[w])
                    return err_set(e,
                                   "round %d: rank %d has count %d of way %d at %u after %d calls, "
                                   "not at %u",
                                   p->round, r, i, w, count[r][w][i], calls, p->count[w]);
    return 0;
}

/* ---- rounds --------------------------------------------------------------------------------- */

static void slice(struct party *p, bool begin)
{
    const struct device_slices *t = &p->session->slices;
    if (begin && t->begin)
        t->begin(t->ctx);
    if (!begin && t->end)
        t->end(t->ctx);
}

/* Waits for ranks [from, to); whoever is not done by then is told that the world is over. */
static int wait_all(struct party *p, int32_t from, int32_t to, const char *hang, struct err *e)
{
    int rc = party_wait(p, from, to, probe_reduce_s, e);
    if (rc <= 0)
        return rc;
    *(volatile uint32_t *)p->over = 1;
    rc = party_wait(p, from, to, probe_reduce_s, e);
    if (rc == 0)
        return refuse(p, hang, e);
    p->dead = true;
    return rc < 0 ? -1 : refuse(p, "hang: no end, not even of the world's", e);
}

/* `calls` calls on all ranks, and what they left. `areas`: memory comes, too. */
static int run_calls(struct party *p, int calls, bool areas, struct err *e)
{
    static uint32_t count[REDUCE_PEERS][REDUCE_WAYS][REDUCE_COUNTS];
    int rc = 0;
    slice(p, true);
    for (int i = 0; i < calls && rc == 0; i++)
        for (int32_t r = 0; r < p->world && rc == 0; r++)
            rc = party_launch(p, (r + p->round) % p->world, i, e);
    int waited = wait_all(p, 0, p->world, "hang: ranks wait for what does not come", e);
    slice(p, false);
    if (rc || waited)
        return -1;
    if (party_fetch(p, count, areas, e))
        return -1;
    if (check_counts(p, count, calls, e))
        return -1;
    for (int i = 0; i < calls; i++)
        for (int32_t r = 0; r < p->world; r++)
            if (check_call(p, r, i, e))
                return -1;
    return 0;
}

/* The slot's largest and smallest, and what lies between; `first` is the first call's. */
static void choose_sizes(struct party *p, int32_t first)
{
    const struct device_reduce *q = p->q;
    for (int i = 0; i < PARTY_CALLS; i++) {
        int32_t span = q->m_to - q->m_from;
        p->m[i] = i % 3 == 0   ? q->m_to
                  : i % 3 == 1 ? q->m_from
                               : q->m_from + span * i / PARTY_CALLS;
    }
    p->m[0] = first;
}

/* One rank is late, or (every other time) every call of every rank now and then. */
static void choose_delays(struct party *p)
{
    uint64_t dice = p->q->seed + (uint64_t)p->round * 977;
    p->late = p->round % 3 != 2;
    for (int32_t r = 0; r < p->world; r++)
        for (int i = 0; i < PARTY_CALLS; i++) {
            dice = dice * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            bool one = p->round % 2 == 0;
            bool held = one ? r == p->round / 2 % p->world : dice >> 62 == 0;
            p->delay_ns[r][i] = held ? (unsigned)(dice >> 32) % LATE_NS : 0;
        }
}

static int one_round(struct party *p, int32_t first, int calls, bool areas, struct err *e)
{
    choose_sizes(p, first);
    choose_delays(p);
    return party_fill(p, e) || run_calls(p, calls, areas, e) ? -1 : 0;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Words of a rank's memory that are nobody's still, or empty places of words, in items [from, to).
 */
static int64_t untouched(const struct party_gpu *g, int of, int64_t from, int64_t to)
{
    uint32_t nobodys;
    int64_t n = 0;
    memset(&nobodys, of == REDUCE_WORDS ? 0xff : PARTY_PATTERN, sizeof nobodys);
    const uint32_t *word = (const uint32_t *)(const void *)(g->area_host + PARTY_BAND);
    for (int64_t i = from * 4; i < to * 4; i++)
        n += word[i] == nobodys;
    return n;
}

static int check_bands(const struct party *p, const struct party_gpu *g, struct err *e)
{
    const char *behind = g->area_host + PARTY_BAND + peer_area_bytes(p->world, p->numbers);
    for (int i = 0; i < PARTY_BAND; i++)
        if (g->area_host[i] != (char)PARTY_PATTERN || behind[i] != (char)PARTY_PATTERN)
            return err_set(e, "round %d: wrote outside of rank %d's area", p->round, g->device);
    return 0;
}

/* After one call, on areas that were nobody's: it used its own way's memory of its own turn. If it
 * cleans, nothing is left of that. */
static int check_area(struct party *p, int32_t rank, bool clean, struct err *e)
{
    const struct party_gpu *g = &p->gpu[rank];
    for (int w = 0; w < REDUCE_WAYS; w++)
        for (uint32_t turn = 0; turn < 2; turn++) {
            int64_t at = REDUCE_AT(w, p->world, p->numbers),
                    to = REDUCE_AT(w + 1, p->world, p->numbers);
            int64_t half = (to - at) / 2, from = at + turn * half;
            int64_t left = untouched(g, w, from, from + half), all = 4 * half;
            bool own = w == p->way && w != REDUCE_WORDS && turn == (p->count[w] & 1);
            if (w == p->way && w == REDUCE_WORDS && left < all)
                return err_set(e, "round %d: a call left %lld words in turn %u of rank %d",
                               p->round, (long long)(all - left), turn, rank);
            if (!own && left < all)
                return err_set(e,
                               "round %d: a call of way %d and turn %u wrote to way %d, turn %u of "
                               "rank %d: a place is used too early or too late",
                               p->round, p->way, p->count[p->way] & 1, w, turn, rank);
            if (own && clean && left > 0)
                return err_set(e, "round %d: call %u, which cleans, left %lld old words on rank %d",
                               p->round, p->count[w], (long long)left, rank);
        }
    return check_bands(p, g, e);
}

/* One call of `m` tokens, the next after `calls` that ended. */
static int look_at_memory(struct party *p, uint32_t calls, int32_t m, bool clean, struct err *e)
{
    p->round++;
    if (party_fill_areas(p, PARTY_PATTERN, e) || party_count(p, calls, e) ||
        one_round(p, m, 1, true, e))
        return -1;
    for (int32_t r = 0; r < p->world; r++)
        if (check_area(p, r, clean, e))
            return -1;
    return 0;
}

/* Counts of ways are 7 apart (party_count), so the one to be cleaned in is aimed at once the way is
 * known. */
static int memory_rounds(struct party *p, struct err *e)
{
    const uint32_t clean = 3u * REDUCE_CLEAN;
    if (look_at_memory(p, 1000, p->q->m_to, false, e) ||
        look_at_memory(p, 1002, p->q->m_from, false, e)) /* the same turn: whoever counts is not */
        return -1;
    if (p->way == REDUCE_WORDS)
        return 0;
    uint32_t before = clean - 1 - 7 * (uint32_t)p->way;
    return look_at_memory(p, before, p->q->m_from, true, e) ||
                   look_at_memory(p, before + 1, p->q->m_from, true, e)
               ? -1
               : 0;
}

/* ---- a rank that never comes ---------------------------------------------------------------- */

/* What lies in the memory of a rank that never came is what all others sent it in their call. */
static int check_sent(struct party *p, int32_t away, struct err *e)
{
    static uint32_t count[REDUCE_PEERS][REDUCE_WAYS][REDUCE_COUNTS];
    int64_t at = REDUCE_AT(REDUCE_WORDS, p->world, p->numbers),
            half = (REDUCE_AT(REDUCE_WAYS, p->world, p->numbers) - at) / 2;
    int64_t sent = (p->world - 1) * (int64_t)p->m[0] * p->q->hidden;
    if (p->way != REDUCE_WORDS)
        return 0;
    if (party_fetch(p, count, true, e))
        return -1;
    for (int turn = 0; turn < 2; turn++) {
        int64_t from = at + turn * half,
                came = 4 * half - untouched(&p->gpu[away], REDUCE_WORDS, from, from + half);
        if (came != (turn == party_turn(p, 0) ? sent : 0))
            return err_set(e, "round %d: %lld words came in turn %d, and the call's turn is %d",
                           p->round, (long long)came, turn, party_turn(p, 0));
    }
    return 0;
}

static int one_never_comes(struct party *p, int32_t away, struct err *e)
{
    struct timespec t = {0, LONELY_NS};
    int32_t from = away == 0, to = away == 0 ? p->world : away, rc = 0;
    p->round++;
    *(volatile uint32_t *)p->over = 0;
    choose_sizes(p, p->q->m_to);
    p->late = false;
    if (party_fill_areas(p, 0, e) || party_count(p, 2000, e) || party_fill(p, e))
        return -1;
    slice(p, true);
    for (int32_t r = from; r < to && rc == 0; r++)
        rc = party_launch(p, r, 0, e);
    nanosleep(&t, NULL);
    for (int32_t r = from; r < to && rc == 0; r++)
        if ((rc = party_wait(p, r, r + 1, 0, e)) == 0)
            rc = refuse(p, "it did not wait for a rank that never came", e);
        else if (rc > 0)
            rc = 0;
    *(volatile uint32_t *)p->over = 1;
    int ended = p->dead ? -1 : party_wait(p, from, to, probe_reduce_s, rc ? &(struct err){""} : e);
    slice(p, false);
    if (ended > 0) {
        p->dead = true;
        return refuse(p, "hang: it waits on when the world is over", e);
    }
    return rc || ended ? -1 : check_sent(p, away, e);
}

/* ---- all ------------------------------------------------------------------------------------ */

/* Lines of 128 bytes arrive as one over NVLink, whose GPUs have atomics of each other's memory. */
static int check_links(struct party *p, struct err *e)
{
    for (int32_t a = 0; p->way == REDUCE_LL128 && a < p->world; a++)
        for (int32_t b = 0; b < p->world; b++) {
            int atomics = 1;
            if (a != b)
                CU(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, a, b));
            if (!atomics)
                return err_set(e,
                               "its numbers travel in lines of 128 bytes, and between GPUs %d "
                               "and %d is no NVLink",
                               a, b);
        }
    return 0;
}

static int rounds(struct party *p, struct err *e)
{
    int all = p->q->full ? ROUNDS : SHORT_ROUNDS;
    if (p->loaded->info.sums)
        p->way = REDUCE_WORDS;
    if (memory_rounds(p, e) || check_links(p, e) || party_fill_areas(p, 0, e))
        return -1;
    for (int i = 0; i < all; i++) {
        /* Near the end of numbers in the second half: the last four of 2^32, then 2, 3, ... */
        uint32_t calls = i < all / 2 ? 5000u + 96u * (uint32_t)i : UINT32_MAX - 4u;
        p->round++;
        if (i >= all / 2) {
            calls -= 7 * (uint32_t)p->way;
            if (party_fill_areas(p, 0, e))
                return -1;
        }
        if (party_count(p, calls, e) || one_round(p, p->q->m_to, PARTY_CALLS, false, e))
            return -1;
    }
    return one_never_comes(p, 0, e) || one_never_comes(p, p->world - 1, e) ? -1 : 0;
}

enum device_verdict probe_reduce(struct device_session *s, const struct device_reduce *q,
                                 int32_t *calls, bool *spent, struct err *e)
{
    struct party *p = xcalloc(1, sizeof *p);
    enum device_verdict verdict = DEVICE_ERROR;
    int64_t most = (int64_t)q->m_to * q->hidden;
    *p = (struct party){.session = s, .q = q, .world = q->world, .most = most, .way = -1};
    int rc = q->world < 2 || q->world > REDUCE_PEERS || most > REDUCE_PEER_NUMBERS
                 ? err_set(e, "a probe of reduce has 2 to %d ranks and %d numbers, not %d and %lld",
                           REDUCE_PEERS, REDUCE_PEER_NUMBERS, q->world, (long long)most)
                 : 0;
    if (rc == 0) {
        p->numbers = (int32_t)((most + 63) / 64 * 64);
        rc = party_open(p, &verdict, e);
    }
    if (rc == 0) {
        verdict = DEVICE_FAULT;
        rc = rounds(p, e);
    }
    *calls = p->runs;
    *spent = p->dead;
    party_close(p, !*spent);
    free(p);
    return rc ? verdict : DEVICE_OK;
}
