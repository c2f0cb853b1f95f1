/* SPDX-License-Identifier: Apache-2.0 */
/* weights.c - the model's tensors to the device, in the order that kernels want.
 *
 * The model stays what it is, a mapped file in any format; the device gets bricks of the same bits
 * where the format is one that is kept (device_type() in engine/plan.h), else bf16 rows. A matrix
 * on the device may be made of several: q, k and v one after the other, gate and up row by row.
 * Rows of q and k are stored so that RoPE pairs are neighbours whatever the file's order: a product
 * of q and k does not change when both are permuted alike, so kernels know one order only.
 *
 * A few threads take stretches of rows, put them as they will lie into pinned memory of their own
 * and send them on a stream of their own; pages of the file come in meanwhile. Each thread has two
 * stretches, so converting and sending overlap.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/cores.h"
#include "config/err.h"
#include "config/log.h"
#include "engine/cuda/bricks.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/memory.h"
#include "engine/quant.h"
#include "kernels/bricks.h"

enum { STRETCH = 4 << 20, THREADS_MAX = 16 };

/* A matrix as the device holds it. */
struct image {
    const struct weight *source[3];
    enum { PLAIN, STACKED, ALTERNATING } kind;
    int32_t rows, cols;
    int32_t paired; /* rows of so many first sources that are in RoPE order: 0 or 2 */
    enum dtype type;
    char *to;
};

struct upload {
    struct backend *b;
    int images;
    struct image *image;
    pthread_mutex_t lock; /* next, failed, why */
    int at;               /* image */
    int32_t row;
    int64_t sent, t0;
    bool failed;
    struct err why;
};

/* ---- layout -------------------------------------------------------------------------------- */

static int64_t matrix_bytes(enum dtype t, int64_t rows, int64_t cols)
{
    int64_t kept = bricks_bytes(t, rows, cols);
    return ((kept ? kept : rows * cols * 2) + 255) / 256 * 256;
}

/* The matrix of a region in a layer, without its place. */
static struct image image_of(const struct model *m, enum region r, int32_t layer)
{
    const struct layer *l = &m->layer[layer];
    enum dtype t = device_type(m, r, layer, 1);
    switch (r) {
    case REGION_ATTN_IN:
        return (struct image){.source = {&l->wq, &l->wk, &l->wv},
                              .kind = STACKED,
                              .rows = l->wq.rows + l->wk.rows + l->wv.rows,
                              .cols = l->wq.cols,
                              .paired = 2,
                              .type = t};
    case REGION_MLP_IN:
        return (struct image){.source = {&l->gate, &l->up},
                              .kind = ALTERNATING,
                              .rows = 2 * l->gate.rows,
                              .cols = l->gate.cols,
                              .type = t};
    default:
        break;
    }
    const struct weight *w = r == REGION_ATTN_OUT  ? &l->wo
                             : r == REGION_MLP_OUT ? &l->down
                             : r == REGION_HEAD    ? &m->head
                                                   : &m->embed;
    return (struct image){.source = {w}, .rows = w->rows, .cols = w->cols, .type = t};
}

static const enum region in_layer[] = {REGION_ATTN_IN, REGION_ATTN_OUT, REGION_MLP_IN,
                                       REGION_MLP_OUT};
enum { IN_LAYER = sizeof in_layer / sizeof *in_layer };

/* Of the bf16 beside it. */
static int64_t copy_bytes(const struct model *m, enum region r, int32_t layer, int64_t rows,
                          int64_t cols)
{
    return device_copied(m, r, layer) ? matrix_bytes(DTYPE_BF16, rows, cols) : 0;
}

static int64_t region_bytes(const struct model *m, enum region r, int32_t layer, int64_t rows,
                            int64_t cols)
{
    return matrix_bytes(device_type(m, r, layer, 1), rows, cols) +
           copy_bytes(m, r, layer, rows, cols);
}

int64_t weights_bytes(const struct model *m)
{
    const struct model_shape *s = &m->shape;
    int64_t q = (int64_t)s->heads * s->head_dim, kv = (int64_t)s->kv_heads * s->head_dim;
    int64_t vectors = 4 * (2LL * s->hidden + q + 2 * kv + 2LL * s->head_dim) + 5 * 256;
    int64_t bytes = s->layers * vectors + 4LL * s->hidden + 256 +
                    region_bytes(m, REGION_EMBED, 0, s->vocab, s->hidden);
    bytes += s->tied_head ? copy_bytes(m, REGION_HEAD, 0, s->vocab, s->hidden)
                          : region_bytes(m, REGION_HEAD, 0, m->head.rows, s->hidden);
    for (int32_t l = 0; l < s->layers; l++)
        bytes += region_bytes(m, REGION_ATTN_IN, l, q + 2 * kv, s->hidden) +
                 region_bytes(m, REGION_ATTN_OUT, l, s->hidden, q) +
                 region_bytes(m, REGION_MLP_IN, l, 2LL * s->ffn, s->hidden) +
                 region_bytes(m, REGION_MLP_OUT, l, s->hidden, s->ffn);
    return bytes;
}

int64_t weights_expanded(const struct model *m)
{
    int64_t most = 0;
    for (int32_t l = 0; m->own_formats && l < m->shape.layers; l++)
        for (int i = 0; i <= IN_LAYER; i++) {
            enum region r = i < IN_LAYER ? in_layer[i] : REGION_HEAD;
            struct image at = image_of(m, r, l);
            int64_t bytes = 2LL * at.rows * at.cols;
            if (at.type != DTYPE_BF16 && !device_copied(m, r, l) && bytes > most)
                most = bytes;
        }
    return most;
}

/* Which row of the file's head is row `i` of the device's. */
static int32_t source_row(const struct model_shape *s, int32_t i)
{
    return s->rope_interleaved ? i : i % 2 * (s->head_dim / 2) + i / 2;
}

static const struct weight *find_row(const struct backend *b, const struct image *m, int32_t row,
                                     int32_t *at)
{
    const struct model_shape *s = &b->model->shape;
    int k = 0;
    if (m->kind == ALTERNATING) {
        *at = row / 2;
        return m->source[row % 2];
    }
    while (m->kind == STACKED && row >= m->source[k]->rows)
        row -= m->source[k++]->rows;
    bool paired = k < m->paired;
    *at = paired ? row / s->head_dim * s->head_dim + source_row(s, row % s->head_dim) : row;
    return m->source[k];
}

/* A place for the bf16 beside a matrix; what it holds is made there (bricks_copies()). */
static void *add_copy(struct upload *u, enum region r, int32_t layer)
{
    struct image m = image_of(u->b->model, r, layer);
    int64_t bytes = copy_bytes(u->b->model, r, layer, m.rows, m.cols);
    return bytes ? arena_take(&u->b->weights, bytes) : NULL;
}

static struct device_weight add(struct upload *u, enum region r, int32_t layer)
{
    struct image *m = &u->image[u->images++];
    *m = image_of(u->b->model, r, layer);
    m->to = arena_take(&u->b->weights, matrix_bytes(m->type, m->rows, m->cols));
    return (struct device_weight){m->to, m->type, add_copy(u, r, layer)};
}

static void add_layer(struct upload *u, int32_t layer, struct device_layer *d)
{
    d->wqkv = add(u, REGION_ATTN_IN, layer);
    d->wgu = add(u, REGION_MLP_IN, layer);
    d->wo = add(u, REGION_ATTN_OUT, layer);
    d->wdown = add(u, REGION_MLP_OUT, layer);
}

/* ---- vectors ------------------------------------------------------------------------------- */

/* `n` floats, in heads of `head_dim` with RoPE order if `paired`. */
static int send_vector(struct backend *b, float *to, const float *v, int32_t n, bool paired,
                       struct err *e)
{
    const struct model_shape *s = &b->model->shape;
    float *copy = xmalloc((size_t)n * sizeof *copy);
    for (int32_t i = 0; i < n; i++)
        copy[i] = paired ? v[i / s->head_dim * s->head_dim + source_row(s, i % s->head_dim)] : v[i];
    cudaError_t code = cudaMemcpy(to, copy, (size_t)n * sizeof *copy, cudaMemcpyHostToDevice);
    free(copy);
    CU(code);
    return 0;
}

static float *take_floats(struct backend *b, int32_t n)
{
    return arena_take(&b->weights, n * 4LL);
}

static int send_bias(struct backend *b, const struct layer *l, struct device_layer *d,
                     struct err *e)
{
    int32_t q = l->wq.rows, kv = l->wk.rows;
    if (!l->bq)
        return 0;
    d->bias = take_floats(b, q + 2 * kv);
    return send_vector(b, d->bias, l->bq, q, true, e) ||
           send_vector(b, d->bias + q, l->bk, kv, true, e) ||
           send_vector(b, d->bias + q + kv, l->bv, kv, false, e);
}

static int send_vectors(struct backend *b, struct err *e)
{
    const struct model *m = b->model;
    int32_t hidden = m->shape.hidden, hd = m->shape.head_dim;
    b->on.final_norm = take_floats(b, hidden);
    if (send_vector(b, b->on.final_norm, m->final_norm, hidden, false, e))
        return -1;
    for (int32_t i = 0; i < m->shape.layers; i++) {
        const struct layer *l = &m->layer[i];
        struct device_layer *d = &b->on.layer[i];
        d->attn_norm = take_floats(b, hidden);
        d->mlp_norm = take_floats(b, hidden);
        d->q_norm = l->q_norm ? take_floats(b, hd) : NULL;
        d->k_norm = l->k_norm ? take_floats(b, hd) : NULL;
        if (send_vector(b, d->attn_norm, l->attn_norm, hidden, false, e) ||
            send_vector(b, d->mlp_norm, l->mlp_norm, hidden, false, e) ||
            (l->q_norm && send_vector(b, d->q_norm, l->q_norm, hd, true, e)) ||
            (l->k_norm && send_vector(b, d->k_norm, l->k_norm, hd, true, e)) ||
            send_bias(b, l, d, e))
            return -1;
    }
    return 0;
}

/* ---- matrices ------------------------------------------------------------------------------ */

/* Rows that lie together, and their bytes: a row of bricks, or one row. */
static int32_t together(const struct image *m)
{
    return m->type == DTYPE_BF16 ? 1 : BRICK_ROWS;
}

static int64_t together_bytes(const struct image *m)
{
    return m->type == DTYPE_BF16 ? 2LL * m->cols : bricks_bytes(m->type, BRICK_ROWS, m->cols);
}

/* Bytes of rows [0, row) on the device; of all when row is their number. */
static int64_t bytes_before(const struct image *m, int32_t row)
{
    return (row + together(m) - 1) / together(m) * together_bytes(m);
}

static void put_bricks(const struct backend *b, const struct image *m, int32_t row, int32_t rows,
                       char *to)
{
    memset(to, 0, (size_t)bytes_before(m, rows));
    for (int32_t r = 0; r < rows; r++) {
        int32_t at;
        const struct weight *w = find_row(b, m, row + r, &at);
        bricks_put_row(m->type, (const char *)w->data + at * dtype_bytes(m->type, w->cols), w->cols,
                       r % BRICK_ROWS, to + r / BRICK_ROWS * together_bytes(m));
    }
}

static void convert(const struct backend *b, const struct image *m, int32_t row, int32_t rows,
                    uint16_t *to, float *scratch)
{
    if (m->type != DTYPE_BF16) {
        put_bricks(b, m, row, rows, (char *)to);
        return;
    }
    for (int32_t r = 0; r < rows; r++, to += m->cols) {
        int32_t at;
        const struct weight *w = find_row(b, m, row + r, &at);
        enum dtype t = (enum dtype)w->type;
        const char *from = (const char *)w->data + at * dtype_bytes(t, w->cols);
        if (t == DTYPE_BF16) {
            memcpy(to, from, (size_t)m->cols * 2);
            continue;
        }
        dequant_row(t, from, scratch, m->cols);
        for (int32_t i = 0; i < m->cols; i++)
            to[i] = f32_to_bf16(scratch[i]);
    }
}

/* The next stretch of rows; false when there is none or something failed. */
static bool next(struct upload *u, struct image **m, int32_t *row, int32_t *rows)
{
    pthread_mutex_lock(&u->lock);
    if (u->at < u->images && u->row == u->image[u->at].rows) {
        u->at++;
        u->row = 0;
    }
    bool some = !u->failed && u->at < u->images;
    if (some) {
        *m = &u->image[u->at];
        *row = u->row;
        int64_t fit = STRETCH / together_bytes(*m);
        *rows = (int32_t)(fit > 0 ? fit : 1) * together(*m);
        if (*rows > (*m)->rows - *row)
            *rows = (*m)->rows - *row;
        u->row += *rows;
        u->sent += bytes_before(*m, *rows);
    }
    pthread_mutex_unlock(&u->lock);
    return some;
}

static int send_all(struct upload *u, cudaStream_t stream, char *buffer[2], cudaEvent_t free_at[2],
                    float *scratch, struct err *e)
{
    struct image *m;
    int32_t row, rows;
    for (int half = 0; next(u, &m, &row, &rows); half ^= 1) {
        CU(cudaEventSynchronize(free_at[half]));
        convert(u->b, m, row, rows, (uint16_t *)(void *)buffer[half], scratch);
        CU(cudaMemcpyAsync(m->to + bytes_before(m, row), buffer[half],
                           (size_t)bytes_before(m, rows), cudaMemcpyHostToDevice, stream));
        CU(cudaEventRecord(free_at[half], stream));
    }
    CU(cudaStreamSynchronize(stream));
    return 0;
}

static int64_t longest_row(const struct upload *u)
{
    int64_t most = 0;
    for (int i = 0; i < u->images; i++)
        most = u->image[i].cols > most ? u->image[i].cols : most;
    return most;
}

static int64_t stretch_bytes(const struct upload *u)
{
    int64_t most = STRETCH;
    for (int i = 0; i < u->images; i++)
        most = together_bytes(&u->image[i]) > most ? together_bytes(&u->image[i]) : most;
    return most;
}

static int sender_run(struct upload *u, struct err *e)
{
    int64_t bytes = stretch_bytes(u);
    char *buffer[2] = {NULL, NULL};
    cudaEvent_t free_at[2] = {NULL, NULL};
    cudaStream_t stream = NULL;
    float *scratch = xmalloc((size_t)longest_row(u) * sizeof *scratch);
    cudaError_t code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    int rc = 0;
    for (int i = 0; i < 2 && !code && !rc; i++) {
        rc = memory_pinned(u->b, (void **)&buffer[i], bytes, e);
        if (!rc)
            code = cudaEventCreateWithFlags(&free_at[i], cudaEventDisableTiming);
    }
    if (!rc)
        rc = code ? cuda_failed(e, code, "staging memory", __FILE__, __LINE__)
                  : send_all(u, stream, buffer, free_at, scratch, e);
    for (int i = 0; i < 2; i++) {
        if (!u->b->lent_pinned)
            cudaFreeHost(buffer[i]);
        if (free_at[i])
            cudaEventDestroy(free_at[i]);
    }
    if (stream)
        cudaStreamDestroy(stream);
    free(scratch);
    return rc;
}

static void *sender(void *arg)
{
    struct upload *u = arg;
    struct err e = {""};
    if (sender_run(u, &e)) {
        pthread_mutex_lock(&u->lock);
        if (!u->failed)
            u->why = e;
        u->failed = true;
        pthread_mutex_unlock(&u->lock);
    }
    return NULL;
}

void weights_drop(struct upload *u)
{
    pthread_mutex_destroy(&u->lock);
    free(u->image);
    free(u);
}

static void send_matrices(struct upload *u)
{
    pthread_t thread[THREADS_MAX];
    int cores = u->b->lent ? 1 : cores_usable();
    int n = cores > THREADS_MAX ? THREADS_MAX : cores, started = 0;
    for (; started < n - 1; started++)
        if (pthread_create(&thread[started], NULL, sender, u))
            break;
    sender(u);
    while (started > 0)
        pthread_join(thread[--started], NULL);
}

struct upload *weights_begin(struct backend *b, struct err *e)
{
    const struct model *m = b->model;
    struct upload *u = xcalloc(1, sizeof *u);
    u->b = b;
    u->t0 = clock_ns();
    u->image = xcalloc((size_t)m->shape.layers * 4 + 2, sizeof *u->image);
    b->on.layer = xcalloc((size_t)m->shape.layers, sizeof *b->on.layer);
    b->on.embed = add(u, REGION_EMBED, 0);
    b->on.head = m->shape.tied_head ? b->on.embed : add(u, REGION_HEAD, 0);
    if (m->shape.tied_head)
        b->on.head.copy = add_copy(u, REGION_HEAD, 0);
    for (int32_t i = 0; i < m->shape.layers; i++)
        add_layer(u, i, &b->on.layer[i]);
    pthread_mutex_init(&u->lock, NULL);
    if (send_vectors(b, e) == 0)
        return u;
    weights_drop(u);
    return NULL;
}

int weights_finish(struct upload *u, struct err *e)
{
    send_matrices(u);
    int rc = u->failed ? err_set(e, "%s", u->why.msg) : 0;
    double s = (double)(clock_ns() - u->t0) * 1e-9;
    if (!rc)
        log_info("cuda", "%.2f GB of weights on the device in %.2f s, %.1f GB/s",
                 (double)u->sent * 1e-9, s, (double)u->sent * 1e-9 / s);
    weights_drop(u);
    return rc;
}

int weights_upload(struct backend *b, struct err *e)
{
    struct upload *u = weights_begin(b, e);
    return u ? weights_finish(u, e) : -1;
}
