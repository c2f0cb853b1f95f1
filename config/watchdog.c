/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog.c - CPU time and sleep, not wall time.
 *
 * Probes run at idle priority, so on a busy server a call of a millisecond may take seconds. That
 * says nothing about the kernel. What does: it has used far more CPU time than the work can need
 * (a loop), or none of its threads wants the CPU at all (a sleep, a deadlock).
 *
 * Whoever watches may be kept waiting for a core as well, for seconds, and a child that has ended
 * its work meanwhile sleeps. So sleep is what was seen of it: one look counts for a moment at most,
 * however long ago the last one was.
 */
#include "config/watchdog.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "config/clock.h"

static double cpu_seconds(pid_t pid)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What a look that finds all threads asleep counts for at most. */
#define LOOK_MOST_S 0.05

/* True if a thread is running or could run: field 3 of /proc/<pid>/task/<tid>/stat. */
static bool wants_cpu(pid_t pid)
{
    char path[64], stat[256];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    struct dirent *e;
    bool wants = d == NULL; /* no /proc: never condemn for sleeping */
    while (d && !wants && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, e->d_name);
        FILE *f = fopen(path, "re");
        size_t n = f ? fread(stat, 1, sizeof stat - 1, f) : 0;
        if (f)
            fclose(f);
        stat[n] = 0;
        const char *state = strrchr(stat, ')'); /* the name before it may hold anything */
        wants = state && strlen(state) > 2 && (state[2] == 'R' || state[2] == 'D');
    }
    if (d)
        closedir(d);
    return wants;
}

void watchdog_start(struct watchdog *w, pid_t pid, double cpu_limit_s, double sleep_limit_s)
{
    *w = (struct watchdog){.pid = pid, .cpu_limit_s = cpu_limit_s, .sleep_limit_s = sleep_limit_s};
    w->cpu_start_s = cpu_seconds(pid);
    w->start_ns = w->looked_ns = w->awake_ns = clock_ns();
}

bool watchdog_over(struct watchdog *w)
{
    int64_t now = clock_ns();
    double wall = (double)(now - w->start_ns) / 1e9, cpu = cpu_seconds(w->pid) - w->cpu_start_s;
    if (cpu > w->cpu_limit_s) {
        snprintf(w->why, sizeof w->why, "hang: no end after %.1f s of CPU time", cpu);
        return true;
    }
    double since = (double)(now - w->looked_ns) / 1e9;
    w->looked_ns = now;
    if (wall < w->sleep_limit_s / 2)
        return false; /* too early to look at every thread */
    if (wants_cpu(w->pid)) {
        w->asleep_s = 0;
        w->awake_ns = now;
        return false;
    }
    w->asleep_s += since < LOOK_MOST_S ? since : LOOK_MOST_S;
    if (w->asleep_s < w->sleep_limit_s / 2)
        return false;
    snprintf(w->why, sizeof w->why, "hang: asleep for %.1f s", (double)(now - w->awake_ns) / 1e9);
    return true;
}
