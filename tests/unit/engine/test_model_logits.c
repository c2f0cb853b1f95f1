/* SPDX-License-Identifier: Apache-2.0 */
/* test_model_logits.c - a whole forward pass of the tiny models through the oracle of every region,
 * against the logits that transformers computes from the same files (scripts/make-golden-model).
 *
 * It shows that weights, norms, biases, rotary order and scaling arrive where the regions expect
 * them, for each architecture and both kinds of files, without any fast kernel in the way. */
#include "tests/unit/unit.h"

#include <math.h>
#include <unistd.h>

#include "engine/arch.h"
#include "engine/cpu/bind.h"
#include "engine/cpu/oracle.h"
#include "engine/model.h"
#include "tests/unit/engine/model_world.h"

/* One sequence of m tokens in one step. Activations are floats between regions, as in a step. */
struct pass {
    const struct model *m;
    int32_t n;
    int32_t *position, *page; /* position doubles as kv_at: pages in order */
    float *cosine, *sine;
    float *x, *k_pages, *v_pages;
};

/* Output `i` of the region as floats. */
static float *run(enum region r, const union region_args *a, struct oracle_out *out, int i)
{
    if (i == 0)
        oracle_run(r, a, out);
    int64_t n = (int64_t)out->output[i].rows * out->output[i].cols;
    float *f = xaligned((size_t)n * sizeof *f);
    for (int64_t j = 0; j < n; j++)
        f[j] = (float)out->output[i].value[j];
    return f;
}

/* Rows [m, kv_heads * head_dim] into pages [page, kv_head, KV_PAGE, head_dim]. */
static void store(const struct pass *p, const float *rows, float *pages)
{
    int32_t d = p->m->shape.head_dim, heads = p->m->shape.kv_heads;
    for (int32_t t = 0; t < p->n; t++)
        for (int32_t h = 0; h < heads; h++)
            memcpy(pages + (((int64_t)(t / KV_PAGE) * heads + h) * KV_PAGE + t % KV_PAGE) * d,
                   rows + ((int64_t)t * heads + h) * d, (size_t)d * sizeof *rows);
}

static float *attention(struct pass *p, int32_t layer)
{
    union region_args a = {0};
    struct oracle_out out;

    bind_layer(p->m, REGION_ATTN_IN, layer, &a);
    a.attn_in.m = p->n;
    a.attn_in.x = p->x;
    a.attn_in.rope_cos = p->cosine;
    a.attn_in.rope_sin = p->sine;
    a.attn_in.position = a.attn_in.kv_at = p->position;
    float *q = run(REGION_ATTN_IN, &a, &out, 0);
    float *k = run(REGION_ATTN_IN, &a, &out, 1), *v = run(REGION_ATTN_IN, &a, &out, 2);
    oracle_free(&out);
    store(p, k, p->k_pages);
    store(p, v, p->v_pages);

    struct span span = {.first = 0, .count = p->n, .context = p->n, .pages_at = 0};
    a = (union region_args){0};
    bind_layer(p->m, REGION_ATTN, layer, &a);
    a.attn.m = p->n;
    a.attn.spans = 1;
    a.attn.q = q;
    a.attn.k_pages = p->k_pages;
    a.attn.v_pages = p->v_pages;
    a.attn.span = &span;
    a.attn.page_table = p->page;
    float *y = run(REGION_ATTN, &a, &out, 0);
    oracle_free(&out);
    free(q);
    free(k);
    free(v);
    return y;
}

/* x += in W^T: attn_out and mlp_out. */
static void add_out(struct pass *p, enum region r, int32_t layer, float *in)
{
    union region_args a = {0};
    struct oracle_out out;

    bind_layer(p->m, r, layer, &a);
    a.out.m = p->n;
    a.out.in = in;
    a.out.x = p->x;
    float *y = run(r, &a, &out, 0);
    oracle_free(&out);
    free(in);
    free(p->x);
    p->x = y;
}

static float *mlp(struct pass *p, int32_t layer)
{
    union region_args a = {0};
    struct oracle_out out;

    bind_layer(p->m, REGION_MLP_IN, layer, &a);
    a.mlp_in.m = p->n;
    a.mlp_in.x = p->x;
    float *h = run(REGION_MLP_IN, &a, &out, 0);
    oracle_free(&out);
    return h;
}

static float *head(struct pass *p)
{
    union region_args a = {0};
    struct oracle_out out;
    int32_t last = p->n - 1;

    bind_layer(p->m, REGION_HEAD, 0, &a);
    a.head.m = 1;
    a.head.row = &last;
    a.head.x = p->x;
    float *logits = run(REGION_HEAD, &a, &out, 0);
    oracle_free(&out);
    return logits;
}

/* Logits after the last of n tokens; the caller frees them. */
static float *forward(const struct model *m, const int32_t *tokens, int32_t n)
{
    const struct model_shape *s = &m->shape;
    int32_t pages = (n + KV_PAGE - 1) / KV_PAGE;
    size_t kv = (size_t)pages * KV_PAGE * (size_t)(s->kv_heads * s->head_dim) * sizeof(float);
    size_t table = (size_t)n * (size_t)(s->head_dim / 2) * sizeof(float);
    struct pass p = {.m = m, .n = n};
    union region_args a = {0};
    struct oracle_out out;

    p.position = xcalloc((size_t)n, sizeof *p.position);
    p.page = xcalloc((size_t)pages, sizeof *p.page);
    for (int32_t i = 0; i < n; i++)
        p.position[i] = i;
    for (int32_t i = 0; i < pages; i++)
        p.page[i] = i;
    p.cosine = xaligned(table);
    p.sine = xaligned(table);
    p.k_pages = xaligned(kv);
    p.v_pages = xaligned(kv);
    rope_tables(s, n, p.cosine, p.sine);
    bind_layer(m, REGION_EMBED, 0, &a);
    a.embed.m = n;
    a.embed.tokens = tokens;
    p.x = run(REGION_EMBED, &a, &out, 0);
    oracle_free(&out);
    for (int32_t i = 0; i < s->layers; i++) {
        add_out(&p, REGION_ATTN_OUT, i, attention(&p, i));
        add_out(&p, REGION_MLP_OUT, i, mlp(&p, i));
    }
    float *logits = head(&p);
    void *all[] = {p.position, p.page, p.cosine, p.sine, p.k_pages, p.v_pages, p.x};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return logits;
}

/* Relative RMS error over the row after each prompt of the golden; returns how many there are. */
static int check_prompts(const struct model *m, const char *name, const cJSON *golden)
{
    const cJSON *prompt;
    int prompts = 0;

    cJSON_ArrayForEach(prompt, cJSON_GetObjectItem(golden, "prompts"))
    {
        const cJSON *ids = cJSON_GetObjectItem(prompt, "ids"), *id;
        const cJSON *want = cJSON_GetObjectItem(prompt, "logits"), *value;
        int32_t n = 0, tokens[512], at = 0;
        double error = 0, size = 0;
        cJSON_ArrayForEach(id, ids) tokens[n++] = id->valueint;
        float *logits = forward(m, tokens, n);
        assert_int_equal(cJSON_GetArraySize(want), m->shape.vocab);
        cJSON_ArrayForEach(value, want)
        {
            double d = (double)logits[at++] - value->valuedouble;
            error += d * d;
            size += value->valuedouble * value->valuedouble;
        }
        if (!(sqrt(error / size) < 1e-5))
            fail_msg("%s, %d tokens: relative error %g", name, n, sqrt(error / size));
        free(logits);
        prompts++;
    }
    return prompts;
}

static void check_model_in(const char *model_name, const char *golden_name, enum dtype type)
{
    struct model *m = open_golden_weights(model_name);
    cJSON *golden = golden_json(golden_name);

    if (type != DTYPE_COUNT) {
        const struct layer *l = &m->layer[0];
        assert_int_equal(l->wq.type, type);
        assert_int_equal(l->wk.type, type);
        assert_int_equal(l->down.type, type);
    }
    assert_int_equal(check_prompts(m, model_name, golden), 4);
    cJSON_Delete(golden);
    model_close(m);
}

static void check_model(const char *model_name, const char *golden_name)
{
    check_model_in(model_name, golden_name, DTYPE_COUNT);
}

/* Its matrices are in the formats that no other golden model has (scripts/make-golden-formats). */
static void rare_formats_give_the_logits_of_their_numbers(void **state)
{
    (void)state;
    check_model("tiny-formats.gguf", "tiny-formats.json");
}

/* In formats that lose nothing, where there are such (scripts/make-golden-checkpoints). */
static void quantized_checkpoints_give_the_logits_of_their_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype type;
    } checkpoint[] = {
        {"fp8-block", DTYPE_F8},       {"fp8-tensor", DTYPE_F8}, {"ct-fp8-channel", DTYPE_F8},
        {"ct-fp8-block", DTYPE_F8},    {"ct-pack", DTYPE_Q4_0},  {"ct-pack-channel", DTYPE_Q8_0},
        {"ct-pack-order", DTYPE_BF16}, {"awq", DTYPE_Q8_0},      {"gptq", DTYPE_Q4_0},
        {"gptq-order", DTYPE_F16},     {"gptq-v2", DTYPE_Q8_0},
    };
    for (size_t i = 0; i < sizeof checkpoint / sizeof *checkpoint; i++) {
        char *model = xasprintf("checkpoints/%s", checkpoint[i].name);
        char *golden = xasprintf("checkpoints/%s.json", checkpoint[i].name);
        check_model_in(model, golden, checkpoint[i].type);
        free(golden);
        free(model);
    }
}

/* Read from safetensors and from GGUF (scripts/make-golden-model). One that computes what
 * transformers does not say would be anybody's guess. */
static void every_architecture_gives_the_logits_of_transformers(void **state)
{
    (void)state;
    for (int a = 0; a < ARCH_COUNT; a++) {
        char *model = xasprintf("tiny-%s", arch_traits((enum arch)a)->gguf);
        char *gguf = xasprintf("%s.gguf", model), *golden = xasprintf("%s/logits.json", model);
        char *path = golden_path(golden);
        if (access(path, R_OK) != 0)
            fail_msg("tests/golden/%s is missing: scripts/make-golden-model", golden);
        check_model(model, golden);
        check_model(gguf, golden);
        free(path);
        free(golden);
        free(gguf);
        free(model);
    }
}

/* What a model's config.json says of rotary frequencies in one of the cases that
 * scripts/make-golden-rope has: within the original context and beyond it. */
static void every_rotary_scaling_gives_the_logits_of_transformers(void **state)
{
    (void)state;
    cJSON *golden = golden_json("rope-models.json"), *entry;
    int cases = 0;

    cJSON_ArrayForEach(entry, golden)
    {
        const char *name = cJSON_GetObjectItem(entry, "case")->valuestring;
        struct model *m = open_rope_case(entry, false);
        assert_int_equal(check_prompts(m, name, entry), 2);
        model_close(m);
        if (!strcmp(name, "gguf")) {
            m = open_golden_weights("rope-yarn.gguf");
            assert_int_equal(check_prompts(m, "rope-yarn.gguf", entry), 2);
            model_close(m);
            cases++;
        }
        cases++;
    }
    assert_int_equal(cases, 9);
    cJSON_Delete(golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_gives_the_logits_of_transformers),
        cmocka_unit_test(quantized_checkpoints_give_the_logits_of_their_numbers),
        cmocka_unit_test(rare_formats_give_the_logits_of_their_numbers),
        cmocka_unit_test(every_rotary_scaling_gives_the_logits_of_transformers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
