/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_watch.c - the thread of each rank that looks whether the others are still there.
 *
 * On rank 0 it reads all that the others say, from the moment that all have come, and it is the one
 * that sees a step take too long. Silence is an end as well: of a rank that starts, which says so
 * as long as it gets on with it, and of one that waits for steps, which is asked now and then.
 * Whoever starts gets on with it if its process computes or reads, both of which take processor
 * time: loading may take hours then, while one that is stopped, or stands before a disk that does
 * not answer, is not waited for.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "engine/crash.h"
#include "engine/ranks_private.h"

enum { WATCH_MS = 50 };
static int grace_s = 10; /* a test that includes this file waits less */

#define ALIVE_NS INT64_C(1000000000)
#define AWAY_NS ALIVE_NS         /* between two looks: this thread stood still */
#define WORK_NS INT64_C(1000000) /* of processor time; waiting in poll() takes less */

/* ---- time ----------------------------------------------------------------------------------- */

/* Called at each look. */
static void note_look(struct ranks *r)
{
    int64_t now = clock_ns();
    if (now - r->looked_ns > AWAY_NS)
        r->back_ns = now;
    r->looked_ns = now;
}

/* For how long something has been waited for since `since`. While this thread stood still (a
 * machine that was paused, a group of processes that was frozen) nobody could be heard: after that
 * everything has its whole time again. */
static int64_t waited_ns(const struct ranks *r, int64_t since)
{
    return clock_ns() - (since > r->back_ns ? since : r->back_ns);
}

/* ---- what the others say ------------------------------------------------------------------- */

/* Before all are ready. -1: it makes no sense. */
static int heard_of_start(struct ranks *r, struct peer *p, const struct link_message *m)
{
    if (atomic_load(&r->began))
        return -1;
    if (m->kind == LINK_READY && atomic_load(&r->set_up)) {
        atomic_store(&p->ready, true);
        return 0;
    }
    if (m->kind != LINK_PART || m->n != sizeof p->part || atomic_load(&p->has_part))
        return -1;
    memcpy(&p->part, m->data, sizeof p->part);
    atomic_store(&p->has_part, true);
    return 0;
}

/* A fault ends the rank: which kernels were at work is noted here, as of a fault of this process.
 * True, with what it died of in place of what it sent. */
static bool heard_of_crash(int32_t from, struct link_message *m)
{
    struct crash_record c;
    if (m->kind != LINK_CRASH || m->n != sizeof c)
        return false;
    memcpy(&c, m->data, sizeof c);
    if (!crash_sound(&c))
        return false;
    crash_of_rank(&c, from);
    m->n = strlen(c.what);
    memcpy(m->data, c.what, m->n + 1);
    return true;
}

/* A message of that rank, or -1 with a message. */
static int receive(struct ranks *r, int32_t from, struct link_message *m, struct err *err)
{
    const size_t most =
        WIRE_TEXT > sizeof(struct crash_record) ? WIRE_TEXT : sizeof(struct crash_record);
    return link_receive(r->peer[from].fd, most, clock_ns() + HELLO_NS, m, NULL, err);
}

static void heard(struct ranks *r, int32_t from)
{
    struct peer *p = &r->peer[from];
    struct link_message m;
    struct err e = {""};
    char why[300];
    int rc = receive(r, from, &m, &e);
    p->heard_ns = clock_ns();
    if (rc == 0 && (m.kind == LINK_ALIVE || heard_of_start(r, p, &m) == 0 ||
                    ranks_kernels_heard(r, from, &m) == 0)) {
        link_message_free(&m);
        return;
    }
    bool crash = rc == 0 && heard_of_crash(from, &m), lost = rc == 0 && m.kind == LINK_LOST;
    snprintf(why, sizeof why, "rank %d (process %lld at %s) %s%.*s", from, (long long)p->join.pid,
             p->address,
             rc      ? "is gone: "
             : crash ? "is gone: it died of "
             : lost  ? "gave up: "
                     : "said something unexpected",
             rc              ? (int)sizeof e.msg
             : crash || lost ? (int)m.n
                             : 0,
             rc ? e.msg : m.data);
    link_message_free(&m);
    ranks_lose(r, why);
}

/* The world may be found to be over, by a step that failed, before a rank's last message is read.
 * Nothing else of them matters any more. */
static void hear_last_words(struct ranks *r)
{
    struct link_message m;
    for (int32_t i = 1; atomic_load(&r->lost) && i < r->options.place.world; i++)
        while (!r->peer[i].silent &&
               link_there(r->peer[i].fd, sizeof(struct crash_record)) == LINK_WHOLE) {
            r->peer[i].silent = receive(r, i, &m, NULL) != 0;
            if (!r->peer[i].silent)
                heard_of_crash(i, &m);
            link_message_free(&m);
        }
}

/* On rank 0: reads messages of all other ranks, and notices a closed connection. */
static void listen_to_all(struct ranks *r)
{
    int32_t world = r->options.place.world;
    struct pollfd p[SHARD_WORLD_MAX];
    bool lost = atomic_load(&r->lost);
    for (int32_t i = 1; i < world; i++)
        p[i] = (struct pollfd){lost ? -1 : r->peer[i].fd, POLLIN, 0};
    int some = poll(p + 1, (nfds_t)world - 1, WATCH_MS);
    for (int32_t i = 1; some > 0 && i < world && !atomic_load(&r->stop); i++)
        if (p[i].revents)
            heard(r, i);
}

/* ---- silence -------------------------------------------------------------------------------- */

static void lose_silent(struct ranks *r, int32_t from, double s, const char *what)
{
    const struct peer *p = &r->peer[from];
    char why[300];
    snprintf(why, sizeof why, "rank %d (process %lld at %s) %s for %.1f s", from,
             (long long)p->join.pid, p->address, what, s);
    ranks_lose(r, why);
}

/* On rank 0, once it waits itself: what the others are to do next, they do or work at. */
static void look_at_starters(struct ranks *r)
{
    int64_t since = atomic_load(&r->awaits_ns);
    bool set_up = atomic_load(&r->set_up);
    for (int32_t i = 1; since && i < r->options.place.world; i++) {
        const struct peer *p = &r->peer[i];
        int64_t last = p->heard_ns > since ? p->heard_ns : since;
        if (!atomic_load(set_up ? &p->ready : &p->has_part) &&
            (double)waited_ns(r, last) * 1e-9 > r->options.join_timeout_s)
            lose_silent(r, i, r->options.join_timeout_s,
                        "has got no further with its start (engine.rank_join_s)");
    }
}

/* On rank 0, while steps may run or none does: asks all whether they are there, and again when all
 * have said something since. */
static void ask_all(struct ranks *r)
{
    double s = (double)waited_ns(r, r->asked_ns) * 1e-9;
    struct err err = {""};
    for (int32_t i = 1; r->asked_ns && i < r->options.place.world; i++)
        if (r->peer[i].heard_ns < r->asked_ns) {
            if (s > r->options.step_timeout_s)
                lose_silent(r, i, r->options.step_timeout_s,
                            "does not answer (engine.rank_step_s)");
            return;
        }
    if (s < r->options.step_timeout_s / 2)
        return;
    r->asked_ns = clock_ns();
    if (ranks_tell_all(r, LINK_PING, NULL, 0, &err))
        ranks_lose(r, err.msg);
}

static int64_t clock_of(clockid_t id)
{
    struct timespec t = {0};
    clock_gettime(id, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

/* On another rank that starts: says so to rank 0, if its other threads have done something since
 * it last did. Only what goes out at once is sent, so that it is never half a message. */
static void say_alive(struct ranks *r)
{
    int64_t now = clock_ns(), each = (int64_t)(r->options.join_timeout_s * 1e9) / 4;
    int64_t worked = clock_of(CLOCK_PROCESS_CPUTIME_ID) - clock_of(CLOCK_THREAD_CPUTIME_ID);
    struct pollfd p = {r->peer[0].fd, POLLOUT, 0};
    if (atomic_load(&r->began) || worked - r->told_work_ns < WORK_NS ||
        now - r->told_ns < (each < ALIVE_NS ? each : ALIVE_NS) || poll(&p, 1, 0) <= 0)
        return;
    r->told_work_ns = worked;
    r->told_ns = now;
    ranks_tell_first(r, LINK_ALIVE, NULL, 0, NULL);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Ends the process if a step does not return although the collective was aborted: it is stuck in
 * the device or its library. */
static void end_if_stuck(struct ranks *r)
{
    if (!atomic_load(&r->lost) || !atomic_load(&r->busy) ||
        waited_ns(r, atomic_load(&r->lost_ns)) < grace_s * INT64_C(1000000000))
        return;
    log_error("ranks", "%s, and this rank does not come back: its process ends", r->why);
    if (r->id_made)
        r->ops->ranks->made(r->id);
    fflush(NULL);
    _exit(RANKS_EXIT_LOST);
}

static void look_at_step(struct ranks *r)
{
    int64_t began = atomic_load(&r->step_ns);
    double took = began ? (double)waited_ns(r, began) * 1e-9 : 0;
    struct collective *c = atomic_load(&r->collective);
    const char *broken = c ? c->ops->broken(c) : NULL;
    char why[120];
    if (broken)
        ranks_lose(r, broken);
    if (took > r->options.step_timeout_s) {
        snprintf(why, sizeof why, "a step did not end within %.1f s", r->options.step_timeout_s);
        ranks_lose(r, why);
    }
    end_if_stuck(r);
}

/* On other ranks: notices that rank 0 has closed the connection while this rank is busy in a step
 * and does not read. The last message of rank 0, which says why, is read when the step ends, so the
 * rank is given a second for that. */
static void look_at_leader(struct ranks *r, int *looks)
{
    struct pollfd p = {r->peer[0].fd, POLLRDHUP, 0};
    usleep(WATCH_MS * 1000);
    bool gone = poll(&p, 1, 0) > 0 && atomic_load(&r->busy);
    *looks = gone ? *looks + 1 : 0;
    if (*looks > 1000 / WATCH_MS)
        ranks_lose(r, "rank 0 is gone");
}

static void look_at_silence(struct ranks *r)
{
    if (ranks_lost(r))
        return;
    if (atomic_load(&r->began))
        ask_all(r);
    else
        look_at_starters(r);
}

static void *watch(void *arg)
{
    struct ranks *r = arg;
    int looks = 0;
    pthread_setname_np(pthread_self(), "whet-ranks");
    crash_stack();
    while (!atomic_load(&r->stop)) {
        note_look(r);
        if (r->options.place.rank == 0) {
            listen_to_all(r);
            hear_last_words(r);
            look_at_silence(r);
        } else {
            look_at_leader(r, &looks);
            say_alive(r);
        }
        look_at_step(r);
    }
    crash_stack_end();
    return NULL;
}

int ranks_watch(struct ranks *r, struct err *err)
{
    for (int32_t i = 0; i < r->options.place.world; i++)
        r->peer[i].heard_ns = clock_ns();
    r->looked_ns = clock_ns();
    if (pthread_create(&r->watcher, NULL, watch, r))
        return err_set(err, "no thread to watch the ranks");
    r->watching = true;
    return 0;
}
