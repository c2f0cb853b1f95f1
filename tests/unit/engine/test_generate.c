/* SPDX-License-Identifier: Apache-2.0 */
/* test_generate.c - the engine with the CPU backend and the default model: the text it generates
 * is the one that transformers generates in float32 from the same file.
 *
 * All prompts run together in a KV cache too small for them, with sampled requests between, so
 * that batching, chunking, prefix sharing and preemption all take part. Tokens are compared up to
 * the first place where the reference's two best logits are closer than 1e-3: what comes after may
 * differ for good reasons.
 */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/engine_private.h"
#include "tests/unit/engine/golden.h"
#include "tests/unit/engine/real_engine.h"

enum {
    GOLDEN = 20, /* prompts in the file */
    PROMPTS = SANITIZED ? 10 : GOLDEN,
    TOKENS = SANITIZED ? 20 : 32,
    NOISE = SANITIZED ? 3 : 6,
    PAGES = SANITIZED ? 14 : 32 /* a quarter, or half, of what all need at once */
};
#define NEAR_TIE 1e-3

struct client {
    int32_t prompt[1024], prompt_n;
    int32_t token[TOKENS], tokens;
    char text[4096];
};

static _Atomic int32_t ended;

static void on_event(void *user, const struct engine_event *event)
{
    struct client *c = user;
    if (event->kind == EVENT_TOKEN && c->tokens < TOKENS)
        c->token[c->tokens++] = event->sampled->token;
    if (event->kind != EVENT_PROMPT)
        strncat(c->text, event->text, event->text_n);
    if (event->kind == EVENT_END)
        atomic_fetch_add(&ended, 1);
}

static void submit(struct engine *e, struct client *c, float temperature)
{
    struct err err = {""};
    struct engine_request r = {
        .prompt = c->prompt,
        .prompt_n = c->prompt_n,
        .max_tokens = TOKENS,
        .ignore_eos = true,
        .sampling = {.temperature = temperature, SAMPLING_NEUTRAL, .seed = 7, .top_logprobs = -1},
        .on_event = on_event,
        .user = c};
    if (engine_submit(e, &r, NULL, &err) != SUBMIT_OK)
        fail_msg("%s", err.msg);
}

static struct engine *start(const char *path)
{
    struct config c = {.engine_model = (char *)path,
                       .engine_model_name = "test",
                       .engine_backend = "cpu",
                       .engine_threads = 2,
                       .engine_kv_pages = PAGES,
                       .engine_max_batch = 16,
                       .engine_prefill_chunk = 64,
                       .engine_prefix_cache = (char *)"salted",
                       .server_max_queue = 100};
    return start_ready(&c);
}

static void read_ids(const cJSON *list, int32_t *ids, int32_t *n, int32_t room)
{
    const cJSON *item;
    *n = 0;
    cJSON_ArrayForEach(item, list) if (*n < room) ids[(*n)++] = item->valueint;
}

/* Compared tokens, or fails naming the prompt and the place. */
static int32_t check_greedy(const cJSON *golden, const struct client *c)
{
    const cJSON *tokens = cJSON_GetObjectItem(golden, "tokens");
    const cJSON *gap = cJSON_GetObjectItem(golden, "gap");
    for (int32_t i = 0; i < TOKENS; i++) {
        if (cJSON_GetArrayItem(gap, i)->valuedouble < NEAR_TIE)
            return i;
        if (c->token[i] != cJSON_GetArrayItem(tokens, i)->valueint)
            fail_msg("prompt \"%s\": token %d is %d, not %d",
                     cJSON_GetObjectItem(golden, "name")->valuestring, i, c->token[i],
                     cJSON_GetArrayItem(tokens, i)->valueint);
    }
    return TOKENS;
}

static void engine_generates_what_transformers_does(void **state)
{
    (void)state;
    const char *path = getenv("WHET_TEST_MODEL");
    if (!path) {
        if (getenv("WHET_TEST_REQUIRE_MODEL"))
            fail_msg("WHET_TEST_MODEL is not set");
        skip();
    }
    cJSON *root = golden_json("smollm2-greedy.json");
    const cJSON *prompts = cJSON_GetObjectItem(root, "prompts");
    assert_int_equal(cJSON_GetArraySize(prompts), GOLDEN);
    struct client *c = xcalloc(PROMPTS + NOISE, sizeof *c);
    struct engine *e = start(path);
    for (int i = 0; i < PROMPTS + NOISE; i++)
        read_ids(
            cJSON_GetObjectItem(cJSON_GetArrayItem(prompts, i < PROMPTS ? i : i - NOISE), "ids"),
            c[i].prompt, &c[i].prompt_n, 1024);
    for (int i = 0; i < PROMPTS + NOISE; i++) /* the last prompts again, sampled */
        submit(e, &c[i], i < PROMPTS ? 0 : 0.8f);
    while (atomic_load(&ended) < PROMPTS + NOISE)
        usleep(1000);
    int32_t compared = 0;
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(c[i].tokens, TOKENS);
        compared += check_greedy(cJSON_GetArrayItem(prompts, i), &c[i]);
    }
    assert_true(compared > PROMPTS * TOKENS * 8 / 10);

    const struct tokenizer *t = engine_info(e)->tokenizer;
    for (int i = 0; i < PROMPTS + NOISE; i++) {
        size_t n;
        char *whole = tokenizer_decode(t, c[i].token, c[i].tokens, false, &n);
        assert_string_equal(c[i].text, whole); /* the pieces are the text */
        free(whole);
    }
    assert_true(atomic_load(&e->stats.preemptions) > 0);
    assert_true(atomic_load(&e->stats.cached_tokens) > 0);
    engine_stop(e);
    free(c);
    cJSON_Delete(root);
}

int main(void)
{
    log_set_level(LOG_WARN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_generates_what_transformers_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
