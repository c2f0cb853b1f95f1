/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - bandwidth, peak, product and boundary cost, measured at start and never typed in.
 *
 * Other processes may run meanwhile, so each figure is the best of several short measurements: what
 * the machine can do is what it did when least disturbed. (Too low a figure would do harm: a kernel
 * that beats the roofline is refused as mismeasured.) Bandwidth is read over the weights
 * themselves, up to READ_BYTES of them: a small model that fits the last-level cache is served
 * from there in life, too. Many threads read more, each as much as few do: in 8 MiB between 128
 * threads a run would be little but starting and meeting, of nodes that memory is spread over in
 * steps of 2 MiB it would see four, and 256 MiB would fit their caches. 40 ms for all on a 2-core
 * Xeon with a 97 MB model.
 */
#include "engine/cpu/machine.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "config/clock.h"
#include "engine/cpu/blas.h"
#include "engine/cpu/eager.h"
#include "engine/quant.h"
#include "kernels/isa.h"

enum { READ_BYTES = 256 << 20, CHUNK = 8 << 20, PASSES = 4, PEAK_LOOPS = 20000, RANGES = 1024 };
/* For each thread, of which few have these at most: 16 is more than a core's part of any cache. */
enum { READ_EACH = 16 << 20, CHUNK_EACH = 1 << 20 };

/* Of the peak; products below it are worth a warning. */
static const double PRODUCT_SHARE_LEAST = 1.0 / 3;

/* Stretches of weights, read as if they lay behind each other. */
struct ranges {
    int32_t n;
    int64_t bytes;
    int64_t most;     /* of bytes */
    int64_t from, to; /* what this run reads */
    struct {
        const uint8_t *data;
        int64_t bytes;
    } range[RANGES];
};

static void add(struct ranges *r, const struct weight *w)
{
    int64_t bytes = dtype_bytes((enum dtype)w->type, (int64_t)w->rows * w->cols);
    if (r->n == RANGES || r->bytes >= r->most)
        return;
    if (bytes > r->most - r->bytes)
        bytes = r->most - r->bytes;
    r->range[r->n].data = w->data;
    r->range[r->n++].bytes = bytes;
    r->bytes += bytes;
}

/* A rank's share of [from, to). */
static void read_share(const void *args, const struct team *team)
{
    const struct ranges *r = args;
    int64_t from = r->from + (r->to - r->from) * team->rank / team->size;
    int64_t to = r->from + (r->to - r->from) * (team->rank + 1) / team->size, at = 0;
    for (int32_t i = 0; i < r->n && at < to; at += r->range[i++].bytes) {
        int64_t first = from > at ? from - at : 0;
        int64_t end = to - at < r->range[i].bytes ? to - at : r->range[i].bytes;
        if (first < end)
            eager_probe()->read(r->range[i].data + first, end - first);
    }
}

void machine_reads(int32_t threads, int64_t *all, int64_t *chunk)
{
    int64_t each = (int64_t)READ_EACH * threads, some = (int64_t)CHUNK_EACH * threads;
    *all = each > READ_BYTES ? each : READ_BYTES;
    *chunk = some > CHUNK ? some : CHUNK;
}

/* Bytes a second of the best chunk; the first pass brings the pages in. */
static double read_bandwidth(struct pool *pool, struct ranges *r)
{
    double best = 0;
    int64_t all, chunk;
    machine_reads(pool_size(pool), &all, &chunk);
    for (int pass = 0; pass < PASSES; pass++) {
        for (r->from = 0; r->from < r->bytes; r->from = r->to) {
            r->to = r->from + chunk < r->bytes ? r->from + chunk : r->bytes;
            int64_t t0 = clock_ns();
            pool_run(pool, read_share, r, 0);
            double rate = (double)(r->to - r->from) * 1e9 / (double)(clock_ns() - t0 + 1);
            if (rate > best) /* a short last chunk only pays more overhead */
                best = rate;
        }
    }
    return best;
}

static void multiply_share(const void *args, const struct team *team)
{
    double flops = eager_probe()->multiply_add(PEAK_LOOPS);
    if (team->rank == 0)
        *(double *)args = flops * team->size;
}

static void product_share(const void *args, const struct team *team)
{
    double *flops = (double *)args;
    double mine = eager_probe()->product(*flops == 0);
    team->barrier(team); /* all have seen whether it is the first */
    if (team->rank == 0)
        *flops = mine * team->size;
}

static void nothing(const void *args, const struct team *team)
{
    (void)args;
    (void)team;
}

/* Seconds of one run: the best of `repeats` times the mean of `runs`. */
static double timed(struct pool *pool, void (*fn)(const void *, const struct team *),
                    const void *args, int repeats, int runs)
{
    double best = 1e9;
    for (int r = 0; r < repeats; r++) {
        int64_t t0 = clock_ns();
        for (int i = 0; i < runs; i++)
            pool_run(pool, fn, args, 0);
        double s = (double)(clock_ns() - t0) * 1e-9 / runs;
        best = s < best ? s : best;
    }
    return best;
}

/* The text behind the colon of a line of /proc/cpuinfo that is about `field`, else NULL. */
static char *value_of(char *line, const char *field)
{
    size_t n = strlen(field);
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, field, n) != 0 ||
        strspn(line + n, " \t") != (size_t)(colon - line) - n)
        return NULL;
    line[strcspn(line, "\n")] = 0;
    return colon + 1 + strspn(colon + 1, " \t");
}

void machine_processor(const char *cpuinfo, char *dst, size_t n)
{
    enum { IMPLEMENTER, PART, VARIANT, REVISION, FIELDS };
    static const char *const field[FIELDS] = {"CPU implementer", "CPU part", "CPU variant",
                                              "CPU revision"};
    char line[256], id[FIELDS][16] = {""}, *value;
    bool named = false;
    FILE *f = fopen(cpuinfo, "r");
    snprintf(dst, n, "CPU");
    while (f && !named && fgets(line, sizeof line, f)) {
        if ((value = value_of(line, "model name")) != NULL) {
            snprintf(dst, n, "%s", value);
            named = true;
        }
        for (int i = 0; i < FIELDS && !named; i++)
            if (!id[i][0] && (value = value_of(line, field[i])) != NULL)
                snprintf(id[i], sizeof id[i], "%s", value);
    }
    if (f)
        fclose(f);
    if (!named && id[IMPLEMENTER][0] && id[PART][0])
        snprintf(dst, n, "ARM %s:%s r%sp%s", id[IMPLEMENTER], id[PART],
                 id[VARIANT][0] ? id[VARIANT] : "?", id[REVISION][0] ? id[REVISION] : "?");
}

void machine_products_warning(const struct machine *m, const struct blas *blas, char *dst, size_t n)
{
    double share = m->product_flops / m->peak_flops;
    dst[0] = 0;
    if (blas->missing)
        snprintf(dst, n, "OpenBLAS cannot be used, so prompts are slow: %s", blas->missing);
    else if (share < PRODUCT_SHARE_LEAST)
        snprintf(dst, n,
                 "products run at %.0f %% of this processor's peak with OpenBLAS core %s%s: "
                 "prompts and large batches are slower than they need be",
                 100 * share, blas->core, blas->asked ? " (as OPENBLAS_CORETYPE says)" : "");
}

/* Names what decides bits, too: stores and fleets take machines of one name for alike. */
static void device_name(char *dst, size_t n, int32_t threads)
{
    char cpu[64];
#if defined(__x86_64__)
    const bool apart = !isa_facts()->HAS_AVX2;
#else
    const bool apart = false;
#endif
    machine_processor("/proc/cpuinfo", cpu, sizeof cpu);
    snprintf(dst, n, "%s, %d thread%s%s", cpu, threads, threads == 1 ? "" : "s",
             apart ? ", no FMA" : "");
}

void machine_measure(const struct model *model, struct pool *pool, struct machine *out)
{
    struct ranges r = {0};
    int64_t chunk;
    machine_reads(pool_size(pool), &r.most, &chunk);
    add(&r, &model->head);
    for (int32_t l = 0; l < model->shape.layers; l++) {
        const struct layer *y = &model->layer[l];
        const struct weight *w[] = {&y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down};
        for (size_t i = 0; i < sizeof w / sizeof *w; i++)
            add(&r, w[i]);
    }
    double flops = 0;
    pool_pin(pool);
    double flop_s = timed(pool, multiply_share, &flops, 30, 1);
    out->read_bandwidth = read_bandwidth(pool, &r);
    out->peak_flops = flops / flop_s;
    double product = 0;
    pool_run(pool, product_share, &product, 0);
    double product_s = timed(pool, product_share, &product, 40, 1);
    out->product_flops = product / product_s;
    out->product_core = openblas_open()->core;
    out->boundary_s = timed(pool, nothing, NULL, 50, 10);
    pool_unpin(pool);
    device_name(out->device, sizeof out->device, pool_size(pool));
}
