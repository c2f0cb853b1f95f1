/* SPDX-License-Identifier: Apache-2.0 */
/* test_swap.c - kernels exchanged under load: the path that ThreadSanitizer must find clean.
 *
 * The real engine on the real CPU backend serves a tiny model to several clients at once, while
 * this thread, in the specializer's place, loads compiled kernels, publishes them into slots,
 * puts eager back, waits for the epoch and unloads - as fast as it can. The kernels are template
 * points that declare the eager kernel's bits, so every text must be the one of a quiet engine.
 */
#include "tests/unit/unit.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/safe_path.h"
#include "engine/tuning.h"
#include "specializer/build/build.h"
#include "specializer/build/sources.h"
#include "specializer/search/space.h"
#include "specializer/swap.h"
#include "tests/unit/engine/real_engine.h"

enum { CLIENTS = 6, TOKENS = 24, SWAPS = 60, ROUNDS_MAX = 400, MS = 3 };

struct client {
    char text[2048], quiet[2048];
    _Atomic int ended;
    int index, rounds, changed, failed;
};

static _Atomic bool stop_load;
static struct engine *engine;

static void on_event(void *user, const struct engine_event *event)
{
    struct client *c = user;
    if (event->kind != EVENT_PROMPT)
        strncat(c->text, event->text, event->text_n);
    if (event->kind == EVENT_END) {
        c->failed += event->finish != FINISH_LENGTH;
        atomic_store(&c->ended, 1);
    }
}

/* One greedy request from beginning to end. */
static void ask(struct client *c)
{
    int32_t prompt[8];
    for (int i = 0; i < 8; i++)
        prompt[i] = 40 + (c->index * 31 + i * 7) % 200;
    struct engine_request r = {.prompt = prompt,
                               .prompt_n = 8,
                               .max_tokens = TOKENS,
                               .ignore_eos = true,
                               .sampling = {SAMPLING_NEUTRAL, .top_logprobs = -1},
                               .on_event = on_event,
                               .user = c};
    struct err err = {""};
    c->text[0] = 0;
    atomic_store(&c->ended, 0);
    if (engine_submit(engine, &r, NULL, &err) != SUBMIT_OK) {
        c->failed++;
        return;
    }
    while (!atomic_load(&c->ended))
        usleep(200);
}

static void *load(void *ctx)
{
    struct client *c = ctx;
    do {
        ask(c);
        c->changed += strcmp(c->text, c->quiet) != 0;
        c->rounds++;
    } while (!atomic_load(&stop_load) && c->rounds < ROUNDS_MAX);
    return NULL;
}

static void start_engine(char *path)
{
    static struct config c;
    c = (struct config){.engine_model = path,
                        .engine_model_name = (char *)"tiny",
                        .engine_backend = (char *)"cpu",
                        .engine_threads = 2,
                        .engine_kv_pages = 256,
                        .engine_max_batch = 16,
                        .engine_prefill_chunk = 64,
                        .server_max_queue = 100};
    engine = start_ready(&c);
}

/* Compiles the defaults of the narrow o/down template for slots of `m` tokens, with the instruction
 * set that has the bits of this processor's eager kernels. */
static char *build_object(const struct stage_env *env, const char *dir, int m)
{
    const struct template *t = template_find("mlp_out");
    struct facts f;
    facts_fill(&f, env->model, REGION_MLP_OUT, m, NUMERICS_BIT_EQUAL);
    struct point p = template_defaults(t);
    if (f.HAS_AVX2)
        p.value[template_knob(t, "ISA")] = 1;
    const char *why = template_illegal(t, &p, &f);
    if (why)
        fail_msg("the defaults are illegal: %s", why);
    assert_true(t->bit_equal(&p, &f));
    struct candidate c = {.template = t, .point = p, .origin = ORIGIN_TEMPLATE};
    c.source = xasprintf("%s/cpu/%s.c", env->kernel_dir, t->file);
    c.object = xasprintf("%s/m%d.so", dir, m);
    c.define = point_flags(t, &p, &f);
    struct err err = {""};
    struct build *b = build_start(env, &c, &err);
    enum stage_result r;
    assert_non_null(b);
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    if (r != STAGE_PASS)
        fail_msg("build: %s\n%s", c.reason, c.log ? c.log : "");
    for (int i = 0; c.define[i]; i++)
        free(c.define[i]);
    free(c.define);
    free(c.source);
    free(c.log);
    return c.object;
}

/* Publishes the kernels, lets steps use them, puts eager back, unloads. */
static void swap_once(char *const object[MS], const int m[MS])
{
    const struct backend_ops *ops = engine_backend_ops(engine);
    struct backend *backend = engine_backend(engine);
    struct dispatch *d = engine_dispatch(engine);
    struct kernel *k[MS];
    int64_t epoch = 0;
    for (int i = 0; i < MS; i++) {
        struct err err = {""};
        struct kernel_object o = {.path = object[i],
                                  .region = REGION_MLP_OUT,
                                  .origin = ORIGIN_TEMPLATE,
                                  .id = "0123456789abcdef",
                                  .name = "mlp_out"};
        k[i] = ops->load(backend, &o, &err);
        if (!k[i])
            fail_msg("%s", err.msg);
        dispatch_publish(d, dispatch_slot(d, REGION_MLP_OUT, 0, m[i], 0), k[i]);
    }
    usleep(3000);
    for (int i = 0; i < MS; i++) {
        struct slot *s = dispatch_slot(d, REGION_MLP_OUT, 0, m[i], 0);
        epoch = dispatch_publish(d, s, s->eager);
    }
    while (!dispatch_passed(d, epoch))
        usleep(100);
    for (int i = 0; i < MS; i++)
        ops->unload(backend, k[i]);
}

static void texts_survive_swaps_under_load(void **state)
{
    (void)state;
    const char *root = getenv("WHET_SOURCE_ROOT");
    assert_non_null(root);
    static struct config config;
    char *none[] = {(char *)"test"}, dir[] = "/tmp/whet-swap-XXXXXX";
    struct err err = {""};
    struct compiler compiler = {0};
    assert_int_equal(config_parse(&config, 1, none, &err), 0);
    assert_int_equal(compiler_find(&config, &compiler, &err), 0);
    assert_non_null(mkdtemp(dir));
    char *path = xasprintf("%s/tests/golden/tiny-llama.gguf", root);
    char *kernels = xasprintf("%s/kernels", dir); /* compilers leave headers beside the sources */
    assert_int_equal(kernel_sources_write(kernels, &err), 0);
    start_engine(path);
    struct stage_env env = {.config = &config,
                            .compiler = &compiler,
                            .model = engine_model(engine),
                            .kernel_dir = kernels,
                            .alone = true};
    static const int m[MS] = {1, 2, 6};
    char *object[MS];
    for (int i = 0; i < MS; i++)
        object[i] = build_object(&env, dir, m[i]);

    static struct client client[CLIENTS];
    pthread_t thread[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        client[i].index = i;
        ask(&client[i]);
        strcpy(client[i].quiet, client[i].text);
        assert_true(client[i].quiet[0]);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&thread[i], NULL, load, &client[i]);
    for (int i = 0; i < SWAPS; i++)
        swap_once(object, m);
    atomic_store(&stop_load, true);
    int rounds = 0;
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(thread[i], NULL);
        rounds += client[i].rounds;
        assert_int_equal(client[i].failed, 0);
        assert_int_equal(client[i].changed, 0);
    }
    assert_true(rounds >= CLIENTS);
    struct slot *s = dispatch_slot(engine_dispatch(engine), REGION_MLP_OUT, 0, 1, 0);
    assert_ptr_equal(atomic_load(&s->kernel), s->eager);
    engine_stop(engine);
    for (int i = 0; i < MS; i++)
        free(object[i]);
    safe_folder_remove(dir);
    free(path);
    free(kernels);
    config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_survive_swaps_under_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
