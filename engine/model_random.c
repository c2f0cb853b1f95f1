/* SPDX-License-Identifier: Apache-2.0 */
/* model_random.c - a model without a file: any shape, any format, the same for the same seed.
 *
 * Matrices are drawn with deviation 1/sqrt(columns), so that activations and logits keep the size
 * they have in a trained model; norm gains lie around 1 and biases around 0 but are none of them
 * exactly so, because a kernel that forgets a gain or a bias must show. Each row of a matrix has a
 * stream of its own, so its values depend neither on other tensors nor on the order they are made
 * in; rows are made by as many threads as there are cores.
 */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "config/cores.h"
#include "engine/memory.h"
#include "engine/model_load.h"
#include "engine/quant.h"

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Nearly normal, deviation 1: four 16-bit uniforms of one draw, summed. */
static float draw_normal(uint64_t *state)
{
    uint64_t z = draw(state);
    float sum = (float)(z & 0xffff) + (float)(z >> 16 & 0xffff) + (float)(z >> 32 & 0xffff) +
                (float)(z >> 48);
    return (sum - 2 * 65535.0f) * (1 / (65536.0f * 0.57735f));
}

struct drawing;

struct maker {
    struct model *m;
    enum dtype type, more; /* most matrices; those that get more bits */
    uint64_t seed, tensors;
    struct drawing *drawing;
    int64_t drawings;
    _Atomic int64_t next; /* row */
};

/* The start of the next tensor's stream. */
static uint64_t stream(struct maker *k)
{
    uint64_t s = k->seed ^ (k->tensors++ * 0xd1342543de82ef95);
    return draw(&s);
}

/* A matrix whose rows are still to be drawn. */
struct drawing {
    uint8_t *data;
    uint64_t state;
    enum dtype type;
    int32_t rows, cols;
};

static struct weight matrix_as(struct maker *k, enum dtype t, int32_t rows, int32_t cols)
{
    uint8_t *data = model_own(k->m, memory_fine((size_t)(rows * dtype_bytes(t, cols))));
    k->drawing[k->drawings++] = (struct drawing){data, stream(k), t, rows, cols};
    return (struct weight){.data = data, .rows = rows, .cols = cols, .type = (int32_t)t};
}

static struct weight matrix(struct maker *k, int32_t rows, int32_t cols)
{
    return matrix_as(k, k->type, rows, cols);
}

/* ---- drawing -------------------------------------------------------------------------------- */

enum { THREADS_MAX = 32, ROWS_AT_ONCE = 64 };

static void draw_rows(const struct drawing *d, int32_t from, int32_t to, float *row)
{
    int64_t row_bytes = dtype_bytes(d->type, d->cols);
    float scale = 1 / sqrtf((float)d->cols);
    for (int32_t r = from; r < to; r++) {
        uint64_t state = d->state ^ ((uint64_t)(r + 1) * 0xd1342543de82ef95);
        draw(&state);
        for (int32_t c = 0; c < d->cols; c++)
            row[c] = draw_normal(&state) * scale;
        quant_row(d->type, row, d->data + r * row_bytes, d->cols);
    }
}

/* Takes stretches of rows, counted through all matrices, until there are none. */
static void *draw_some(void *arg)
{
    struct maker *k = arg;
    float *row = xmalloc((1 << 18) * sizeof *row); /* the longest row that model.h allows */
    for (;;) {
        int64_t at = atomic_fetch_add(&k->next, ROWS_AT_ONCE), end = at + ROWS_AT_ONCE;
        bool some = false;
        for (int64_t i = 0, first = 0; i < k->drawings; first += k->drawing[i++].rows) {
            const struct drawing *d = &k->drawing[i];
            int64_t from = at > first ? at - first : 0, to = end - first;
            to = to < d->rows ? to : d->rows;
            some |= at < first + d->rows;
            if (from < to)
                draw_rows(d, (int32_t)from, (int32_t)to, row);
        }
        if (!some)
            break;
    }
    free(row);
    return NULL;
}

static void draw_all(struct maker *k)
{
    pthread_t thread[THREADS_MAX];
    int cores = cores_usable();
    int n = cores > THREADS_MAX ? THREADS_MAX : cores, started = 0;
    while (started < n - 1 && pthread_create(&thread[started], NULL, draw_some, k) == 0)
        started++;
    draw_some(k);
    while (started > 0)
        pthread_join(thread[--started], NULL);
}

static const float *vector(struct maker *k, int32_t n, float mean, float deviation)
{
    float *v = model_own(k->m, xaligned((size_t)n * sizeof *v));
    uint64_t state = stream(k);

    for (int32_t i = 0; i < n; i++)
        v[i] = mean + deviation * draw_normal(&state);
    return v;
}

/* The layers whose attn_v and ffn_down llama.cpp gives more bits than the others in its mixtures
 * (Q4_K_M and its like): the first eighth, the last one, and every third between. */
static bool more_bits(int32_t layer, int32_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static void make_layer(struct maker *k, int32_t layer)
{
    const struct model_shape *s = &k->m->shape;
    struct layer *l = &k->m->layer[layer];
    enum dtype other = more_bits(layer, s->layers) ? k->more : k->type;
    int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    l->attn_norm = vector(k, s->hidden, 1, 0.2f);
    l->wq = matrix(k, q, s->hidden);
    l->wk = matrix(k, kv, s->hidden);
    l->wv = matrix_as(k, other, kv, s->hidden);
    l->wo = matrix(k, s->hidden, q);
    if (arch_traits(s->arch)->qkv_bias) {
        l->bq = vector(k, q, 0, 0.5f);
        l->bk = vector(k, kv, 0, 0.5f);
        l->bv = vector(k, kv, 0, 0.5f);
    }
    if (arch_traits(s->arch)->qk_norm) {
        l->q_norm = vector(k, s->head_dim, 1, 0.2f);
        l->k_norm = vector(k, s->head_dim, 1, 0.2f);
    }
    l->mlp_norm = vector(k, s->hidden, 1, 0.2f);
    l->gate = matrix(k, s->ffn, s->hidden);
    l->up = matrix(k, s->ffn, s->hidden);
    l->down = matrix_as(k, other, s->hidden, s->ffn);
}

/* Whether all rows are whole blocks of the format. */
static bool divides(const struct model_shape *shape, enum dtype t)
{
    int block = dtype_block(t);
    return shape->hidden % block == 0 && shape->ffn % block == 0 &&
           shape->heads * shape->head_dim % block == 0;
}

struct model *model_random(const struct model_shape *shape, enum dtype t, uint64_t seed)
{
    return model_random_mixed(shape, t, t, seed);
}

struct model *model_random_mixed(const struct model_shape *shape, enum dtype t, enum dtype more,
                                 uint64_t seed)
{
    if (model_check_shape(shape, "random model", NULL) < 0 || !divides(shape, t) ||
        !divides(shape, more))
        return NULL;
    struct model *m = xcalloc(1, sizeof *m);
    struct maker k = {.m = m, .type = t, .more = more, .seed = seed};
    k.drawing = xcalloc((size_t)shape->layers * 7 + 2, sizeof *k.drawing);
    m->path = xstrdup("");
    m->name = xstrdup("random");
    m->shape = *shape;
    m->embed = matrix(&k, shape->vocab, shape->hidden);
    m->head = shape->tied_head ? m->embed : matrix(&k, shape->vocab, shape->hidden);
    m->final_norm = vector(&k, shape->hidden, 1, 0.2f);
    m->layer = xcalloc((size_t)shape->layers, sizeof *m->layer);
    for (int32_t i = 0; i < shape->layers; i++)
        make_layer(&k, i);
    draw_all(&k);
    free(k.drawing);
    model_describe(m, "random");
    return m;
}
