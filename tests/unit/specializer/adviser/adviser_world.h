/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_world.h - an adviser with a store of its own and an endpoint that is a stand-in, for
 * every test. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_ADVISER_ADVISER_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_ADVISER_ADVISER_WORLD_H

#include "tests/unit/unit.h"

#include "config/clock.h"
#include "specializer/adviser/adviser_replay.h"
#include "specializer/adviser/llm.h"
#include "specializer/store/store.h"
#include "tests/unit/specializer/advice_world.h"
#include "tests/unit/specializer/stand_in.h"

enum { PATIENCE_S = 300 }; /* a limit, never reached by an adviser that works */
static char folder[] = "/tmp/whet-test-adviser-XXXXXX";
static char key_path[80];
static const char key[] = "sk-only-for-the-endpoint";
static int stores;
static struct stand_in server;
static struct world w;
static struct config config;
static struct store *store;
static char *metrics;

static inline int open_all(void **unused)
{
    (void)unused;
    setenv("no_proxy", "127.0.0.1", 1);
    if (!mkdtemp(folder))
        return -1;
    snprintf(key_path, sizeof key_path, "%s/key", folder);
    FILE *out = fopen(key_path, "wb");
    if (!out || fputs(key, out) < 0)
        return -1;
    return fclose(out);
}

static inline int close_all(void **unused)
{
    char command[80];
    (void)unused;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static inline int open_one(void **unused)
{
    struct err err;
    char path[120];
    char *argv[] = {(char *)"whet", NULL};
    (void)unused;
    snprintf(path, sizeof path, "%s/%d/store.db", folder, stores++);
    stand_in_open(&server);
    world_open(&w, REGION_MLP_OUT, 4);
    search_learn(&w.search, 0, 1); /* nobody is asked about a slot of which nothing is known */
    stand_in_say(&server, world_reply(&w, 3, "as the model sees it", "a note"));
    store = store_open(path, &err);
    return store ? config_parse(&config, 1, argv, &err) : -1;
}

static inline int close_one(void **unused)
{
    (void)unused;
    stand_in_close(&server);
    world_close(&w);
    store_close(store);
    config_free(&config);
    free(metrics);
    metrics = NULL;
    return 0;
}

static inline struct adviser *open_url(const char *url)
{
    free(config.adviser_url);
    free(config.adviser_key_file);
    config.adviser_url = strdup(url);
    config.adviser_key_file = strdup(key_path);
    return adviser_open(&config, store);
}

static inline struct adviser *open_server(void)
{
    char url[80];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/chat/completions", server.port);
    return open_url(url);
}

/* True: the model had spoken. It is not waited for: neither_question_nor_close_waits. */
static inline bool ask(struct adviser *a, struct advice *out)
{
    adviser_ask(a, &w.request, out);
    return strcmp(out->source, "heuristic") != 0;
}

static inline void ask_and_forget(struct adviser *a)
{
    struct advice advice;
    ask(a, &advice);
    advice_free(&advice);
}

/* One question and its end. */
static inline void exchange(struct adviser *a)
{
    ask_and_forget(a);
    assert_true(adviser_wait(a, PATIENCE_S));
}

static inline double metric(struct adviser *a, const char *sample)
{
    size_t n;
    free(metrics);
    FILE *out = open_memstream(&metrics, &n);
    adviser_metrics(a, out);
    fclose(out);
    const char *at = strstr(metrics, sample);
    if (!at)
        print_error("%s: %s\n", sample, metrics);
    assert_non_null(at);
    return strtod(at + strlen(sample), NULL);
}

#define REQUESTS(outcome) metric(a, "whet_adviser_requests_total{outcome=\"" outcome "\"} ")

struct last {
    int n;
    char verdict[700], reply[4096], all[65536];
};

static inline void take_exchange(void *ctx, const struct llm_call *x)
{
    struct last *last = ctx;
    last->n++;
    snprintf(last->verdict, sizeof last->verdict, "%s", x->verdict);
    snprintf(last->reply, sizeof last->reply, "%s", x->reply);
    snprintf(last->all, sizeof last->all, "%s%s%s", x->request, x->reply, x->verdict);
}

static inline struct last *last_exchange(void)
{
    static struct last last;
    memset(&last, 0, sizeof last);
    assert_int_equal(store_llm_calls(store, take_exchange, &last, NULL), 0);
    return &last;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_one, close_one)

#endif
