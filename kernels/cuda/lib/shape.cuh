/* SPDX-License-Identifier: Apache-2.0 */
/* shape.cuh - the constants of a model that a CUDA template is compiled for, with defaults.
 *
 * The host passes each as -D (templates_cuda.def, SHAPE rows); the defaults, Llama-3.2-1B at one
 * token on an H200, let every template compile alone. Facts of the device that LEGAL rows ask for
 * are those of the target. */
#ifndef WHET_KERNELS_CUDA_LIB_SHAPE_CUH
#define WHET_KERNELS_CUDA_LIB_SHAPE_CUH

#include "cuda.h"

#ifndef REGION
#define REGION 5 /* REGION_MLP_OUT */
#endif
#ifndef M_MAX
#define M_MAX 1
#endif
#ifndef HIDDEN
#define HIDDEN 2048
#endif
#ifndef HEADS
#define HEADS 32
#endif
#ifndef KV_HEADS
#define KV_HEADS 8
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef FFN
#define FFN 8192
#endif
#ifndef VOCAB
#define VOCAB 128256
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_QK_NORM
#define HAS_QK_NORM 0
#endif
#ifndef WTYPE
#define WTYPE 2 /* DTYPE_BF16 */
#endif
#ifndef SMS
#define SMS 132
#endif

#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 900
#define HAS_CLUSTERS 0
#else
#define HAS_CLUSTERS 1
#endif

#if !defined __CUDA_ARCH__ || defined __CUDA_ARCH_FEAT_SM90_ALL
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

/* Regions for #if, which does not know enumerators. */
#define AT_ATTN_IN (REGION == 1)
#define AT_ATTN (REGION == 2)
#define AT_ATTN_OUT (REGION == 3)
#define AT_MLP_IN (REGION == 4)
#define AT_MLP_OUT (REGION == 5)
#define AT_HEAD (REGION == 6)
#define AT_OUT (AT_ATTN_OUT || AT_MLP_OUT)
#define HAS_NORM (AT_ATTN_IN || AT_MLP_IN || AT_HEAD)
static_assert(REGION_ATTN_IN == 1 && REGION_HEAD == 6, "regions by number");

/* The matrix of REGION: [ROWS_ALL, K], in the format WTYPE. */
#if AT_ATTN_IN
#define ROWS_ALL ((HEADS + 2 * KV_HEADS) * HEAD_DIM)
#define K HIDDEN
#define region_args cuda_attn_in_args
#elif AT_ATTN_OUT
#define ROWS_ALL HIDDEN
#define K (HEADS * HEAD_DIM)
#define region_args cuda_out_args
#elif AT_MLP_IN
#define ROWS_ALL (2 * FFN)
#define K HIDDEN
#define region_args cuda_mlp_in_args
#elif AT_MLP_OUT
#define ROWS_ALL HIDDEN
#define K FFN
#define region_args cuda_out_args
#elif AT_HEAD
#define ROWS_ALL VOCAB
#define K HIDDEN
#define region_args cuda_head_args
#elif AT_ATTN
#define region_args cuda_attn_args
#endif

#endif
