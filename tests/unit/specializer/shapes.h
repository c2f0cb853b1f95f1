/* SPDX-License-Identifier: Apache-2.0 */
/* shapes.h - what tests of spaces and costs share: models as the members of a struct facts that
 * follow from them (SmolLM2-135M in Q4_1, and for a GPU Qwen3-1.7B and Llama-3.2-1B), and an H200
 * as members of a struct machine. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_SHAPES_H
#define WHET_TESTS_UNIT_SPECIALIZER_SHAPES_H

#define ALL_OF_TYPE(type) .WTYPE = (type), .WTYPE_2 = (type), .WTYPE_3 = (type)

#define SMOLLM_SHAPE                                                                       \
    .HIDDEN = 576, .HEADS = 9, .KV_HEADS = 3, .HEAD_DIM = 64, .FFN = 1536, .VOCAB = 49152, \
    ALL_OF_TYPE(DTYPE_Q4_1)

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
