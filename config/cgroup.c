/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.c - see cgroup.h.
 *
 * /proc/self/cgroup says in which group of each hierarchy the process is, /proc/self/mountinfo
 * where a hierarchy is mounted and which of its groups that mount begins with. The folder of the
 * group is the mount and what its path has beyond that beginning. Both paths are seen from the
 * cgroup namespace: "/" is the container's own group then, and one outside of it begins with "/..".
 */
#include "config/cgroup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Larger limits are how version 1 says "none": the largest multiple of a page. */
static const int64_t unlimited = INT64_MAX / 2;

/* Reads the limits of one group, whose folder is `at` (without root), into w->out if less is left
 * than there. `own`: the process is in it, not below it. */
struct walk {
    const char *root, *controller;
    void (*look)(struct walk *w, const char *at, bool v2, bool own);
    struct cgroup_limit *out;
    bool found;
};

/* ---- files ---------------------------------------------------------------------------------- */

static FILE *file_of(const struct walk *w, const char *at, const char *name)
{
    char path[2 * CGROUP_FILE];
    int n = snprintf(path, sizeof path, "%s%s/%s", w->root, at, name);
    return n < (int)sizeof path ? fopen(path, "re") : NULL;
}

/* The numbers that a file begins with, at most two; "max" and what is larger than any limit is
 * INT64_MAX. How many there were. */
static int numbers(const struct walk *w, const char *at, const char *name, int64_t n[2])
{
    char word[2][32];
    FILE *f = file_of(w, at, name);
    int words = f ? fscanf(f, "%31s %31s", word[0], word[1]) : 0;
    if (f)
        fclose(f);
    for (int i = 0; i < words; i++) {
        char *end;
        errno = 0;
        n[i] = strtoll(word[i], &end, 10); /* too large: INT64_MAX */
        if (strcmp(word[i], "max") == 0)
            n[i] = INT64_MAX;
        else if (end == word[i] || *end)
            return i;
        n[i] = n[i] < -1 ? -1 : n[i]; /* "none" in version 1; nothing is less */
    }
    return words > 0 ? words : 0;
}

static bool number(const struct walk *w, const char *at, const char *name, int64_t *n)
{
    int64_t two[2];
    bool one = numbers(w, at, name, two) > 0;
    if (one)
        *n = two[0];
    return one;
}

/* The value of a line "NAME VALUE"; 0 if there is none. */
static int64_t stat_value(const struct walk *w, const char *at, const char *name)
{
    char key[64];
    long long n, value = 0;
    FILE *f = file_of(w, at, "memory.stat");
    while (f && fscanf(f, "%63s %lld", key, &n) == 2)
        if (strcmp(key, name) == 0)
            value = n;
    if (f)
        fclose(f);
    return value > 0 ? value : 0;
}

/* ---- limits of one group -------------------------------------------------------------------- */

static void note(struct walk *w, const char *at, const char *name, int64_t limit, int64_t used)
{
    int64_t room = limit > used ? limit - used : 0;
    if (limit < 0 || limit >= unlimited || (w->found && room >= w->out->room))
        return;
    w->found = true;
    w->out->limit = limit;
    w->out->room = room;
    snprintf(w->out->file, sizeof w->out->file, "%s/%s", at, name);
}

static void look_memory(struct walk *w, const char *at, bool v2, bool own)
{
    static const char *const names[2][2] = {{"memory.limit_in_bytes"},
                                            {"memory.max", "memory.high"}};
    int64_t used = 0, limit, above = 1;
    /* Groups of version 1 are charged for those below them only if they say so. */
    if (!v2 && !own && number(w, at, "memory.use_hierarchy", &above) && above == 0)
        return;
    number(w, at, v2 ? "memory.current" : "memory.usage_in_bytes", &used);
    used -= stat_value(w, at, v2 ? "inactive_file" : "total_inactive_file");
    for (int i = 0; i < 2 && names[v2][i]; i++)
        if (number(w, at, names[v2][i], &limit))
            note(w, at, names[v2][i], limit, used > 0 ? used : 0);
}

static void look_cpu(struct walk *w, const char *at, bool v2, bool own)
{
    (void)own;
    int64_t n[2] = {-1, 100000};
    bool told =
        v2 ? numbers(w, at, "cpu.max", n) > 0
           : number(w, at, "cpu.cfs_quota_us", &n[0]) && number(w, at, "cpu.cfs_period_us", &n[1]);
    if (told && n[0] > 0 && n[0] < unlimited / 1000 && n[1] > 0 && n[1] < unlimited)
        note(w, at, v2 ? "cpu.max" : "cpu.cfs_quota_us", (n[0] * 1000 + n[1] - 1) / n[1], 0);
}

static void look_tasks(struct walk *w, const char *at, bool v2, bool own)
{
    (void)v2, (void)own;
    int64_t used = 0, limit;
    number(w, at, "pids.current", &used);
    if (number(w, at, "pids.max", &limit))
        note(w, at, "pids.max", limit, used > 0 ? used : 0);
}

/* ---- the groups of this process -------------------------------------------------------------- */

/* From the group `below` its mount up to the mount itself. */
static void climb(struct walk *w, const char *mount, const char *below, bool v2)
{
    char at[CGROUP_FILE];
    size_t top = strlen(mount);
    int n = snprintf(at, sizeof at, "%s%s", mount, below);
    bool own = true;
    if (n >= (int)sizeof at)
        return;
    for (size_t end = (size_t)n; end >= top; own = false) {
        while (end > top && at[end - 1] == '/')
            end--;
        at[end] = 0;
        w->look(w, at, v2, own);
        if (end == top)
            return;
        while (end > top && at[end - 1] != '/')
            end--;
    }
}

/* What `path` has beyond `beginning`, a group on the way to it; NULL if that is on another way. */
static const char *beyond(const char *path, const char *beginning)
{
    size_t n = strlen(beginning);
    while (n > 0 && beginning[n - 1] == '/')
        n--;
    if (strncmp(path, beginning, n) != 0 || (path[n] && path[n] != '/'))
        return NULL;
    return strncmp(path + n, "/..", 3) == 0 ? NULL : path + n;
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    while (list && !(strncmp(list, word, n) == 0 && (!list[n] || list[n] == ','))) {
        list = strchr(list, ',');
        list = list ? list + 1 : NULL;
    }
    return list;
}

/* Spaces and such are three octal digits there. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        bool coded = *s == '\\' && strspn(s + 1, "01234567") >= 3;
        int c = coded ? (s[1] - '0') * 64 + (s[2] - '0') * 8 + s[3] - '0' : *s;
        *to++ = (char)c;
        s += coded ? 3 : 0;
    }
    *to = 0;
}

/* One line of mountinfo:
 * "36 35 98:0 /group /mount/point rw,noatime master:1 - cgroup source rw,memory". A mount of no
 * group on the way to ours is another's, unless the path of ours cannot say: it is the namespace's
 * own or outside of that, and mounts made before the namespace are named otherwise. */
static void mounted(struct walk *w, char *line, const char *path, bool v2)
{
    char *field[6], *rest = NULL, *after = strstr(line, " - "), *type, *options;
    if (!after)
        return;
    *after = 0;
    for (int i = 0; i < 6; i++)
        if (!(field[i] = strtok_r(i ? NULL : line, " ", &rest)))
            return;
    type = strtok_r(after + 3, " ", &rest);
    strtok_r(NULL, " ", &rest);
    options = strtok_r(NULL, " \n", &rest);
    if (!type || strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 ||
        (!v2 && (!options || !has_word(options, w->controller))))
        return;
    unescape(field[3]);
    unescape(field[4]);
    const char *below = beyond(path, field[3]);
    if (!below && (strcmp(path, "/") == 0 || strncmp(path, "/..", 3) == 0))
        below = "";
    if (below)
        climb(w, field[4], below, v2);
}

static void all_mounts(struct walk *w, const char *path, bool v2)
{
    char *line = NULL;
    size_t size = 0;
    FILE *f = file_of(w, "/proc/self", "mountinfo");
    while (f && getline(&line, &size, f) > 0)
        mounted(w, line, path, v2);
    free(line);
    if (f)
        fclose(f);
}

/* Lines "4:cpu,cpuacct:/group" are of version 1, "0::/group" of version 2. */
static bool walk(struct walk w)
{
    char *line = NULL;
    size_t size = 0;
    FILE *f = file_of(&w, "/proc/self", "cgroup");
    while (f && getline(&line, &size, f) > 0) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        controllers++;
        path[strcspn(path, "\n")] = 0;
        if (!*controllers || has_word(controllers, w.controller))
            all_mounts(&w, path, !*controllers);
    }
    free(line);
    if (f)
        fclose(f);
    return w.found;
}

bool cgroup_memory(const char *root, struct cgroup_limit *out)
{
    return walk((struct walk){root, "memory", look_memory, out, false});
}

bool cgroup_cpu(const char *root, struct cgroup_limit *out)
{
    return walk((struct walk){root, "cpu", look_cpu, out, false});
}

bool cgroup_tasks(const char *root, struct cgroup_limit *out)
{
    return walk((struct walk){root, "pids", look_tasks, out, false});
}
