/* SPDX-License-Identifier: Apache-2.0 */
/* model_part.c - what one rank has of a model, read out of the whole model's files.
 *
 * The file is opened as ever, which checks every tensor and touches next to none of their bytes.
 * Then the rank's rows and columns are read into one block of memory, and the mappings go: a column
 * cut is not contiguous in a file, so its rows must be moved together anyway, and what lies in
 * memory of the process can neither be cut off under it nor drag its neighbours' pages in. All
 * ranks of a host do this at the same time, each for its own part; what they share (the embedding)
 * comes out of the page cache for all but the first.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/err.h"
#include "engine/model_load.h"
#include "engine/numa.h"
#include "engine/quant.h"
#include "kernels/bricks.h"

enum { MATRIX_ALIGN = 256 };

struct taking {
    struct model *m;
    struct model_shape whole;
    struct shard cut;
    uint8_t *at; /* where the next matrix goes */
    int64_t read, total;
    model_progress_fn *progress;
    void *ctx;
    struct err *err;
};

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* n bytes at `from`, which is memory of this process or lies in a mapped file. */
static int fetch(struct taking *k, const struct filemap *map, const uint8_t *from, int64_t n,
                 uint8_t *to)
{
    k->read += n;
    if (map)
        return filemap_read(map, (size_t)(from - map->data), to, (size_t)n, k->err);
    memcpy(to, from, (size_t)n);
    return 0;
}

/* Whole rows are one stretch of the file; pieces of rows are fetched one by one. */
static int take_matrix(struct taking *k, enum shard_tensor t, struct weight *w)
{
    struct shard_part p = shard_part(&k->cut, &k->whole, t);
    enum dtype type = (enum dtype)w->type;
    int64_t row = dtype_bytes(type, w->cols), own = dtype_bytes(type, p.cols.count);
    if (type == DTYPE_F8 && own < row && p.cols.count % BRICK_SCALED)
        k->m->fine_scales = true; /* scales begin elsewhere than in the whole row */
    const uint8_t *from =
        (const uint8_t *)w->data + p.rows.from * row + dtype_bytes(type, p.cols.from);
    const struct filemap *map = model_map_of(k->m, w->data);
    int32_t pieces = own == row ? 1 : p.rows.count;
    int64_t piece = own == row ? p.rows.count * row : own;
    for (int32_t i = 0; i < pieces; i++)
        if (fetch(k, map, from + i * row, piece, k->at + i * piece))
            return -1;
    if (!map)
        model_disown(k->m, w->data);
    w->data = k->at;
    w->rows = p.rows.count;
    w->cols = p.cols.count;
    k->at += round_up(pieces * piece, MATRIX_ALIGN);
    if (k->progress)
        k->progress(k->ctx, (double)k->read / (double)k->total);
    return 0;
}

/* A tied head is rows of the embedding, which the rank has whole. */
static int take_ends(struct taking *k)
{
    struct model *m = k->m;
    bool tied = m->head.data == m->embed.data;
    if (take_matrix(k, SHARD_EMBED, &m->embed))
        return -1;
    if (!tied)
        return take_matrix(k, SHARD_HEAD, &m->head);
    struct shard_range rows = shard_part(&k->cut, &k->whole, SHARD_HEAD).rows;
    int64_t row = dtype_bytes((enum dtype)m->embed.type, m->embed.cols);
    m->head = m->embed;
    m->head.data = (const uint8_t *)m->embed.data + rows.from * row;
    m->head.rows = rows.count;
    return 0;
}

/* A bias goes with the rows of its matrix. */
static void cut_bias(const struct taking *k, enum shard_tensor t, const float **bias)
{
    if (*bias)
        *bias += shard_part(&k->cut, &k->whole, t).rows.from;
}

static int take_layer(struct taking *k, struct layer *l)
{
    cut_bias(k, SHARD_WQ, &l->bq);
    cut_bias(k, SHARD_WK, &l->bk);
    cut_bias(k, SHARD_WV, &l->bv);
    return take_matrix(k, SHARD_WQ, &l->wq) || take_matrix(k, SHARD_WK, &l->wk) ||
                   take_matrix(k, SHARD_WV, &l->wv) || take_matrix(k, SHARD_WO, &l->wo) ||
                   take_matrix(k, SHARD_GATE, &l->gate) || take_matrix(k, SHARD_UP, &l->up) ||
                   take_matrix(k, SHARD_DOWN, &l->down)
               ? -1
               : 0;
}

/* One block for all matrices: huge pages need stretches of their size. */
static uint8_t *take_room(struct taking *k)
{
    int64_t matrices = 2 + 7LL * k->whole.layers;
    int64_t bytes = round_up(k->total + matrices * MATRIX_ALIGN, HUGE_PAGE);
    uint8_t *room = aligned_alloc(HUGE_PAGE, (size_t)bytes);
    if (room)
        madvise(room, (size_t)bytes, MADV_HUGEPAGE); /* a wish */
    if (room)
        numa_spread(room, (size_t)bytes);
    return room;
}

int model_take_part(struct model *m, int32_t world, int32_t rank, model_progress_fn *progress,
                    void *ctx, int64_t *read, struct err *err)
{
    struct taking k = {.m = m, .whole = m->shape, .progress = progress, .ctx = ctx, .err = err};
    if (m->shard.world > 1)
        return err_set(err, "%s: is one rank's part of a model, which cannot be cut again",
                       m->name);
    if (shard_plan(&m->shape, world, rank, &k.cut, err) || shard_check_blocks(&k.cut, m, err))
        return err_prefix(err, "%s", m->name);
    k.total = shard_bytes(&k.cut, m);
    if (!(k.at = take_room(&k)))
        return err_set(err, "%s: no memory for the %lld MiB of rank %d", m->name,
                       (long long)(k.total >> 20), rank);
    model_own(m, k.at);
    if (take_ends(&k))
        return -1;
    for (int32_t i = 0; i < m->shape.layers; i++)
        if (take_layer(&k, &m->layer[i]))
            return -1;
    if (model_check_files(m, err))
        return -1;
    model_disown_maps(m);
    m->shape = shard_shape(&k.cut, &k.whole);
    m->shard = k.cut;
    m->weight_bytes = k.read;
    if (read)
        *read = k.read;
    return 0;
}

/* All lie in one block, which begins with the embedding; vectors have memory of their own. */
void model_drop_matrices(struct model *m)
{
    if (m->shard.world < 2)
        return;
    model_disown(m, m->embed.data);
    m->embed.data = m->head.data = NULL;
    for (int32_t i = 0; i < m->shape.layers; i++) {
        struct layer *l = &m->layer[i];
        struct weight *w[] = {&l->wq, &l->wk, &l->wv, &l->wo, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++)
            w[k]->data = NULL;
    }
}

struct model *model_open_part(const char *path, int32_t world, int32_t rank, bool with_tokenizer,
                              model_progress_fn *progress, void *ctx, int64_t *read,
                              struct err *err)
{
    struct model *m = model_open(path, with_tokenizer, world == 1 ? progress : NULL, ctx, err);
    if (!m || world == 1) {
        if (m && read)
            *read = m->weight_bytes;
        return m;
    }
    if (model_take_part(m, world, rank, progress, ctx, read, err) == 0)
        return m;
    model_close(m);
    return NULL;
}
