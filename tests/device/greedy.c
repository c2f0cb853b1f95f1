/* SPDX-License-Identifier: Apache-2.0 */
/* greedy.c - a model's file on both backends: the CPU writes a text, the device reads it and must
 * draw the same tokens wherever the CPU is sure of its own.
 *
 *   test_device greedy MODEL
 *
 * The device rounds activations to bf16, so where the best two tokens are closer than that matters
 * either may be drawn; such positions are counted, and may not be many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/tokenizer.h"
#include "tests/device/device_test.h"

enum { PAGES = 64, STEPS = 96 };
static const double sure = 0.25; /* log-probability between the best two */
static const struct sampling tops = {SAMPLING_NEUTRAL, .top_logprobs = 2};

/* Tokens [from, to) of a sequence that lies in pages 0, 1, 2, ... */
static bool run(struct rig *r, const int32_t *token, int32_t from, int32_t to,
                struct made_step *made)
{
    struct err e = {""};
    struct step *s = &made->step;
    step_begin(made);
    made->span[s->spans++] = (struct span){0, to - from, to, 0};
    for (int32_t p = 0; p < (to + KV_PAGE - 1) / KV_PAGE; p++)
        made->table[s->pages++] = p;
    for (int32_t p = from; p < to; p++, s->m++) {
        made->tokens[s->m] = token[p];
        made->position[s->m] = made->kv_at[s->m] = p;
    }
    made->row[s->rows] = s->m - 1;
    made->sample[s->rows++] = (struct sample_row){.params = &tops, .target = -1};
    s->context = to;
    int failed = r->ops->step(r->b, s, NULL, &e);
    check(!failed, false, "%s: tokens %d to %d: %s", r->ops->name, from, to, e.msg);
    return !failed;
}

static void compare(struct rig *gpu, struct rig *cpu, int32_t *token, int32_t n)
{
    static struct made_step a, b;
    int same = 0, unsure = 0, i = 0;
    double worst = 0;
    for (int32_t from = 0; i < STEPS; i++, from = n++) {
        if (!run(cpu, token, from, n, &a) || !run(gpu, token, from, n, &b))
            return;
        const struct sampled *want = &a.sample[0].out, *got = &b.sample[0].out;
        bool close = (double)want->top_logprob[0] - (double)want->top_logprob[1] < sure;
        double off = (double)got->top_logprob[0] - (double)want->top_logprob[0];
        unsure += close;
        same += got->token == want->token;
        worst = off > worst ? off : -off > worst ? -off : worst;
        check(close || got->token == want->token, false,
              "token %d is %d on the device, %d on a CPU", i, got->token, want->token);
        token[n] = want->token;
    }
    check(same + unsure >= STEPS && unsure < STEPS / 2, true,
          "%d of %d tokens are the CPU's, %d were close; log-probabilities differ by up to %.3f",
          same, i, unsure, worst);
}

int greedy_main(const char *path)
{
    static const char text[] = "The history of the city begins";
    struct err e = {""};
    struct model *m = model_open(path, true, NULL, NULL, &e);
    struct rig gpu = {0}, cpu = {0};
    check(m != NULL, true, "%s opens: %s", path, e.msg);
    if (!m)
        return 1;
    m->own_formats = true;
    int32_t *ids = NULL, *token = xcalloc(STEP_TOKENS, sizeof *token);
    int64_t n = tokenizer_encode(m->tokenizer, text, sizeof text - 1, true, &ids, &e);
    if (n > 0 && n < 64)
        memcpy(token, ids, (size_t)n * sizeof *token);
    check(n > 0 && n < 64, false, "the prompt has %d tokens: %s", (int)n, e.msg);
    if (checks_failed == 0 && rig_open(&gpu, &whet_backend_cuda, m, PAGES, STEP_TOKENS, 8) &&
        rig_open(&cpu, &backend_cpu, m, PAGES, STEP_TOKENS, 8))
        compare(&gpu, &cpu, token, (int32_t)n);
    for (int r = 0; r < REGION_COUNT; r++)
        printf("     %-9s %s\n", region_name((enum region)r),
               dtype_name(device_type(m, (enum region)r, m->shape.layers - 1, 1)));
    rig_close(&gpu);
    rig_close(&cpu);
    free(ids);
    free(token);
    model_close(m);
    printf("%d checks, %d failed\n", checks_made, checks_failed);
    return checks_failed > 0;
}
