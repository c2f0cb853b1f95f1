/* SPDX-License-Identifier: Apache-2.0 */
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
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/products.h"
#include "engine/cuda/walk.h"

enum { WORKSPACE = 32 << 20, PLANS = 1024 };

struct blas_plan {
    int32_t m, n, k, ld;
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

static int32_t apart(const struct product *p)
{
    return p->ld ? p->ld : p->n;
}

/* The library's descriptors of a product. */
static cublasStatus_t describe(const struct product *p, struct blas_plan *plan)
{
    cublasOperation_t t = CUBLAS_OP_T;
    cudaDataType out = p->d16 ? CUDA_R_16BF : CUDA_R_32F;
    cublasStatus_t s = cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->w, CUDA_R_16BF, (uint64_t)p->k, (uint64_t)p->n, p->k);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->x, CUDA_R_16BF, (uint64_t)p->k, (uint64_t)p->m, p->k);
    if (!s)
        s = cublasLtMatrixLayoutCreate(&plan->d, out, (uint64_t)p->n, (uint64_t)p->m, apart(p));
    return s;
}

static void forget(struct blas_plan *plan)
{
    if (plan->w)
        cublasLtMatrixLayoutDestroy(plan->w);
    if (plan->x)
        cublasLtMatrixLayoutDestroy(plan->x);
    if (plan->d)
        cublasLtMatrixLayoutDestroy(plan->d);
    if (plan->desc)
        cublasLtMatmulDescDestroy(plan->desc);
}

static cublasStatus_t heuristic(const struct blas *blas, const struct blas_plan *plan,
                                size_t workspace, cublasLtMatmulHeuristicResult_t *found, int most,
                                int *n)
{
    cublasLtMatmulPreference_t wish;
    cublasStatus_t s = cublasLtMatmulPreferenceCreate(&wish);
    if (s)
        return s;
    s = cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(blas->handle, plan->desc, plan->w, plan->x, plan->d,
                                           plan->d, wish, most, found, n);
    cublasLtMatmulPreferenceDestroy(wish);
    return s;
}

/* Description and the library's first algorithm. */
static cublasStatus_t make_plan(const struct blas *blas, const struct product *p,
                                struct blas_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    cublasStatus_t s = describe(p, plan);
    if (!s)
        s = heuristic(blas, plan, WORKSPACE, &found, 1, &n);
    if (!s)
        s = n == 1 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (s)
        forget(plan);
    else
        plan->algo = found.algo;
    return s;
}

static const struct blas_plan *find(struct blas *blas, const struct product *p, struct err *e)
{
    const struct blas_plan *out = NULL;
    pthread_mutex_lock(&blas->lock);
    for (int i = 0; i < blas->plans && !out; i++) {
        const struct blas_plan *at = &blas->plan[i];
        if (at->m == p->m && at->n == p->n && at->k == p->k && at->ld == apart(p) &&
            at->d16 == p->d16 && at->adds == !!p->c)
            out = at;
    }
    if (!out && blas->plans == PLANS) {
        err_set(e, "cuda: more than %d shapes of matrix products", PLANS);
    } else if (!out) {
        struct blas_plan *at = &blas->plan[blas->plans];
        *at = (struct blas_plan){
            .m = p->m, .n = p->n, .k = p->k, .ld = apart(p), .d16 = p->d16, .adds = !!p->c};
        cublasStatus_t s = make_plan(blas, p, at);
        if (s)
            blas_failed(e, s, p);
        else
            out = &blas->plan[blas->plans++];
    }
    pthread_mutex_unlock(&blas->lock);
    return out;
}

int blas_run(struct backend *b, cudaStream_t stream, const struct product *p,
             const struct lt *other, struct err *e)
{
    struct blas *blas = b->blas;
    const struct blas_plan *plan = find(blas, p, e);
    float one = 1, zero = 0;
    if (!plan)
        return -1;
    const cublasLtMatmulAlgo_t *algo = lt_runs(other, p->m) ? &other->algo : &plan->algo;
    cublasStatus_t s =
        cublasLtMatmul(blas->handle, plan->desc, &one, p->w, plan->w, p->x16, plan->x,
                       p->c ? &one : &zero, p->c ? (const void *)p->c : p->d, plan->d, p->d,
                       plan->d, algo, blas->workspace, WORKSPACE, stream);
    return s ? blas_failed(e, s, p) : 0;
}

/* ---- what the library has ------------------------------------------------------------------ */

int blas_list(struct backend *b, const struct product *p, bool room, cublasLtMatmulAlgo_t *out,
              int most, struct err *e)
{
    cublasLtMatmulHeuristicResult_t found[32];
    struct blas_plan plan = {.m = p->m};
    int n = 0, kept = 0;
    cublasStatus_t s = describe(p, &plan);
    if (!s)
        s = heuristic(b->blas, &plan, room ? WORKSPACE : 0, found, most < 32 ? most : 32, &n);
    forget(&plan);
    if (s)
        return blas_failed(e, s, p);
    for (int i = 0; i < n; i++)
        if (!found[i].state)
            out[kept++] = found[i].algo;
    return kept;
}

int blas_check(struct backend *b, const struct product *p, const cublasLtMatmulAlgo_t *a,
               size_t *workspace, struct err *e)
{
    cublasLtMatmulHeuristicResult_t r = {.workspaceSize = 0};
    struct blas_plan plan = {.m = p->m};
    cublasStatus_t s = describe(p, &plan);
    if (!s)
        s = cublasLtMatmulAlgoCheck(b->blas->handle, plan.desc, plan.w, plan.x, plan.d, plan.d, a,
                                    &r);
    forget(&plan);
    if (s || r.state)
        return blas_failed(e, s ? s : r.state, p);
    *workspace = r.workspaceSize;
    if (r.workspaceSize > WORKSPACE)
        return err_set(e, "cuda: product of %d x %d x %d: %zu bytes to work in, there are %d", p->m,
                       p->n, p->k, r.workspaceSize, WORKSPACE);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------- */

struct product blas_product(const struct backend *b, enum region r, int32_t m)
{
    struct matrix w = matrix_of(b, r, 0, m);
    struct product p = {.w = w.data, .m = m, .n = w.rows, .k = w.cols};
    p.d16 = m > NARROW && (r == REGION_ATTN_IN || r == REGION_MLP_IN);
    switch (r) {
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        p.x16 = r == REGION_ATTN_OUT ? b->a16 : b->h16;
        p.c = b->x[r == REGION_MLP_OUT];
        p.d = b->x[r == REGION_ATTN_OUT];
        break;
    case REGION_HEAD:
        p.x16 = b->n16;
        p.d = b->logits;
        break;
    default:
        p.x16 = b->n16;
        p.d = b->raw;
    }
    return p;
}

/* Every product that steps of m tokens need, on whatever the buffers hold. */
static int warm(struct backend *b, int32_t m, bool head, struct err *e)
{
    static const enum region all[] = {REGION_ATTN_IN, REGION_ATTN_OUT, REGION_MLP_IN,
                                      REGION_MLP_OUT, REGION_HEAD};
    struct walk w = {.b = b, .stream = b->stream};
    for (int i = 0; i < 4 + head; i++) {
        unsigned seen = 0; /* formats: layers may differ */
        for (int32_t l = 0; l < region_runs(all[i], b->model->shape.layers); l++) {
            struct product p = blas_product(b, all[i], m);
            struct matrix at = bricks_eager(matrix_of(b, all[i], l, m), m);
            p.w = at.data;
            if (seen >> at.type & 1)
                continue;
            seen |= 1u << at.type;
            if (at.type == DTYPE_BF16 ? blas_run(b, b->stream, &p, NULL, e)
                                      : bricks_run(&w, &p, at.type, e))
                return -1;
        }
    }
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
    int32_t rows = walk_padded(b->options.max_rows), tokens = walk_padded(b->options.max_tokens);
    for (int i = 0; i < NARROW_BUCKETS; i++)
        if (warm(b, m_bucket[i], m_bucket[i] <= rows, e))
            return -1;
    for (int32_t m = 2 * NARROW; m <= tokens; m += NARROW)
        if (warm(b, m, m <= rows, e))
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
    for (int i = 0; i < blas->plans; i++)
        forget(&blas->plan[i]);
    if (blas->handle)
        cublasLtDestroy(blas->handle);
    pthread_mutex_destroy(&blas->lock);
    free(blas);
}
