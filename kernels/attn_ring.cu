/* attn_ring.cu - attention of single tokens over paged keys and values that come through a ring in
 * shared memory and are multiplied on tensor cores: for many sequences and long contexts.
 *
 *   a[t, h, :] = sum_p softmax_p(scale q[t, h, :] . k[p, h / G, :]) v[p, h / G, :],  p <=
 * position[t]
 *
 * q, a: [M, HEADS, HEAD_DIM] float; pages: bf16 [page][KV_HEADS][KV_PAGE][HEAD_DIM]; G = HEADS /
 * KV_HEADS query heads share what is read. Bytes moved: 4 HEAD_DIM for each position and kv head.
 *
 * There are enough positions here for bytes to count, and what a multiprocessor has asked for must
 * cover the latency of memory. attn_decode.cu keeps that in registers, beside what it computes
 * with. Here each warp has a ring of STAGES pages in shared memory, filled before the wait and
 * filled again as pages are read, and nothing in the loop waits for another warp. A block is a
 * token, a kv head and one of SPLITS; its warps take every so-many-th page. Numbers of pages are
 * loaded 32 at a time, one a lane, so that a copy does not wait for its address.
 *
 * Every 16 bytes are copied by themselves (cp.async) and not a page in bulk: then their place can
 * be chosen. Piece c of row r lies at c ^ swizzle(r), which makes both ways of reading free of bank
 * conflicts: 4 neighbouring pieces of rows 2i and 2i + 1 (keys), and one piece of 8 rows (values).
 * A row can also be left out, which is what happens before the wait to the newest position, the
 * only one that this step writes; and rows beyond it are filled with zeros, not with what is in
 * memory, which times a weight of zero might be NaN.
 *
 * Products are m16n8k16: for scores, query heads by 8 positions; for the output, the weights of
 * those heads by 8 columns of values. Scores leave the first as operand A of the second wants them.
 * As eager's, queries and weights are float, so each is three terms of bf16 (8 bits each). A head
 * needs three rows: for up to 4 heads they are rows g, g + 4 and g + 8 of one product, for up to 8
 * heads g and g + 8 of one, and g of another. Tensor cores cut sums off instead of rounding them,
 * so no sum stays in them for more than 32 products: those of a chunk of columns and of a page are
 * added up by ordinary ones.
 *
 * Invariant: positions beyond the token's own have keys and values of zero and weight zero; a slot
 * is copied into only when all lanes have read what was in it, and what is in it is read when every
 * lane's copies have come; no copy outlives its block. A block of a token at or beyond counts->m
 * leaves without touching anything.
 */
#ifndef REGION
#define REGION 2 /* REGION_ATTN */
#endif
#ifndef M_MAX
#define M_MAX 8
#endif
#include "lib/mma.cuh"
#include "lib/shape.cuh"
#include "lib/stream.cuh"

/* ---- knobs -------------------------------------------------------------------------------- */

#ifndef SPLITS
#define SPLITS 2
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef MERGE
#define MERGE 1
#endif
#ifndef EARLY
#define EARLY 1
#endif
#ifndef TRIGGER
#define TRIGGER 1
#endif

/* ---- legality ----------------------------------------------------------------------------- */

#define LEGAL(expression, why) static_assert(expression, why);
#include "attn_ring.def"

/* ---- code --------------------------------------------------------------------------------- */

enum {
    HD = HEAD_DIM,
    G = HEADS / KV_HEADS, /* query heads of a block */
    GROUPS = KV_HEADS,    /* of heads: blockIdx.y */
    PIECES = HD / 8,      /* of 16 bytes: a position's keys */
    ROW = HD * 2,         /* bytes of that */
    SIDE =
        KV_PAGE * ROW, /* keys of a page and kv head, and then values: one piece of memory each */
    SLOT = 2 * SIDE,
    AT_ONCE = 32 / PIECES,   /* rows that a warp copies with one instruction */
    PASSES = G <= 4 ? 1 : 2, /* products for the three terms of all heads */
    CHUNKS = HD / 32,        /* of columns: two steps of 16 */
    UNITS = SPLITS * WARPS,
    THREADS = WARPS * 32,
    SLICE = (G * HD + SPLITS - 1) / SPLITS /* elements of a block in a cluster */
};

#include "lib/attn_merge.cuh"

/* ---- the ring ------------------------------------------------------------------------------ */

/* Bits of a row's number that pieces are moved by: rows 2i and 2i + 1 differ in the highest, 8
 * neighbouring rows in some, rows 8 apart in none. Linear: swizzle(a ^ b) = swizzle(a) ^
 * swizzle(b).
 */
__device__ __forceinline__ int swizzle(int row)
{
    return (row & 1) << 2 | (row >> 1 & 3);
}

/* Where piece `piece` of a row is in its half of a slot. */
__device__ __forceinline__ int place_of(int row, int piece)
{
    return row * ROW + (piece ^ swizzle(row)) * 16;
}

/* What a warp is about: every UNITS-th page of one token's and kv head's positions. */
struct walk {
    const char *k, *v; /* of page 0 */
    const int *table;
    char *ring;
    int lane, unit;
    int context, pages; /* positions of the token; pages of this warp */
    int page;           /* number of page n / 32 * 32 + lane, n: the last that was asked for */

    /* Positions in page n of this warp and behind it. */
    __device__ __forceinline__ int left_at(int n) const
    {
        return context - (unit + n * UNITS) * KV_PAGE;
    }

    /* Asks for page n, if there is one, into slot `to`; without the newest position unless it is
     * `written`. Pages are asked for in order. */
    __device__ __forceinline__ void ask(int n, int to, bool written)
    {
        if (n < pages) {
            if (n % 32 == 0 && n + lane < pages)
                page = table[unit + (n + lane) * UNITS];
            size_t at = (size_t)__shfl_sync(WARP_ALL, page, n % 32) * (KV_HEADS * SIDE) + lane * 16;
            char *slot = ring + to * SLOT;
            int left = left_at(n), mine = place_of(lane / PIECES, lane % PIECES);
#pragma unroll
            for (int i = 0; i < KV_PAGE / AT_ONCE; i++) {
                int row = i * AT_ONCE + lane / PIECES;
                int place = (mine ^ swizzle(i * AT_ONCE) * 16) + i * 512; /* of that row */
                if (written || row != left - 1) {
                    copy_or_zero(slot + place, k + at + i * 512, row < left);
                    copy_or_zero(slot + SIDE + place, v + at + i * 512, row < left);
                }
            }
        }
        copies_sent(); /* also when there is none: each page is a group */
    }

    /* Before the wait, if each sequence has one token: all but the newest position is there. */
    __device__ __forceinline__ void fill(bool written)
    {
#pragma unroll 1 /* a kernel begins with an empty instruction cache */
        for (int n = 0; n < STAGES; n++)
            ask(n, n, written);
    }

    /* Asks for the newest position where fill() left it out. It is in the last page of a warp,
     * which waits for all that was asked for. */
    __device__ __forceinline__ void complete()
    {
        int n = pages - 1, row = (context - 1) % KV_PAGE, piece = lane % PIECES;
        if (n < 0 || n >= STAGES || left_at(n) > KV_PAGE)
            return;
        size_t at = (size_t)__shfl_sync(WARP_ALL, page, n) * (KV_HEADS * SIDE) + row * ROW;
        char *to = ring + n * SLOT + place_of(row, piece);
        if (lane < PIECES)
            copy_or_zero(to, k + at + piece * 16, true);
        else if (lane < 2 * PIECES)
            copy_or_zero(to + SIDE, v + at + piece * 16, true);
    }

    /* Page n is here, whichever lanes copied it. */
    __device__ __forceinline__ void await(int n) const
    {
        if (n == pages - 1)
            await_copies();
        else
            await_sent<STAGES - 1>();
        __syncwarp();
    }
};

/* ---- products ------------------------------------------------------------------------------ */

/* Operand A of the three terms of a float: one product's, or two's. Lane (g, q) = (lane / 4, lane %
 * 4) gives two neighbours x and two y, 8 columns further, of its head: g, or g % 4. */
__device__ __forceinline__ void terms(float x0, float x1, float y0, float y1, uint4 *a)
{
    unsigned x[3], y[3];
#pragma unroll
    for (int i = 0; i < 3; i++) {
        x[i] = pack_bf16(x0, x1), y[i] = pack_bf16(y0, y1);
        x0 -= low_bf16(x[i]), x1 -= high_bf16(x[i]);
        y0 -= low_bf16(y[i]), y1 -= high_bf16(y[i]);
    }
    if (PASSES == 2) {
        a[0] = make_uint4(x[0], x[1], y[0], y[1]);
        a[PASSES - 1] = make_uint4(x[2], 0, y[2], 0);
    } else {
        bool second = threadIdx.x & 16; /* rows 4 to 7 */
        a[0] = second ? make_uint4(x[1], 0, y[1], 0) : make_uint4(x[0], x[2], y[0], y[2]);
    }
}

/* The same value of a head's other lanes: rows g and g + 4 share a head of up to 4. */
__device__ __forceinline__ float of_head(float v)
{
    return PASSES == 1 ? v + __shfl_xor_sync(WARP_ALL, v, 16) : v;
}

/* Operand B of two neighbouring tiles of 8 columns, 16 positions each: (x, y) and (z, w). `at`: of
 * row lane % 16, in the first tile for lanes 0 to 15 and in the second for others. */
__device__ __forceinline__ uint4 load_turned(const void *at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"((unsigned)__cvta_generic_to_shared(at))
                 : "memory");
    return v;
}

/* c += a b, for all terms. */
__device__ __forceinline__ void multiply(float *c, const uint4 *a, unsigned b0, unsigned b1)
{
#pragma unroll
    for (int i = 0; i < PASSES; i++)
        mma_bf16(c, a[i], b0, b1);
}

/* Sums of a warp for the lane's head: top is the same in all lanes of a head, sum is of the lane's
 * positions, o of the lane's terms. o[i]: columns 8 i + 2 q, + 1. */
struct running {
    float top, sum, o[HD / 8][2];
};

/* Queries as operand A, in base 2. Steps 2 c and 2 c + 1 are columns 32 c + 8 q .. + 7, half each,
 * so that a lane's part of the keys for both is 16 bytes. */
struct queries {
    uint4 a[HD / 16][PASSES];

    __device__ __forceinline__ void load(const struct cuda_attn_args &args, int t, int kvh)
    {
        int lane = threadIdx.x % 32, h = lane / 4 % (PASSES == 1 ? 4 : 8);
        float scale = args.scale * 1.44269504f;
        const float *from =
            args.q + ((size_t)t * HEADS + kvh * G + (h < G ? h : 0)) * HD + lane % 4 * 8;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 v = load_x4(from + c * 32 + i * 4);
                terms(v.x * scale, v.y * scale, v.z * scale, v.w * scale, a[2 * c + i]);
            }
    }
};

/* s: of positions 2 q, 2 q + 1, 2 q + 8, 2 q + 9 in a page; minus infinity from `left` on. */
__device__ __forceinline__ void score(const struct queries &q, const char *keys, int left, float *s)
{
    int lane = threadIdx.x % 32, first = 2 * (lane % 4);
    int mine = place_of(lane / 4, lane % 4); /* and 8 rows further */
    s[0] = s[1] = s[2] = s[3] = 0;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const char *chunk = keys + (mine ^ c * 64);
        uint4 k0 = load_staged(chunk), k1 = load_staged(chunk + 8 * ROW);
        float p0[4] = {0, 0, 0, 0}, p1[4] = {0, 0, 0, 0};
        multiply(p0, q.a[2 * c], k0.x, k0.y);
        multiply(p1, q.a[2 * c], k1.x, k1.y);
        multiply(p0, q.a[2 * c + 1], k0.z, k0.w);
        multiply(p1, q.a[2 * c + 1], k1.z, k1.w);
        s[0] += p0[0] + p0[2], s[1] += p0[1] + p0[3];
        s[2] += p1[0] + p1[2], s[3] += p1[1] + p1[3];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = of_head(s[i]);
        s[i] = first + i % 2 + i / 2 * 8 < left ? sum : -INFINITY;
    }
}

/* A page: s becomes weights, and values are added by them. The page has a position: top is a
 * number. */
__device__ __forceinline__ void add(struct running *r, float *s, const char *values)
{
    int lane = threadIdx.x % 32, mine = place_of(lane % 16, lane / 16);
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 1));
    top = fmaxf(r->top, fmaxf(top, __shfl_xor_sync(WARP_ALL, top, 2)));
    float keep = exp2_fast(r->top - top);
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = exp2_fast(s[i] - top);
    r->top = top;
    r->sum = r->sum * keep + ((s[0] + s[1]) + (s[2] + s[3]));
    uint4 a[PASSES];
    terms(s[0], s[1], s[2], s[3], a);
#pragma unroll
    for (int i = 0; i < HD / 16; i++) {
        uint4 b = load_turned(values + (mine ^ i * 32));
        float c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        multiply(c, a, b.x, b.y);
        multiply(d, a, b.z, b.w);
        r->o[2 * i][0] = r->o[2 * i][0] * keep + (c[0] + c[2]);
        r->o[2 * i][1] = r->o[2 * i][1] * keep + (c[1] + c[3]);
        r->o[2 * i + 1][0] = r->o[2 * i + 1][0] * keep + (d[0] + d[2]);
        r->o[2 * i + 1][1] = r->o[2 * i + 1][1] * keep + (d[1] + d[3]);
    }
}

/* ---- the loop ------------------------------------------------------------------------------ */

__device__ __forceinline__ void attend(struct walk &w, const struct queries &q, struct running *r)
{
    int slot = 0;
    for (int n = 0; n < w.pages; n++) {
        const char *page = w.ring + slot * SLOT;
        float s[4];
        w.await(n);
        score(q, page, w.left_at(n), s);
        add(r, s, page + SIDE);
        __syncwarp(); /* every lane has read */
        w.ask(n + STAGES, slot, true);
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }
}

/* The warp's sums to where its block's meet. */
__device__ __forceinline__ void leave(struct running *r, struct sums *s)
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = lane / 4;
#pragma unroll
    for (int o = 1; o < 4; o <<= 1)
        r->sum += __shfl_xor_sync(WARP_ALL, r->sum, o);
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        float2 o = make_float2(of_head(r->o[i][0]), of_head(r->o[i][1]));
        if (h < G)
            *(float2 *)&s->o[warp][h][i * 8 + lane % 4 * 2] = o;
    }
    if (h < G && lane % 4 == 0)
        s->top[warp][h] = r->top, s->sum[warp][h] = r->sum;
}

__device__ __forceinline__ void begin(struct running *r)
{
    r->top = -INFINITY;
    r->sum = 0;
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        r->o[i][0] = r->o[i][1] = 0;
}

/* ---- entry -------------------------------------------------------------------------------- */

KERNEL __launch_bounds__(THREADS) whet_kernel(const __grid_constant__ struct cuda_attn_args a)
{
    extern __shared__ uint4 rings[];
    __shared__ struct sums s;
    int warp = threadIdx.x / 32, kvh = blockIdx.y, t = blockIdx.z;
    if (TRIGGER == 0)
        release_next();
    if (MERGE)
        inbox_open(&s.in, posted_bytes());
    int live = M_MAX > 1 ? a.counts->m : 1;
    /* else a sequence has tokens in this step */
    bool early = EARLY && (M_MAX == 1 || a.counts->spans == live);
    int position = a.position[t], pages_at = a.pages_at[t]; /* anything beyond `live` */
    int context = t < live ? position + 1 : 0;
    int pages = (context + KV_PAGE - 1) / KV_PAGE, unit = warp * SPLITS + blockIdx.x;
    struct walk w = {(const char *)a.k_pages + kvh * SIDE,
                     (const char *)a.v_pages + kvh * SIDE,
                     a.page_table + pages_at,
                     (char *)rings + warp * (STAGES * SLOT),
                     (int)threadIdx.x % 32,
                     unit,
                     context,
                     pages > unit ? (pages - unit + UNITS - 1) / UNITS : 0,
                     0};
    if (early)
        w.fill(false);
    if (TRIGGER == 1)
        release_next();
    if (MERGE)
        cluster_wait();

    after_previous();
    if (t >= live)
        return;
    if (early)
        w.complete();
    else
        w.fill(true);
    struct queries q;
    struct running r;
    begin(&r);
    q.load(a, t, kvh);
    attend(w, q, &r);
    if (TRIGGER == 2)
        release_next();
    leave(&r, &s);
    __syncthreads();
    if (MERGE)
        merge_cluster(a, &s, t, kvh * G);
    else
        merge_last(a, &s, t, kvh * G);
}

extern "C" __device__ const struct cuda_kernel_info whet_info = {
    WHET_CUDA_ABI,
    REGION_ATTN,
    M_MAX,
    0,
    1,
    MERGE || SPLITS == 1 ? 0 : GROUPS *M_MAX,
    MERGE || SPLITS == 1 ? 0 : (int64_t)M_MAX *GROUPS *SPLITS *(G *HD + 2 * G) * 4,
    0,
    "",
    {{{SPLITS, GROUPS, M_MAX}, THREADS, WARPS *STAGES *SLOT, 1, MERGE ? SPLITS : 1, 0}},
};
