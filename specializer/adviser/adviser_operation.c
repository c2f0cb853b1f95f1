/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_operation.c - what a region computes, for those who are asked about it: the formula, and
 * every tensor with its shape and type. The tables follow kernels/args.h. */
#include <stdio.h>

#include "engine/quant.h"
#include "specializer/adviser/adviser_request.h"

enum dim { NO_DIM, M, HIDDEN, QUERY, KEY, FFN, VOCAB, PAGES, PAGE, KV_HEADS, HEAD_DIM };
enum type { F32, I32, WEIGHT, WEIGHT_2, WEIGHT_3, CACHE };
/* Tensors that not every model has. */
enum need { ALWAYS, WITH_BIAS, WITH_QK_NORM };

/* The tensors of each region, as kernels/args.h has them. */
static const struct tensor_row {
    enum region region;
    const char *name, *role;
    enum dim dim[4];
    enum type type;
    enum need need;
} tensors[] = {
    {REGION_EMBED, "tokens", "in", {M}, I32},
    {REGION_EMBED, "table", "weight", {VOCAB, HIDDEN}, WEIGHT},
    {REGION_EMBED, "x", "out", {M, HIDDEN}, F32},
    {REGION_ATTN_IN, "x", "in", {M, HIDDEN}, F32},
    {REGION_ATTN_IN, "norm", "weight", {HIDDEN}, F32},
    {REGION_ATTN_IN, "wq", "weight", {QUERY, HIDDEN}, WEIGHT},
    {REGION_ATTN_IN, "wk", "weight", {KEY, HIDDEN}, WEIGHT_2},
    {REGION_ATTN_IN, "wv", "weight", {KEY, HIDDEN}, WEIGHT_3},
    {REGION_ATTN_IN, "q_bias", "weight", {QUERY}, F32, WITH_BIAS},
    {REGION_ATTN_IN, "k_bias", "weight", {KEY}, F32, WITH_BIAS},
    {REGION_ATTN_IN, "v_bias", "weight", {KEY}, F32, WITH_BIAS},
    {REGION_ATTN_IN, "q_norm", "weight", {HEAD_DIM}, F32, WITH_QK_NORM},
    {REGION_ATTN_IN, "k_norm", "weight", {HEAD_DIM}, F32, WITH_QK_NORM},
    {REGION_ATTN_IN, "q", "out", {M, QUERY}, F32},
    {REGION_ATTN_IN, "k_pages", "out", {PAGES, KV_HEADS, PAGE, HEAD_DIM}, CACHE},
    {REGION_ATTN_IN, "v_pages", "out", {PAGES, KV_HEADS, PAGE, HEAD_DIM}, CACHE},
    {REGION_ATTN, "q", "in", {M, QUERY}, F32},
    {REGION_ATTN, "k_pages", "in", {PAGES, KV_HEADS, PAGE, HEAD_DIM}, CACHE},
    {REGION_ATTN, "v_pages", "in", {PAGES, KV_HEADS, PAGE, HEAD_DIM}, CACHE},
    {REGION_ATTN, "a", "out", {M, QUERY}, F32},
    {REGION_ATTN_OUT, "a", "in", {M, QUERY}, F32},
    {REGION_ATTN_OUT, "x", "in", {M, HIDDEN}, F32},
    {REGION_ATTN_OUT, "w", "weight", {HIDDEN, QUERY}, WEIGHT},
    {REGION_ATTN_OUT, "y", "out", {M, HIDDEN}, F32},
    {REGION_MLP_IN, "x", "in", {M, HIDDEN}, F32},
    {REGION_MLP_IN, "norm", "weight", {HIDDEN}, F32},
    {REGION_MLP_IN, "gate", "weight", {FFN, HIDDEN}, WEIGHT},
    {REGION_MLP_IN, "up", "weight", {FFN, HIDDEN}, WEIGHT_2},
    {REGION_MLP_IN, "h", "out", {M, FFN}, F32},
    {REGION_MLP_OUT, "h", "in", {M, FFN}, F32},
    {REGION_MLP_OUT, "x", "in", {M, HIDDEN}, F32},
    {REGION_MLP_OUT, "w", "weight", {HIDDEN, FFN}, WEIGHT},
    {REGION_MLP_OUT, "y", "out", {M, HIDDEN}, F32},
    {REGION_MLP, "x", "in", {M, HIDDEN}, F32},
    {REGION_MLP, "norm", "weight", {HIDDEN}, F32},
    {REGION_MLP, "gate", "weight", {FFN, HIDDEN}, WEIGHT},
    {REGION_MLP, "up", "weight", {FFN, HIDDEN}, WEIGHT_2},
    {REGION_MLP, "down", "weight", {HIDDEN, FFN}, WEIGHT_3},
    {REGION_MLP, "y", "out", {M, HIDDEN}, F32},
    {REGION_REDUCE, "x", "in", {M, HIDDEN}, F32},
    {REGION_REDUCE, "residual", "in", {M, HIDDEN}, F32},
    {REGION_REDUCE, "out", "out", {M, HIDDEN}, F32},
    {REGION_HEAD, "x", "in", {M, HIDDEN}, F32},
    {REGION_HEAD, "norm", "weight", {HIDDEN}, F32},
    {REGION_HEAD, "w", "weight", {VOCAB, HIDDEN}, WEIGHT},
    {REGION_HEAD, "logits", "out", {M, VOCAB}, F32},
};

/* The maths of each region but attn_in, whose depends on the model. */
static const char *const operations[REGION_NODES] = {
    [REGION_EMBED] = "x = table[tokens]",
    [REGION_ATTN] = "a = softmax(q k^T / sqrt(head_dim), causal) v, grouped queries, paged cache",
    [REGION_ATTN_OUT] = "y = a w^T + x",
    [REGION_MLP_IN] = "n = rmsnorm(x) * norm; h = silu(n gate^T) * (n up^T)",
    [REGION_MLP_OUT] = "y = h w^T + x",
    [REGION_MLP] = "n = rmsnorm(x) * norm; h = silu(n gate^T) * (n up^T); y = h down^T + x",
    [REGION_REDUCE] = "out = sum of all ranks' x, in their order, + residual",
    [REGION_HEAD] = "logits = (rmsnorm(x) * norm) w^T",
};

static int32_t dim_size(const struct facts *f, enum dim d)
{
    const int32_t size[] = {[HIDDEN] = f->HIDDEN,
                            [QUERY] = f->HEADS * f->HEAD_DIM,
                            [KEY] = f->KV_HEADS * f->HEAD_DIM,
                            [FFN] = f->FFN,
                            [VOCAB] = f->VOCAB,
                            [PAGE] = KV_PAGE,
                            [KV_HEADS] = f->KV_HEADS,
                            [HEAD_DIM] = f->HEAD_DIM};
    return size[d];
}

static void put_dim(cJSON *shape, const struct facts *f, enum dim d)
{
    if (d == M || d == PAGES)
        cJSON_AddItemToArray(shape, cJSON_CreateString(d == M ? "m" : "pages"));
    else
        cJSON_AddItemToArray(shape, cJSON_CreateNumber(dim_size(f, d)));
}

static const char *type_text(const struct facts *f, enum type type)
{
    int32_t t = type == WEIGHT ? f->WTYPE : type == WEIGHT_2 ? f->WTYPE_2 : f->WTYPE_3;
    const bool device = target_of(facts_kind(f))->device_weights;
    if (type == F32 || type == I32)
        return type == F32 ? "F32" : "I32";
    if (type == CACHE)
        return device || f->KV_BF16 ? "BF16" : "F32";
    return t >= 0 && t < DTYPE_COUNT ? dtype_name((enum dtype)t) : "mixed";
}

/* What a knob that counts bytes of a row has to be held against. */
static void put_row_bytes(cJSON *o, const struct facts *f, const struct tensor_row *t)
{
    int32_t type = t->type == WEIGHT     ? f->WTYPE
                   : t->type == WEIGHT_2 ? f->WTYPE_2
                   : t->type == WEIGHT_3 ? f->WTYPE_3
                                         : -1;
    if (type >= 0 && type < DTYPE_COUNT)
        cJSON_AddNumberToObject(o, "row_bytes",
                                (double)dtype_bytes((enum dtype)type, dim_size(f, t->dim[1])));
}

static bool has(const struct facts *f, enum need need)
{
    return need == ALWAYS || (need == WITH_BIAS ? f->HAS_BIAS : f->HAS_QK_NORM);
}

static void put_formula(const struct facts *f, cJSON *region)
{
    char text[240];
    snprintf(text, sizeof text,
             "n = rmsnorm(x) * norm; q, k, v = n wq^T, n wk^T, n wv^T; %s%sRoPE(q, k); append k, v",
             has(f, WITH_BIAS) ? "q, k, v += biases; " : "",
             has(f, WITH_QK_NORM) ? "q, k = rmsnorm(each head) * q_norm, k_norm; " : "");
    const bool attn_in = f->REGION == REGION_ATTN_IN;
    cJSON_AddStringToObject(region, "operation", attn_in ? text : operations[f->REGION]);
}

void adviser_put_operation(const struct facts *f, cJSON *region)
{
    if (f->REGION < 0 || f->REGION >= REGION_NODES)
        return;
    put_formula(f, region);
    cJSON *list = cJSON_AddArrayToObject(region, "tensors");
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const struct tensor_row *t = &tensors[i];
        if ((int32_t)t->region != f->REGION || !has(f, t->need))
            continue;
        cJSON *o = cJSON_CreateObject();
        cJSON_AddItemToArray(list, o);
        cJSON_AddStringToObject(o, "name", t->name);
        cJSON_AddStringToObject(o, "role", t->role);
        cJSON *shape = cJSON_AddArrayToObject(o, "shape");
        for (int d = 0; d < 4 && t->dim[d] != NO_DIM; d++)
            put_dim(shape, f, t->dim[d]);
        cJSON_AddStringToObject(o, "dtype", type_text(f, t->type));
        put_row_bytes(o, f, t);
    }
    cJSON_AddStringToObject(region, "layout",
                            target_of(facts_kind(f))->device_weights
                                ? "row-major; weights are [out, in]"
                                : "row-major; weights are [out, in]; block formats as in "
                                  "GGUF; a panel is 16 rows and as many bytes as they");
    cJSON_AddStringToObject(region, "aliasing", "outputs never alias inputs; inputs are read-only");
}
