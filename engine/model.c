/* SPDX-License-Identifier: Apache-2.0 */
/* model.c - opening and closing a model, and what follows from its shape and weights alone.
 *
 * The order of an open: the reader of the file's kind fills in shape, tensors and tokenizer with
 * every check (no weight is touched yet, so a bad file is refused at once), then the mappings are
 * brought into memory front to back with progress, then the model is immutable.
 *
 * The hash identifies a model to the store of kernels and to clients: FNV-1a over the shape, over
 * every matrix's format and dimensions, and over three small samples of each one's data. It does
 * not read the whole file, and it does not depend on where the file lies or what it is called.
 */
#include "engine/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/model_load.h"
#include "engine/numa.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"

/* ---- identity ------------------------------------------------------------------------------ */

static void hash_bytes(uint64_t *h, const void *data, size_t n)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        *h = (*h ^ p[i]) * 0x100000001b3;
}

static void hash_number(uint64_t *h, double v)
{
    hash_bytes(h, &v, sizeof v);
}

static void hash_shape(uint64_t *h, const struct model_shape *s)
{
    const double field[] = {
        s->arch,
        s->layers,
        s->hidden,
        s->heads,
        s->kv_heads,
        s->head_dim,
        s->ffn,
        s->vocab,
        s->max_context,
        s->eps,
        s->rope_base,
        s->rope_interleaved,
        s->tied_head,
        s->scaling.type,
        s->scaling.factor,
        s->scaling.low_freq_factor,
        s->scaling.high_freq_factor,
        s->scaling.original_context,
    };
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        hash_number(h, field[i]);
    if (s->scaling.type == ROPE_YARN) {
        hash_number(h, (double)s->scaling.attention_factor);
        hash_number(h, s->scaling.whole_ramp);
    }
}

struct tally {
    uint64_t hash;
    int64_t bytes, by_type[DTYPE_COUNT];
};

static void tally_matrix(struct tally *t, const struct weight *w)
{
    enum { SAMPLE = 64 };
    enum dtype type = (enum dtype)w->type;
    int64_t n = dtype_bytes(type, (int64_t)w->rows * w->cols);
    int64_t sample = n < SAMPLE ? n : SAMPLE;
    const uint8_t *data = w->data;

    hash_number(&t->hash, w->type);
    hash_number(&t->hash, w->rows);
    hash_number(&t->hash, w->cols);
    hash_bytes(&t->hash, data, (size_t)sample);
    hash_bytes(&t->hash, data + (n - sample) / 2, (size_t)sample);
    hash_bytes(&t->hash, data + n - sample, (size_t)sample);
    t->bytes += n;
    t->by_type[type] += n;
}

static void tally_vector(struct tally *t, const float *v, int64_t n)
{
    if (!v)
        return;
    hash_bytes(&t->hash, v, (size_t)n * sizeof *v);
    t->bytes += n * (int64_t)sizeof *v;
}

static void tally_layer(struct tally *t, const struct layer *l, const struct model_shape *s)
{
    const struct weight *matrix[] = {&l->wq, &l->wk, &l->wv, &l->wo, &l->gate, &l->up, &l->down};
    int64_t kv = (int64_t)s->kv_heads * s->head_dim;

    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++)
        tally_matrix(t, matrix[i]);
    tally_vector(t, l->attn_norm, s->hidden);
    tally_vector(t, l->mlp_norm, s->hidden);
    tally_vector(t, l->bq, (int64_t)s->heads * s->head_dim);
    tally_vector(t, l->bk, kv);
    tally_vector(t, l->bv, kv);
    tally_vector(t, l->q_norm, s->head_dim);
    tally_vector(t, l->k_norm, s->head_dim);
}

void model_describe(struct model *m, const char *title)
{
    struct tally t = {.hash = 0xcbf29ce484222325};
    int most = 0;

    hash_shape(&t.hash, &m->shape);
    for (int32_t i = 0; i < m->shape.layers; i++)
        tally_layer(&t, &m->layer[i], &m->shape);
    for (int i = 1; i < DTYPE_COUNT; i++) /* the layers name the format, not a wide embedding */
        if (t.by_type[i] > t.by_type[most])
            most = i;
    tally_matrix(&t, &m->embed);
    if (m->head.data != m->embed.data)
        tally_matrix(&t, &m->head);
    tally_vector(&t, m->final_norm, m->shape.hidden);
    m->weight_bytes = t.bytes;
    snprintf(m->hash, sizeof m->hash, "%016llx", (unsigned long long)t.hash);
    m->description =
        xasprintf("%s, %s, %.1f MB", title, dtype_name((enum dtype)most), (double)t.bytes / 1e6);
}

/* ---- open and close ------------------------------------------------------------------------ */

struct paging {
    model_progress_fn *progress;
    void *ctx;
    double total, done;
};

static void paged(void *ctx, size_t bytes)
{
    struct paging *p = ctx;
    p->done += (double)bytes;
    p->progress(p->ctx, p->done < p->total ? p->done / p->total : 1);
}

static int page_in(const struct model *m, model_progress_fn *progress, void *ctx, struct err *err)
{
    const struct model_files *f = m->files;
    struct paging p = {progress, ctx, 0, 0};
    int rc = 0;

    progress(ctx, 0);
    for (int i = 0; i < f->maps; i++)
        p.total += (double)f->map[i]->size;
    numa_spread_thread(true); /* weights may be read where they are: in the page cache */
    for (int i = 0; i < f->maps && rc == 0; i++)
        rc = filemap_page_in(f->map[i], paged, &p, err);
    numa_spread_thread(false);
    return rc;
}

/* A file that was written to while it was read may be half of one model and half of another. */
int model_check_files(const struct model *m, struct err *err)
{
    const struct model_files *f = m->files;
    for (int i = 0; f && i < f->maps; i++)
        if (filemap_check(f->map[i], err) < 0)
            return -1;
    return 0;
}

/* The last component of the path, without ".gguf": the name under which a model is served. */
static char *name_of(const char *path)
{
    char *real = realpath(path, NULL), *name;
    const char *from = real ? real : path, *slash = strrchr(from, '/');

    name = xstrdup(slash && slash[1] ? slash + 1 : from);
    size_t n = strlen(name);
    if (n > 5 && !strcmp(name + n - 5, ".gguf"))
        name[n - 5] = 0;
    free(real);
    return name;
}

struct model *model_open(const char *path, bool with_tokenizer, model_progress_fn *progress,
                         void *ctx, struct err *err)
{
    if (model_is_random(path))
        return model_open_named(path, with_tokenizer, err);
    struct model *m = xcalloc(1, sizeof *m);
    struct stat st;
    int rc;

    m->path = xstrdup(path);
    m->name = name_of(path);
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (folder)
        rc = model_open_hf(m, with_tokenizer, err);
    else
        rc = model_open_gguf(m, with_tokenizer, err);
    if (rc < 0) {
        model_hint(path, folder, err);
        model_close(m);
        return NULL;
    }
    if ((progress && page_in(m, progress, ctx, err) < 0) || model_check_files(m, err) < 0) {
        model_close(m);
        return NULL;
    }
    return m;
}

int64_t model_copy_weights(const struct model *m, int64_t most)
{
    const struct model_files *f = m->files;
    int64_t total = 0, moved = 0;
    for (int i = 0; f && i < f->maps; i++)
        total += (int64_t)f->map[i]->size;
    for (int i = 0; total <= most && f && i < f->maps; i++)
        if (!f->map[i]->copied && filemap_copy(f->map[i]))
            moved += (int64_t)f->map[i]->size;
    return moved;
}

void model_close(struct model *m)
{
    if (!m)
        return;
    struct model_files *f = m->files;
    for (int i = 0; f && i < f->maps; i++)
        filemap_close(f->map[i]);
    for (int i = 0; f && i < f->blocks; i++)
        free(f->block[i]);
    if (f) {
        free(f->map);
        free(f->block);
    }
    free(f);
    if (m->tokenizer)
        tokenizer_free(m->tokenizer);
    free(m->layer);
    free(m->chat_template);
    free(m->description);
    free(m->name);
    free(m->path);
    free(m);
}
