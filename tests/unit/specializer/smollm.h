/* smollm.h - the shape that tests of spaces and costs share: SmolLM2-135M in Q4_1, as the members
 * of a struct facts that follow from the model. */
#ifndef WHET_TESTS_SMOLLM_H
#define WHET_TESTS_SMOLLM_H

#define SMOLLM_SHAPE                                                                       \
    .HIDDEN = 576, .HEADS = 9, .KV_HEADS = 3, .HEAD_DIM = 64, .FFN = 1536, .VOCAB = 49152, \
    .WTYPE = DTYPE_Q4_1, .WTYPE_2 = DTYPE_Q4_1, .WTYPE_3 = DTYPE_Q4_1

#endif
