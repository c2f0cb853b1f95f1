/* SPDX-License-Identifier: Apache-2.0 */
// chain_step.hpp - a whole decode step of a real model's shape on the device: random weights and
// KV, activations, and the arguments of each kernel. For chain.cu, which is the only one to include
// it.
#pragma once
#include "tests/device/reference.cuh"
#include "tests/device/variants.hpp"
#include <cmath>

struct model {
    const char *name;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, qk_norm;
};
static const model models[] = {
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 0},
    {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, 1},
    {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, 1},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 1},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 0},
    {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 0},
    {"qwen3-4b/2", 36, 2560, 16, 4, 128, 4864, 75968, 1},
    {"llama-3.1-8b/2", 32, 4096, 16, 4, 128, 7168, 64128, 0},
};

static const int regions[] = {REGION_ATTN_IN, REGION_ATTN,    REGION_ATTN_OUT,
                              REGION_MLP_IN,  REGION_MLP_OUT, REGION_HEAD};
enum { REGIONS = 6 };
static const char *region_names[] = {"attn_in", "attn", "attn_out", "mlp_in", "mlp_out", "head"};

static cudaStream_t st;

// ---- the step's memory ----------------------------------------------------------------------

static std::vector<void *> owned; // by the step, until drop()

template <class T> static T *own(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T) + 256));
    CU(cudaMemsetAsync(p, 0, n * sizeof(T) + 256, st)); // in the order of what fills it
    owned.push_back(p);
    return (T *)p;
}

static void drop()
{
    CU(cudaDeviceSynchronize());
    for (void *p : owned)
        CU(cudaFree(p));
    owned.clear();
}

enum { QKV, O, GU, DOWN, MATRICES };

struct step {
    model m;
    int type;                           // of weights, enum dtype
    int M, context, q, qkv, per, pages; // widths; pages of a sequence, of all
    char *w[64][MATRICES], *head;
    ref::bf *packed[64][MATRICES] = {}, *packed_head = nullptr;
    ref::bf *k[64], *v[64], *k_check, *v_check;
    float *norm1[64], *norm2[64], *norm3, *q_norm[64], *k_norm[64], *cosine, *sine;
    cuda_counts *counts;
    int *position, *kv_at, *check_at, *pages_at, *table, *row, *best;
    span *spans;
    float *x0, *xa, *xb, *qb, *ab, *hb, *logits;
    char *work[REGION_COUNT];
    unsigned *counter[REGION_COUNT];
    // the reference's layer 0 and head
    float *rq, *ra, *rx, *rh, *ry, *rx_head, *rlogits, *raw, *out, *wide;
    ref::bf *rk, *rv, *ck, *cv;
    double *acc;
    double bound_us; // bytes of the step / 4.3 TB/s
};

static void fill_bf(ref::bf *p, size_t n, float scale, unsigned seed)
{
    ref::random_bf<<<1024, 256, 0, st>>>(p, n, scale, seed);
}
static void fill(float *p, size_t n, float mean, float scale, unsigned seed)
{
    ref::random_float<<<64, 256, 0, st>>>(p, n, mean, scale, seed);
}

static size_t rows_of(const step &s, int i)
{
    return i == QKV ? s.qkv : i == GU ? 2 * (size_t)s.m.ffn : s.m.hidden;
}
static size_t cols_of(const step &s, int i)
{
    return i == O ? s.q : i == DOWN ? s.m.ffn : s.m.hidden;
}

static int matrix_of(int region)
{
    return region == REGION_ATTN_IN    ? QKV
           : region == REGION_ATTN_OUT ? O
           : region == REGION_MLP_IN   ? GU
                                       : DOWN;
}
static size_t bytes_of(const step &s, size_t rows, size_t cols)
{
    return s.type == DTYPE_BF16
               ? rows * cols * 2
               : rows / BRICK_ROWS * bricks_across((int)cols) * brick_bytes(s.type);
}
static size_t bytes_of(const step &s, int i)
{
    return bytes_of(s, rows_of(s, i), cols_of(s, i));
}

// A matrix of `bytes`, whose values are about as large as cols of them ask for.
static char *make_matrix(const step &s, size_t bytes, size_t cols, unsigned seed)
{
    char *w = own<char>(bytes);
    float scale = 1.2f / sqrtf((float)cols);
    if (s.type == DTYPE_BF16)
        fill_bf((ref::bf *)w, bytes / 2, scale, seed);
    else
        ref::random_bricks<<<1024, 256, 0, st>>>((unsigned *)w, bytes / 4, s.type, scale, seed);
    return w;
}

static void make_weights(step &s, unsigned &seed)
{
    const model &m = s.m;
    size_t kv = (size_t)s.pages * m.kv_heads * KV_PAGE * m.head_dim,
           head = bytes_of(s, m.vocab, m.hidden);
    double bytes = (double)head;
    for (int l = 0; l < m.layers; l++) {
        for (int i = 0; i < MATRICES; i++) {
            s.w[l][i] = make_matrix(s, bytes_of(s, i), cols_of(s, i), seed++);
            bytes += (double)bytes_of(s, i);
        }
        s.k[l] = own<ref::bf>(kv), s.v[l] = own<ref::bf>(kv);
        fill_bf(s.k[l], kv, 1.5f, seed++);
        fill_bf(s.v[l], kv, 1.5f, seed++);
        bytes += 4.0 * s.M * s.context * m.kv_heads * m.head_dim;
    }
    s.head = make_matrix(s, head, m.hidden, seed++);
    s.bound_us = bytes / 4.3e6;
}

// Each layer has its own: they are not in L2 when it starts.
static void make_gains(step &s, unsigned &seed)
{
    auto gains = [&](float *&p, int n) {
        p = own<float>(n);
        fill(p, n, 1, 0.5f, seed++);
    };
    for (int l = 0; l < s.m.layers; l++) {
        gains(s.norm1[l], s.m.hidden), gains(s.norm2[l], s.m.hidden);
        gains(s.q_norm[l], s.m.head_dim), gains(s.k_norm[l], s.m.head_dim);
    }
    gains(s.norm3, s.m.hidden);
}

template <class T> static void put(T *&p, const T *from, size_t n)
{
    p = own<T>(n);
    CU(cudaMemcpyAsync(p, from, n * sizeof *from, cudaMemcpyHostToDevice, st));
}

static void make_rope(step &s)
{
    int half = s.m.head_dim / 2;
    std::vector<float> c((size_t)s.context * half), z(c.size());
    for (size_t i = 0; i < c.size(); i++) {
        double t = (double)(i / half) * pow(5e5, -2.0 * (i % half) / s.m.head_dim);
        c[i] = (float)cos(t), z[i] = (float)sin(t);
    }
    put(s.cosine, c.data(), c.size());
    put(s.sine, z.data(), z.size());
    CU(cudaStreamSynchronize(st));
}

// Pages of a sequence lie scattered; position context - 1 is this step's.
static void make_sequences(step &s)
{
    int M = s.M, last = s.context - 1;
    std::vector<int> table(s.pages), position(M), at(M), check(M), pages_at(M), row(M);
    std::vector<span> spans(M);
    if (s.pages % 7919 == 0)
        exit(1);
    for (int i = 0; i < s.pages; i++)
        table[i] = (int)((i * 7919ll + 13) % s.pages);
    for (int t = 0; t < M; t++) {
        position[t] = last, pages_at[t] = t * s.per, row[t] = t;
        at[t] = table[t * s.per + last / KV_PAGE] * KV_PAGE + last % KV_PAGE;
        check[t] = t * KV_PAGE + t * 5 % KV_PAGE;
        spans[t] = {t, 1, s.context, t * s.per};
    }
    cuda_counts counts = {M, M, M, s.context, {}};
    put(s.table, table.data(), s.pages), put(s.position, position.data(), M);
    put(s.kv_at, at.data(), M), put(s.check_at, check.data(), M);
    put(s.pages_at, pages_at.data(), M), put(s.row, row.data(), M);
    put(s.spans, spans.data(), M), put(s.counts, &counts, 1);
    CU(cudaStreamSynchronize(st));
}

static void make_activations(step &s, unsigned &seed)
{
    size_t M = s.M, x = M * s.m.hidden, q = M * s.q, h = M * s.m.ffn, logits = M * s.m.vocab;
    s.x0 = own<float>(x), s.xa = own<float>(x), s.xb = own<float>(x);
    s.qb = own<float>(q), s.ab = own<float>(q), s.hb = own<float>(h), s.logits = own<float>(logits);
    fill(s.x0, x, 0, 1, seed++);
    s.best = own<int>(64);
    for (int r = 0; r < REGION_COUNT; r++)
        s.work[r] = own<char>(32 << 20), s.counter[r] = own<unsigned>(CUDA_COUNTERS);
}

static void make_reference(step &s)
{
    size_t M = s.M, x = M * s.m.hidden, q = M * s.q, h = M * s.m.ffn, logits = M * s.m.vocab;
    size_t pages = M * s.m.kv_heads * KV_PAGE * s.m.head_dim;
    s.rq = own<float>(q), s.ra = own<float>(q), s.rx = own<float>(x), s.rh = own<float>(h);
    s.ry = own<float>(x), s.rx_head = own<float>(x), s.rlogits = own<float>(logits);
    s.raw = own<float>(M * std::max(2 * s.m.ffn, std::max(s.qkv, s.m.hidden)));
    s.out = own<float>(logits), s.acc = own<double>(2);
    s.rk = own<ref::bf>(pages), s.rv = own<ref::bf>(pages), s.ck = own<ref::bf>(pages);
    s.cv = own<ref::bf>(pages), s.wide = own<float>(2 * pages);
}

static void make(step &s, const model &m, int M, int context, int type)
{
    unsigned seed = 1;
    s.type = type;
    s.m = m, s.M = M, s.context = context, s.q = m.heads * m.head_dim;
    s.qkv = s.q + 2 * m.kv_heads * m.head_dim;
    s.per = (context + KV_PAGE - 1) / KV_PAGE, s.pages = s.per * M;
    make_weights(s, seed);
    make_gains(s, seed);
    make_rope(s);
    make_sequences(s);
    make_activations(s, seed);
    make_reference(s);
}

// ---- arguments ------------------------------------------------------------------------------

union any_args {
    cuda_attn_in_args attn_in;
    cuda_attn_args attn;
    cuda_out_args out;
    cuda_mlp_in_args mlp_in;
    cuda_head_args head;
};

static cuda_attn_in_args attn_in_args(const step &s, int i, bool check, const float *x)
{
    cuda_attn_in_args a = {};
    a.counts = s.counts, a.x = x, a.norm = s.norm1[i], a.w = s.w[i][QKV],
    a.packed = s.packed[i][QKV];
    if (s.m.qk_norm)
        a.q_norm = s.q_norm[i], a.k_norm = s.k_norm[i];
    a.rope_cos = s.cosine, a.rope_sin = s.sine, a.position = s.position;
    a.kv_at = check ? s.check_at : s.kv_at, a.q = check ? s.out : s.qb;
    a.k_pages = check ? s.ck : s.k[i], a.v_pages = check ? s.cv : s.v[i];
    a.hidden = s.m.hidden, a.heads = s.m.heads, a.kv_heads = s.m.kv_heads;
    a.head_dim = s.m.head_dim, a.eps = 1e-5f;
    a.next = s.w[i][O], a.next_bytes = (int64_t)bytes_of(s, O);
    return a;
}

static cuda_attn_args attn_args(const step &s, int i, bool check)
{
    cuda_attn_args a = {};
    a.counts = s.counts, a.q = check ? s.rq : s.qb, a.k_pages = s.k[i], a.v_pages = s.v[i];
    a.position = s.position, a.pages_at = s.pages_at, a.page_table = s.table, a.span = s.spans;
    a.a = check ? s.out : s.ab;
    a.next = s.w[i][GU], a.next_bytes = (int64_t)bytes_of(s, GU);
    a.heads = s.m.heads, a.kv_heads = s.m.kv_heads, a.head_dim = s.m.head_dim;
    a.scale = 1 / sqrtf((float)s.m.head_dim);
    return a;
}

static cuda_out_args out_args(const step &s, int region, int i, bool check, const float *x)
{
    cuda_out_args a = {};
    bool down = region == REGION_MLP_OUT;
    int w = down ? DOWN : O;
    a.counts = s.counts, a.w = s.w[i][w], a.packed = s.packed[i][w];
    a.in = down ? check ? s.rh : s.hb : check ? s.ra : s.ab;
    a.x = down ? check ? s.rx : s.xb : x;
    a.y = check ? s.out : down ? s.xa : s.xb;
    a.n = s.m.hidden, a.k = (int32_t)cols_of(s, w);
    a.next = !down ? s.w[i][GU] : i + 1 < s.m.layers ? s.w[i + 1][QKV] : s.head;
    a.next_bytes = (int64_t)bytes_of(s, down ? QKV : GU);
    return a;
}

static cuda_mlp_in_args mlp_in_args(const step &s, int i, bool check)
{
    cuda_mlp_in_args a = {};
    a.counts = s.counts, a.x = check ? s.rx : s.xb, a.norm = s.norm2[i];
    a.w = s.w[i][GU], a.packed = s.packed[i][GU], a.h = check ? s.out : s.hb;
    a.hidden = s.m.hidden, a.ffn = s.m.ffn, a.eps = 1e-5f;
    a.next = s.w[i][DOWN], a.next_bytes = (int64_t)bytes_of(s, DOWN);
    return a;
}

static cuda_head_args head_args(const step &s, bool check)
{
    cuda_head_args a = {};
    a.counts = s.counts, a.row = s.row, a.x = check ? s.rx_head : s.xa, a.norm = s.norm3;
    a.w = s.head, a.packed = s.packed_head, a.logits = check ? s.out : s.logits, a.best = s.best;
    a.hidden = s.m.hidden, a.vocab = s.m.vocab, a.eps = 1e-5f;
    return a;
}

// Layer l of the step, or with l < 0 the check of layer 0 on the reference's inputs into s.out.
static any_args args_of(const step &s, int region, int l)
{
    any_args a;
    memset(&a, 0, sizeof a);
    bool check = l < 0;
    int i = check ? 0 : l;
    const float *x = i ? s.xa : s.x0;
    cuda_work work = {s.work[region], s.counter[region]};
    switch (region) {
    case REGION_ATTN_IN:
        a.attn_in = attn_in_args(s, i, check, x);
        a.attn_in.work = work;
        break;
    case REGION_ATTN:
        a.attn = attn_args(s, i, check);
        a.attn.work = work;
        break;
    case REGION_MLP_IN:
        a.mlp_in = mlp_in_args(s, i, check);
        a.mlp_in.work = work;
        break;
    case REGION_HEAD:
        a.head = head_args(s, check);
        a.head.work = work;
        break;
    default:
        a.out = out_args(s, region, i, check, x);
        a.out.work = work;
    }
    return a;
}

static void launch(const variant *v, any_args &a, bool pdl)
{
    for (int i = 0; i < v->info.launches; i++) {
        const cuda_launch &l = v->info.launch[i];
        cudaLaunchConfig_t c = {};
        cudaLaunchAttribute at[2];
        int n = 0;
        c.gridDim = dim3(l.grid[0], l.grid[1], l.grid[2]), c.blockDim = l.threads,
        c.dynamicSmemBytes = l.smem, c.stream = st;
        if ((pdl || i) && l.pdl) {
            at[n].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            at[n++].val.programmaticStreamSerializationAllowed = 1;
        }
        if (l.cluster > 1) {
            at[n].id = cudaLaunchAttributeClusterDimension;
            at[n++].val.clusterDim = {(unsigned)l.cluster, 1, 1};
        }
        c.attrs = at, c.numAttrs = n;
        void *p[] = {&a};
        CU(cudaLaunchKernelExC(&c, (const void *)v->kernel[i], p));
    }
}
