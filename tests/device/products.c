/* SPDX-License-Identifier: Apache-2.0 */
/* products.c - what test_device calls instead of cublasLtMatmul(): the library's, or with
 * test_device_plain_products() a kernel of ours.
 *
 * compute-sanitizer's racecheck cannot run the library's kernels for this device (it loses a
 * hardware exception in them), so under it everything around the products would stay unchecked. The
 * program's own definition of the name comes before the library's, which is found as the next one.
 */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/device/device_test.h"
#include "tests/kernels/cuda_build.h"

struct product_args {
    const void *w, *x;
    const float *c;
    void *y;
    int n, k, y16;
};

typedef __typeof__(cublasLtMatmul) matmul;

static cudaLibrary_t library;
static cudaKernel_t plain;

bool test_device_plain_products(const char *root, const char *arch)
{
    char path[4200], why[WHY_SIZE];
    size_t size;
    snprintf(path, sizeof path, "%s/tests/device/product.cu", root);
    char *cubin = cuda_build(root, path, arch, NULL, 0, &size, why);
    bool ok = cubin && !cudaLibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0) &&
              !cudaLibraryGetKernel(&plain, library, "product");
    check(ok, false, "product.cu: %s", cubin ? "does not load" : why);
    free(cubin);
    return ok;
}

static uint64_t of_layout(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what)
{
    uint64_t v = 0;
    size_t bytes;
    cublasLtMatrixLayoutGetAttribute(l, what, &v, sizeof v, &bytes);
    return v;
}

static cublasStatus_t run_plain(const void *w, cublasLtMatrixLayout_t wl, const void *x,
                                const float *c, void *y, cublasLtMatrixLayout_t yl,
                                cudaStream_t stream)
{
    uint32_t type = 0;
    size_t bytes;
    cublasLtMatrixLayoutGetAttribute(yl, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof type, &bytes);
    struct product_args a = {w,
                             x,
                             c,
                             y,
                             (int)of_layout(wl, CUBLASLT_MATRIX_LAYOUT_COLS),
                             (int)of_layout(wl, CUBLASLT_MATRIX_LAYOUT_ROWS),
                             type == CUDA_R_16BF};
    unsigned rows = (unsigned)of_layout(yl, CUBLASLT_MATRIX_LAYOUT_COLS);
    void *parameter[] = {&a};
    dim3 grid = {((unsigned)a.n + 127) / 128, rows, 1}, block = {128, 1, 1};
    cudaError_t code = cudaLaunchKernel((const void *)plain, grid, block, parameter, 0, stream);
    return code ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a_layout, const void *B,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c_layout, void *D,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t bytes, cudaStream_t stream)
{
    static matmul *theirs;
    if (plain)
        return run_plain(A, a_layout, B, *(const float *)beta != 0 ? C : NULL, D, d_layout, stream);
    if (!theirs)
        *(void **)&theirs = dlsym(RTLD_NEXT, "cublasLtMatmul");
    return theirs ? theirs(handle, desc, alpha, A, a_layout, B, b_layout, beta, C, c_layout, D,
                           d_layout, algo, workspace, bytes, stream)
                  : CUBLAS_STATUS_NOT_INITIALIZED;
}
