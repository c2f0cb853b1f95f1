/* SPDX-License-Identifier: Apache-2.0 */
/* metrics.c - counters of the HTTP side and the standard process_* set.
 *
 * Labels are bounded by construction: routes are rows of the route table, codes the statuses of
 * HTTP_STATUSES (another, which would be a mistake, counts as the last, 500).
 */
#include "server/metrics.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "server/router.h"

#define STATUS_CODE(status, reason) status,
static const int codes[] = {HTTP_STATUSES(STATUS_CODE)};
enum { CODES = sizeof(codes) / sizeof(*codes) };
_Static_assert((int)CODES <= (int)METRIC_CODES, "every status has a counter");

void metrics_init(struct metrics *m)
{
    for (int i = 0; i < METRIC_ROUTES; i++)
        histogram_init(&m->duration[i], bounds_latency, bounds_latency_n);
}

void metrics_request(struct metrics *m, int route, int status, double seconds)
{
    int c = 0;
    while (c < CODES - 1 && codes[c] != status)
        c++;
    m->requests[route][c]++;
    histogram_observe(&m->duration[route], seconds);
}

static void counter(FILE *out, const char *name, const char *help, uint64_t v)
{
    metric_head(out, name, "counter", help);
    metric_value(out, name, NULL, (double)v);
}

static uint64_t route_requests(const struct metrics *m, int route)
{
    uint64_t n = 0;
    for (int c = 0; c < CODES; c++)
        n += m->requests[route][c];
    return n;
}

static void gauge(FILE *out, const char *name, const char *help, double v)
{
    metric_head(out, name, "gauge", help);
    metric_value(out, name, NULL, v);
}

/* Requests of the route generate text. */
static bool generates(const char *label)
{
    return label && strstr(label, "completions");
}

/* A rate begins with the second value of a series, so the first failures would not count: the
 * series of what should never be is there from the start. Rows of the route table that share a
 * label (`/models` and `/v1/models`) are counted under the first of them; the others have none. */
static bool is_written(const struct metrics *m, int route, int c)
{
    return router_label_text(route) && (m->requests[route][c] > 0 || codes[c] == 500);
}

void metrics_write(struct metrics *m, FILE *out)
{
    metric_head(out, "requests_total", "counter",
                "HTTP requests answered, by route and status (499: the client left first)");
    for (int r = 0; r < router_labels(); r++)
        for (int c = 0; c < CODES; c++) {
            char labels[128];
            if (!is_written(m, r, c))
                continue;
            snprintf(labels, sizeof(labels), "route=\"%s\",code=\"%d\"", router_label_text(r),
                     codes[c]);
            metric_value(out, "requests_total", labels, (double)m->requests[r][c]);
        }
    metric_head(out, "request_duration_seconds", "histogram",
                "Seconds from the first byte of a request to the end of its answer");
    for (int r = 0; r < router_labels(); r++) {
        char labels[128];
        if (!route_requests(m, r))
            continue;
        snprintf(labels, sizeof(labels), "route=\"%s\"", router_label_text(r));
        metric_histogram(out, "request_duration_seconds", labels, &m->duration[r]);
    }
    gauge(out, "connections", "Open connections", m->connections);
    counter(out, "connections_total", "Connections accepted", m->connections_total);
    counter(out, "connections_refused_total", "Connections turned away at server.max_connections",
            m->connections_refused);
    counter(out, "connections_evicted_total", "Connections closed to make room for others",
            m->connections_evicted);
    gauge(out, "pending_bytes", "Bytes of requests held: bodies, waiting work, prompts",
          (double)m->pending_bytes);
    gauge(out, "pending_jobs", "Requests of clients that are parsed and tokenized, or wait for it",
          (double)m->pending_jobs);
    gauge(out, "answer_bytes", "Bytes of answers that gather or that clients have not taken",
          (double)m->answer_bytes);
    counter(out, "received_bytes_total", "Bytes received from clients", m->bytes_in);
    counter(out, "sent_bytes_total", "Bytes sent to clients", m->bytes_out);
    counter(out, "slow_clients_total", "Clients cut because they took no bytes", m->slow_clients);
    counter(out, "client_disconnects_total", "Requests whose client left before the answer",
            m->disconnects);
}

void metrics_answers(const struct metrics *m, uint64_t by_class[6])
{
    memset(by_class, 0, 6 * sizeof *by_class);
    for (int r = 0; r < router_labels(); r++) {
        if (!generates(router_label_text(r)))
            continue;
        for (int c = 0; c < CODES; c++)
            by_class[codes[c] / 100] += m->requests[r][c];
    }
}

/* ---- the process ------------------------------------------------------------------------------
 * What is read stays open from the first time on, since figures of a process that has run out of
 * descriptors are what its operator looks for. Only the lane that writes metrics comes here. What
 * cannot be read has no sample: a 0 would be taken for a fall of memory or of time. */

static void process_value(FILE *out, const char *name, const char *type, const char *help, double v)
{
    if (v >= 0)
        fprintf(out, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.17g\n", name, help,
                name, type, name, v);
}

/* Field `n` (from 1) of /proc/self/stat, -1 if there is none; the command in field 2 may hold
 * spaces. */
static double stat_field(int n)
{
    static int fd = -1;
    char text[1024];
    if (fd < 0)
        fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    char *p = strrchr(text, ')');
    for (int i = 2; p && i < n; i++)
        p = strchr(p + 1, ' ');
    double v = -1;
    if (p)
        sscanf(p, " %lf", &v);
    return v;
}

static double boot_time(void)
{
    double v = -1;
    char line[256];
    FILE *f = fopen("/proc/stat", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "btime %lf", &v) == 1)
            break;
    if (f)
        fclose(f);
    return v;
}

/* Once and for all: by a clock that is set later the process would have started at another time. */
static double start_time(void)
{
    static double at = -1;
    double boot = at < 0 ? boot_time() : -1, since = at < 0 ? stat_field(22) : -1;
    if (boot >= 0 && since >= 0)
        at = boot + since / (double)sysconf(_SC_CLK_TCK);
    return at;
}

static int open_fds(void)
{
    static DIR *d;
    int n = 0;
    if (!d)
        d = opendir("/proc/self/fd"); /* with O_CLOEXEC */
    if (!d)
        return -1;
    rewinddir(d);
    while (readdir(d))
        n++;
    return n - 2; /* . and .. */
}

static double cpu_seconds(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void metrics_process(FILE *out)
{
    struct rlimit fds = {0};
    getrlimit(RLIMIT_NOFILE, &fds);
    double pages = stat_field(24);
    process_value(out, "cpu_seconds_total", "counter", "User and system CPU time", cpu_seconds());
    process_value(out, "resident_memory_bytes", "gauge", "Resident memory",
                  pages * (double)sysconf(_SC_PAGESIZE));
    process_value(out, "virtual_memory_bytes", "gauge", "Virtual memory", stat_field(23));
    process_value(out, "open_fds", "gauge", "Open file descriptors", open_fds());
    process_value(out, "max_fds", "gauge", "Limit of open file descriptors", (double)fds.rlim_cur);
    process_value(out, "start_time_seconds", "gauge", "Start, in seconds since the epoch",
                  start_time());
}
