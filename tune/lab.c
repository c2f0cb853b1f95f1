/* SPDX-License-Identifier: Apache-2.0 */
/* lab.c - see lab.h. */
#include "tune/lab.h"
#include "specializer/setup.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static atomic_bool *stop_flag; /* of the one lab that listens */

/* A kernel in its live steps may need most of a minute. */
static void on_signal(int unused)
{
    static const char said[] =
        "whet tune: what is under way is finished first; the same again ends it at once\n";
    (void)unused;
    ssize_t told = write(STDERR_FILENO, said, sizeof said - 1);
    (void)told;
    if (stop_flag)
        atomic_store(stop_flag, true);
}

void lab_stop_on_signals(struct lab *l)
{
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    stop_flag = &l->s->stop;
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
}

bool lab_stopped(const struct lab *l)
{
    return atomic_load(&l->s->stop);
}

static void tick(void *ctx)
{
    struct specializer *s = ctx;
    specializer_observe(s);
    round_children(s);
}

static int wait_ready(struct engine *e, struct err *err)
{
    char message[256] = "";
    enum engine_state state;
    while ((state = engine_state(e, NULL, message, sizeof message)) == ENGINE_LOADING)
        usleep(5000);
    return state == ENGINE_READY ? 0 : err_set(err, "%s", message);
}

int lab_open(struct lab *l, const struct config *c, struct err *err)
{
    *l = (struct lab){0};
    l->engine = engine_start(c, err);
    if (!l->engine || wait_ready(l->engine, err) != 0)
        goto fail;
    l->s = specializer_new(c, l->engine, false, err);
    if (!l->s)
        goto fail;
    l->s->env.tick = tick;
    l->s->env.tick_ctx = l->s;
    l->s->env.alone = true;
    specializer_setup(l->s);
    if (!l->s->has_compiler) {
        err_set(err, "there is no compiler, or no folder to compile into");
        goto fail;
    }
    atomic_store(&l->s->mode, SPECIALIZER_RUN);
    return 0;
fail:
    lab_close(l);
    return -1;
}

void lab_close(struct lab *l)
{
    stop_flag = NULL;
    if (l->s)
        specializer_free(l->s);
    if (l->engine)
        engine_stop(l->engine);
    *l = (struct lab){0};
}
