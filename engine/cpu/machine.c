/* machine.c - bandwidth, peak and boundary cost, measured at start and never typed in.
 *
 * Other processes may run meanwhile, so each figure is the best of several short rounds: what the
 * machine can do is what it did when least disturbed. Bandwidth is read over the weights
 * themselves, up to READ_BYTES of them: a small model that fits the last-level cache is served
 * from there in life, too. 35 ms for all three on a 2-core Xeon with a 97 MB model.
 */
#include "engine/cpu/machine.h"

#include <stdio.h>
#include <string.h>

#include "config/clock.h"
#include "engine/cpu/eager.h"
#include "engine/quant.h"

enum { READ_BYTES = 256 << 20, PEAK_ROUNDS = 20000, RANGES = 1024 };

/* Stretches of weights to read. */
struct ranges {
    int32_t n;
    int64_t bytes, repeat;
    struct {
        const uint8_t *data;
        int64_t bytes;
    } range[RANGES];
};

static void add(struct ranges *r, const struct weight *w)
{
    int64_t bytes = dtype_bytes((enum dtype)w->type, (int64_t)w->rows * w->cols);
    if (r->n == RANGES || r->bytes >= READ_BYTES)
        return;
    if (bytes > READ_BYTES - r->bytes)
        bytes = READ_BYTES - r->bytes;
    r->range[r->n].data = w->data;
    r->range[r->n++].bytes = bytes;
    r->bytes += bytes;
}

static void read_share(const void *args, const struct team *team)
{
    const struct ranges *r = args;
    for (int64_t k = 0; k < r->repeat; k++) {
        for (int32_t i = 0; i < r->n; i++) {
            int64_t from = r->range[i].bytes * team->rank / team->size;
            int64_t to = r->range[i].bytes * (team->rank + 1) / team->size;
            eager_probe()->read(r->range[i].data + from, to - from);
        }
    }
}

static void multiply_share(const void *args, const struct team *team)
{
    double flops = eager_probe()->multiply_add(PEAK_ROUNDS);
    if (team->rank == 0)
        *(double *)args = flops * team->size;
}

static void nothing(const void *args, const struct team *team)
{
    (void)args;
    (void)team;
}

/* Seconds of one run: the best of `rounds` times the mean of `runs`. */
static double timed(struct pool *pool, void (*fn)(const void *, const struct team *),
                    const void *args, int rounds, int runs)
{
    double best = 1e9;
    for (int r = 0; r < rounds; r++) {
        int64_t t0 = clock_ns();
        for (int i = 0; i < runs; i++)
            pool_run(pool, fn, args, 0);
        double s = (double)(clock_ns() - t0) * 1e-9 / runs;
        best = s < best ? s : best;
    }
    return best;
}

static void device_name(char *dst, size_t n, int32_t threads)
{
    char line[256], cpu[64] = "CPU";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(cpu, sizeof cpu, "%s", colon + 1 + strspn(colon + 1, " \t"));
        break;
    }
    if (f)
        fclose(f);
    snprintf(dst, n, "%s, %d thread%s", cpu, threads, threads == 1 ? "" : "s");
}

void machine_measure(const struct model *model, struct pool *pool, struct machine *out)
{
    struct ranges r = {0};
    add(&r, &model->head);
    for (int32_t l = 0; l < model->shape.layers; l++) {
        const struct layer *y = &model->layer[l];
        const struct weight *w[] = {&y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down};
        for (size_t i = 0; i < sizeof w / sizeof *w; i++)
            add(&r, w[i]);
    }
    r.repeat = 1 + (4 << 20) / (r.bytes + 1);
    double flops = 0;
    double read_s = timed(pool, read_share, &r, 4, 1);
    double flop_s = timed(pool, multiply_share, &flops, 30, 1);
    out->read_bandwidth = (double)(r.bytes * r.repeat) / read_s;
    out->peak_flops = flops / flop_s;
    out->boundary_s = timed(pool, nothing, NULL, 50, 10);
    device_name(out->device, sizeof out->device, pool_size(pool));
}
