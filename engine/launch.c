/* SPDX-License-Identifier: Apache-2.0 */
/* launch.c - the other ranks of a model, as processes of this machine.
 *
 * They are this program with the same command line, told by the same variables that torchrun sets
 * which rank they are, and where rank 0 listens: it does so already when they start, on a port of
 * the loopback that the system chose. A secret drawn for them keeps others from taking a place.
 * They end when their connection to rank 0 does; the kernel ends them if even that fails.
 */
#include "engine/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/ranks_link.h"

enum { WAIT_MS = 5000, STEP_MS = 20 };

static const char *environment(const char *name)
{
    return getenv(name);
}

static void set_number(const char *name, int32_t n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

static int draw_secret(struct err *err)
{
    uint64_t drawn[4];
    char text[72];
    if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return err_set(err, "no random numbers: %s", strerror(errno));
    snprintf(text, sizeof text, "%016llx%016llx%016llx%016llx", (unsigned long long)drawn[0],
             (unsigned long long)drawn[1], (unsigned long long)drawn[2],
             (unsigned long long)drawn[3]);
    return setenv("WHET_RANKS_SECRET", text, 1);
}

/* The n-th of a list, or n itself where there is none; NULL: there are not so many. */
static char *gpu_of(const char *visible, int32_t n)
{
    if (!visible)
        return xasprintf("%d", n);
    for (; n > 0 && (visible = strchr(visible, ',')); n--)
        visible++;
    return visible ? xasprintf("%.*s", (int)strcspn(visible, ","), visible) : NULL;
}

/* A probe of what ranks do together needs the GPUs of them all
 * (specializer/admission/probe_main.c): as a list with this process's own first, if so many are
 * visible. */
static void name_all_gpus(const char *visible, int32_t own, int32_t world)
{
    char *list = gpu_of(visible, own);
    for (int32_t r = 0; list && r < world; r++) {
        if (r == own)
            continue;
        char *next = gpu_of(visible, r), *all = next ? xasprintf("%s,%s", list, next) : NULL;
        free(next);
        free(list);
        list = all;
    }
    if (list)
        setenv("WHET_RANK_GPUS", list, 1);
    else
        unsetenv("WHET_RANK_GPUS");
    free(list);
}

/* One GPU for each rank of a machine, by its number there: before anything of CUDA is loaded, so
 * that all of this process sees that one alone. Where only one is visible, somebody has chosen. */
static void pick_device(const struct rank_place *place)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int32_t at = place->local_rank;
    if (place->world < 2 || at < 0)
        return;
    name_all_gpus(visible, at, place->world);
    if (!visible) {
        set_number("CUDA_VISIBLE_DEVICES", at);
        return;
    }
    for (; at > 0 && strchr(visible, ','); at--)
        visible = strchr(visible, ',') + 1;
    char *one = xstrdup(visible);
    one[strcspn(one, ",")] = 0;
    if (at == 0)
        setenv("CUDA_VISIBLE_DEVICES", one, 1);
    free(one);
}

/* In the child. */
static void become(const struct rank_place *place, int32_t rank, pid_t parent, int argc,
                   char **argv)
{
    static char program[] = "whet", ranks[] = "--engine-ranks=env", gpus[] = "--engine-gpus=";
    char **arg = xcalloc((size_t)argc + 4, sizeof *arg);
    arg[0] = program;
    memcpy(arg + 1, argv, (size_t)argc * sizeof *arg);
    arg[argc + 1] = ranks;
    arg[argc + 2] = gpus;
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", place->world);
    set_number("LOCAL_WORLD_SIZE", place->world);
    set_number("MASTER_PORT", place->port);
    setenv("MASTER_ADDR", place->host, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    signal(SIGHUP, SIG_IGN); /* a terminal's, or a reload of rank 0 sent to its whole group */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) /* else it is gone already */
        execv("/proc/self/exe", arg);
    _exit(127);
}

static int start_all(const struct rank_place *place, int argc, char **argv, struct launched *l,
                     struct err *err)
{
    pid_t self = getpid();
    fflush(NULL);
    for (int32_t r = 1; r < place->world; r++) {
        pid_t pid = fork();
        if (pid == 0)
            become(place, r, self, argc, argv);
        if (pid < 0)
            return err_set(err, "rank %d cannot be started: %s", r, strerror(errno));
        l->pid[l->ranks++] = pid;
    }
    return 0;
}

/* engine.gpus as a number of ranks: a list becomes what is visible. 0: it is not set. */
static int gpus_of(const struct config *c, struct err *err)
{
    const char *wish = c->engine_gpus;
    int n = 1;
    if (!wish || !*wish)
        return 0;
    if (strspn(wish, "0123456789,") != strlen(wish) || strstr(wish, ",,") || *wish == ',' ||
        wish[strlen(wish) - 1] == ',')
        return err_set(err, "engine.gpus = %.40s: expected a number, or a list as 0,2", wish);
    if (c->engine_ranks && strcmp(c->engine_ranks, "1") != 0)
        return err_set(err, "engine.gpus and engine.ranks say both how many ranks there are");
    if (strcmp(c->engine_backend, "cpu") == 0)
        return err_set(err, "engine.gpus = %.40s, but engine.backend is cpu", wish);
    for (const char *at = wish; (at = strchr(at, ',')); at++)
        n++;
    if (n == 1)
        return (int)strtol(wish, NULL, 10) > 0 ? (int)strtol(wish, NULL, 10)
                                               : err_set(err, "engine.gpus = 0: no rank is left");
    return setenv("CUDA_VISIBLE_DEVICES", wish, 1) ? -1 : n;
}

int launch_ranks(const struct config *c, int argc, char **argv, struct rank_place *place,
                 struct launched *l, struct err *err)
{
    const char *wish = c->engine_ranks && *c->engine_ranks ? c->engine_ranks : "1";
    char *end;
    int gpus = gpus_of(c, err);
    *l = (struct launched){0};
    *place = (struct rank_place){.world = 1, .local_rank = -1, .listener = -1};
    if (gpus < 0)
        return -1;
    if (!strcmp(wish, "env")) {
        if (rank_place_read(place, environment, err))
            return -1;
        pick_device(place);
        return 0;
    }
    long n = gpus ? gpus : strtol(wish, &end, 10);
    if ((!gpus && *end) || n < 1 || n > SHARD_WORLD_MAX)
        return err_set(err, "engine.ranks = %.40s: expected a number from 1 to %d, or env",
                       gpus ? c->engine_gpus : wish, SHARD_WORLD_MAX);
    if (n == 1)
        return 0;
    place->world = (int32_t)n;
    place->local_rank = 0;
    place->launcher = "whet";
    strcpy(place->host, "127.0.0.1");
    bool everywhere; /* never, at the loopback */
    place->children = l;
    place->listener = link_listen(place->host, &place->port, &everywhere, err);
    if (place->listener < 0 || draw_secret(err))
        return -1;
    if (start_all(place, argc, argv, l, err))
        return -1;
    pick_device(place); /* the others do so for themselves, out of all that are visible */
    return 0;
}

int launch_look(const struct launched *l, struct err *err)
{
    for (int i = 0; i < l->ranks; i++) {
        siginfo_t end = {0}; /* it stays to be waited for */
        if (waitid(P_PID, (id_t)l->pid[i], &end, WEXITED | WNOHANG | WNOWAIT) || !end.si_pid)
            continue;
        if (end.si_code == CLD_EXITED)
            return err_set(err, "rank %d (process %d) ended before all had come, exit status %d",
                           i + 1, (int)l->pid[i], end.si_status);
        return err_set(err, "rank %d (process %d) ended before all had come, by signal %d (%s)",
                       i + 1, (int)l->pid[i], end.si_status, strsignal(end.si_status));
    }
    return 0;
}

void launch_wait(struct launched *l)
{
    for (int waited = 0; l->ranks > 0; waited += STEP_MS) {
        for (int i = 0; i < l->ranks; i++)
            if (waitpid(l->pid[i], NULL, waited < WAIT_MS ? WNOHANG : 0) != 0)
                l->pid[i--] = l->pid[--l->ranks];
        if (waited >= WAIT_MS - STEP_MS)
            for (int i = 0; i < l->ranks; i++)
                kill(l->pid[i], SIGKILL);
        if (l->ranks > 0)
            usleep(STEP_MS * 1000);
    }
}
