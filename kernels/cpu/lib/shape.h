/* SPDX-License-Identifier: Apache-2.0 */
/* shape.h - the constants of a model that a template is compiled for, with defaults.
 *
 * The host passes each as -D (kernels/templates.def, SHAPE rows); the defaults, those of
 * SmolLM2-135M in Q4_1, let every template compile alone. Facts of the machine that LEGAL rows
 * mention follow from the compiler's flags here, so a point that does not fit its flags fails to
 * compile with the row's own words.
 */
#ifndef WHET_KERNELS_CPU_LIB_SHAPE_H
#define WHET_KERNELS_CPU_LIB_SHAPE_H

#include "args.h"

#ifndef HIDDEN
#define HIDDEN 576
#endif
#ifndef HEADS
#define HEADS 9
#endif
#ifndef KV_HEADS
#define KV_HEADS 3
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef FFN
#define FFN 1536
#endif
#ifndef VOCAB
#define VOCAB 49152
#endif
#ifndef M_MAX
#define M_MAX 1
#endif
#ifndef REGION
#define REGION 5 /* REGION_MLP_OUT */
#endif
#ifndef WTYPE
#define WTYPE 5 /* DTYPE_Q4_1 */
#endif
#ifndef WTYPE_2
#define WTYPE_2 5
#endif
#ifndef WTYPE_3
#define WTYPE_3 5
#endif
#ifndef HAS_BIAS
#define HAS_BIAS 0
#endif
#ifndef HAS_QK_NORM
#define HAS_QK_NORM 0
#endif
#ifndef ROPE_INTERLEAVED
#define ROPE_INTERLEAVED 1
#endif

#ifdef __AVX2__
#define HAS_AVX2 1
#else
#define HAS_AVX2 0
#endif
#ifdef __AVX512BW__
#define HAS_AVX512 1
#else
#define HAS_AVX512 0
#endif
#ifdef __AVX512VNNI__
#define HAS_VNNI 1
#else
#define HAS_VNNI 0
#endif
#if defined(__AMX_INT8__) || defined(__AMXINT8__) /* gcc, clang */
#define HAS_AMX 1
#else
#define HAS_AMX 0
#endif
#ifdef __aarch64__
#define HAS_NEON 1
#else
#define HAS_NEON 0
#endif
#ifdef __ARM_FEATURE_DOTPROD
#define HAS_DOTPROD 1
#else
#define HAS_DOTPROD 0
#endif
#ifdef __ARM_FEATURE_MATMUL_INT8
#define HAS_I8MM 1
#else
#define HAS_I8MM 0
#endif
#define POLICY_REDUCED 1 /* policy is the host's decision */

#endif
