/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_loader.c - see ranks_loader.h.
 *
 * What is loaded is what rank 0 proved: the bytes are hashed first, and the backend is given a file
 * without a name that holds those bytes, so that nobody changes them in between. It stays open as
 * long as the kernel is loaded, or two kernels could have one name for the dynamic linker.
 */
#include "engine/ranks_loader.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "config/sha256.h"
#include "engine/crash.h"

#define LOOK_S 0.2 /* between two checks of loaded kernels */

struct errand {
    struct errand *next;
    bool unload;
    struct wire_kernel what; /* to unload: only its number is set */
    char *bytes;
};

struct loaded_kernel {
    int32_t number;
    int fd;
    bool told; /* rank 0 knows that it broke */
    struct kernel *kernel;
};

struct loader {
    struct ranks *ranks;
    const struct backend_ops *ops;
    struct backend *backend;
    const struct formats *formats;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    struct errand *first, *last;
    struct loaded_kernel *loaded; /* changed by `thread` alone, under the lock */
    int32_t n;
};

/* ---- an object ------------------------------------------------------------------------------ */

static int nameless_file(const char *data, int64_t n, struct err *err)
{
    int fd = memfd_create("whet-kernel", MFD_CLOEXEC);
    int64_t at = 0;
    while (fd >= 0 && at < n) {
        ssize_t put = write(fd, data + at, (size_t)(n - at));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            close(fd);
            fd = -1;
        }
        at += put;
    }
    if (fd < 0)
        err_outside(err, "no memory for a kernel of %lld bytes: %s", (long long)n, strerror(errno));
    return fd;
}

static int check_hash(const struct wire_kernel *k, const char *data, struct err *err)
{
    unsigned char sum[sizeof k->sha256];
    sha256(data, (size_t)k->bytes, sum);
    if (memcmp(sum, k->sha256, sizeof sum) == 0)
        return 0;
    return err_set(err, "the object that came for %.60s is not the one that rank 0 has", k->name);
}

static struct kernel *load(struct loader *l, const struct wire_kernel *k, const char *bytes,
                           int *fd, struct err *err)
{
    char path[40];
    struct kernel *kernel = NULL;
    *fd = -1;
    if (check_hash(k, bytes, err) == 0 && (*fd = nameless_file(bytes, k->bytes, err)) >= 0) {
        enum region r = (enum region)k->region;
        snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
        struct kernel_object o = {.path = path,
                                  .entry = k->entry,
                                  .region = r,
                                  .formats = formats_find(l->formats, r, k->layer, k->layers),
                                  .origin = (enum origin)k->origin,
                                  .id = k->id,
                                  .name = k->name};
        if (k->layers > 0 && !o.formats)
            err_set(err, "%.60s is for %d layers of %s from layer %d on, which are no class here",
                    k->name, k->layers, region_name(r), k->layer);
        else
            kernel = l->ops->load(l->backend, &o, err);
    }
    if (!kernel && *fd >= 0)
        close(*fd);
    return kernel;
}

/* ---- its thread ----------------------------------------------------------------------------- */

static void run_load(struct loader *l, const struct errand *e)
{
    struct err err = {""};
    int fd;
    struct kernel *k = load(l, &e->what, e->bytes, &fd, &err);
    if (k) {
        k->number = e->what.number;
        pthread_mutex_lock(&l->lock);
        l->loaded = xrealloc(l->loaded, (size_t)(l->n + 1) * sizeof *l->loaded);
        l->loaded[l->n++] = (struct loaded_kernel){k->number, fd, false, k};
        pthread_mutex_unlock(&l->lock);
    } else {
        log_warn("ranks", "%s is not loaded here: %s", e->what.name, err.msg);
    }
    ranks_loaded(l->ranks, e->what.number, k ? NULL : &err);
}

static void run_unload(struct loader *l, int32_t number)
{
    struct loaded_kernel gone = {.kernel = NULL};
    pthread_mutex_lock(&l->lock);
    for (int32_t i = 0; i < l->n; i++)
        if (l->loaded[i].number == number) {
            gone = l->loaded[i];
            l->loaded[i] = l->loaded[--l->n];
            break;
        }
    pthread_mutex_unlock(&l->lock);
    if (gone.kernel) {
        l->ops->unload(l->backend, gone.kernel);
        close(gone.fd);
    }
}

static void look_for_broken(struct loader *l)
{
    for (int32_t i = 0; l->ops->broken && i < l->n; i++) {
        struct loaded_kernel *k = &l->loaded[i];
        const char *why = k->told ? NULL : l->ops->broken(l->backend, k->kernel);
        if (why) {
            k->told = true;
            ranks_broken(l->ranks, k->number, why);
        }
    }
}

/* The next errand, or NULL when it is time to check the loaded kernels or to stop. */
static struct errand *next_locked(struct loader *l)
{
    struct timespec at = clock_in(LOOK_S);
    if (!l->first && !l->stop)
        pthread_cond_timedwait(&l->wake, &l->lock, &at);
    struct errand *e = l->first;
    if (e && !(l->first = e->next))
        l->last = NULL;
    return e;
}

static void *loader_main(void *arg)
{
    struct loader *l = arg;
    bool stop = false;
    pthread_setname_np(pthread_self(), "whet-loader");
    crash_stack();
    while (!stop) {
        pthread_mutex_lock(&l->lock);
        struct errand *e = next_locked(l);
        stop = l->stop;
        pthread_mutex_unlock(&l->lock);
        if (e && e->unload)
            run_unload(l, e->what.number);
        else if (e && !stop)
            run_load(l, e);
        else
            look_for_broken(l);
        if (e)
            free(e->bytes);
        free(e);
    }
    crash_stack_end();
    return NULL;
}

/* ---- its owner ------------------------------------------------------------------------------ */

struct loader *loader_open(struct ranks *r, const struct backend_ops *ops, struct backend *b,
                           const struct formats *formats, struct err *err)
{
    struct loader *l = xcalloc(1, sizeof *l);
    l->ranks = r;
    l->ops = ops;
    l->backend = b;
    l->formats = formats;
    pthread_mutex_init(&l->lock, NULL);
    clock_cond_init(&l->wake);
    if (pthread_create(&l->thread, NULL, loader_main, l) == 0)
        return l;
    err_set(err, "no thread to load kernels");
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

void loader_close(struct loader *l)
{
    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    while (l->n > 0)
        run_unload(l, l->loaded[0].number);
    for (struct errand *e = l->first, *next; e; e = next) {
        next = e->next;
        free(e->bytes);
        free(e);
    }
    free(l->loaded);
    pthread_cond_destroy(&l->wake);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static void add(struct loader *l, struct errand *e)
{
    pthread_mutex_lock(&l->lock);
    if (l->last)
        l->last->next = e;
    else
        l->first = e;
    l->last = e;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->lock);
}

void loader_load(struct loader *l, const struct wire_kernel *k, const char *bytes)
{
    struct errand *e = xcalloc(1, sizeof *e);
    e->what = *k;
    e->bytes = memcpy(xmalloc((size_t)k->bytes), bytes, (size_t)k->bytes);
    add(l, e);
}

void loader_unload(struct loader *l, int32_t number)
{
    struct errand *e = xcalloc(1, sizeof *e);
    e->unload = true;
    e->what.number = number;
    add(l, e);
}

const struct kernel *loader_kernel(struct loader *l, int32_t number)
{
    const struct kernel *k = NULL;
    pthread_mutex_lock(&l->lock);
    for (int32_t i = 0; i < l->n && !k; i++)
        if (l->loaded[i].number == number)
            k = l->loaded[i].kernel;
    pthread_mutex_unlock(&l->lock);
    return k;
}
