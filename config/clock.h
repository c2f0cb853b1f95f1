/* SPDX-License-Identifier: Apache-2.0 */
/* clock.h - monotonic time in nanoseconds, and waits that are timed by it: an operator who sets the
 * wall clock back lengthens none of them; the wall clock in seconds since 1970. */
#ifndef WHET_CONFIG_CLOCK_H
#define WHET_CONFIG_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* So many seconds from now, for a wait on a condition of clock_cond_init(). */
static inline struct timespec clock_in(double seconds)
{
    int64_t at = clock_ns() + (int64_t)(seconds * 1e9);
    return (struct timespec){at / 1000000000, at % 1000000000};
}

static inline void clock_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(c, &a);
    pthread_condattr_destroy(&a);
}

static inline int64_t clock_wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

static inline double clock_wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
