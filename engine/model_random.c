/* model_random.c - a model without a file: any shape, any format, the same for the same seed.
 *
 * Matrices are drawn with deviation 1/sqrt(columns), so that activations and logits keep the size
 * they have in a trained model; norm gains lie around 1 and biases around 0 but are none of them
 * exactly so, because a kernel that forgets a gain or a bias must show. Each tensor has a stream
 * of its own, so its values depend neither on other tensors nor on the order they are made in.
 */
#include <math.h>
#include <stdlib.h>

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

struct maker {
    struct model *m;
    enum dtype type;
    uint64_t seed, tensors;
};

/* The start of the next tensor's stream. */
static uint64_t stream(struct maker *k)
{
    uint64_t s = k->seed ^ (k->tensors++ * 0xd1342543de82ef95);
    return draw(&s);
}

static struct weight matrix(struct maker *k, int32_t rows, int32_t cols)
{
    int64_t row_bytes = dtype_bytes(k->type, cols);
    uint8_t *data = model_own(k->m, xaligned((size_t)(rows * row_bytes)));
    float *row = xmalloc((size_t)cols * sizeof *row), scale = 1 / sqrtf((float)cols);
    uint64_t state = stream(k);

    for (int32_t r = 0; r < rows; r++) {
        for (int32_t c = 0; c < cols; c++)
            row[c] = draw_normal(&state) * scale;
        quant_row(k->type, row, data + r * row_bytes, cols);
    }
    free(row);
    return (struct weight){.data = data, .rows = rows, .cols = cols, .type = (int32_t)k->type};
}

static const float *vector(struct maker *k, int32_t n, float mean, float deviation)
{
    float *v = model_own(k->m, xaligned((size_t)n * sizeof *v));
    uint64_t state = stream(k);

    for (int32_t i = 0; i < n; i++)
        v[i] = mean + deviation * draw_normal(&state);
    return v;
}

static void make_layer(struct maker *k, struct layer *l)
{
    const struct model_shape *s = &k->m->shape;
    int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;

    l->attn_norm = vector(k, s->hidden, 1, 0.2f);
    l->wq = matrix(k, q, s->hidden);
    l->wk = matrix(k, kv, s->hidden);
    l->wv = matrix(k, kv, s->hidden);
    l->wo = matrix(k, s->hidden, q);
    if (s->arch == ARCH_QWEN2) {
        l->bq = vector(k, q, 0, 0.5f);
        l->bk = vector(k, kv, 0, 0.5f);
        l->bv = vector(k, kv, 0, 0.5f);
    }
    if (s->arch == ARCH_QWEN3) {
        l->q_norm = vector(k, s->head_dim, 1, 0.2f);
        l->k_norm = vector(k, s->head_dim, 1, 0.2f);
    }
    l->mlp_norm = vector(k, s->hidden, 1, 0.2f);
    l->gate = matrix(k, s->ffn, s->hidden);
    l->up = matrix(k, s->ffn, s->hidden);
    l->down = matrix(k, s->hidden, s->ffn);
}

struct model *model_random(const struct model_shape *shape, enum dtype t, uint64_t seed)
{
    int block = dtype_block(t);

    if (model_check_shape(shape, "random model", NULL) < 0 || shape->hidden % block ||
        shape->ffn % block || shape->heads * shape->head_dim % block)
        return NULL;
    struct model *m = xcalloc(1, sizeof *m);
    struct maker k = {m, t, seed, 0};
    m->path = xstrdup("");
    m->name = xstrdup("random");
    m->shape = *shape;
    m->embed = matrix(&k, shape->vocab, shape->hidden);
    m->head = shape->tied_head ? m->embed : matrix(&k, shape->vocab, shape->hidden);
    m->final_norm = vector(&k, shape->hidden, 1, 0.2f);
    m->layer = xcalloc((size_t)shape->layers, sizeof *m->layer);
    for (int32_t i = 0; i < shape->layers; i++)
        make_layer(&k, &m->layer[i]);
    model_describe(m, "random");
    return m;
}
