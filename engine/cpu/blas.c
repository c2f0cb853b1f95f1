/* SPDX-License-Identifier: Apache-2.0 */
/* blas.c - see blas.h.
 *
 * The library is not linked: it chooses its kernels as it is loaded, before main() could say which.
 * So it is opened here, once OPENBLAS_CORETYPE is set. Child processes find the name in their
 * environment (config/process_env.c) and compute with the same kernels, which comparing bits needs.
 *
 * It starts threads as it is loaded, too, one for each further core, and each waits for work by
 * yielding for 2^28 ticks of the clock before it sleeps: a tenth of a second of every other core,
 * in each process. A probe on a busy machine cannot spare that. So it is told to have one thread.
 */
#include "engine/cpu/blas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cpu/blas_core.h"

static const char variable[] = "OPENBLAS_CORETYPE";
/* As the loader finds it, then where it was when this program was built. */
static const char *const names[] = {"libopenblas.so.0", WHET_OPENBLAS, "libopenblas.so"};

static struct blas blas;
static const char *asked; /* by the user */
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare(void)
{
    const char *core = blas_core();
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* our ranks are the threads */
    if (getenv(variable))
        asked = xstrdup(getenv(variable));
    else if (core)
        setenv(variable, core, 0);
}

void blas_prepare(void)
{
    pthread_once(&prepared, prepare);
}

/* What cblas_sgemm() computes, for row-major matrices whose first factor is not transposed. */
static void plain_sgemm(enum CBLAS_ORDER order, enum CBLAS_TRANSPOSE ta, enum CBLAS_TRANSPOSE tb,
                        blasint m, blasint n, blasint k, float alpha, const float *a, blasint lda,
                        const float *b, blasint ldb, float beta, float *c, blasint ldc)
{
    int64_t row = tb == CblasTrans ? ldb : 1, step = tb == CblasTrans ? 1 : ldb;
    (void)order;
    (void)ta;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            float sum = 0, *at = c + i * ldc + j;
            for (int64_t l = 0; l < k; l++)
                sum += a[i * lda + l] * b[j * row + l * step];
            *at = alpha * sum + (beta != 0 ? beta * *at : 0);
        }
    }
}

/* The function `name` into the pointer at `fn`; NULL if there is none. */
static void find(void *library, const char *name, void *fn)
{
    void *found = library ? dlsym(library, name) : NULL;
    memcpy(fn, &found, sizeof found);
}

static void load(void)
{
    void *library = NULL;
    const char *why = NULL;
    blas_prepare();
    blas = (struct blas){.sgemm = plain_sgemm, .core = "none", .config = "", .asked = asked};
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library && !why && (why = dlerror()) != NULL)
            why = xstrdup(why); /* of the first name, the usual one */
    }
    __typeof__(cblas_sgemm) *sgemm;
    char *(*corename)(void), *(*config)(void);
    void (*threads)(int);
    find(library, "cblas_sgemm", &sgemm);
    find(library, "openblas_get_corename", &corename);
    find(library, "openblas_get_config", &config);
    find(library, "openblas_set_num_threads", &threads);
    if (!sgemm || !corename || !config || !threads) {
        blas.missing = library || !why ? "the library lacks what OpenBLAS has" : why;
        return;
    }
    threads(1); /* whatever it made of the variable */
    free((char *)why);
    blas.sgemm = sgemm;
    blas.core = corename();
    blas.config = config();
}

const struct blas *openblas_open(void)
{
    pthread_once(&once, load);
    return &blas;
}
