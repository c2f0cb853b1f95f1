/* shapes.h - the models that tests of spaces and costs share, as the members of a struct facts that
 * follow from the model: SmolLM2-135M in Q4_1, and for a GPU Qwen3-1.7B and Llama-3.2-1B. */
#ifndef WHET_TESTS_SHAPES_H
#define WHET_TESTS_SHAPES_H

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

#endif
