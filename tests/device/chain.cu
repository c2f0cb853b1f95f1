// chain.cu - a whole decode step made of the CUDA templates: is it right, and how fast can it be?
//
//   chain [--model 0,1,2] [--batch 1,8,32] [--context 512] [--root DIR] [--threads 14]
//         [--seconds 90] [--quick] [--fine] [--log FILE]
//
// Builds the step of Llama-3.2-1B, Qwen3-1.7B or Qwen3-4B with random bf16 weights as one graph
// with programmatic edges, five kernels a layer and the head, each compiled from kernels/*.cu by
// NVRTC. Every variant is compared with reference.cuh on its region before it is timed, and the
// step's logits in the end. Then a coordinate search on the time of the whole step, in stages that
// unlock one group of knobs after another, so that the table says what each is worth.
#include "tests/device/reference.cuh"
#include "tests/device/variants.hpp"
#include <chrono>
#include <cmath>

struct model {
    const char *name;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab, qk_norm;
};
static const model models[] = {
    {"llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 0},
    {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, 1},
    {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, 1},
};

static cudaStream_t st;
static FILE *log_file;
static double floor_us;  // at 4.3 TB/s
static bool fine;        // only the last stage of the search
static int seconds = 90; // of search for a model and batch
static std::chrono::steady_clock::time_point deadline;

template <class T> static T *get(size_t n)
{
    void *p;
    CU(cudaMalloc(&p, n * sizeof(T) + 256));
    CU(cudaMemsetAsync(p, 0, n * sizeof(T) + 256, st)); // in the order of what fills it
    return (T *)p;
}
static std::vector<void *> owned;
template <class T> static T *own(size_t n)
{
    T *p = get<T>(n);
    owned.push_back(p);
    return p;
}

// ---- the step's memory ----------------------------------------------------------------------

enum { QKV, O, GU, DOWN, MATRICES };

struct step {
    model m;
    int M, context, q, qkv, pages; // widths; pages of all sequences
    ref::bf *w[64][MATRICES], *head, *packed[64][MATRICES] = {}, *packed_head = nullptr;
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
    std::string layout;
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

static void make(step &s, const model &m, int M, int context)
{
    unsigned seed = 1;
    s.m = m, s.M = M, s.context = context, s.q = m.heads * m.head_dim,
    s.qkv = s.q + 2 * m.kv_heads * m.head_dim;
    int per = (context + KV_PAGE - 1) / KV_PAGE;
    s.pages = per * M;
    size_t kv = (size_t)s.pages * m.kv_heads * KV_PAGE * m.head_dim;
    double bytes = 0;
    for (int l = 0; l < m.layers; l++) {
        for (int i = 0; i < MATRICES; i++) {
            size_t n = rows_of(s, i) * cols_of(s, i);
            s.w[l][i] = own<ref::bf>(n);
            fill_bf(s.w[l][i], n, 1.2f / sqrtf((float)cols_of(s, i)), seed++);
            bytes += 2.0 * n;
        }
        s.k[l] = own<ref::bf>(kv), s.v[l] = own<ref::bf>(kv);
        fill_bf(s.k[l], kv, 1.5f, seed++);
        fill_bf(s.v[l], kv, 1.5f, seed++);
        bytes += 4.0 * M * context * m.kv_heads * m.head_dim;
    }
    size_t hn = (size_t)m.vocab * m.hidden;
    s.head = own<ref::bf>(hn);
    fill_bf(s.head, hn, 1.2f / sqrtf((float)m.hidden), seed++);
    bytes += 2.0 * hn;
    floor_us = bytes / 4.3e6;
    auto gains = [&](float *&p, int n) {
        p = own<float>(n);
        fill(p, n, 1, 0.5f, seed++);
    };
    for (int l = 0; l < m.layers;
         l++) { // each layer has its own: they are not in L2 when it starts
        gains(s.norm1[l], m.hidden), gains(s.norm2[l], m.hidden);
        gains(s.q_norm[l], m.head_dim), gains(s.k_norm[l], m.head_dim);
    }
    gains(s.norm3, m.hidden);
    std::vector<float> c((size_t)context * m.head_dim / 2), z(c.size());
    for (size_t i = 0; i < c.size(); i++) {
        double t =
            (double)(i / (m.head_dim / 2)) * pow(5e5, -2.0 * (i % (m.head_dim / 2)) / m.head_dim);
        c[i] = (float)cos(t), z[i] = (float)sin(t);
    }
    s.cosine = own<float>(c.size()), s.sine = own<float>(c.size());
    CU(cudaMemcpyAsync(s.cosine, c.data(), c.size() * 4, cudaMemcpyHostToDevice, st));
    CU(cudaMemcpyAsync(s.sine, z.data(), c.size() * 4, cudaMemcpyHostToDevice, st));
    // pages of a sequence lie scattered; position context-1 is this step's
    std::vector<int> table(s.pages), position(M), at(M), check(M), pages_at(M), row(M);
    std::vector<span> spans(M);
    for (int i = 0; i < s.pages; i++)
        table[i] = (int)((i * 7919ll + 13) % s.pages);
    if (s.pages % 7919 == 0)
        exit(1);
    for (int t = 0; t < M; t++) {
        position[t] = context - 1, pages_at[t] = t * per, row[t] = t;
        at[t] = table[t * per + (context - 1) / KV_PAGE] * KV_PAGE + (context - 1) % KV_PAGE;
        check[t] = t * KV_PAGE + t * 5 % KV_PAGE;
        spans[t] = {t, 1, context, t * per};
    }
    cuda_counts counts = {M, M, M, context, {}};
    auto put = [&](auto *&p, const auto *from, size_t n) {
        p = own<std::remove_reference_t<decltype(*p)>>(n);
        CU(cudaMemcpyAsync(p, from, n * sizeof *from, cudaMemcpyHostToDevice, st));
    };
    put(s.table, table.data(), s.pages), put(s.position, position.data(), M),
        put(s.kv_at, at.data(), M);
    put(s.check_at, check.data(), M), put(s.pages_at, pages_at.data(), M),
        put(s.row, row.data(), M);
    put(s.spans, spans.data(), M), put(s.counts, &counts, 1);
    CU(cudaStreamSynchronize(st));
    s.best = own<int>(64);
    size_t wide = std::max((size_t)2 * m.ffn, (size_t)std::max(s.qkv, m.hidden));
    s.x0 = own<float>(M * m.hidden), s.xa = own<float>(M * m.hidden),
    s.xb = own<float>(M * m.hidden);
    s.qb = own<float>(M * s.q), s.ab = own<float>(M * s.q), s.hb = own<float>((size_t)M * m.ffn);
    s.logits = own<float>((size_t)M * m.vocab), s.rlogits = own<float>((size_t)M * m.vocab);
    fill(s.x0, M * m.hidden, 0, 1, seed++);
    for (int r = 0; r < REGION_COUNT; r++)
        s.work[r] = own<char>(32 << 20), s.counter[r] = own<unsigned>(CUDA_COUNTERS);
    s.rq = own<float>(M * s.q), s.ra = own<float>(M * s.q), s.rx = own<float>(M * m.hidden),
    s.rh = own<float>((size_t)M * m.ffn);
    s.ry = own<float>(M * m.hidden), s.rx_head = own<float>(M * m.hidden),
    s.raw = own<float>(M * wide);
    s.out = own<float>((size_t)M * m.vocab), s.acc = own<double>(2);
    size_t cn = (size_t)M * m.kv_heads * KV_PAGE * m.head_dim;
    s.rk = own<ref::bf>(cn), s.rv = own<ref::bf>(cn), s.ck = own<ref::bf>(cn),
    s.cv = own<ref::bf>(cn), s.wide = own<float>(2 * cn);
}

static void drop()
{
    CU(cudaDeviceSynchronize());
    for (void *p : owned)
        CU(cudaFree(p));
    owned.clear();
}

// ---- arguments ------------------------------------------------------------------------------

union any_args {
    cuda_attn_in_args attn_in;
    cuda_attn_args attn;
    cuda_out_args out;
    cuda_mlp_in_args mlp_in;
    cuda_head_args head;
};

// Layer l of the step, or with l < 0 the check of layer 0 on the reference's inputs into s.out.
static any_args args_of(const step &s, int region, int l)
{
    any_args a;
    memset(&a, 0, sizeof a);
    bool check = l < 0;
    int i = check ? 0 : l;
    const float *x = i || region == REGION_HEAD ? s.xa : s.x0;
    cuda_work work = {s.work[region], s.counter[region]};
    switch (region) {
    case REGION_ATTN_IN:
        a.attn_in = {s.counts,
                     x,
                     s.norm1[i],
                     s.w[i][QKV],
                     s.packed[i][QKV],
                     nullptr,
                     s.m.qk_norm ? s.q_norm[i] : nullptr,
                     s.m.qk_norm ? s.k_norm[i] : nullptr,
                     s.cosine,
                     s.sine,
                     s.position,
                     check ? s.check_at : s.kv_at,
                     check ? s.out : s.qb,
                     check ? s.ck : s.k[i],
                     check ? s.cv : s.v[i],
                     work,
                     s.m.hidden,
                     s.m.heads,
                     s.m.kv_heads,
                     s.m.head_dim,
                     1e-5f,
                     s.w[i][O],
                     (int64_t)(rows_of(s, O) * cols_of(s, O) * 2)};
        break;
    case REGION_ATTN:
        a.attn = {s.counts,
                  check ? s.rq : s.qb,
                  s.k[i],
                  s.v[i],
                  s.position,
                  s.pages_at,
                  s.table,
                  s.spans,
                  check ? s.out : s.ab,
                  work,
                  s.w[i][GU],
                  (int64_t)(rows_of(s, GU) * cols_of(s, GU) * 2),
                  s.m.heads,
                  s.m.kv_heads,
                  s.m.head_dim,
                  1 / sqrtf((float)s.m.head_dim)};
        break;
    case REGION_ATTN_OUT:
        a.out = {s.counts,
                 check ? s.ra : s.ab,
                 x,
                 s.w[i][O],
                 s.packed[i][O],
                 check ? s.out : s.xb,
                 work,
                 s.m.hidden,
                 s.q,
                 s.w[i][GU],
                 (int64_t)(rows_of(s, GU) * cols_of(s, GU) * 2)};
        break;
    case REGION_MLP_IN:
        a.mlp_in = {
            s.counts,   check ? s.rx : s.xb, s.norm2[i],
            s.w[i][GU], s.packed[i][GU],     check ? s.out : s.hb,
            work,       s.m.hidden,          s.m.ffn,
            1e-5f,      s.w[i][DOWN],        (int64_t)(rows_of(s, DOWN) * cols_of(s, DOWN) * 2)};
        break;
    case REGION_MLP_OUT:
        a.out = {s.counts,
                 check ? s.rh : s.hb,
                 check ? s.rx : s.xb,
                 s.w[i][DOWN],
                 s.packed[i][DOWN],
                 check ? s.out : s.xa,
                 work,
                 s.m.hidden,
                 s.m.ffn,
                 i + 1 < s.m.layers ? s.w[i + 1][QKV] : s.head,
                 (int64_t)(rows_of(s, QKV) * cols_of(s, QKV) * 2)};
        break;
    case REGION_HEAD:
        a.head = {s.counts,
                  s.row,
                  check ? s.rx_head : x,
                  s.norm3,
                  s.head,
                  s.packed_head,
                  check ? s.out : s.logits,
                  s.best,
                  work,
                  s.m.hidden,
                  s.m.vocab,
                  1e-5f};
        break;
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

// ---- the reference --------------------------------------------------------------------------

static void matvec(const step &s, const ref::bf *w, const float *x, const float *norm, size_t N,
                   size_t K, float *y)
{
    ref::matvec<<<dim3((unsigned)((N + 7) / 8), s.M), 256, 0, st>>>(w, x, norm, 1e-5f, (int)N,
                                                                    (int)K, y);
}

// The whole step on the reference, in the step's own buffers; keeps layer 0 for the checks.
static void reference(step &s)
{
    size_t h = (size_t)s.M * s.m.hidden;
    for (int l = 0; l < s.m.layers; l++) {
        const float *x = l ? s.xa : s.x0;
        any_args in = args_of(s, REGION_ATTN_IN, l), at = args_of(s, REGION_ATTN, l);
        matvec(s, s.w[l][QKV], x, s.norm1[l], s.qkv, s.m.hidden, s.raw);
        ref::rope<<<dim3(s.m.heads + 2 * s.m.kv_heads, s.M), s.m.head_dim, 0, st>>>(in.attn_in,
                                                                                    s.raw);
        if (l == 0) {
            any_args c = args_of(s, REGION_ATTN_IN, -1);
            c.attn_in.q = s.rq, c.attn_in.k_pages = s.rk, c.attn_in.v_pages = s.rv;
            ref::rope<<<dim3(s.m.heads + 2 * s.m.kv_heads, s.M), s.m.head_dim, 0, st>>>(c.attn_in,
                                                                                        s.raw);
        }
        ref::attention<<<dim3(s.m.heads, s.M), 32, 0, st>>>(at.attn);
        matvec(s, s.w[l][O], s.ab, nullptr, s.m.hidden, s.q, s.raw);
        ref::add<<<(h + 255) / 256, 256, 0, st>>>(s.raw, x, s.xb, (int)h);
        if (l == 0) {
            CU(cudaMemcpyAsync(s.ra, s.ab, (size_t)s.M * s.q * 4, cudaMemcpyDeviceToDevice, st));
            CU(cudaMemcpyAsync(s.rx, s.xb, h * 4, cudaMemcpyDeviceToDevice, st));
        }
        matvec(s, s.w[l][GU], s.xb, s.norm2[l], 2 * s.m.ffn, s.m.hidden, s.raw);
        ref::silu<<<dim3((s.m.ffn + 255) / 256, s.M), 256, 0, st>>>(s.raw, s.hb, s.m.ffn);
        matvec(s, s.w[l][DOWN], s.hb, nullptr, s.m.hidden, s.m.ffn, s.raw);
        ref::add<<<(h + 255) / 256, 256, 0, st>>>(s.raw, s.xb, s.xa, (int)h);
        if (l == 0) {
            CU(cudaMemcpyAsync(s.rh, s.hb, (size_t)s.M * s.m.ffn * 4, cudaMemcpyDeviceToDevice,
                               st));
            CU(cudaMemcpyAsync(s.ry, s.xa, h * 4, cudaMemcpyDeviceToDevice, st));
        }
    }
    CU(cudaMemcpyAsync(s.rx_head, s.xa, h * 4, cudaMemcpyDeviceToDevice, st));
    matvec(s, s.head, s.xa, s.norm3, s.m.vocab, s.m.hidden, s.rlogits);
    CU(cudaStreamSynchronize(st));
    CU(cudaGetLastError());
}

static double error_of(const step &s, const float *a, const float *b, size_t n)
{
    double r[2];
    CU(cudaMemsetAsync(s.acc, 0, 16, st));
    ref::difference<<<64, 256, 0, st>>>(a, b, n, s.acc);
    CU(cudaMemcpyAsync(r, s.acc, 16, cudaMemcpyDeviceToHost, st));
    CU(cudaStreamSynchronize(st));
    return r[0] > 0 ? sqrt(r[0] / r[1]) : 0;
}

// Repacks every matrix of the variant's region once.
static void pack(step &s, variant *v, int region)
{
    int i = region == REGION_ATTN_IN    ? QKV
            : region == REGION_ATTN_OUT ? O
            : region == REGION_MLP_IN   ? GU
                                        : DOWN;
    auto one = [&](ref::bf *src, ref::bf *&dst, size_t rows, size_t cols) {
        if (dst)
            return;
        dst = own<ref::bf>(v->info.packed_bytes / 2);
        cuda_pack_args a = {src, dst, (int)rows, (int)cols};
        void *p[] = {&a};
        CU(cudaLaunchKernel((const void *)v->pack, dim3(1024), dim3(256), p, 0, st));
    };
    if (!v->info.packed_bytes)
        return;
    if (region == REGION_HEAD)
        one(s.head, s.packed_head, s.m.vocab, s.m.hidden);
    else
        for (int l = 0; l < s.m.layers; l++)
            one(s.w[l][i], s.packed[l][i], rows_of(s, i), cols_of(s, i));
}

// Relative RMS error of the region on the reference's inputs, over poisoned outputs; twice, because
// counters must have been left at zero.
static double check(step &s, variant *v, int region)
{
    size_t n = region == REGION_HEAD                               ? s.m.vocab
               : region == REGION_MLP_IN                           ? s.m.ffn
               : region == REGION_ATTN || region == REGION_ATTN_IN ? s.q
                                                                   : s.m.hidden;
    const float *want = region == REGION_HEAD       ? s.rlogits
                        : region == REGION_MLP_IN   ? s.rh
                        : region == REGION_ATTN     ? s.ra
                        : region == REGION_ATTN_IN  ? s.rq
                        : region == REGION_ATTN_OUT ? s.rx
                                                    : s.ry;
    double worst = 0;
    pack(s, v, region);
    any_args a = args_of(s, region, -1);
    for (int twice = 0; twice < 2; twice++) {
        CU(cudaMemsetAsync(s.out, 0xff, s.M * n * 4, st));
        CU(cudaMemsetAsync(s.best, 0xff, 64 * 4, st));
        launch(v, a, false);
        worst = std::max(worst, error_of(s, s.out, want, s.M * n));
        if (region == REGION_ATTN_IN) {
            size_t cn = (size_t)s.M * s.m.kv_heads * KV_PAGE * s.m.head_dim;
            for (int kv = 0; kv < 2; kv++) {
                ref::widen<<<64, 256, 0, st>>>(kv ? s.cv : s.ck, s.wide, cn);
                ref::widen<<<64, 256, 0, st>>>(kv ? s.rv : s.rk, s.wide + cn, cn);
                worst = std::max(worst, error_of(s, s.wide, s.wide + cn, cn) * 0.1); // bf16 outputs
            }
            CU(cudaMemsetAsync(s.ck, 0, cn * 2, st));
            CU(cudaMemsetAsync(s.cv, 0, cn * 2, st));
        }
    }
    if (region == REGION_HEAD) {
        std::vector<int> best(s.M);
        std::vector<float> row(s.m.vocab);
        CU(cudaMemcpy(best.data(), s.best, s.M * 4, cudaMemcpyDeviceToHost));
        for (int t = 0; t < s.M; t++) {
            CU(cudaMemcpy(row.data(), s.out + (size_t)t * s.m.vocab, s.m.vocab * 4,
                          cudaMemcpyDeviceToHost));
            if (best[t] != (int)(std::max_element(row.begin(), row.end()) - row.begin()))
                worst = INFINITY;
        }
    }
    return worst;
}

// ---- timing ---------------------------------------------------------------------------------

static const int regions[] = {REGION_ATTN_IN, REGION_ATTN,    REGION_ATTN_OUT,
                              REGION_MLP_IN,  REGION_MLP_OUT, REGION_HEAD};
enum { REGIONS = 6 };
static const char *region_names[] = {"attn_in", "attn", "attn_out", "mlp_in", "mlp_out", "head"};

struct choice {
    variant *v[REGIONS];
};

static cudaGraphExec_t record(const step &s, const choice &c)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    for (int l = 0; l < s.m.layers; l++)
        for (int r = 0; r < REGIONS - 1; r++) {
            any_args a = args_of(s, regions[r], l);
            launch(c.v[r], a, l || r);
        }
    any_args a = args_of(s, REGION_HEAD, s.m.layers);
    launch(c.v[REGIONS - 1], a, true);
    CU(cudaStreamEndCapture(st, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaGraphDestroy(g));
    return e;
}

static double time_step(const step &s, const choice &c, int reps)
{
    static cudaEvent_t a, b;
    if (!a) {
        CU(cudaEventCreate(&a));
        CU(cudaEventCreate(&b));
    }
    cudaGraphExec_t e = record(s, c);
    std::vector<float> t;
    CU(cudaGraphLaunch(e, st));
    for (int rep = 0; rep < 3; rep++) {
        CU(cudaEventRecord(a, st));
        for (int i = 0; i < reps; i++)
            CU(cudaGraphLaunch(e, st));
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms * 1e3f / reps);
    }
    CU(cudaGraphExecDestroy(e));
    std::sort(t.begin(), t.end());
    return t[1];
}

static double logits_error(const step &s, const choice &c)
{
    cudaGraphExec_t e = record(s, c);
    CU(cudaMemsetAsync(s.logits, 0xff, (size_t)s.M * s.m.vocab * 4, st));
    CU(cudaGraphLaunch(e, st));
    double r = error_of(s, s.logits, s.rlogits, (size_t)s.M * s.m.vocab);
    CU(cudaGraphExecDestroy(e));
    return r;
}

// ---- search ---------------------------------------------------------------------------------

struct search {
    step &s;
    compiler &cc;
    const table *t[REGIONS];
    shape sh[REGIONS];
    point best[REGIONS];
    double time = 1e9, limit;
    int tried = 0, wrong = 0;
    std::map<variant *, bool> checked;

    search(step &step_, compiler &c, bool mma) : s(step_), cc(c), limit(mma ? 1.5e-2 : 1e-4)
    {
        for (int r = 0; r < REGIONS; r++) {
            t[r] = regions[r] == REGION_ATTN ? &tables::attn : mma ? &tables::mma : &tables::gemv;
            sh[r] = {regions[r], s.M,       s.m.hidden, s.m.heads,   s.m.kv_heads, s.m.head_dim,
                     s.m.ffn,    s.m.vocab, 0,          s.m.qk_norm, 132};
        }
    }

    // The variant, compiled, loaded and found right; null if it is no good.
    variant *usable(int r, const point &p)
    {
        variant *v = cc.get(t[r], sh[r], p);
        if (!v->good) {
            if (v->why.find("spills") != 0 && v->why.find("too") != 0 && wrong++ < 5)
                printf("  %s %s: %s\n", region_names[r], t[r]->text(p).c_str(), v->why.c_str());
            return nullptr;
        }
        if (!checked.count(v)) {
            double e = check(s, v, regions[r]);
            // the timed steps write the newest key and value themselves, from rounded activations
            checked[v] = e < (regions[r] == REGION_ATTN ? 1e-3 : limit);
            if (!checked[v] && wrong++ < 12)
                printf("  WRONG %s %s: error %.2e\n", region_names[r], t[r]->text(p).c_str(), e);
        }
        return checked[v] ? v : nullptr;
    }

    bool with(int r, const point &p, choice *c)
    {
        for (int i = 0; i < REGIONS; i++)
            if (!(c->v[i] = usable(i, i == r ? p : best[i])))
                return false;
        return true;
    }

    // Tries the points of region r, keeps what is faster.
    void attempt(int r, const std::vector<point> &points)
    {
        for (auto &p : points)
            cc.ask(t[r], sh[r], p);
        for (auto &p : points) {
            choice c;
            if (std::chrono::steady_clock::now() > deadline || !with(r, p, &c))
                continue;
            tried++;
            double us = time_step(s, c, 4);
            if (us < time * 0.9985) {
                choice now;
                with(-1, {}, &now);
                us = time_step(s, c, 12);
                double old = time_step(s, now, 12);
                if (log_file)
                    fprintf(log_file, "%s M=%d %s [%s] %.1f against %.1f\n", s.m.name, s.M,
                            region_names[r], t[r]->text(p).c_str(), us, old);
                time = std::min(us, old);
                if (us < old)
                    best[r] = p;
            }
        }
    }

    // Points that differ from the best in one of the named knobs, or in a random few of them.
    std::vector<point> around(int r, const std::string &names, int random)
    {
        std::vector<int> k;
        std::stringstream in(names);
        for (std::string n; in >> n;)
            for (size_t i = 0; i < t[r]->knobs.size(); i++)
                if (n == t[r]->knobs[i].name)
                    k.push_back((int)i);
        std::vector<point> out;
        auto add = [&](const point &p) {
            if (p != best[r] && !t[r]->legal(sh[r], p) &&
                std::find(out.begin(), out.end(), p) == out.end())
                out.push_back(p);
        };
        for (int i : k)
            for (int v : t[r]->knobs[i].values) {
                point p = best[r];
                p[i] = v;
                add(p);
            }
        static unsigned z = 99;
        auto draw = [&] { return (z = z * 1664525u + 1013904223u) >> 16; };
        for (int tries = 0; random > 0 && tries < 400000 && !k.empty(); tries++) {
            point p = best[r];
            int changes = random % 2 ? 2 + draw() % 4 : 24; // near it, or anywhere
            for (int j = 0; j < changes; j++) {
                int i = k[draw() % k.size()];
                p[i] = t[r]->knobs[i].values[draw() % t[r]->knobs[i].values.size()];
            }
            size_t before = out.size();
            add(p);
            random -= out.size() > before;
        }
        return out;
    }

    void row(const char *what)
    {
        choice c;
        if (!with(-1, {}, &c)) {
            printf("%s M=%d: no usable step\n", s.m.name, s.M);
            return;
        }
        double us = time_step(s, c, 40), e = logits_error(s, c);
        time = us;
        printf("| %-34s | %s | %d | %7.1f | %6.0f | %4.1f | %.1e | %d |\n", what, s.m.name, s.M, us,
               1e6 * s.M / us, 100 * floor_us / us, e, tried);
        fflush(stdout);
    }

    void winners()
    {
        for (int r = 0; r < REGIONS; r++)
            printf("    %-9s %s\n", region_names[r], t[r]->text(best[r]).c_str());
        fflush(stdout);
    }
};

// Time of a step in which region r runs twice, less the step: what another one costs there.
static void marginal(search &f)
{
    choice c;
    if (!f.with(-1, {}, &c))
        return;
    double whole = time_step(f.s, c, 20);
    printf("    of %.1f us:", whole);
    for (int r = 0; r < REGIONS - 1; r++) {
        choice d = c;
        cudaGraph_t g;
        cudaGraphExec_t e;
        CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
        for (int l = 0; l < f.s.m.layers; l++)
            for (int i = 0; i < REGIONS - 1; i++) {
                if (i == r)
                    continue;
                any_args a = args_of(f.s, regions[i], l);
                launch(d.v[i], a, l || i > (r == 0));
            }
        any_args a = args_of(f.s, REGION_HEAD, f.s.m.layers);
        launch(d.v[REGIONS - 1], a, true);
        CU(cudaStreamEndCapture(st, &g));
        CU(cudaGraphInstantiate(&e, g, 0));
        cudaEvent_t x, y;
        CU(cudaEventCreate(&x));
        CU(cudaEventCreate(&y));
        CU(cudaGraphLaunch(e, st));
        CU(cudaEventRecord(x, st));
        for (int i = 0; i < 20; i++)
            CU(cudaGraphLaunch(e, st));
        CU(cudaEventRecord(y, st));
        CU(cudaEventSynchronize(y));
        float ms;
        CU(cudaEventElapsedTime(&ms, x, y));
        size_t bytes = regions[r] == REGION_ATTN
                           ? 4ull * f.s.M * f.s.context * f.s.m.kv_heads * f.s.m.head_dim
                           : 0;
        int i = r == 0 ? QKV : r == 2 ? O : r == 3 ? GU : DOWN;
        if (!bytes)
            bytes = rows_of(f.s, i) * cols_of(f.s, i) * 2;
        printf(" %s %.2f (floor %.2f)", region_names[r], (whole - ms * 50) / f.s.m.layers,
               bytes / 4.3e6);
        CU(cudaGraphExecDestroy(e));
        CU(cudaGraphDestroy(g));
    }
    printf(" us a layer\n");
    fflush(stdout);
}

struct stage {
    const char *what, *knobs;
    int random;
};

static void run(compiler &cc, const model &m, int M, int context, bool quick)
{
    step s;
    deadline = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    make(s, m, M, context);
    reference(s);
    bool mma = M > 4;
    search f(s, cc, mma);
    for (int r = 0; r < REGIONS; r++) {
        f.best[r] = f.t[r]->begin(f.sh[r]);
        if (f.best[r].empty()) {
            printf("%s M=%d %s: no legal point\n", m.name, M, region_names[r]);
            return drop();
        }
        unsigned z = r;
        for (int tries = 0; !f.usable(r, f.best[r]) && tries < 40; tries++) // any point that works
            do
                for (size_t i = 0; i < f.best[r].size(); i++)
                    f.best[r][i] = f.t[r]->knobs[i].values[(z = z * 1664525u + 1013904223u) /
                                                           65536 % f.t[r]->knobs[i].values.size()];
            while (f.t[r]->legal(f.sh[r], f.best[r]));
        if (!f.usable(r, f.best[r])) {
            printf("%s M=%d %s: no usable point\n", m.name, M, region_names[r]);
            return drop();
        }
    }
    f.row("start");
    f.winners();
    marginal(f);
    static const stage gemv_stages[] = {
        {"rows, unroll, warps, trigger", "ROWS UNROLL RW TRIGGER SPLITS WARPS", 0},
        {"+ attention: pieces, early, next",
         "MERGE EARLY SPLITS WARPS PIECE PARTS STAGES NEXT NEXT_LATE TRIGGER", 60},
        {"+ staged weights", "ROWS UNROLL RW TRIGGER PERSIST STAGE", 60},
        {"+ K over warps, x in registers", "ROWS UNROLL RW TRIGGER KW X PERSIST STAGE CLUSTER LOAD",
         60},
        {"+ L2 prefetch, load policy", "TRIGGER PREFETCH NEXT NEXT_LATE LOAD PERSIST STAGE", 10},
        {"+ second pass",
         "ROWS UNROLL RW TRIGGER KW X PERSIST STAGE BLOCKS PREFETCH NEXT NEXT_LATE LOAD CLUSTER "
         "MERGE EARLY SPLITS WARPS PIECE PARTS STAGES",
         40},
    };
    static const stage mma_stages[] = {
        {"attention", "SPLITS MERGE EARLY WARPS PIECE PARTS STAGES TRIGGER", 40},
        {"+ tiles, unroll, warps, K over a cluster", "TILES UNROLL WARPS TRIGGER SPLIT PERSIST",
         30},
        {"+ staged weights", "TILES UNROLL WARPS TRIGGER SPLIT PERSIST STAGE", 30},
        {"+ L2 prefetch, load policy", "TRIGGER SPLIT PERSIST STAGE PREFETCH LOAD", 10},
        {"+ second pass",
         "TILES UNROLL WARPS TRIGGER SPLIT PERSIST STAGE PREFETCH LOAD SPLITS MERGE EARLY PIECE "
         "PARTS STAGES",
         20},
    };
    const stage *stages = mma ? mma_stages : gemv_stages;
    int n = mma ? 5 : 6;
    static const int order[] = {1, 3, 4, 0, 2, 5};
    for (int i = fine ? n - 1 : 0; i < n && !quick; i++) {
        for (int r : order) // ahead of time
            for (auto &p : f.around(r, stages[i].knobs, 0))
                cc.ask(f.t[r], f.sh[r], p);
        for (int r : order) {
            f.attempt(r, f.around(r, stages[i].knobs, fine ? 6 : stages[i].random));
            if (i > 0)
                f.attempt(r, f.around(r, stages[i].knobs, 0));
        }
        f.row(stages[i].what);
    }
    f.winners();
    marginal(f);
    drop();
}

static std::vector<int> list(const char *s)
{
    std::vector<int> v;
    std::stringstream in(s);
    for (std::string w; std::getline(in, w, ',');)
        v.push_back(atoi(w.c_str()));
    return v;
}

int main(int argc, char **argv)
{
    std::vector<int> which = {0, 1, 2}, batch = {1};
    int context = 512, threads = 14;
    bool quick = false;
    std::string root = ".";
    for (int i = 1; i < argc; i++) {
        std::string o = argv[i];
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (o == "--fine") {
            fine = true;
            continue;
        }
        if (o == "--quick") {
            quick = true;
            continue;
        }
        i++;
        if (o == "--model")
            which = list(v);
        else if (o == "--batch")
            batch = list(v);
        else if (o == "--context")
            context = atoi(v);
        else if (o == "--threads")
            threads = atoi(v);
        else if (o == "--seconds")
            seconds = atoi(v);
        else if (o == "--root")
            root = v;
        else if (o == "--log")
            log_file = fopen(v, "w");
        else {
            printf("unknown option %s\n", argv[i - 1]);
            return 2;
        }
    }
    CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    compiler cc(root, threads, true);
    printf("| change | model | M | us/step | tok/s | %% of 4.3 TB/s | logits error | tried "
           "|\n|---|---|---|---|---|---|---|---|\n");
    for (int b : batch)
        for (int m : which) {
            auto t0 = std::chrono::steady_clock::now();
            run(cc, models[m], b, context, quick);
            printf("    %.0f s, %zu compiled\n",
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count(),
                   cc.count());
            if (log_file)
                fflush(log_file);
        }
    fflush(stdout);
    quick_exit(0);
}
