/* SPDX-License-Identifier: Apache-2.0 */
/* lt.c - kernels that are not compiled: eager's region with another algorithm for its product.
 *
 * cuBLASLt has many kernels for a product and a formula that ranks them; eager takes what it ranks
 * first, and on one H200 that is up to a third slower than another of the same list. What a
 * candidate names (kernels/cuda/lt.def) is looked up in such a list when it is "built"
 * (cuda_choose) and kept as the library's own 64 bytes in a record (lt_record.c), together with the
 * version and the shape that they are for. Everything else of the region stays eager's own code, so
 * such a kernel runs wherever eager does: in graphs, and in uncaptured steps of any width.
 *
 * A slot's steps have several widths. An algorithm is checked by the library for each of them when
 * the record is loaded, and at those where it is not possible, the region is eager's. Nothing is
 * asked on the engine thread, and no memory is taken: the workspace is blas.c's. What adds partial
 * sums in no fixed order is refused.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/graph.h"
#include "engine/cuda/lt_record.h"
#include "engine/cuda/memory.h"
#include "engine/cuda/products.h"
#include "engine/cuda/walk.h"

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == LT_WORDS * sizeof(uint64_t),
               "a record holds an algorithm");

enum { LIST_MOST = 8 };

/* ---- which widths -------------------------------------------------------------------------- */

static int32_t width_index(int32_t m)
{
    return m <= NARROW ? m_bucket_of(m) : NARROW_BUCKETS + m / NARROW;
}

bool lt_runs(const struct lt *l, int32_t m)
{
    int32_t i = width_index(m);
    return l && i < LT_WIDTHS && l->runs[i];
}

/* The next padded width after `m`. */
static int32_t width_after(int32_t m)
{
    return m < NARROW ? m_bucket[m_bucket_of(m) + 1] : m + NARROW;
}

/* ---- describing ---------------------------------------------------------------------------- */

static int32_t config_of(const cublasLtMatmulAlgo_t *a, cublasLtMatmulAlgoConfigAttributes_t which,
                         size_t size)
{
    int32_t value = 0;
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(a, which, &value, size, &written))
        return -1;
    return value;
}

static void describe(const cublasLtMatmulAlgo_t *a, size_t workspace, char *out, size_t n)
{
    snprintf(out, n,
             "algorithm %d, tile %d, stages %d, split-K %d, reduction %d, swizzle %d, option %d, "
             "inner shape %d, cluster %d, workspace %zu",
             config_of(a, CUBLASLT_ALGO_CONFIG_ID, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4),
             config_of(a, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2),
             config_of(a, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2), workspace);
}

/* Blocks that add to one sum in the order in which they end give other bits in every run. */
static bool ordered(const cublasLtMatmulAlgo_t *a)
{
    return config_of(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4) !=
           CUBLASLT_REDUCTION_SCHEME_INPLACE;
}

/* ---- choosing ------------------------------------------------------------------------------ */

/* The value of -D<name>=<int>; false if it is not there. */
static bool defined(char *const *define, const char *name, int32_t *value)
{
    size_t n = strlen(name);
    for (; *define; define++)
        if (strncmp(*define, "-D", 2) == 0 && strncmp(*define + 2, name, n) == 0 &&
            (*define)[2 + n] == '=')
            return sscanf(*define + 3 + n, "%d", value) == 1;
    return false;
}

/* What a point of kernels/cuda/lt.def asks for: its slot, and the knobs under their own names. */
struct wanted {
    int32_t region, m;
#define KNOB(name, role, value, values, help) int32_t name;
#include "kernels/cuda/lt.def"
};

static int read_wanted(char *const *define, struct wanted *w, struct err *e)
{
    const struct {
        const char *name;
        int32_t *to;
    } all[] = {
        {"REGION", &w->region},
        {"M_MAX", &w->m},
#define KNOB(name, role, value, values, help) {#name, &w->name},
#include "kernels/cuda/lt.def"
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!defined(define, all[i].name, all[i].to))
            return err_set(e, "%s is not given", all[i].name);
    if (w->region <= REGION_EMBED || w->region == REGION_ATTN || w->region >= REGION_COUNT ||
        w->m < 1 || w->m > LT_M_MOST || w->RANK < 0 || w->RANK >= LIST_MOST)
        return err_set(e, "region %d with %d tokens has no such product", w->region, w->m);
    return 0;
}

static int set_split(cublasLtMatmulAlgo_t *a, int32_t parts, struct err *e)
{
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (cublasLtMatmulAlgoConfigSetAttribute(a, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, 4) ||
        cublasLtMatmulAlgoConfigSetAttribute(a, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, 4))
        return err_set(e, "the algorithm does not split K");
    return 0;
}

/* The algorithm that the knobs name, as the library has it; what another point already is, or
 * eager, is not worth a probe. */
static int look_up(struct backend *b, const struct wanted *w, cublasLtMatmulAlgo_t *algo,
                   struct err *e)
{
    cublasLtMatmulAlgo_t list[LIST_MOST], own[LIST_MOST];
    enum region r = (enum region)w->region;
    int32_t ask = w->ASK == 1 ? w->m / 2 : w->ASK == 2 ? 2 * w->m : w->m;
    struct product there = blas_product(b, r, w->m), asked = there;
    asked.m = walk_padded(ask);
    int n = blas_list(b, &asked, w->ASK != 3, list, LIST_MOST, e);
    int owns = n < 0 ? n : blas_list(b, &there, true, own, LIST_MOST, e);
    if (n < 0 || owns < 0)
        return -1;
    if (w->RANK >= n)
        return err_set(e, "the library lists %d algorithms for %d tokens", n, asked.m);
    *algo = list[w->RANK];
    if (w->SPLIT > 0 && set_split(algo, w->SPLIT, e))
        return -1;
    for (int i = 0; i < owns; i++)
        if (memcmp(&own[i], algo, sizeof *algo) == 0 && (w->ASK || w->SPLIT || i == 0))
            return err_set(e, "it is the same as %s", i ? "one of the slot's own list" : "eager's");
    return ordered(algo) ? 0 : err_set(e, "it adds partial sums in no fixed order");
}

int cuda_choose(struct backend *b, char *const *define, const char *path, char **log, struct err *e)
{
    struct wanted w;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
    if (read_wanted(define, &w, e) || look_up(b, &w, &algo, e))
        return -1;
    struct product p = blas_product(b, (enum region)w.region, walk_padded(w.m));
    if (blas_check(b, &p, &algo, &workspace, e))
        return -1;
    struct lt_record record = {.library = (int64_t)cublasLtGetVersion(),
                               .region = (enum region)w.region,
                               .m = w.m,
                               .n = p.n,
                               .k = p.k};
    describe(&algo, workspace, record.ids, sizeof record.ids);
    memcpy(record.algo, &algo, sizeof algo);
    if (lt_record_write(path, &record, e))
        return -1;
    *log = xasprintf("cuBLASLt %lld: %s\n", (long long)record.library, record.ids);
    return 0;
}

/* ---- loading ------------------------------------------------------------------------------- */

/* Widths up to the record's at which the algorithm is possible. */
static int check_widths(struct backend *b, struct lt *l, const struct lt_record *record,
                        struct err *e)
{
    int32_t most = walk_padded(record->m), own = most;
    int32_t room = walk_padded(b->options.max_tokens); /* there are no wider steps */
    if (own > room)
        own = room;
    for (int32_t m = 1; m <= own; m = width_after(m)) {
        struct err why;
        struct product p = blas_product(b, record->region, m);
        size_t workspace;
        l->runs[width_index(m)] = blas_check(b, &p, &l->algo, &workspace, &why) == 0;
        if (m == own && !l->runs[width_index(m)])
            return err_set(e, "%s", why.msg);
    }
    return 0;
}

/* The library loads a kernel's code when it is first needed. A graph that is made and not launched
 * needs it: so that happens here, and not in a step. */
static int bring_code(struct backend *b, const struct lt *l, const struct lt_record *record,
                      struct err *e)
{
    cudaGraphExec_t exec = NULL;
    int failed = 0;
    CU(cudaStreamBeginCapture(b->loader, cudaStreamCaptureModeThreadLocal));
    for (int32_t m = 1; m <= walk_padded(record->m) && !failed; m = width_after(m)) {
        struct product p = blas_product(b, record->region, m);
        failed = lt_runs(l, m) && blas_run(b, b->loader, &p, l, e);
    }
    if (graph_capture_end(b->loader, failed, &exec, false, e))
        return -1;
    cudaGraphExecDestroy(exec);
    return 0;
}

int lt_open(struct backend *b, const char *path, enum region region, struct lt **out, struct err *e)
{
    struct lt_record record;
    if (lt_record_read(path, &record, e))
        return -1;
    struct product p = blas_product(b, region, walk_padded(record.m));
    if (record.library != (int64_t)cublasLtGetVersion())
        return err_set(e, "chosen by cuBLASLt %lld, this is %zu", (long long)record.library,
                       cublasLtGetVersion());
    if (record.region != region || record.n != p.n || record.k != p.k)
        return err_set(e, "for %s of %d x %d, here is %s of %d x %d", region_name(record.region),
                       record.n, record.k, region_name(region), p.n, p.k);
    struct lt *l = xcalloc(1, sizeof *l);
    l->m = record.m;
    memcpy(&l->algo, record.algo, sizeof l->algo);
    if (check_widths(b, l, &record, e) || bring_code(b, l, &record, e)) {
        free(l);
        return -1;
    }
    *out = l;
    return 0;
}
