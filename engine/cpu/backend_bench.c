/* SPDX-License-Identifier: Apache-2.0 */
/* backend_bench.c - two kernels of a slot against each other, on the engine thread, in slices.
 *
 * Runs (pairs.h) are each on the next layer's weights, or the next copy of the keys and values, so
 * both sides meet the cache as a step would: its weights are those that the other layers have
 * pushed out. A job of one layer meets them in the cache instead.
 *
 * Against the eager kernel of a fused region run its parts, as they do in a step: what a fused
 * kernel must beat is the best that there is without it.
 *
 * A call stops at the first run that ends beyond its budget and goes on from there next time. The
 * inputs are copied before (backend_bench_begin(), by whoever wants the bench): up to 64 MiB of
 * keys and values, which no step should wait for.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "config/clock.h"
#include "config/err.h"
#include "engine/cpu/backend_private.h"
#include "engine/pairs.h"

struct bench {
    struct kernel_case *inputs;
    char *k, *v;        /* attn: copies of the captured pages */
    int64_t page_bytes; /* of k or v in one copy */
    int32_t copies;
    bool shared; /* k and v lie in the backend's memory for benches */
    struct pairs pairs;
};

/* Where executors may have to see them: one bench at a time has the backend's own memory. */
static void copy_pages(struct backend *b, struct bench *s, const struct attn_args *a, int64_t bytes,
                       int32_t layers)
{
    int64_t most = BENCH_COPIES_BYTES / (2 * bytes + 1);
    s->copies = most < 1 ? 1 : most < layers ? (int32_t)most : layers;
    s->page_bytes = bytes;
    s->shared = b->bench.at != NULL;
    if (s->shared) {
        s->k = b->bench.at;
        s->v = s->k + s->copies * bytes;
    } else {
        s->k = xmalloc((size_t)(s->copies * bytes));
        s->v = xmalloc((size_t)(s->copies * bytes));
    }
    for (int32_t i = 0; i < s->copies; i++) {
        memcpy(s->k + i * bytes, a->k_pages, (size_t)bytes);
        memcpy(s->v + i * bytes, a->v_pages, (size_t)bytes);
    }
}

int backend_bench_begin(struct backend *b, struct bench_job *job, struct err *e)
{
    const struct capture *c = job->inputs;
    if (!c || c->region != job->slot->region)
        return err_set(e, "bench of %s: its captured inputs are of another region",
                       job->slot->name);
    if (c->m > job->a->m_max || c->m > job->b->m_max)
        return err_set(e, "bench of %s: captured %d tokens, more than a kernel takes",
                       job->slot->name, c->m);
    struct bench *s = xcalloc(1, sizeof *s);
    s->inputs = case_captured(b->model, c, false);
    if (c->region == REGION_ATTN) {
        const union region_args *args = case_args(s->inputs);
        const struct model_shape *shape = &b->model->shape;
        int64_t row = (int64_t)shape->kv_heads * shape->head_dim * kv_element_bytes(shape);
        copy_pages(b, s, &args->attn, c->pages * KV_PAGE * row, shape->layers);
    }
    job->state = s;
    return 0;
}

static int run_once(struct backend *b, struct bench_job *job, int side, float *ns, struct err *e)
{
    const struct bench *s = job->state;
    const struct kernel *k = side ? job->b : job->a;
    union region_args args = *(const union region_args *)case_args(s->inputs);
    int32_t run = job->one_layer ? 0 : s->pairs.runs;
    const struct format_class *formats = job->slot->formats;
    int32_t layers = class_layers(formats, k->region, b->model->shape.layers);
    int32_t layer = class_layer(formats, run % layers);
    bind_layer(b->model, k->region, layer, &args);
    backend_bind_packed(k, k->region, layer, &args);
    bool parts = region_info(k->region)->parts && k->origin == ORIGIN_EAGER;
    if (s->copies) {
        args.attn.k_pages = s->k + run % s->copies * s->page_bytes;
        args.attn.v_pages = s->v + run % s->copies * s->page_bytes;
    }
    int64_t took =
        parts ? backend_run_parts(b, k->region, layer, &args) : backend_run(b, k, layer, &args);
    *ns = (float)took;
    if (took < 0 && parts)
        return err_set(e, "the kernel of a part of %s broke", region_name(k->region));
    return took < 0 ? err_set(e, "%s", backend_broken(k)) : 0;
}

int backend_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e)
{
    int64_t until = clock_ns() + budget_ns;
    if (!job->state && backend_bench_begin(b, job, e))
        return -1;
    struct bench *s = job->state;
    return pairs_run(&s->pairs, b, job, until, run_once, e);
}

void backend_bench_end(struct backend *b, struct bench_job *job)
{
    struct bench *s = job->state;
    if (!s)
        return;
    case_free(s->inputs);
    if (s->shared) {
        madvise(b->bench.at, (size_t)b->bench.bytes, MADV_REMOVE);
    } else {
        free(s->k);
        free(s->v);
    }
    free(s);
    job->state = NULL;
}
