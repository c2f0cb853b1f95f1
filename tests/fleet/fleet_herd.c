/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_herd.c - what many servers of a fleet ask of their database, and how soon they hear.
 *
 *   fleet_herd URI FOLDER SERVERS
 *
 * SERVERS fleets in one process: threads, statements, stores (in FOLDER) and memory are the
 * program's own, only nobody searches. Reads commands and answers each with a line of JSON:
 *
 *   wait                   until all are connected and listed
 *   idle S                 nothing happens for S seconds
 *   news S EVERY           each server tries a new point every EVERY seconds, for S seconds
 *   wrong N                N kernels are found wrong, each by another server, one after the other
 *
 * Times are from the moment in which something was written to a server's own store until others
 * have it in memory. scripts/bench-fleet-herd starts it, and measures the database meanwhile.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/log.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/life.h"
#include "specializer/fleet/fleet.h"
#include "specializer/store/store.h"

enum { SERVERS_MOST = 512, SAID_MOST = 1 << 16 };
static const char slot[] = "mlp_out/m1";

struct herd {
    struct member {
        struct fleet *fleet;
        struct store *store;
        uint64_t news;
        int64_t serial, next_ns;
    } member[SERVERS_MOST];
    int n;
    char env[KEY_HEX + 1];
    int64_t said_ns[SAID_MOST]; /* when a point was told of; its number is in its key */
    int said, heard;            /* points, and pairs of a point and a server that heard of it */
    double *late;               /* [said * n] of each pair, seconds */
};

static void fail(const char *what, const struct err *err)
{
    fprintf(stderr, "fleet_herd: %s: %s\n", what, err->msg);
    exit(1);
}

static double seconds_since(int64_t ns)
{
    return (double)(clock_ns() - ns) * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(const double *sorted, int n, double share)
{
    return n > 0 ? sorted[(int)((n - 1) * share)] : -1;
}

/* ---- a herd ---------------------------------------------------------------------------------- */

static void open_herd(struct herd *h, const struct config *c, const char *folder)
{
    static atomic_bool imported;
    struct dispatch *slots = dispatch_open_names();
    for (int i = 0; i < h->n; i++) {
        char path[512];
        struct err err;
        struct member *m = &h->member[i];
        snprintf(path, sizeof path, "%s/%d.db", folder, i);
        if (!(m->store = store_open(path, &err)))
            fail(path, &err);
        m->fleet = fleet_open(c, m->store, h->env, "a stand-in", slots, &imported);
        if (!m->fleet)
            fail("a fleet", &(struct err){.msg = "did not open"});
    }
    dispatch_close(slots);
}

static bool is_listed(struct fleet *f)
{
    cJSON *o = fleet_json(f, false);
    bool yes = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "listed"));
    cJSON_Delete(o);
    return yes;
}

static void await_all(struct herd *h)
{
    int64_t from_ns = clock_ns();
    for (int i = 0; i < h->n; i++)
        while (!is_listed(h->member[i].fleet))
            usleep(20000);
    printf("{\"seconds\": %.2f}\n", seconds_since(from_ns));
}

/* ---- points that are tried ------------------------------------------------------------------- */

static void tell_point(struct herd *h, struct member *m)
{
    struct record r = {.origin = 0, .state = LIFE_PROPOSED};
    const struct template *t = template_find("mlp_out");
    struct point p = template_defaults(t);
    struct err err;
    if (h->said == SAID_MOST)
        return;
    point_text(t, &p, r.knobs, sizeof r.knobs);
    snprintf(r.key, sizeof r.key, "%016x", h->said);
    snprintf(r.env, sizeof r.env, "%s", h->env);
    snprintf(r.source, sizeof r.source, "%016x", 0xaa);
    snprintf(r.template, sizeof r.template, "%s", t->id);
    snprintf(r.slot, sizeof r.slot, "%s", slot);
    h->said_ns[h->said++] = clock_ns();
    if (store_move(m->store, &r, LIFE_PROPOSED, "", NULL, &err) != 0)
        fail("a store", &err);
}

struct listener {
    struct herd *h;
    struct member *m;
};

static void hear(void *ctx, const struct fleet_row *r)
{
    struct listener *l = ctx;
    struct herd *h = l->h;
    long number = strtol(r->key, NULL, 16);
    if (number < h->said)
        h->late[h->heard++] = seconds_since(h->said_ns[number]);
    l->m->serial = r->serial > l->m->serial ? r->serial : l->m->serial;
}

static void listen_all(struct herd *h)
{
    for (int i = 0; i < h->n; i++) {
        struct member *m = &h->member[i];
        struct listener l = {h, m};
        uint64_t news = fleet_news(m->fleet);
        if (news != m->news)
            fleet_each(m->fleet, slot, m->serial, 0, hear, &l);
        m->news = news;
    }
}

/* Servers begin at different moments; at the end all that was said has to arrive. */
static void run_news(struct herd *h, double seconds, double every_s)
{
    int64_t from_ns = clock_ns();
    h->said = h->heard = 0;
    h->late = malloc((size_t)SAID_MOST * (size_t)h->n * sizeof *h->late);
    if (!h->late)
        abort();
    for (int i = 0; i < h->n; i++)
        h->member[i].next_ns = from_ns + (int64_t)(every_s * 1e9 * i / h->n);
    while (seconds_since(from_ns) < seconds) {
        for (int i = 0; i < h->n; i++)
            if (clock_ns() >= h->member[i].next_ns) {
                h->member[i].next_ns += (int64_t)(every_s * 1e9);
                tell_point(h, &h->member[i]);
            }
        listen_all(h);
        usleep(5000);
    }
    double load_s = seconds_since(from_ns);
    while (h->heard < h->said * (h->n - 1) && seconds_since(from_ns) < seconds + 30) {
        listen_all(h);
        usleep(5000);
    }
    qsort(h->late, (size_t)h->heard, sizeof *h->late, by_size);
    printf("{\"seconds\": %.2f, \"said\": %d, \"heard\": %d, \"of\": %d, \"median_s\": %.3f, "
           "\"p99_s\": %.3f, \"last_s\": %.3f}\n",
           load_s, h->said, h->heard, h->said * (h->n - 1), percentile(h->late, h->heard, 0.5),
           percentile(h->late, h->heard, 0.99), percentile(h->late, h->heard, 1));
    free(h->late);
}

/* ---- kernels that are found wrong ------------------------------------------------------------ */

/* Seconds until all others have heard; *first_s: until one has. */
static double tell_wrong(struct herd *h, int i, int number, double *first_s)
{
    bool heard[SERVERS_MOST] = {false};
    char key[KEY_HEX + 1];
    int64_t from_ns = clock_ns();
    int left = h->n - 1;
    snprintf(key, sizeof key, "%08x%08x", 0xbad, number);
    fleet_wrong(h->member[i].fleet, key, slot, "a test");
    *first_s = -1;
    while (left > 0 && seconds_since(from_ns) < 30) {
        for (int k = 0; k < h->n; k++)
            if (k != i && !heard[k] && fleet_retracted(h->member[k].fleet, key, from_ns)) {
                *first_s = *first_s < 0 ? seconds_since(from_ns) : *first_s;
                heard[k] = true;
                left--;
            }
        usleep(2000);
    }
    return left == 0 ? seconds_since(from_ns) : INFINITY;
}

static void run_wrong(struct herd *h, int times)
{
    static int number;
    double *first = calloc((size_t)times + 1, sizeof *first),
           *last = calloc((size_t)times + 1, sizeof *last);
    int64_t from_ns = clock_ns();
    for (int i = 0; first && last && i < times; i++) {
        last[i] = fmin(tell_wrong(h, i % h->n, number++, &first[i]), 999);
        usleep(700000);
    }
    qsort(first, (size_t)times, sizeof *first, by_size);
    qsort(last, (size_t)times, sizeof *last, by_size);
    printf("{\"seconds\": %.2f, \"first_median_s\": %.3f, \"last_median_s\": %.3f, "
           "\"last_worst_s\": %.3f}\n",
           seconds_since(from_ns), percentile(first, times, 0.5), percentile(last, times, 0.5),
           percentile(last, times, 1));
    free(first);
    free(last);
}

int main(int argc, char **argv)
{
    static struct herd h;
    struct config c;
    struct err err;
    char *options[] = {argv[0], "--specializer-fleet", argc > 1 ? argv[1] : "", NULL};
    char line[80];
    double a, b;
    h.n = argc == 4 ? atoi(argv[3]) : 0;
    if (h.n < 2 || h.n > SERVERS_MOST) {
        fputs("usage: fleet_herd URI FOLDER SERVERS\n", stderr);
        return 2;
    }
    if (config_parse(&c, 3, options, &err) != 0)
        fail("options", &err);
    log_set_level(LOG_WARN);
    hash_hex((uint64_t)clock_ns() * 1000003, h.env);
    open_herd(&h, &c, argv[2]);
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "wait", 4) == 0)
            await_all(&h);
        else if (sscanf(line, "idle %lf", &a) == 1)
            usleep((useconds_t)(a * 1e6)), printf("{\"seconds\": %.2f}\n", a);
        else if (sscanf(line, "news %lf %lf", &a, &b) == 2)
            run_news(&h, a, b);
        else if (sscanf(line, "wrong %lf", &a) == 1)
            run_wrong(&h, (int)a);
        else
            printf("{\"error\": \"what?\"}\n");
        fflush(stdout);
    }
    for (int i = 0; i < h.n; i++)
        fleet_close(h.member[i].fleet);
    for (int i = 0; i < h.n; i++)
        store_close(h.member[i].store);
    config_free(&c);
    return 0;
}
