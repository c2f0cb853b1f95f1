/* SPDX-License-Identifier: Apache-2.0 */
// chain_check.hpp - is a kernel, or the whole step, right? Plain float32 kernels of reference.cuh
// do the same on the same memory. For chain.cu.
#pragma once
#include "tests/device/chain_step.hpp"

// ---- the reference --------------------------------------------------------------------------

static void matvec(const step &s, const void *w, const float *x, const float *norm, size_t N,
                   size_t K, float *y)
{
    ref::matvec<<<dim3((unsigned)((N + 7) / 8), s.M), 256, 0, st>>>(w, s.type, x, norm, 1e-5f,
                                                                    (int)N, (int)K, y);
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
    int i = matrix_of(region);
    auto one = [&](const void *src, ref::bf *&dst, size_t rows, size_t cols) {
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
    std::vector<float> got[2] = {std::vector<float>(s.M * n), std::vector<float>(s.M * n)};
    pack(s, v, region);
    any_args a = args_of(s, region, -1);
    for (int twice = 0; twice < 2; twice++) {
        CU(cudaMemsetAsync(s.out, 0xff, s.M * n * 4, st));
        CU(cudaMemsetAsync(s.best, 0xff, 64 * 4, st));
        launch(v, a, false);
        worst = std::max(worst, error_of(s, s.out, want, s.M * n));
        CU(cudaMemcpy(got[twice].data(), s.out, s.M * n * 4, cudaMemcpyDeviceToHost));
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
    if (memcmp(got[0].data(), got[1].data(), s.M * n * 4))
        worst = INFINITY; // other bits
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
