/* SPDX-License-Identifier: Apache-2.0 */
/* probe.cu - what surrounds a kernel under test: numbers for its inputs, a predecessor that is as
 * late as it may be, and comparisons of memory.
 *
 * Numbers are a function of seed and place, so the same call restores the same inputs and nothing
 * large has to cross the bus. The predecessor does what the contract of cuda.h allows and nobody
 * would choose: it releases its successor at once and writes at the very end, so a kernel that
 * reads or writes before griddepcontrol.wait finds NaN in its inputs or loses its outputs.
 */
#include "bricks.h"
#include "cuda/lib/device.cuh"
#include "probe_args.h"

__device__ __forceinline__ uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* Mean 0, deviation 1, within 3.5. */
__device__ __forceinline__ float normal(uint64_t bits)
{
    float sum = (float)(bits & 0xffff) + (float)(bits >> 16 & 0xffff) +
                (float)(bits >> 32 & 0xffff) + (float)(bits >> 48);
    return (sum - 2 * 65535.0f) * (1 / (65536.0f * 0.57735f));
}

/* Value i of a row of `cols`; the outlier channel is the same in all rows. */
__device__ __forceinline__ float draw(uint64_t seed, int64_t i, int cols, int fill)
{
    uint64_t bits = mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15ull);
    switch (fill) {
    case PROBE_FILL_SMALL:
        return normal(bits) * 1e-4f;
    case PROBE_FILL_LARGE:
        return normal(bits) * 100;
    case PROBE_FILL_SHIFTED:
        return 50 + normal(bits) * 0.1f;
    case PROBE_FILL_OUTLIER:
        return normal(bits) * (i % cols == cols / 3 ? 1000 : 1);
    case PROBE_FILL_ZERO:
        return 0;
    case PROBE_FILL_DENORMAL:
        return __uint_as_float((unsigned)(bits & 0x807fffff));
    case PROBE_FILL_BITS:
        return bits & 1 ? 1.0f : 0.0f;
    case PROBE_FILL_INTEGERS:
        return (float)((int)(bits % 5) - 2);
    case PROBE_FILL_GAIN:
        return 0.5f + (float)(bits >> 40) * 0x1p-24f;
    case PROBE_FILL_GARBAGE:
        return bits & 1 ? 1e6f : -1e6f;
    default:
        return normal(bits);
    }
}

KERNEL probe_fill(const __grid_constant__ struct probe_fill_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step) {
        float v = draw(a.seed, i, a.cols, a.fill) * a.scale;
        if (a.half)
            ((bf16 *)a.to)[i] = to_bf16(v);
        else
            ((float *)a.to)[i] = v;
    }
}

__device__ __forceinline__ unsigned to_half(float v)
{
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(v));
    return h;
}

/* Four codes of eight bits as random bits have them; as floats none of them is no number, and all
 * are -7 .. 7 if `exact`. */
__device__ unsigned drawn_codes(const struct probe_bricks_args &a, unsigned bits)
{
    const uint64_t whole = 0x4e4c4a4844403800ull; /* 0 .. 7 in e4m3 */
    unsigned codes = 0;
    if (a.type != DTYPE_F8)
        return bits;
    for (int i = 0; i < 4; i++) {
        unsigned b = bits >> 8 * i & 255, size = b & 127;
        size = a.exact ? (unsigned)(whole >> 8 * (b & 7)) & 255 : size == 127 ? 126 : size;
        codes |= (size | (b & 128)) << 8 * i;
    }
    return codes;
}

/* A block's scale that gives weights of deviation `a.scale`; minima put their mean near zero. */
__device__ unsigned drawn_half(const struct probe_bricks_args &a, uint64_t bits, bool least)
{
    float codes = a.type == DTYPE_Q8_0                           ? 74.0f
                  : a.type == DTYPE_Q6_K                         ? 18.5f * 74.0f
                  : a.type == DTYPE_Q5_0 || a.type == DTYPE_Q5_1 ? 9.2f
                  : a.type == DTYPE_Q4_K                         ? 4.6f * 36.0f
                  : a.type == DTYPE_Q5_K                         ? 9.2f * 36.0f
                                                                 : 4.6f;
    float mean = a.type == DTYPE_Q4_K   ? 7.5f
                 : a.type == DTYPE_Q5_K ? 15.5f
                 : a.type == DTYPE_Q5_1 ? -15.5f
                                        : -7.5f;
    float d = a.exact ? 1.0f : a.scale / codes * (0.5f + (float)(bits >> 40) * 0x1p-24f);
    return to_half(!least ? d : a.exact ? -4.0f : mean * d);
}

/* Word `at` of a brick's scales. */
__device__ unsigned drawn_scale(const struct probe_bricks_args &a, int at, uint64_t bits)
{
    uint64_t other = mix(bits);
    float unit = 0.5f + (float)(bits >> 40) * 0x1p-24f;
    if (a.type == DTYPE_F8)
        return __float_as_uint(a.exact ? 1.0f : a.scale / 105.0f * unit);
    bool k = brick_six_bits(a.type);
    if ((k && at % 4 != 0) || (a.type == DTYPE_Q6_K && at < 64)) {
        unsigned bytes = (unsigned)(bits >> 16);
        if (!a.exact)
            return bytes;
        return k ? bytes & 0x03030303u : (bytes & 0x01010101u) * 255u; /* 0 .. 3; 0 or -1 */
    }
    bool second = k || at >= 64; /* half of the word; word */
    return drawn_half(a, bits, !k && a.type != DTYPE_Q6_K && second) |
           drawn_half(a, other, a.type != DTYPE_Q6_K && second) << 16;
}

KERNEL probe_bricks(const __grid_constant__ struct probe_bricks_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    int words = brick_bytes(a.type) / 4, codes = words - brick_scales(a.type) / 4;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.bricks * words;
         i += step) {
        int at = (int)(i % words);
        uint64_t bits = mix(a.seed + (uint64_t)i * 0x9e3779b97f4a7c15ull);
        ((unsigned *)a.to)[i] =
            at < codes ? drawn_codes(a, (unsigned)(bits >> 16)) : drawn_scale(a, at - codes, bits);
    }
}

KERNEL probe_poison(const __grid_constant__ struct probe_poison_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.words; i += step)
        a.to[i] = a.value;
}

KERNEL probe_pages(const __grid_constant__ struct probe_pages_args a)
{
    struct span s = a.span[blockIdx.y];
    int row = a.kv_heads * a.head_dim;
    int64_t n = (int64_t)s.context * row, step = (int64_t)gridDim.x * blockDim.x;
    uint64_t seed = a.seed + blockIdx.y * 0x1234567ull;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        int p = (int)(i / row), e = (int)(i % row), h = e / a.head_dim;
        int64_t page = a.page_table[s.pages_at + p / KV_PAGE];
        int64_t at = ((page * a.kv_heads + h) * KV_PAGE + p % KV_PAGE) * a.head_dim;
        ((bf16 *)a.pages)[at + e % a.head_dim] = to_bf16(draw(seed, i, row, a.fill));
    }
}

__device__ __forceinline__ uint64_t now_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

KERNEL probe_produce(const __grid_constant__ struct probe_produce_args a)
{
    release_next();
    after_previous();
    uint64_t until = now_ns() + *a.delay_ns;
    while (*a.delay_ns && now_ns() < until)
        __nanosleep(200);
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int s = 0; s < a.segments; s++) {
        const struct probe_segment g = a.segment[s];
        for (int64_t i = at; i < g.bytes / 4; i += step)
            ((unsigned *)g.to)[i] = g.from ? ((const unsigned *)g.from)[i] : 0xffffffffu;
    }
    for (int64_t i = at; i < a.work_words; i += step)
        a.work[i] = a.work_fill;
}

KERNEL probe_differ(const __grid_constant__ struct probe_differ_args a)
{
    const struct probe_differ_job &g = a.job[blockIdx.y];
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long n = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < g.words; i += step)
        n += g.a[i] != (g.b ? g.b[i] : g.value);
    if (n)
        atomicAdd(&a.count[g.tally], n);
}

KERNEL probe_halves(const __grid_constant__ struct probe_halves_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long n = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.n; i += step)
        n += ((const bf16 *)a.y)[i] != to_bf16(a.x[i]);
    if (n)
        atomicAdd(a.count, n);
}

KERNEL probe_sum(const __grid_constant__ struct probe_sum_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    unsigned long long sum = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.words; i += step)
        sum += mix((uint64_t)a.data[i] + (uint64_t)i * 0x9e3779b97f4a7c15ull);
    for (int o = 16; o > 0; o >>= 1)
        sum += __shfl_xor_sync(WARP_ALL, sum, o);
    if (threadIdx.x % 32 == 0)
        atomicAdd(a.sum, sum);
}
