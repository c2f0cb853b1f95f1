/* SPDX-License-Identifier: Apache-2.0 */
/* logits.c - `test_device logits MODEL TOKENS OUT`: logits of the last LAST positions of a text,
 * for compare_transformers.py. TOKENS holds int32 ids; OUT gets floats: [LAST, vocab] from a prompt
 * whose last LAST tokens came in one step, then the same from decoding them one by one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device.h"
#include "tests/device/device_test.h"

enum { LAST = 64, CHUNK = 512 };

static const struct sampling greedy = {SAMPLING_NEUTRAL, .top_logprobs = -1};

struct text {
    int32_t n;
    int32_t *token, *position, *page; /* page i is i: also the cache position */
};

/* Feeds [from, to); logits of all of them if `rows`, written to f. */
static int feed(struct rig *r, const struct text *t, int32_t from, int32_t to, bool rows, FILE *f,
                struct err *e)
{
    struct span span = {0, to - from, to, 0};
    struct sample_row sample[LAST];
    struct step s = {.m = to - from,
                     .tokens = t->token + from,
                     .position = t->position + from,
                     .kv_at = t->position + from,
                     .spans = 1,
                     .span = &span,
                     .page_table = t->page,
                     .pages = (to + KV_PAGE - 1) / KV_PAGE,
                     .context = to,
                     .rows = rows ? to - from : 0,
                     .row = t->position,
                     .sample = sample};
    for (int32_t i = 0; i < s.rows; i++)
        sample[i] = (struct sample_row){.params = &greedy, .target = -1};
    if (r->ops->step(r->b, &s, NULL, e))
        return -1;
    size_t n = (size_t)s.rows * (size_t)r->model->shape.vocab;
    float *l = xmalloc(n * sizeof *l + 1);
    cudaError_t code = cudaMemcpy(l, r->b->logits, n * sizeof *l, cudaMemcpyDeviceToHost);
    bool ok = fwrite(l, sizeof *l, n, f) == n;
    free(l);
    CU(code);
    return ok ? 0 : err_set(e, "logits cannot be written");
}

static int feed_all(struct rig *r, const struct text *t, FILE *f, struct err *e)
{
    int32_t end = t->n - LAST;
    for (int32_t at = 0; at < end; at += CHUNK)
        if (feed(r, t, at, at + CHUNK < end ? at + CHUNK : end, false, f, e))
            return -1;
    if (feed(r, t, end, t->n, true, f, e))
        return -1;
    for (int32_t at = end; at < t->n; at++)
        if (feed(r, t, at, at + 1, true, f, e))
            return -1;
    return 0;
}

static bool read_tokens(const char *path, struct text *t)
{
    FILE *f = fopen(path, "rb");
    t->token = xcalloc(1 << 17, sizeof *t->token);
    t->position = xcalloc(1 << 17, sizeof *t->position);
    t->page = xcalloc(1 << 17, sizeof *t->page);
    t->n = f ? (int32_t)fread(t->token, sizeof *t->token, 1 << 17, f) : 0;
    if (f)
        fclose(f);
    for (int32_t i = 0; i < 1 << 17; i++)
        t->position[i] = t->page[i] = i;
    return t->n >= LAST;
}

int logits_main(char **argv)
{
    struct err e = {""};
    struct text t = {0};
    struct rig r = {0};
    struct model *m = model_open(argv[0], false, NULL, NULL, &e);
    FILE *f = fopen(argv[2], "wb");
    int rc = 1;
    if (!m || !f || !read_tokens(argv[1], &t))
        fprintf(stderr, "logits: %s\n", m ? "the token or output file is not usable" : e.msg);
    else if (rig_open(&r, &whet_backend_cuda, m, t.n / KV_PAGE + 1, CHUNK, LAST))
        rc = feed_all(&r, &t, f, &e) ? 1 : 0;
    if (rc)
        fprintf(stderr, "logits: %s\n", e.msg);
    if (f)
        fclose(f);
    rig_close(&r);
    model_close(m);
    free(t.token);
    free(t.position);
    free(t.page);
    return rc;
}
