/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c - `whet serve`: options, engine, specializer and server in the order they depend on each
 * other, and down again in the opposite order.
 *
 * Where several processes compute the model (engine.ranks), this is rank 0, or another one, which
 * has no server.
 *
 * The port opens before the model is loaded. The engine ends after the loop, so no event can come
 * for a server that is gone; the specializer ends before the engine, because it works on it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__ /* which the headers above say */
#include <malloc.h>
#endif

#include "config/clock.h"
#include "config/descriptors.h"
#include "config/log.h"
#include "engine/launch.h"
#include "engine/ranks.h"
#include "server/limits.h"
#include "server/server.h"

/* Every connection is a descriptor: take as many as the hard limit gives. */
static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur >= r.rlim_max)
        return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

/* The loop and the engine open so many before anybody is served; libuv aborts without a word where
 * one is missing. */
static bool enough_files(void)
{
    enum { LEAST = 16 };
    struct rlimit r = {0, 0};
    if (descriptors_free(LEAST))
        return true;
    getrlimit(RLIMIT_NOFILE, &r);
    log_error("server",
              "the limit of open files (%lld) leaves less than the %d that a server needs: raise "
              "it (ulimit -n, LimitNOFILE=)",
              (long long)r.rlim_cur, LEAST);
    return false;
}

/* A load can last minutes, and nobody was served by it: it is not waited for. The kernel takes back
 * its memory and its device, and the store bears any end. */
static void end_while_loading(const struct engine *e, int rc)
{
    if (engine_state(e, NULL, NULL, 0) != ENGINE_LOADING)
        return;
    log_info("server", "the model was still being loaded; that is given up");
    fflush(NULL);
    _exit(rc);
}

/* Whether the engine ends is seen to by a thread of its own: the specializer and this one wait for
 * it. */
struct ending {
    struct engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool over;
};

static void *see_it_end(void *arg)
{
    struct ending *n = arg;
    pthread_mutex_lock(&n->lock);
    while (!n->over) {
        struct timespec at = clock_in(1);
        pthread_cond_timedwait(&n->wake, &n->lock, &at);
        double stalled = n->over ? 0 : engine_stalled_s(n->engine);
        if (stalled < DRAIN_GRACE_S)
            continue;
        log_error("server",
                  "the engine has made no step for %.0f s and cannot be stopped; giving it up",
                  stalled);
        fflush(NULL);
        _exit(1);
    }
    pthread_mutex_unlock(&n->lock);
    return NULL;
}

/* Specializer and engine, in this order. If the engine hangs neither would end: then the process
 * does, as at the end of a drain (server/loop.c). */
static void end_both(struct specializer *specializer, struct engine *engine)
{
    pthread_t thread;
    struct ending n = {.engine = engine, .lock = PTHREAD_MUTEX_INITIALIZER};
    clock_cond_init(&n.wake);
    bool seen_to = pthread_create(&thread, NULL, see_it_end, &n) == 0;
    if (specializer)
        specializer_stop(specializer);
    engine_quit(engine);
    pthread_mutex_lock(&n.lock);
    n.over = true;
    pthread_cond_signal(&n.wake);
    pthread_mutex_unlock(&n.lock);
    if (seen_to)
        pthread_join(thread, NULL);
    engine_stop(engine);
}

static void stop_server(void *server)
{
    server_stop(server);
}

static int run(struct config *c, const struct rank_place *place, int argc, char **argv)
{
    struct err err = {""};
    struct specializer *specializer = NULL;
    struct server *server = NULL;
    int rc = 1;
    struct engine *engine = engine_start_ranks(c, place, &err);
    if (!engine) {
        log_error("server", "%s", err.msg);
        return 1;
    }
    specializer = specializer_start(c, engine, &err);
    if (!specializer)
        log_warn("server", "serving on without the specializer: %s", err.msg);
    server = server_open(c, engine, specializer, argc, argv, &err);
    if (!server) {
        log_error("server", "%s", err.msg);
        goto done;
    }
    bool v6 = strchr(c->server_host, ':');
    printf("whet listening on http://%s%s%s:%d\n", v6 ? "[" : "", c->server_host, v6 ? "]" : "",
           server_port(server));
    fflush(stdout);
    if (place->world > 1)
        engine_on_lost(engine, stop_server, server);
    rc = server_run(server);
    if (place->world > 1 && engine_state(engine, NULL, NULL, 0) == ENGINE_LOST)
        rc = RANKS_EXIT_LOST;
done:
    end_while_loading(engine, rc);
    end_both(specializer, engine);
    if (server)
        server_close(server);
    return rc;
}

/* Large bodies and prompts go back to the system when they are freed. Left alone, glibc learns from
 * the first of them to keep such blocks in the arenas of its threads, and a storm of bodies that
 * left stays in memory for good. */
static void give_large_blocks_back(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 20);
#endif
}

/* Rank 0 serves; the others run what it sends. */
static int run_ranks(struct config *c, int argc, char **argv)
{
    struct rank_place place;
    struct launched others;
    struct err err = {""};
    int rc = launch_ranks(c, argc, argv, &place, &others, &err);
    if (rc == 0 && place.rank > 0)
        rc = engine_follow(c, &place, &err) ? RANKS_EXIT_LOST : 0;
    else if (rc == 0)
        rc = run(c, &place, argc, argv);
    if (*err.msg)
        log_error("ranks", "%s", err.msg);
    launch_wait(&others);
    return rc < 0 ? 1 : rc;
}

int serve_main(int argc, char **argv)
{
    give_large_blocks_back();
    struct config c;
    struct err err;
    memset(&c, 0, sizeof(c));
    int parsed = config_parse(&c, argc, argv, &err);
    if (parsed == 0)
        parsed = specializer_check(&c, &err);
    if (parsed != 0) {
        if (parsed < 0)
            fprintf(stderr, "whet serve: %s\n", err.msg);
        config_free(&c);
        return parsed < 0 ? 2 : 0;
    }
    if (!c.engine_model || !*c.engine_model) {
        fprintf(stderr, "whet serve: no model given: --model FILE.gguf or a model directory\n");
        config_free(&c);
        return 2;
    }
    log_set_level((enum log_level)log_level_parse(c.log_level));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit is a write that fails, not the end */
    raise_file_limit();
    int rc = enough_files() ? run_ranks(&c, argc, argv) : 1;
    config_free(&c);
    return rc;
}
