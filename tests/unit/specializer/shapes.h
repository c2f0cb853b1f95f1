/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.h - what tests of spaces and costs share: models as the members of a struct facts that
 * follow from them (SmolLM2-135M in Q4_1, and for a GPU Qwen3-1.7B and Llama-3.2-1B), as members of
 * a struct model_shape to draw weights for (two layers of SmolLM2-135M with few words, and the
 * smallest that has all regions), and an H200 as members of a struct machine. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_SHAPES_H
#define WHET_TESTS_UNIT_SPECIALIZER_SHAPES_H

#define ALL_OF_TYPE(type) .WTYPE = (type), .WTYPE_2 = (type), .WTYPE_3 = (type)

#define SMOLLM_SHAPE                                                                       \
    .HIDDEN = 576, .HEADS = 9, .KV_HEADS = 3, .HEAD_DIM = 64, .FFN = 1536, .VOCAB = 49152, \
    ALL_OF_TYPE(DTYPE_Q4_1)

#define SMOLLM_MODEL                                                                           \
    .arch = ARCH_LLAMA, .layers = 2, .hidden = 576, .heads = 9, .kv_heads = 3, .head_dim = 64, \
    .ffn = 1536, .vocab = 512, .max_context = 256, .eps = 1e-5f, .rope_base = 10000

#define SMALL_MODEL                                                                                \
    .layers = 4, .hidden = 64, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 96, .vocab = 320, \
    .max_context = 512, .eps = 1e-5f, .rope_base = 1e4f

#define QWEN3_SHAPE                                                                            \
    .HIDDEN = 2048, .HEADS = 16, .KV_HEADS = 8, .HEAD_DIM = 128, .FFN = 6144, .VOCAB = 151936, \
    .HAS_QK_NORM = 1, ALL_OF_TYPE(DTYPE_BF16)

#define LLAMA_SHAPE                                                                           \
    .HIDDEN = 2048, .HEADS = 32, .KV_HEADS = 8, .HEAD_DIM = 64, .FFN = 8192, .VOCAB = 128256, \
    ALL_OF_TYPE(DTYPE_BF16)

#define H200                                                                                       \
    .device = "NVIDIA H200, compute capability 9.0", .read_bandwidth = 4.3e12, .peak_flops = 8e14, \
    .boundary_s = 2e-6, .kind = MACHINE_CUDA, .sms = 132, .target = "sm_90a"

#endif
