/* SPDX-License-Identifier: Apache-2.0 */
/* attn_share.cuh - what attn_even.cu walks over: the list of all pages of all tokens, a warp's part
 * of it, and the ring in shared memory through which the part goes.
 *
 * The list is that of token 0's pages, then token 1's, ...; each kv head has the same one. An entry
 * of it is found by bisection over the tokens' numbers of pages, by 32 lanes for 32 entries at
 * once, and that 32 entries ahead: so no page waits for its number.
 *
 * Included behind the constants HD, PIECES, ROW, SIDE, PARTS.
 */
#ifndef WHET_KERNELS_CUDA_LIB_ATTN_SHARE_CUH
#define WHET_KERNELS_CUDA_LIB_ATTN_SHARE_CUH

#include "cuda/lib/attn_put.cuh"
#include "cuda/lib/attn_slot.cuh"

/* ---- the list ------------------------------------------------------------------------------- */

/* first[t]: pages that the tokens before t have. */
struct list {
    int first[M_MAX + 1];
};

/* By the first warp; the block must meet before it reads. */
__device__ __forceinline__ void list_open(struct list *l, const int *position, int live)
{
    enum { EACH = (M_MAX + 31) / 32 };
    int lane = threadIdx.x, n[EACH], sum = 0;
    if (threadIdx.x >= 32)
        return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int t = lane * EACH + i;
        n[i] = t < live ? position[t] / KV_PAGE + 1 : 0;
        sum += n[i];
    }
    int before = sum;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        int other = __shfl_up_sync(WARP_ALL, before, o);
        before += lane >= o ? other : 0;
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (lane * EACH + i <= M_MAX)
            l->first[lane * EACH + i] = before;
        before += n[i];
    }
    if (lane == 31)
        l->first[M_MAX] = before;
}

/* Where parts begin: the first `more` of them have one entry more than `each`. */
struct parts {
    int each, more;

    __device__ __forceinline__ parts(const struct list &l)
        : each(l.first[M_MAX] / PARTS), more(l.first[M_MAX] % PARTS)
    {
    }

    __device__ __forceinline__ int begin_of(int part) const
    {
        return part * each + min(part, more);
    }

    __device__ __forceinline__ int part_of(int entry) const
    {
        int longer = more * (each + 1);
        return entry < longer ? entry / (each + 1) : more + (entry - longer) / max(each, 1);
    }
};

/* Whose entry n is. */
__device__ __forceinline__ int token_of(const struct list &l, int n)
{
    int low = 0, high = M_MAX;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (l.first[middle] <= n)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---- pages on their way ---------------------------------------------------------------------- */

/* 32 entries, one a lane: the page's number, and the token's positions in it and behind it, or more
 * than a page has if it is not the newest. */
struct batch {
    int number, left;
};

/* The part of a warp, entry by entry, as they are asked for. */
struct queue {
    const struct cuda_attn_args &a;
    const struct list &l;
    int kvh, from, to;
    int asked; /* entries so far */
    struct batch now, later;

    __device__ __forceinline__ queue(const struct cuda_attn_args &args, const struct list &list,
                                     int kvh_, int from_, int to_)
        : a(args), l(list), kvh(kvh_), from(from_), to(to_), asked(0), now(batch_at(from_)),
          later(batch_at(from_ + 32))
    {
    }

    __device__ __forceinline__ struct batch batch_at(int n) const
    {
        struct batch b = {0, 0};
        n += threadIdx.x % 32;
        if (n < to) {
            int t = token_of(l, n), page = n - l.first[t];
            b.left = a.position[t] + 1 - page * KV_PAGE;
            b.number = a.page_table[a.pages_at[t] + page];
        }
        return b;
    }

    __device__ __forceinline__ bool empty() const
    {
        return from + asked >= to;
    }

    /* Of the next entry, which there is. */
    __device__ __forceinline__ int left() const
    {
        return __shfl_sync(WARP_ALL, now.left, asked % 32);
    }

    __device__ __forceinline__ size_t at() const
    {
        return ((size_t)__shfl_sync(WARP_ALL, now.number, asked % 32) * KV_HEADS + kvh) * SIDE;
    }

    __device__ __forceinline__ void next()
    {
        asked++;
        if (asked % 32 == 0) {
            now = later;
            later = batch_at(from + asked + 32);
        }
    }
};

#if STAGES > 0

/* ---- in shared memory ---------------------------------------------------------------------- */

struct pages : reader {
    struct queue w;
    char *ring;
    int slot; /* of the next page that is read */

    __device__ __forceinline__ pages(const struct queue &queue, char *shared)
        : w(queue), ring(shared + threadIdx.x / 32 * (STAGES * SLOT)), slot(0)
    {
    }

    /* Asks for the next entry; false: `written` is not, and it has a newest position. */
    __device__ __forceinline__ bool ask(bool written, int into)
    {
        if (!w.empty()) {
            int left = w.left();
            if (!written && left <= KV_PAGE)
                return false;
            size_t at = w.at();
            copy_page(ring + into * SLOT, (const char *)w.a.k_pages + at,
                      (const char *)w.a.v_pages + at, left);
        }
        copies_sent(); /* also when there is none: each page is a group */
        w.next();
        return true;
    }

    __device__ __forceinline__ void fill(bool written)
    {
#pragma unroll 1 /* a kernel begins with an empty instruction cache */
        while (w.asked < STAGES && ask(written, w.asked))
            ;
    }

    __device__ __forceinline__ void open()
    {
        await_sent<STAGES - 1>();
        __syncwarp(); /* of every lane */
        read = ring + slot * SLOT;
    }

    __device__ __forceinline__ void keys_read()
    {
    }

    __device__ __forceinline__ void close()
    {
        __syncwarp(); /* every lane has read */
        ask(true, slot);
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }

    __device__ __forceinline__ void leave(const float (*o)[2], float scale, const struct target &to,
                                          int from) const
    {
#pragma unroll
        for (int i = 0; i < HD / 8; i++)
            to.put(from + i * 8 + threadIdx.x % 4 * 2,
                   make_float2(o[i][0] * scale, o[i][1] * scale));
    }
};

#else

/* ---- in registers -------------------------------------------------------------------------- */

struct pages : holder {
    struct queue w;
    size_t at; /* of the page whose keys have been asked for, and its positions */
    int left;

    __device__ __forceinline__ pages(const struct queue &queue, char *) : w(queue), at(0), left(0)
    {
    }

    __device__ __forceinline__ void ask_keys()
    {
        left = 0;
        if (w.empty())
            return;
        left = w.left();
        at = w.at();
        load_keys((const char *)w.a.k_pages + at, left);
        w.next();
    }

    __device__ __forceinline__ void ask_values()
    {
        if (left > 0)
            load_values((const char *)w.a.v_pages + at, left);
    }

    __device__ __forceinline__ void fill(bool written)
    {
        if (w.asked == 0 && !w.empty() && (written || w.left() > KV_PAGE)) {
            ask_keys();
            ask_values();
        }
    }

    __device__ __forceinline__ void open()
    {
    }

    __device__ __forceinline__ void keys_read()
    {
        ask_keys();
    }

    __device__ __forceinline__ void close()
    {
        ask_values();
    }

    __device__ __forceinline__ void leave(const float (*o)[2], float scale, const struct target &to,
                                          int from) const
    {
#pragma unroll
        for (int i = 0; i < HD / 8; i += 4)
#pragma unroll
            for (int j = 0; j < 2; j++)
                to.put(from + i / 8 * 64 + threadIdx.x % 4 * 16 + j * 8 + i % 8,
                       make_float4(o[i][j] * scale, o[i + 1][j] * scale, o[i + 2][j] * scale,
                                   o[i + 3][j] * scale));
    }
};

#endif
#endif
