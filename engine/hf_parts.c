/* SPDX-License-Identifier: Apache-2.0 */
/* hf_parts.c - the tensors that a matrix of a quantized checkpoint is made of.
 *
 * For X.weight of [out, in] a file has (words: eight codes of four bits in an I32):
 *
 *   FP8     X.weight              F8_E4M3 [out, in]
 *           X.weight_scale        or weight_scale_inv: one, [out] or [out, 1], one a block
 *   AWQ     X.qweight, X.qzeros   words [in, out / 8], [groups, out / 8], whose nibbles
 *                                 are of outputs 0, 2, 4, 6, 1, 3, 5, 7
 *           X.scales              [groups, out]
 *   GPTQ    X.qweight             words [in / 8, out]: nibble i of word j is input 8 j + i
 *           X.qzeros              words [groups, out / 8]; less one in the first version,
 *                                 where 15 stands for 16
 *           X.scales, X.g_idx     [groups, out], I32 [in]: the group of each input
 *   packed  X.weight_packed       words [out, in / 8]
 *           X.weight_scale        [out, groups]
 *           X.weight_zero_point   if not symmetric: words [out / 8, groups]
 *           X.weight_shape, X.weight_g_idx
 *
 * Every tensor's shape is compared with what [out, in] and the group size make of it before it is
 * read, and memory is only taken for matrices whose codes are all there.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/filemap.h"
#include "engine/hf_unpack.h"
#include "engine/memory.h"
#include "engine/model_load.h"
#include "engine/quant.h"
#include "kernels/bricks.h"

enum { BLOCK = DTYPE_BLOCK(DTYPE_Q8_0), NAME_MOST = 160 };

/* ---- finding it ------------------------------------------------------------------------------ */

struct finder {
    struct model *m;
    const struct weights *w;
    const char *file;
    char base[NAME_MOST]; /* X */
    struct err *err;
};

static struct tensor *part(const struct finder *f, const char *suffix)
{
    char name[2 * NAME_MOST];
    snprintf(name, sizeof name, "%s.%s", f->base, suffix);
    struct tensor *t = weights_find(f->w, name);
    if (t)
        t->used = true;
    return t;
}

/* The tensor X.suffix, which must be [rows, cols] of that element. NULL with a message. */
static const struct tensor *need(const struct finder *f, const char *suffix, enum element element,
                                 int64_t rows, int64_t cols)
{
    const struct tensor *t = part(f, suffix);
    if (!t) {
        err_set(f->err, "%s: tensor '%s.%s' is missing", f->file, f->base, suffix);
        return NULL;
    }
    if (t->element != element || t->dims != 2 || t->dim[0] != rows || t->dim[1] != cols) {
        err_set(f->err,
                "%s: tensor '%s': %s of %d dimensions [%lld, %lld]; expected %s [%lld, %lld]",
                f->file, t->name, tensor_element_name(t), t->dims, (long long)t->dim[0],
                (long long)(t->dims > 1 ? t->dim[1] : 1), element_name(element), (long long)rows,
                (long long)cols);
        return NULL;
    }
    return t;
}

/* The numbers of a tensor of scales, in memory that the caller frees. NULL with a message. */
static float *scales_of(const struct finder *f, const struct tensor *t)
{
    if (!t)
        return NULL;
    int64_t n = t->bytes / dtype_block_bytes(t->type);
    float *scale = xmalloc((size_t)n * sizeof *scale);
    dequant_row(t->type, t->data, scale, n);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(scale[i])) {
            err_set(f->err, "%s: tensor '%s': scale %lld is no finite number", f->file, t->name,
                    (long long)i);
            free(scale);
            return NULL;
        }
    return scale;
}

/* The group of each column, if it is not the usual one; -1 with a message. */
static int find_index(const struct finder *f, const char *suffix, struct source *s)
{
    const struct tensor *t = part(f, suffix);
    bool usual = true;
    if (!t)
        return 0;
    if (t->element != ELEMENT_I32 || t->dims != 1 || t->dim[0] != s->cols)
        return err_set(f->err, "%s: tensor '%s': expected I32 [%d]", f->file, t->name, s->cols);
    const int32_t *index = t->data;
    for (int32_t i = 0; i < s->cols; i++) {
        if (index[i] < 0 || index[i] >= s->groups)
            return err_set(f->err, "%s: tensor '%s': column %d is in group %d of %d", f->file,
                           t->name, i, index[i], s->groups);
        usual = usual && index[i] == i / s->group;
    }
    s->index = usual ? NULL : index;
    return 0;
}

static int find_words(const struct finder *f, const char *suffix, int64_t rows, int64_t cols,
                      const uint32_t **out)
{
    const struct tensor *t = need(f, suffix, ELEMENT_I32, rows, cols);
    *out = t ? t->data : NULL;
    return t ? 0 : -1;
}

static int find_scales(const struct finder *f, const char *suffix, int64_t rows, int64_t cols,
                       struct source *s)
{
    const struct tensor *t = need(f, suffix, ELEMENT_WEIGHT, rows, cols);
    if (t && dtype_block(t->type) != 1)
        return err_set(f->err, "%s: tensor '%s': scales in blocks", f->file, t->name);
    s->scale = scales_of(f, t);
    s->scale_type = t ? t->type : DTYPE_F32;
    return s->scale ? 0 : -1;
}

static int find_four_bits(const struct finder *f, const struct hf_quant *q, struct source *s)
{
    int64_t rows = s->rows, cols = s->cols, groups, words = (cols + 7) / 8;
    s->zero_offset = q->zero_offset;
    s->group = q->group ? q->group : s->cols;
    s->groups = (s->cols + s->group - 1) / s->group;
    groups = s->groups;
    if (s->method == HF_PACKED) {
        part(f, "weight_shape");
        if (find_words(f, "weight_packed", rows, words, &s->code) < 0 ||
            (q->zeros &&
             find_words(f, "weight_zero_point", (rows + 7) / 8, groups, &s->zero) < 0) ||
            find_scales(f, "weight_scale", rows, groups, s) < 0)
            return -1;
        return find_index(f, "weight_g_idx", s);
    }
    if (rows % 8 || cols % 8)
        return err_set(f->err, "%s: '%s' [%lld, %lld] is no whole number of words of eight codes",
                       f->file, f->base, (long long)rows, (long long)cols);
    bool awq = s->method == HF_AWQ;
    if (find_words(f, "qweight", awq ? cols : words, awq ? rows / 8 : rows, &s->code) < 0 ||
        find_words(f, "qzeros", groups, rows / 8, &s->zero) < 0 ||
        find_scales(f, "scales", groups, rows, s) < 0)
        return -1;
    return awq ? 0 : find_index(f, "g_idx", s);
}

/* One scale, one a row, or one a block of the config's size. */
static int find_fp8(const struct finder *f, const struct hf_quant *q, struct source *s)
{
    const struct tensor *t = need(f, "weight", ELEMENT_F8_E4M3, s->rows, s->cols);
    if (!t)
        return -1;
    s->byte = t->data;
    t = part(f, "weight_scale_inv");
    t = t ? t : part(f, "weight_scale");
    if (!t)
        return err_set(f->err, "%s: tensor '%s.weight_scale' or '_scale_inv' is missing", f->file,
                       f->base);
    int64_t height = t->dim[0], width = t->dims > 1 ? t->dim[1] : 1;
    int64_t down = (s->rows + q->block_rows - 1) / q->block_rows;
    int64_t across = (s->cols + q->block_cols - 1) / q->block_cols;
    s->block_rows = s->rows, s->block_cols = s->cols;
    if (t->dims == 2 && height == down && width == across)
        s->block_rows = q->block_rows, s->block_cols = q->block_cols;
    else if (width == 1 && height == s->rows)
        s->block_rows = 1;
    else if (height != 1 || width != 1)
        height = -1;
    if (t->element != ELEMENT_WEIGHT || dtype_block(t->type) != 1 || t->dims > 2 || height < 0)
        return err_set(f->err,
                       "%s: tensor '%s': neither one scale nor %d nor one a block of %d x %d",
                       f->file, t->name, s->rows, q->block_rows, q->block_cols);
    if (s->cols % BLOCK || (s->block_cols < s->cols && s->block_cols % BLOCK))
        return err_set(f->err,
                       "%s: tensor '%s.weight': rows of %d values with scales for %d are no whole "
                       "blocks of %d",
                       f->file, f->base, s->cols, s->block_cols, BLOCK);
    s->groups = (s->cols + s->block_cols - 1) / s->block_cols;
    s->scale = scales_of(f, t);
    return s->scale ? 0 : -1;
}

/* Memory of the model for `n` bytes of weights. */
static void *take_room(struct model *m, int64_t n)
{
    return model_own(m, memory_shared((size_t)n));
}

/* ---- the module ------------------------------------------------------------------------------ */

/* X of "X.weight"; false if the name does not end so or is too long. */
static bool base_of(const char *name, char base[NAME_MOST])
{
    static const char end[] = ".weight";
    size_t n = strlen(name), tail = sizeof end - 1;
    if (n <= tail || n - tail >= NAME_MOST || strcmp(name + n - tail, end) != 0)
        return false;
    memcpy(base, name, n - tail);
    base[n - tail] = 0;
    return true;
}

bool hf_quant_stores(const struct weights *w, const char *name)
{
    static const char *const codes[] = {"qweight", "weight_packed"};
    const struct tensor *t = weights_find(w, name);
    char base[NAME_MOST], other[2 * NAME_MOST];
    if (t)
        return t->element == ELEMENT_F8_E4M3;
    for (int i = 0; i < 2 && base_of(name, base); i++) {
        snprintf(other, sizeof other, "%s.%s", base, codes[i]);
        if (weights_find(w, other))
            return true;
    }
    return false;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), tail = strlen(end);
    return n > tail && strcmp(name + n - tail, end) == 0;
}

bool hf_quant_ignores(const struct tensor *t)
{
    static const char *const end[] = {".input_scale", ".output_scale", ".q_scale",
                                      ".k_scale",     ".v_scale",      ".activation_scale"};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (ends_in(t->name, end[i]))
            return true;
    return tensor_is_zero_bias(t);
}

int hf_quant_take(const struct hf_quant *q, struct model *m, const struct weights *w,
                  const char *name, int32_t rows, int32_t cols, const char *file,
                  struct weight *out, struct err *err)
{
    struct finder f = {.m = m, .w = w, .file = file, .err = err};
    struct source s = {.method = q->method, .rows = rows, .cols = cols};
    int rc = -1;

    if (!base_of(name, f.base))
        return err_set(err, "%s: tensor '%s' is missing", file, name);
    if ((s.method == HF_FP8 ? find_fp8(&f, q, &s) : find_four_bits(&f, q, &s)) == 0) {
        s.type = hf_unpack_type(&s);
        if (s.type == DTYPE_F8 && s.block_cols < cols && s.block_cols % BRICK_SCALED)
            m->fine_scales = true;
        void *data = take_room(m, dtype_bytes(s.type, (int64_t)rows * cols));
        *out = (struct weight){.data = data, .rows = rows, .cols = cols, .type = (int32_t)s.type};
        rc = hf_unpack(&s, data)
                 ? 0
                 : err_set(err, "%s: tensor '%s': a weight is no number", file, name);
    }
    free((void *)s.scale);
    return rc;
}

static void leave_file(struct model *m, struct weight *w)
{
    int64_t bytes = dtype_bytes((enum dtype)w->type, (int64_t)w->rows * w->cols);
    if (!model_map_of(m, w->data))
        return;
    void *copy = take_room(m, bytes);
    memcpy(copy, w->data, (size_t)bytes);
    w->data = copy;
}

int hf_quant_leave_files(struct model *m, struct err *err)
{
    bool tied = m->head.data == m->embed.data;
    leave_file(m, &m->embed);
    if (tied)
        m->head.data = m->embed.data;
    else
        leave_file(m, &m->head);
    for (int32_t i = 0; i < m->shape.layers; i++) {
        struct layer *l = &m->layer[i];
        struct weight *w[] = {&l->wq, &l->wk, &l->wv, &l->wo, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++)
            leave_file(m, w[k]);
    }
    if (model_check_files(m, err) < 0)
        return -1;
    model_disown_maps(m);
    return 0;
}
