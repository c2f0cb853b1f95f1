/* SPDX-License-Identifier: Apache-2.0 */
/* backend_hook.c - the capture hook: observes live steps without touching them.
 *
 * A hook sits behind one run of one region. It copies that run's inputs (HOOK_CAPTURE), or runs
 * another kernel on them into outputs of its own and compares (HOOK_COMPARE). What the step served
 * is read, never written: regions do not overwrite their inputs, and the compared kernel's KV goes
 * to pages of the spare memory.
 *
 * Hand-over: the engine thread raises `hook_held` before it reads `hook`; who removes a hook clears
 * `hook` first and then waits for `hook_held` to fall. Both are sequentially consistent, so one of
 * the two always sees the other.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/err.h"
#include "engine/capture.h"
#include "engine/cpu/backend_private.h"
#include "engine/cpu/kv.h"

/* ---- capture -------------------------------------------------------------------------------- */

static void capture_pages(const struct backend *b, struct capture *c, const struct step *s,
                          const struct attn_args *a, int32_t *number)
{
    capture_table(c, s, number);
    int64_t bytes =
        (int64_t)a->kv_heads * KV_PAGE * a->head_dim * kv_element_bytes(&b->model->shape);
    char *k = c->k_pages = xmalloc((size_t)(c->pages * bytes));
    char *v = c->v_pages = xmalloc((size_t)(c->pages * bytes));
    for (int32_t p = 0; p < b->options.kv_pages; p++) {
        if (number[p] == 0)
            continue;
        int64_t to = (number[p] - 1) * bytes;
        memcpy(k + to, (const char *)a->k_pages + p * bytes, (size_t)bytes);
        memcpy(v + to, (const char *)a->v_pages + p * bytes, (size_t)bytes);
    }
}

static void capture(const struct backend *b, struct capture *c, enum region r, int32_t layer,
                    const struct step *s, const union region_args *a)
{
    int64_t hidden = b->model->shape.hidden, m = bind_m(a, r);
    int32_t *number = xcalloc((size_t)b->options.kv_pages, sizeof *number);
    *c = (struct capture){.region = r,
                          .layer = layer,
                          .m = (int32_t)m,
                          .spans = capture_spans(s, (int32_t)m),
                          .context = s->context};
    switch (r) {
    case REGION_ATTN_IN:
        c->x = capture_copy(a->attn_in.x, m * hidden, sizeof(float));
        capture_kv_at(c, s, number);
        break;
    case REGION_ATTN:
        c->in = capture_copy(a->attn.q, m * a->attn.heads * a->attn.head_dim, sizeof(float));
        capture_pages(b, c, s, &a->attn, number);
        break;
    case REGION_ATTN_OUT:
    case REGION_MLP_OUT:
        c->in = capture_copy(a->out.in, m * a->out.w.cols, sizeof(float));
        c->x = capture_copy(a->out.x, m * hidden, sizeof(float));
        break;
    case REGION_REDUCE:
        c->in = capture_copy(a->reduce.x, m * hidden, sizeof(float));
        c->x = capture_copy(a->reduce.residual, m * hidden, sizeof(float));
        break;
    case REGION_MLP_IN:
        c->x = capture_copy(a->mlp_in.x, m * hidden, sizeof(float));
        break;
    case REGION_MLP:
        c->x = capture_copy(a->mlp.x, m * hidden, sizeof(float));
        break;
    default: /* head: the rows that needed logits, gathered */
        c->x = xmalloc((size_t)(m * hidden) * sizeof(float));
        for (int64_t i = 0; i < m; i++)
            memcpy(c->x + i * hidden, a->head.x + a->head.row[i] * hidden,
                   (size_t)hidden * sizeof(float));
        break;
    }
    free(number);
}

/* ---- compare -------------------------------------------------------------------------------- */

/* One output of a run: rows of floats, or positions in pages. */
struct view {
    const void *data;
    const int32_t *kv_at; /* NULL: plain rows of floats */
    bool bf16;
    int32_t kv_heads, head_dim;
    int64_t cols;
};

/* Row i of a view, gathered into `buffer` if it lies in pages. */
static const float *view_row(const struct view *v, int64_t i, float *buffer)
{
    if (!v->kv_at)
        return (const float *)v->data + i * v->cols;
    int64_t page = v->kv_at[i] / KV_PAGE, offset = v->kv_at[i] % KV_PAGE;
    for (int32_t h = 0; h < v->kv_heads; h++)
        kv_read(v->bf16, v->data, ((page * v->kv_heads + h) * KV_PAGE + offset) * v->head_dim,
                v->head_dim, buffer + (int64_t)h * v->head_dim);
    return buffer;
}

struct verdict {
    bool nonfinite, served_nonfinite, different;
    double worst_max, worst_rms;
};

static bool all_finite(const float *v, int64_t n)
{
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad += !isfinite(v[i]);
    return bad == 0;
}

static void compare_row(const float *got, const float *want, int64_t n, struct verdict *v)
{
    double top = 0, square = 0, worst = 0, error = 0;
    bool bad = !all_finite(got, n), served_bad = !all_finite(want, n);
    v->different |= memcmp(got, want, (size_t)n * sizeof *got) != 0;
    v->nonfinite |= bad && !served_bad;
    v->served_nonfinite |= served_bad && !bad;
    if (served_bad)
        return; /* no yardstick; what both were given, if the other is bad too */
    for (int64_t i = 0; i < n; i++) {
        double w = (double)want[i], d = (double)got[i] - w;
        top = fmax(top, fabs(w));
        square += w * w;
        worst = isfinite(d) ? fmax(worst, fabs(d)) : HUGE_VAL;
        error += d * d;
    }
    double tiny = 1e-30;
    v->worst_max = fmax(v->worst_max, worst / (top + tiny));
    v->worst_rms = fmax(v->worst_rms, isfinite(error) ? sqrt(error / (square + tiny)) : HUGE_VAL);
}

static void compare(const struct view *got, const struct view *want, int64_t m, struct verdict *v)
{
    float *buffer = xmalloc((size_t)want->cols * 2 * sizeof *buffer);
    for (int64_t i = 0; i < m; i++)
        compare_row(view_row(got, i, buffer), view_row(want, i, buffer + want->cols), want->cols,
                    v);
    free(buffer);
}

/* Output i of the spare memory, `floats` long and poisoned, so that what is not written shows. */
static float *spare_output(struct spare *l, int i, int64_t floats)
{
    int64_t bytes = floats * (int64_t)sizeof(float);
    if (bytes > l->bytes[i]) {
        free(l->output[i]);
        l->output[i] = xaligned((size_t)bytes);
        l->bytes[i] = bytes;
    }
    memset(l->output[i], 0xff, (size_t)bytes);
    return l->output[i];
}

static void redirect_attn_in(struct backend *b, struct attn_in_args *a, struct view got[3],
                             struct view want[3])
{
    struct spare *l = &b->spare;
    int64_t m = a->m, row = (int64_t)a->kv_heads * a->head_dim;
    bool half = b->model->shape.kv_bf16;
    int64_t paged =
        (m + KV_PAGE - 1) / KV_PAGE * KV_PAGE * row; /* half as many floats are enough */
    if (!l->kv_at) {
        l->kv_at = xmalloc((size_t)b->options.max_tokens * sizeof *l->kv_at);
        for (int32_t i = 0; i < b->options.max_tokens; i++)
            l->kv_at[i] = i;
    }
    want[0] = (struct view){.data = a->q, .cols = a->wq.rows};
    want[1] = (struct view){a->k_pages, a->kv_at, half, a->kv_heads, a->head_dim, row};
    want[2] = (struct view){a->v_pages, a->kv_at, half, a->kv_heads, a->head_dim, row};
    a->q = spare_output(l, 0, m * a->wq.rows);
    a->k_pages = spare_output(l, 1, paged);
    a->v_pages = spare_output(l, 2, paged);
    a->kv_at = l->kv_at;
    got[0] = (struct view){.data = a->q, .cols = a->wq.rows};
    got[1] = (struct view){a->k_pages, a->kv_at, half, a->kv_heads, a->head_dim, row};
    got[2] = (struct view){a->v_pages, a->kv_at, half, a->kv_heads, a->head_dim, row};
}

/* Points `args` at outputs of the spare memory; both sides as views. Returns the number of outputs.
 */
static int redirect(struct backend *b, enum region r, union region_args *args, struct view got[3],
                    struct view want[3])
{
    float **output;
    int64_t cols;
    if (r == REGION_ATTN_IN) {
        redirect_attn_in(b, &args->attn_in, got, want);
        return 3;
    }
    if (r == REGION_REDUCE) {
        args->reduce.area = backend_area(b, REDUCE_TRIALS);
        output = &args->reduce.out;
        cols = args->reduce.n;
    } else if (r == REGION_ATTN) {
        output = &args->attn.a;
        cols = (int64_t)args->attn.heads * args->attn.head_dim;
    } else if (r == REGION_MLP_IN) {
        output = &args->mlp_in.h;
        cols = args->mlp_in.gate.rows;
    } else if (r == REGION_MLP) {
        /* A hook writes nothing of a step, so what the kernel works in is spare memory, too. */
        args->mlp.h = spare_output(&b->spare, 1, (int64_t)args->mlp.m * args->mlp.gate.rows);
        output = &args->mlp.y;
        cols = args->mlp.down.rows;
    } else if (r == REGION_HEAD) {
        output = &args->head.logits;
        cols = args->head.w.rows;
    } else {
        output = &args->out.y;
        cols = args->out.w.rows;
    }
    want[0] = (struct view){.data = *output, .cols = cols};
    *output = spare_output(&b->spare, 0, bind_m(args, r) * cols);
    got[0] = (struct view){.data = *output, .cols = cols};
    return 1;
}

float *backend_spare(struct backend *b, int64_t floats)
{
    return spare_output(&b->spare, 0, floats);
}

void backend_compare(struct backend *b, struct hook *t, enum region r, int32_t layer,
                     const union region_args *served, int64_t served_ns)
{
    union region_args args = *served;
    struct view got[3], want[3];
    struct verdict v = {0};
    struct weight *w[3];
    for (int i = 0, n = bind_weights(&args, r, w); i < n; i++)
        w[i]->packed = NULL;
    backend_bind_packed(t->kernel, r, layer, &args);
    int outputs = redirect(b, r, &args, got, want);
    int64_t ns = backend_run(b, t->kernel, layer, &args);
    if (ns < 0)
        return; /* who waits for this hook asks whether its kernel is broken */
    t->kernel_ns += ns;
    t->served_ns += served_ns;
    for (int i = 0; i < outputs; i++)
        compare(&got[i], &want[i], bind_m(served, r), &v);
    t->comparisons++;
    t->nonfinite += v.nonfinite;
    t->served_nonfinite += v.served_nonfinite;
    t->different += v.different;
    t->worst_max = fmax(t->worst_max, v.worst_max);
    t->worst_rms = fmax(t->worst_rms, v.worst_rms);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Whether the hook observes this run. A matching step is observed in one layer of its slot's, each
 * in the next one; which, is decided at the first of them. */
static bool wanted(struct backend *b, const struct hook *t, int32_t layer)
{
    const struct slot *slot = t->slot;
    if (layer == slot_layer(slot)) {
        b->hook_at = -1;
        if (b->matches++ % (t->every > 0 ? t->every : 1) == 0) {
            int32_t layers = class_layers(slot->formats, slot->region, b->model->shape.layers);
            b->hook_at = class_layer(slot->formats, b->hook_layer % layers);
            b->hook_layer = b->hook_layer % layers + 1;
        }
    }
    return layer == b->hook_at;
}

void backend_observe(struct backend *b, struct slot *slot, const struct kernel *served,
                     int32_t layer, const struct step *s, const union region_args *args,
                     int64_t served_ns)
{
    if (b->on_trial || !atomic_load_explicit(&b->hook, memory_order_relaxed))
        return;
    atomic_store(&b->hook_held, true);
    struct hook *t = atomic_load(&b->hook);
    if (t && t->slot == slot && (!t->served || t->served == served) && atomic_load(&t->left) > 0 &&
        !(slot->region == REGION_REDUCE && t->kind == HOOK_COMPARE) && /* all ranks have to know */
        wanted(b, t, layer) &&
        (t->kind == HOOK_CAPTURE || bind_m(args, slot->region) <= t->kernel->m_max)) {
        if (t->kind == HOOK_CAPTURE) {
            capture(b, t->capture, slot->region, layer, s, args);
            atomic_store(&t->left, 0);
        } else {
            backend_compare(b, t, slot->region, layer, args, served_ns);
            atomic_fetch_sub(&t->left, 1);
        }
    }
    atomic_store(&b->hook_held, false);
}

int backend_hook(struct backend *b, struct hook *t)
{
    if (t && t->slot->region == REGION_EMBED)
        return -1; /* nothing to specialize there */
    atomic_store(&b->hook, NULL);
    while (atomic_load(&b->hook_held)) {
        struct timespec us100 = {0, 100000};
        nanosleep(&us100, NULL);
    }
    atomic_store(&b->hook, t);
    return 0;
}
