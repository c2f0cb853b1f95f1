/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_kernels.c - kernels on all ranks: rank 0 asks for them, the others answer.
 *
 * A kernel has a number as long as the world lives, and no number is used twice: an answer that
 * comes late, after rank 0 gave up on it, is known to be about a kernel that is nowhere any more.
 * Who is asked loads it beside its steps, so steps go on meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/sha256.h"
#include "engine/ranks_private.h"

void ranks_kernels_open(struct ranks *r)
{
    pthread_mutex_init(&r->kernels.lock, NULL);
    clock_cond_init(&r->kernels.said);
}

void ranks_kernels_close(struct ranks *r)
{
    free(r->kernels.broke);
    pthread_cond_destroy(&r->kernels.said);
    pthread_mutex_destroy(&r->kernels.lock);
}

void ranks_kernels_wake(struct ranks *r)
{
    pthread_mutex_lock(&r->kernels.lock);
    pthread_cond_broadcast(&r->kernels.said);
    pthread_mutex_unlock(&r->kernels.lock);
}

/* ---- asking --------------------------------------------------------------------------------- */

static char *read_object(const char *path, int64_t *n, struct err *err)
{
    FILE *f = fopen(path, "re");
    long size = -1;
    char *data = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size > 0 && size <= KERNEL_BYTES_MOST && fseek(f, 0, SEEK_SET) == 0) {
        data = xmalloc((size_t)size);
        if (fread(data, 1, (size_t)size, f) != (size_t)size) {
            free(data);
            data = NULL;
        }
    }
    if (f)
        fclose(f);
    *n = size;
    if (!data)
        err_outside(err, "%.200s: cannot be read for the other ranks", path);
    return data;
}

/* Builds the message: what the kernel is, and its bytes. */
static char *make_message(const struct kernel_object *o, int32_t number, size_t *n, struct err *err)
{
    struct wire_kernel k = {.number = number,
                            .region = (int32_t)o->region,
                            .origin = (int32_t)o->origin,
                            .layer = (int16_t)class_layer(o->formats, 0),
                            .layers = (int16_t)(o->formats ? o->formats->layers : 0)};
    int64_t bytes;
    char *data = read_object(o->path, &bytes, err);
    if (!data)
        return NULL;
    sha256(data, (size_t)bytes, k.sha256);
    snprintf(k.id, sizeof k.id, "%s", o->id);
    snprintf(k.name, sizeof k.name, "%s", o->name);
    snprintf(k.entry, sizeof k.entry, "%s", o->entry ? o->entry : "");
    k.bytes = bytes;
    *n = sizeof k + (size_t)k.bytes;
    char *message = xmalloc(*n);
    memcpy(message, &k, sizeof k);
    memcpy(message + sizeof k, data, (size_t)k.bytes);
    free(data);
    return message;
}

/* Waits for the answers of all ranks, under the lock. 0: all have loaded the kernel. */
static int await_locked(struct ranks *r, struct err *err)
{
    struct rank_kernels *k = &r->kernels;
    struct timespec at = clock_in(r->options.step_timeout_s);
    int timed_out = 0;
    while (k->answers < r->options.place.world - 1 && !k->why[0] && !ranks_lost(r) && !timed_out)
        timed_out = pthread_cond_timedwait(&k->said, &k->lock, &at);
    if (k->why[0])
        return k->outside ? err_outside(err, "%s", k->why) : err_set(err, "%s", k->why);
    if (k->answers == r->options.place.world - 1)
        return 0;
    if (ranks_lost(r))
        return err_outside(err, "%s", r->why);
    int32_t late = 1;
    while (k->answered[late])
        late++;
    return err_outside(err, "rank %d did not say within %.1f s whether it has the kernel", late,
                       r->options.step_timeout_s);
}

static int32_t begin_asking(struct rank_kernels *k)
{
    pthread_mutex_lock(&k->lock);
    int32_t number = ++k->last;
    k->answers = 0;
    k->why[0] = 0;
    memset(k->answered, 0, sizeof k->answered);
    pthread_mutex_unlock(&k->lock);
    return number;
}

int ranks_load(struct ranks *r, const struct kernel_object *o, int32_t *number, struct err *err)
{
    struct rank_kernels *k = &r->kernels;
    size_t n;
    int32_t unequal = ranks_unequal(r, o->region);
    if (unequal)
        return err_outside(err, "rank %d has another shape or machine there", unequal);
    *number = begin_asking(k);
    char *message = make_message(o, *number, &n, err);
    int rc = message ? ranks_tell_all(r, LINK_LOAD, message, n, err) : -1;
    if (message && rc)
        ranks_lose(r, err->msg);
    free(message);
    pthread_mutex_lock(&k->lock);
    if (rc == 0)
        rc = await_locked(r, err);
    pthread_mutex_unlock(&k->lock);
    if (rc && message)
        ranks_unload(r, *number);
    return rc;
}

void ranks_unload(struct ranks *r, int32_t number)
{
    struct err err = {""};
    if (number && !ranks_lost(r) &&
        ranks_tell_all(r, LINK_UNLOAD, &number, sizeof number, &err) != 0)
        ranks_lose(r, err.msg);
}

/* ---- what is heard -------------------------------------------------------------------------- */

/* Counts an answer. One about an earlier kernel is late and ignored; a second one from the same
 * rank is an error. */
static int loaded_locked(struct rank_kernels *k, int32_t from, const struct wire_answer *a)
{
    if (a->number != k->last)
        return 0;
    if (k->answered[from])
        return -1;
    k->answered[from] = true;
    k->answers++;
    if (a->why[0] && !k->why[0]) {
        snprintf(k->why, sizeof k->why, "rank %d: %s", from, a->why);
        k->outside = a->outside;
    }
    pthread_cond_broadcast(&k->said);
    return 0;
}

static void broke_locked(struct rank_kernels *k, int32_t from, const struct wire_answer *a)
{
    for (int32_t i = 0; i < k->brokes; i++)
        if (k->broke[i].number == a->number)
            return;
    k->broke = xrealloc(k->broke, (size_t)(k->brokes + 1) * sizeof *k->broke);
    struct wire_answer *b = &k->broke[k->brokes++];
    b->number = a->number;
    snprintf(b->why, sizeof b->why, "rank %d: %.200s", from, a->why);
    log_warn("ranks", "kernel %d broke on %s", a->number, b->why);
}

static int heard_of_kernel(struct ranks *r, int32_t from, const struct link_message *m)
{
    struct rank_kernels *k = &r->kernels;
    struct wire_answer a;
    int rc = 0;
    if (m->n != sizeof a)
        return -1;
    memcpy(&a, m->data, sizeof a);
    a.why[sizeof a.why - 1] = 0;
    pthread_mutex_lock(&k->lock);
    if (a.number < 1 || a.number > k->last)
        rc = -1;
    else if (m->kind == LINK_LOADED)
        rc = loaded_locked(k, from, &a);
    else
        broke_locked(k, from, &a);
    pthread_mutex_unlock(&k->lock);
    return rc;
}

int ranks_kernels_heard(struct ranks *r, int32_t from, const struct link_message *m)
{
    struct wire_version v;
    if (!atomic_load(&r->began))
        return -1;
    if (m->kind == LINK_LOADED || m->kind == LINK_BROKE)
        return heard_of_kernel(r, from, m);
    if (m->kind != LINK_TABLE || m->n != sizeof v)
        return -1;
    memcpy(&v, m->data, sizeof v);
    if (v.version < atomic_load(&r->version_of[from]) || v.version > atomic_load(&r->version_of[0]))
        return -1;
    atomic_store(&r->version_of[from], v.version);
    return 0;
}

const char *ranks_broke(struct ranks *r, int32_t number)
{
    struct rank_kernels *k = &r->kernels;
    static _Thread_local char why[sizeof(struct wire_answer)];
    why[0] = 0;
    pthread_mutex_lock(&k->lock);
    for (int32_t i = 0; number && i < k->brokes; i++)
        if (k->broke[i].number == number)
            snprintf(why, sizeof why, "%s", k->broke[i].why);
    pthread_mutex_unlock(&k->lock);
    return why[0] ? why : NULL;
}

int64_t ranks_version(struct ranks *r, int32_t rank)
{
    return atomic_load(&r->version_of[rank]);
}

int32_t ranks_unequal(const struct ranks *r, enum region region)
{
    return r->unequal[region];
}

/* ---- another rank --------------------------------------------------------------------------- */

/* A failure to send is not reported here: the next read from rank 0 finds it. */

void ranks_loaded(struct ranks *r, int32_t number, const struct err *why)
{
    struct wire_answer a = {.number = number, .outside = why && why->outside};
    snprintf(a.why, sizeof a.why, "%s", !why ? "" : *why->msg ? why->msg : "it does not load");
    ranks_tell_first(r, LINK_LOADED, &a, sizeof a, NULL);
}

void ranks_broken(struct ranks *r, int32_t number, const char *why)
{
    struct wire_answer a = {.number = number};
    snprintf(a.why, sizeof a.why, "%s", why);
    ranks_tell_first(r, LINK_BROKE, &a, sizeof a, NULL);
}

void ranks_ran_with(struct ranks *r, const struct wire_table *t)
{
    struct wire_version v = {t->step, t->version};
    ranks_tell_first(r, LINK_TABLE, &v, sizeof v, NULL);
}
