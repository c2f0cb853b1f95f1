/* SPDX-License-Identifier: Apache-2.0 */
/* product.cu - a matrix product without any cleverness: y = x W^T, plus c. For products.c. */
#include "cuda/lib/device.cuh"

struct product_args {
    const bf16 *w, *x; /* [n, k], [m, k] */
    const float *c;    /* [m, n] or null */
    void *y;           /* [m, n] */
    int n, k, y16;
};

/* A thread an element: columns of y along x of the grid, rows along y. */
KERNEL product(const __grid_constant__ struct product_args a)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x), row = (int)blockIdx.y;
    if (i >= a.n)
        return;
    const bf16 *w = a.w + (long long)i * a.k, *x = a.x + (long long)row * a.k;
    long long at = (long long)row * a.n + i;
    float sum = a.c ? a.c[at] : 0;
    for (int j = 0; j < a.k; j++)
        sum += from_bf16(w[j]) * from_bf16(x[j]);
    if (a.y16)
        ((bf16 *)a.y)[at] = to_bf16(sum);
    else
        ((float *)a.y)[at] = sum;
}
