/* SPDX-License-Identifier: Apache-2.0 */
/* executor_step.c - whole steps with one kernel in the server, and the same kernel in an executor.
 *
 *   build/tests/executor_step MODEL.gguf OBJECT.so [REGION [STEPS [THREADS]]]
 *
 * Not a test: it prints what docs/lab/2026-11-26-cpu-costs-and-gains.md says of steps. OBJECT is a
 * compiled kernel of the region (mlp_in), as a store keeps them beside it. Steps of one token
 * alternate in blocks between eager, the kernel in the server and the kernel in an executor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "engine/backend.h"
#include "engine/cpu/executor.h"

enum { BLOCK = 10, CONTEXT = 64, PAGES = CONTEXT / KV_PAGE };

struct world {
    struct backend *b;
    struct dispatch *d;
    enum region region;
    const struct kernel *way[3]; /* eager, in the server, in an executor */
};

static double one_step(struct world *w)
{
    static const struct sampling greedy = {SAMPLING_NEUTRAL};
    struct sample_row sample = {.params = &greedy, .target = -1};
    int32_t token = 5, position = CONTEXT - 1, kv_at = CONTEXT - 1, row = 0, pages[PAGES];
    struct span span = {0, 1, CONTEXT, 0};
    struct err e = {""};
    for (int32_t i = 0; i < PAGES; i++)
        pages[i] = i;
    struct step s = {.m = 1,
                     .tokens = &token,
                     .position = &position,
                     .kv_at = &kv_at,
                     .spans = 1,
                     .span = &span,
                     .page_table = pages,
                     .pages = PAGES,
                     .context = CONTEXT,
                     .rows = 1,
                     .row = &row,
                     .sample = &sample};
    int64_t t0 = clock_ns();
    if (backend_cpu.step(w->b, &s, NULL, &e) != 0)
        exit(1);
    return (double)(clock_ns() - t0) * 1e-3;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct world *w, int steps)
{
    static const char *const name[] = {"eager", "in the server", "in an executor"};
    double *us[3];
    struct slot *slot = dispatch_slot(w->d, w->region, 0, 1, CONTEXT);
    for (int i = 0; i < 3; i++)
        us[i] = xcalloc((size_t)steps + BLOCK, sizeof *us[i]);
    for (int at = 0; at < steps; at += BLOCK)
        for (int i = 0; i < 3; i++) {
            dispatch_publish(w->d, slot, w->way[i]);
            for (int j = 0; j < BLOCK; j++)
                us[i][at + j] = one_step(w);
        }
    puts("| | median step, us | 90 % |\n|---|---:|---:|");
    for (int i = 0; i < 3; i++) {
        qsort(us[i], (size_t)steps, sizeof *us[i], ascending);
        printf("| %s | %.0f | %.0f |\n", name[i], us[i][steps / 2], us[i][steps * 9 / 10]);
        free(us[i]);
    }
    const char *why = backend_cpu.broken(w->b, w->way[2]);
    return why ? fprintf(stderr, "%s\n", why), -1 : 0;
}

static struct kernel *load(struct backend *b, enum region r, const char *path, bool text)
{
    struct err e = {""};
    struct kernel_object o = {.path = path,
                              .region = r,
                              .id = "0123456789abcdef",
                              .name = path,
                              .origin = text ? ORIGIN_AGENT : ORIGIN_TEMPLATE,
                              .text = text};
    struct kernel *k = backend_cpu.load(b, &o, &e);
    if (!k)
        fprintf(stderr, "%s\n", e.msg);
    return k;
}

int main(int argc, char **argv)
{
    const struct kernel *eager[REGION_COUNT];
    struct err e = {""};
    if (argc > 1 && strcmp(argv[1], "executor") == 0)
        return executor_main(argc - 1, argv + 1);
    struct model *m = argc > 2 ? model_open(argv[1], false, NULL, NULL, &e) : NULL;
    struct backend_options o = {.kv_pages = 64,
                                .max_tokens = 64,
                                .max_rows = 8,
                                .pack_bytes = -1,
                                .texts = true,
                                .threads = argc > 5 ? atoi(argv[5]) : 0,
                                .huge_pages = true};
    struct world w = {.region = REGION_MLP_IN, .b = m ? backend_cpu.open(m, &o, &e) : NULL};
    if (argc > 3 && region_parse(argv[3]) >= 0)
        w.region = (enum region)region_parse(argv[3]);
    if (!w.b) {
        fprintf(stderr, "usage: executor_step MODEL OBJECT [REGION [STEPS]]\n%s\n", e.msg);
        return 1;
    }
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = backend_cpu.eager(w.b, (enum region)r);
    w.d = dispatch_open(eager, NULL);
    backend_cpu.set_dispatch(w.b, w.d);
    struct kernel *in = load(w.b, w.region, argv[2], false);
    struct kernel *out = load(w.b, w.region, argv[2], true);
    w.way[0] = eager[w.region];
    w.way[1] = in;
    w.way[2] = out;
    int steps = argc > 4 ? atoi(argv[4]) / BLOCK * BLOCK : 400;
    int rc = in && out && steps > 0 ? measure(&w, steps) : -1;
    dispatch_publish(w.d, dispatch_slot(w.d, w.region, 0, 1, CONTEXT), eager[w.region]);
    backend_cpu.unload(w.b, out);
    backend_cpu.unload(w.b, in);
    dispatch_close(w.d);
    backend_cpu.close(w.b);
    model_close(m);
    return rc == 0 ? 0 : 1;
}
