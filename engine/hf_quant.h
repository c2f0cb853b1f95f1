/* SPDX-License-Identifier: Apache-2.0 */
/* hf_quant.h - quantized checkpoints of Hugging Face: what config.json says of them, and their
 * matrices in formats that whet computes on.
 *
 * Read are FP8 (e4m3) with scales a tensor, a row or a block, and four-bit integers as AWQ, GPTQ
 * and compressed-tensors pack them. Activations stay floats whatever a checkpoint says of them;
 * that it is made for others is passed on (model.h).
 *
 *   FP8                                    F8: 32 codes under their scale, nothing rounded
 *   four bits, zero point 8 throughout     Q4_0, nothing rounded
 *   four bits, other zero points           Q8_0 of (code - zero point), nothing rounded
 *   four bits that neither can hold        numbers of the scales' own format, each product rounded
 *                                          once, as the libraries' dequantization does: groups in
 *                                          another order than columns, groups of no whole blocks,
 *                                          scales that are no halves
 */
#ifndef WHET_ENGINE_HF_QUANT_H
#define WHET_ENGINE_HF_QUANT_H

#include <cjson/cJSON.h>

#include "engine/model.h"
#include "engine/weights.h"

enum hf_method { HF_FP8, HF_AWQ, HF_GPTQ, HF_PACKED };

struct hf_quant {
    enum hf_method method;
    int32_t block_rows, block_cols; /* of FP8 scales that are a table */
    int32_t group;                  /* columns that share a scale; 0: all of a row */
    int32_t zero_offset;            /* what is added to a stored zero point */
    bool zeros;                     /* zero points are stored */
    bool fp8_activations; /* made for activations in FP8 whose scales are found on the way */
};

/* Reads "quantization_config" (`object`) of config.json (`file`, for messages). -1 with a message
 * if it asks for what is not read. */
int hf_quant_read(const cJSON *object, const char *file, struct hf_quant *q, struct err *err);

/* Whether the matrix `name` ("....weight") is stored quantized. */
bool hf_quant_stores(const struct weights *w, const char *name);

/* Whether a tensor that nobody took says nothing that whet needs: scales of activations and of KV
 * caches, biases of zeros. */
bool hf_quant_ignores(const struct tensor *t);

/* The matrix `name` [rows, cols] in memory of the model; marks the tensors it is made of as used.
 * -1 with a message naming `file` and the tensor at fault. */
int hf_quant_take(const struct hf_quant *q, struct model *m, const struct weights *w,
                  const char *name, int32_t rows, int32_t cols, const char *file,
                  struct weight *out, struct err *err);

/* Copies the matrices that still lie in the files and closes these: their quantized parts would
 * stay in memory beside what was made of them. -1 with a message if a file has changed. */
int hf_quant_leave_files(struct model *m, struct err *err);

#endif
