/* SPDX-License-Identifier: Apache-2.0 */
/* compile_pool.c - see compile_pool.h. */
#include "tests/device/compile_pool.h"

#include <pthread.h>
#include <stdlib.h>

#include "config/cores.h"
#include "config/err.h"

enum { THREADS = 256 };

struct compile_pool {
    struct compile_job *const *job;
    int jobs, taken, threads;
    const char *root, *arch;
    pthread_mutex_t lock; /* taken, and each job's done */
    pthread_cond_t ready;
    pthread_t thread[THREADS];
};

static void *compile(void *arg)
{
    struct compile_pool *pool = arg;
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        struct compile_job *j = pool->taken < pool->jobs ? pool->job[pool->taken++] : NULL;
        pthread_mutex_unlock(&pool->lock);
        if (!j)
            return NULL;
        char *cubin =
            cuda_point_build(pool->root, pool->arch, j->t, &j->f, &j->p, &j->size, j->why);
        pthread_mutex_lock(&pool->lock);
        j->cubin = cubin;
        j->done = true;
        pthread_cond_broadcast(&pool->ready);
        pthread_mutex_unlock(&pool->lock);
    }
}

struct compile_pool *compile_pool_start(struct compile_job *const *job, int jobs, int threads,
                                        const char *root, const char *arch)
{
    struct compile_pool *pool = xcalloc(1, sizeof *pool);
    int wanted = cores_or(threads);
    *pool = (struct compile_pool){.job = job, .jobs = jobs, .root = root, .arch = arch};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->ready, NULL);
    for (int i = 0; i < jobs; i++)
        cuda_point_text(job[i]->t, &job[i]->p, job[i]->knobs, sizeof job[i]->knobs);
    while (pool->threads < wanted && pool->threads < jobs && pool->threads < THREADS &&
           pthread_create(&pool->thread[pool->threads], NULL, compile, pool) == 0)
        pool->threads++;
    if (pool->threads == 0)
        compile(pool);
    return pool;
}

void compile_pool_await(struct compile_pool *pool, const struct compile_job *j)
{
    pthread_mutex_lock(&pool->lock);
    while (!j->done)
        pthread_cond_wait(&pool->ready, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void compile_pool_end(struct compile_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    int begun = pool->taken;
    pool->taken = pool->jobs;
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->threads; i++)
        pthread_join(pool->thread[i], NULL);
    for (int i = 0; i < begun; i++)
        free(pool->job[i]->cubin);
    pthread_mutex_destroy(&pool->lock);
    pthread_cond_destroy(&pool->ready);
    free(pool);
}
