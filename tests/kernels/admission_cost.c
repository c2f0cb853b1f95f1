/* SPDX-License-Identifier: Apache-2.0 */
/* admission_cost.c - what one candidate costs a CPU: seconds of its compiler and of its probe.
 *
 *   WHET_SOURCE_ROOT=$PWD build/tests/admission_cost MODEL.gguf [CANDIDATES [SLOT...]]
 *
 * WHOLE=1: probes check the whole model, too, as in an opening.
 *
 * Not a test: it prints the table in docs/measurements.md. For each slot it takes the points that a
 * search would begin with, and puts each through the real build and the real probe, child processes
 * and all. Processor time is what counts here and not wall time: beside a busy server children get
 * what it leaves, so what they need is how fast it sharpens itself, and it is also what a shared
 * machine measures best.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/admission/probe.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/adviser/adviser.h"
#include "specializer/build/build.h"
#include "specializer/build/sources.h"
#include "specializer/search/cost.h"
#include "specializer/search/strategy.h"

enum { MOST = 256 };
static const char *const usual[] = {
    "attn_in/m1",  "attn_in/m4",  "attn_in/m16",  "attn/m1/c256", "attn/m4/c256", "attn/m16/c256",
    "attn_out/m1", "attn_out/m4", "attn_out/m16", "mlp_in/m1",    "mlp_in/m4",    "mlp_in/m16",
    "mlp_out/m1",  "mlp_out/m4",  "mlp_out/m16",  "head/m1",      "head/m4",      "head/m16",
};

struct works {
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct dispatch *dispatch;
    struct kernel eager;
    struct machine machine;
    struct cost cost;
    struct key_parts keys;
    char dir[40], *kernels, *references;
    int refused;
};

struct times {
    int n;
    double build[MOST], probe[MOST];
};

static int works_open(struct works *w, const char *model, struct err *err)
{
    char *none[] = {(char *)"admission_cost"};
    strcpy(w->dir, "/tmp/whet-cost-XXXXXX");
    if (!mkdtemp(w->dir))
        return err_set(err, "no folder %s", w->dir);
    w->kernels = xasprintf("%s/kernels", w->dir);
    w->references = xasprintf("%s/references", w->dir);
    w->keys.object_dir = w->dir;
    w->keys.kernel_dir = w->kernels;
    /* Only proportions of these matter here: they order the points. */
    w->machine = (struct machine){
        .kind = MACHINE_CPU, .read_bandwidth = 20e9, .peak_flops = 1e11, .boundary_s = 5e-6};
    w->env = (struct stage_env){.config = &w->config,
                                .machine = &w->machine,
                                .compiler = &w->compiler,
                                .program = "/proc/self/exe",
                                .kernel_dir = w->kernels,
                                .reference_dir = w->references,
                                .alone = true};
    if (config_parse(&w->config, 1, none, err) != 0 ||
        compiler_find(&w->config, &w->compiler, err) != 0 ||
        kernel_sources_write(w->kernels, err) != 0 ||
        reference_cache_clear(w->references, err) != 0)
        return -1;
    w->env.model = model_open(model, false, NULL, NULL, err);
    if (!w->env.model)
        return -1;
    const struct kernel *eager[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = &w->eager;
    w->dispatch = dispatch_open(eager, NULL);
    cost_open(&w->cost, &w->machine, 2);
    return 0;
}

static void works_close(struct works *w)
{
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", w->dir);
    if (system(command) != 0)
        printf("%s is left\n", w->dir);
    if (w->dispatch) {
        cost_close(&w->cost);
        dispatch_close(w->dispatch);
    }
    model_close((struct model *)w->env.model);
    config_free(&w->config);
    free(w->kernels);
    free(w->references);
}

/* Build and probe to their ends; a refusal has its costs too, but is not a whole candidate. */
static bool admit(struct works *w, struct candidate *c)
{
    struct err err = {""};
    struct build *b = build_start(&w->env, c, &err);
    enum stage_result r = b ? STAGE_RUNNING : STAGE_RETRY;
    while (b && (r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    enum probe_depth depth = getenv("WHOLE") ? PROBE_WHOLE : PROBE_FULL;
    struct probe *p = r == STAGE_PASS ? probe_start(&w->env, c, depth, NULL, 0, &err) : NULL;
    while (p && (r = probe_poll(p)) == STAGE_RUNNING)
        usleep(1000);
    probe_end(p);
    unlink(c->object);
    if (r != STAGE_PASS)
        printf("%s: %s%s\n", c->name, c->reason, err.msg);
    return p && r == STAGE_PASS;
}

/* The first `n` points that a search of the slot proposes. */
static int first_points(struct works *w, struct space *space, int32_t *id, int n)
{
    struct search search;
    struct advice advice = {0};
    struct advice_request request = {.space = space, .cost = &w->cost};
    search_open(&search, space);
    advise_heuristic(&request, &advice);
    search.advice = &advice;
    void *state = strategy_template.open(&search, 1);
    int got = strategy_template.propose(state, &search, id, n);
    strategy_template.close(state);
    search_close(&search);
    advice_free(&advice);
    return got;
}

static void measure_slot(struct works *w, struct slot *slot, int n, struct times *t)
{
    struct facts facts;
    int32_t id[MOST];
    facts_fill(&facts, w->env.model, slot->region, slot->m, NUMERICS_TOLERANCE);
    struct space *space = space_open(&facts, slot->region, slot->m, NUMERICS_TOLERANCE);
    space_predict(space, &w->cost);
    n = first_points(w, space, id, n);
    for (int i = 0; i < n && t->n < MOST; i++) {
        struct point p;
        space_point(space, id[i], &p);
        struct candidate *c =
            candidate_new(&w->keys, space_template(space, id[i]), &p, &facts, slot);
        if (admit(w, c)) {
            t->build[t->n] = c->evidence.build_cpu_s;
            t->probe[t->n++] = c->evidence.probe_cpu_s;
        } else {
            w->refused++;
        }
        candidate_free(c);
    }
    space_close(space);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *v, int n)
{
    double sorted[MOST];
    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n ? (sorted[(n - 1) / 2] + sorted[n / 2]) / 2 : NAN;
}

static void print_row(const char *name, const struct times *t)
{
    double sum[MOST];
    for (int i = 0; i < t->n; i++)
        sum[i] = t->build[i] + t->probe[i];
    printf("| %s | %d | %.2f | %.2f | %.2f |\n", name, t->n, median(t->build, t->n),
           median(t->probe, t->n), median(sum, t->n));
    fflush(stdout);
}

static int measure(struct works *w, const char *const *name, int names, int n)
{
    struct times all = {0};
    printf("| slot | candidates | build s | probe s | both s |\n|---|---|---|---|---|\n");
    for (int i = 0; i < names; i++) {
        struct slot *slot = dispatch_find(w->dispatch, name[i]);
        struct times t = {0};
        if (!slot) {
            fprintf(stderr, "there is no slot %s\n", name[i]);
            return 2;
        }
        measure_slot(w, slot, n, &t);
        print_row(name[i], &t);
        for (int k = 0; k < t.n && all.n < MOST; k++, all.n++) {
            all.build[all.n] = t.build[k];
            all.probe[all.n] = t.probe[k];
        }
    }
    print_row("all", &all);
    printf("%s, %d refused\n", w->compiler.version, w->refused);
    return 0;
}

int main(int argc, char **argv)
{
    struct works w = {.refused = 0};
    struct err err = {""};
    if (argc > 1 && strcmp(argv[1], "probe") == 0)
        return probe_main(argc - 1, argv + 1);
    if (argc < 2) {
        fprintf(stderr, "usage: admission_cost MODEL.gguf [CANDIDATES [SLOT...]]\n");
        return 2;
    }
    int rc = works_open(&w, argv[1], &err), n = argc > 2 ? atoi(argv[2]) : 4;
    if (rc != 0)
        fprintf(stderr, "%s\n", err.msg);
    else if (argc > 3)
        rc = measure(&w, (const char *const *)argv + 3, argc - 3, n);
    else
        rc = measure(&w, usual, (int)(sizeof usual / sizeof *usual), n);
    works_close(&w);
    return rc != 0;
}
