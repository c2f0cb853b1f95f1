/* SPDX-License-Identifier: Apache-2.0 */
/* bench_report.c - results as tables for people and as JSON for scripts. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_private.h"
#include "config/clock.h"
#include "config/table.h"

static const char *const set_name[] = {"eager", "specialized"};
EVERY_ROW(set_name, SETS);

void bench_print_head(const struct bench *b)
{
    const struct machine *m = b->ops->machine(b->backend);
    printf("whet bench %s: %s\n", b->mode, b->model->description);
    printf("%s; measured: reads %.1f GB/s, %.0f GFLOPS, %.2f us between regions\n", m->device,
           m->read_bandwidth * 1e-9, m->peak_flops * 1e-9, m->boundary_s * 1e6);
    if (b->sets == SETS)
        printf("specialized: %d slots hold %s; medians of %d pairs\n", b->winners,
               b->starts ? "the points that searches start from" : "winners of the store",
               b->pairs);
    else
        printf("no winners in the store for this machine and model: eager only; medians of %d\n",
               b->pairs);
}

static const char *work_name(const struct work *w, char *dst, size_t n)
{
    if (w->chunk)
        snprintf(dst, n, "prompt %d", w->context);
    else
        snprintf(dst, n, "batch %d context %d", w->sequences, w->context);
    return dst;
}

void bench_print_rates(const struct bench *b, const struct result *r, int n)
{
    char name[64];
    printf("\n%-24s %12s %11s %7s %7s %9s", "", "eager", "us", "GB/s", "spread", "roofline");
    printf(b->sets == SETS ? " %14s %11s %7s %7s %9s %7s\n" : "\n", "specialized", "us", "GB/s",
           "spread", "roofline", "gain");
    for (int i = 0; i < n; i++) {
        printf("%-24s", work_name(&r[i].work, name, sizeof name));
        for (int s = 0; s < b->sets; s++)
            printf(s ? " %8.1f tok/s %11.1f %7.1f %6.1f%% %8.1f%%"
                     : " %6.1f tok/s %11.1f %7.1f %6.1f%% %8.1f%%",
                   r[i].tokens / r[i].s[s], r[i].s[s] * 1e6, r[i].bytes * 1e-9 / r[i].s[s],
                   100 * r[i].spread[s], 100 * r[i].roofline_s / r[i].s[s]);
        printf(b->sets == SETS ? " %6.2fx\n" : "\n", r[i].gain);
    }
}

static void print_region(const struct bench *b, const char *name, const int64_t launches[SETS],
                         double bytes, double roofline, const double s[SETS])
{
    printf("  %-10s %9.2f", name, bytes * 1e-6);
    for (int i = 0; i < b->sets; i++)
        if (launches[i] > 0)
            printf(" %8lld %11.1f %8.1f %8.1f%%", (long long)launches[i], s[i] * 1e6,
                   bytes * 1e-9 / s[i], 100 * roofline / s[i]);
        else
            printf(" %8d %11s %8s %9s", 0, "-", "-", "-");
    bool both = b->sets == SETS && launches[0] > 0 && launches[SETS - 1] > 0;
    printf(both ? " %6.2fx\n" : "\n", s[0] / s[b->sets - 1]);
}

void bench_print_regions(const struct bench *b, const struct result *r, int n)
{
    char name[64];
    for (int i = 0; i < n; i++) {
        double total = 0, s[SETS] = {0};
        int64_t launches[SETS] = {0};
        printf("\n%s\n  %-10s %9s", work_name(&r[i].work, name, sizeof name), "region", "MB");
        for (int set = 0; set < b->sets; set++)
            printf(" %8s %8s us %8s %9s", "launches", set_name[set], "GB/s", "roofline");
        printf(b->sets == SETS ? " %7s\n" : "\n", "gain");
        for (int g = 0; g < REGION_NODES; g++) {
            const struct region_time *t = &r[i].region[g];
            bool fused = region_info((enum region)g)->parts > 0;
            if (fused && !t->launches[0] && !t->launches[b->sets - 1])
                continue;
            double bytes = machine_bytes(b->ops->machine(b->backend), &t->cost);
            print_region(b, region_name((enum region)g), t->launches, bytes, t->roofline_s, t->s);
            total += fused ? 0 : bytes;
            for (int set = 0; set < b->sets; set++) {
                launches[set] += t->launches[set];
                s[set] += t->s[set];
            }
        }
        print_region(b, "all", launches, total, r[i].roofline_s, s);
        print_region(b, "step", launches, total, r[i].roofline_s, r[i].s);
    }
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static cJSON *region_json(const struct bench *b, const struct result *r, int g)
{
    const struct region_time *t = &r->region[g];
    const double bytes = machine_bytes(b->ops->machine(b->backend), &t->cost);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "region", region_name((enum region)g));
    cJSON_AddNumberToObject(o, "bytes", bytes);
    cJSON_AddNumberToObject(o, "flops", (double)t->cost.flops);
    cJSON_AddNumberToObject(o, "roofline_s", t->roofline_s);
    for (int s = 0; s < b->sets; s++) {
        cJSON *one = cJSON_AddObjectToObject(o, set_name[s]);
        cJSON_AddNumberToObject(one, "s", t->s[s]);
        cJSON_AddNumberToObject(one, "launches", (double)t->launches[s]);
        cJSON_AddNumberToObject(one, "gb_per_s", t->s[s] > 0 ? bytes * 1e-9 / t->s[s] : 0);
        cJSON_AddNumberToObject(one, "roofline_share", t->s[s] > 0 ? t->roofline_s / t->s[s] : 0);
    }
    return o;
}

static cJSON *result_json(const struct bench *b, const struct result *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "sequences", r->work.sequences);
    cJSON_AddNumberToObject(o, "context", r->work.context);
    cJSON_AddNumberToObject(o, "chunk", r->work.chunk);
    cJSON_AddNumberToObject(o, "tokens", r->tokens);
    cJSON_AddNumberToObject(o, "bytes", r->bytes);
    cJSON_AddNumberToObject(o, "roofline_s", r->roofline_s);
    for (int s = 0; s < b->sets; s++) {
        cJSON *one = cJSON_AddObjectToObject(o, set_name[s]);
        cJSON_AddNumberToObject(one, "s", r->s[s]);
        cJSON_AddNumberToObject(one, "spread", r->spread[s]);
        cJSON_AddNumberToObject(one, "tokens_per_s", r->tokens / r->s[s]);
        cJSON_AddNumberToObject(one, "roofline_share", r->roofline_s / r->s[s]);
    }
    if (b->sets == SETS)
        cJSON_AddNumberToObject(o, "gain", r->gain);
    cJSON *regions = cJSON_AddArrayToObject(o, "regions");
    for (int g = 0; g < REGION_NODES; g++)
        if (r->region[g].launches[SET_EAGER] || r->region[g].launches[b->sets - 1])
            cJSON_AddItemToArray(regions, region_json(b, r, g));
    return o;
}

int bench_write_json(const struct bench *b, const struct result *r, int n, struct err *e)
{
    const struct machine *m = b->ops->machine(b->backend);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "version", 1);
    cJSON_AddStringToObject(o, "bench", b->mode);
    cJSON_AddStringToObject(o, "model", b->model->description);
    cJSON_AddStringToObject(o, "device", m->device);
    cJSON_AddNumberToObject(o, "unix_time", (double)clock_wall_s());
    cJSON_AddNumberToObject(o, "read_bytes_per_s", m->read_bandwidth);
    cJSON_AddNumberToObject(o, "flops_per_s", m->peak_flops);
    cJSON_AddNumberToObject(o, "boundary_s", m->boundary_s);
    cJSON_AddNumberToObject(o, "pairs", b->pairs);
    cJSON_AddNumberToObject(o, "winners", b->winners);
    cJSON_AddBoolToObject(o, "starts", b->starts);
    cJSON *rows = cJSON_AddArrayToObject(o, "results");
    for (int i = 0; i < n; i++)
        cJSON_AddItemToArray(rows, result_json(b, &r[i]));
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    FILE *f = fopen(b->json, "w");
    int bad = !f || fprintf(f, "%s\n", text) < 0 ? errno : 0;
    if (f && fclose(f) != 0 && !bad)
        bad = errno;
    free(text);
    return bad ? err_set(e, "--json %s: cannot be written: %s", b->json, strerror(bad)) : 0;
}
