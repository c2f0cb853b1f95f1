/* blas.c - the matrix products of the eager regions: cuBLASLt with its choices made beforehand.
 *
 * Row-major y = x W^T is column-major y^T = W x^T, so W comes first and is transposed. For each
 * (m, n, k, element of y, residual) the algorithm is asked for once, under a lock, and kept; m is
 * always a bucket or a multiple of NARROW, so there are few. blas_open() runs each of them once,
 * because the library loads its own kernels at their first use and no step should wait for that.
 * One workspace serves all: products of one stream follow one another.
 */
#include <stdlib.h>

#include "config/clock.h"
#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/cuda_private.h"

enum { WORKSPACE = 32 << 20, PLANS = 1024 };

struct blas_plan {
    int32_t m, n, k;
    bool d16, adds;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, d;
    cublasLtMatmulAlgo_t algo;
};

struct blas {
    cublasLtHandle_t handle;
    void *workspace;
    pthread_mutex_t lock; /* plans */
    int plans;
    struct blas_plan plan[PLANS];
};

static int blas_failed(struct err *e, cublasStatus_t code, const struct product *p)
{
    return err_set(e, "cuda: product of %d x %d x %d: %s", p->m, p->n, p->k,
                   cublasLtGetStatusString(code));
}

static cublasStatus_t describe(const struct blas *blas, const struct product *p,
                               struct blas_plan *plan)
{
    cublasOperation_t t = CUBLAS_OP_T;
    cudaDataType out = p->d16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found;
    size_t workspace = WORKSPACE;
    int n = 0;
    cublasStatus_t s = cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->w, CUDA_R_16BF, (uint64_t)p->k, (uint64_t)p->n, p->k);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->x, CUDA_R_16BF, (uint64_t)p->k, (uint64_t)p->m, p->k);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->d, out, (uint64_t)p->n, (uint64_t)p->m, p->n);
    if (!s)
        s = cublasLtMatmulPreferenceCreate(&wish);
    if (s)
        return s;
    s = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(blas->handle, plan->desc, plan->w, plan->x, plan->d,
                                           plan->d, wish, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(wish);
    plan->algo = found.algo;
    return s ? s : n == 1 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
}

static const struct blas_plan *find(struct blas *blas, const struct product *p, struct err *e)
{
    const struct blas_plan *out = NULL;
    pthread_mutex_lock(&blas->lock);
    for (int i = 0; i < blas->plans && !out; i++) {
        const struct blas_plan *at = &blas->plan[i];
        if (at->m == p->m && at->n == p->n && at->k == p->k && at->d16 == p->d16 &&
            at->adds == !!p->c)
            out = at;
    }
    if (!out && blas->plans == PLANS) {
        err_set(e, "cuda: more than %d shapes of matrix products", PLANS);
    } else if (!out) {
        struct blas_plan *at = &blas->plan[blas->plans];
        *at = (struct blas_plan){.m = p->m, .n = p->n, .k = p->k, .d16 = p->d16, .adds = !!p->c};
        cublasStatus_t s = describe(blas, p, at);
        if (s)
            blas_failed(e, s, p);
        else
            out = &blas->plan[blas->plans++];
    }
    pthread_mutex_unlock(&blas->lock);
    return out;
}

int blas_run(struct backend *b, cudaStream_t stream, const struct product *p, struct err *e)
{
    struct blas *blas = b->blas;
    const struct blas_plan *plan = find(blas, p, e);
    float one = 1, zero = 0;
    if (!plan)
        return -1;
    cublasStatus_t s =
        cublasLtMatmul(blas->handle, plan->desc, &one, p->w, plan->w, p->x16, plan->x,
                       p->c ? &one : &zero, p->c ? (const void *)p->c : p->d, plan->d, p->d,
                       plan->d, &plan->algo, blas->workspace, WORKSPACE, stream);
    return s ? blas_failed(e, s, p) : 0;
}

/* Every product that steps of m tokens need, on whatever the buffers hold. */
static int warm(struct backend *b, int32_t m, bool head, struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    const struct device_layer *l = &b->on.layer[0];
    int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    bool wide = m > NARROW;
    const struct product all[] = {
        {b->n16, l->wqkv, NULL, b->raw, wide, m, q + 2 * kv, s->hidden},
        {b->a16, l->wo, b->x[0], b->x[1], false, m, s->hidden, q},
        {b->n16, l->wgu, NULL, b->raw, wide, m, 2 * s->ffn, s->hidden},
        {b->h16, l->wdown, b->x[1], b->x[0], false, m, s->hidden, s->ffn},
        {b->n16, b->on.head, NULL, b->logits, false, m, s->vocab, s->hidden},
    };
    for (int i = 0; i < 4 + head; i++)
        if (blas_run(b, b->stream, &all[i], e))
            return -1;
    return 0;
}

int blas_create(struct backend *b, struct err *e)
{
    if (!b->blas) { /* a probe's is there from the kernel before */
        b->blas = xcalloc(1, sizeof *b->blas);
        pthread_mutex_init(&b->blas->lock, NULL);
        cublasStatus_t s = cublasLtCreate(&b->blas->handle);
        if (s)
            return err_set(e, "cuda: cuBLASLt does not open: %s", cublasLtGetStatusString(s));
    }
    b->blas->workspace = arena_take(&b->buffers, WORKSPACE);
    return 0;
}

int blas_open(struct backend *b, struct err *e)
{
    int64_t t0 = clock_ns();
    if (blas_create(b, e))
        return -1;
    for (int i = 0; i < NARROW_BUCKETS; i++)
        if (warm(b, m_bucket[i], m_bucket[i] <= b->options.max_rows, e))
            return -1;
    for (int32_t m = 2 * NARROW; m < b->options.max_tokens + NARROW; m += NARROW)
        if (warm(b, m, m <= b->options.max_rows, e))
            return -1;
    CU(cudaStreamSynchronize(b->stream));
    log_info("cuda", "%d matrix products tried in %.0f ms", b->blas->plans,
             (double)(clock_ns() - t0) * 1e-6);
    return 0;
}

void blas_close(struct backend *b)
{
    struct blas *blas = b->blas;
    if (!blas)
        return;
    for (int i = 0; i < blas->plans; i++) {
        cublasLtMatrixLayoutDestroy(blas->plan[i].w);
        cublasLtMatrixLayoutDestroy(blas->plan[i].x);
        cublasLtMatrixLayoutDestroy(blas->plan[i].d);
        cublasLtMatmulDescDestroy(blas->plan[i].desc);
    }
    if (blas->handle)
        cublasLtDestroy(blas->handle);
    pthread_mutex_destroy(&blas->lock);
    free(blas);
}
