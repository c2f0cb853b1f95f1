/* SPDX-License-Identifier: Apache-2.0 */
/* engine_metrics.c - what the engine counts, as Prometheus text and as JSON for the dashboard.
 *
 * The engine thread adds to atomics after each step; readers never stop it. Times by region come
 * from the slots' own counters (the backend adds there), and what a region must cost at least from
 * the plan: a slot's average run is priced once and multiplied by its runs. That is exact for
 * everything linear in tokens, context and sequences, which all of the plan is but for the
 * maximum of bytes and FLOPs.
 *
 * The percentiles on the dashboard are of the steps of the last seconds, from a ring; its lock is
 * held for one entry by the engine thread and for one copy by a reader.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/clock.h"
#include "config/table.h"
#include "engine/engine_private.h"

static const double bounds_tokens[] = {1,  2,  3,  4,  6,   8,   12,  16,   24,
                                       32, 48, 64, 96, 128, 256, 512, 1024, 2048};
static const double bounds_work[] = {1,    4,    16,    64,    256,    512,     1024,   2048,
                                     4096, 8192, 16384, 65536, 262144, 1048576, 4194304};
static const char *const phase_name[] = {"decode", "prefill", "mixed"};
EVERY_ROW(phase_name, PHASE_COUNT);

/* ---- written by the engine thread ---------------------------------------------------------- */

void engine_stats_init(struct engine_stats *s)
{
    histogram_init(&s->first_token, bounds_latency, bounds_latency_n);
    histogram_init(&s->first_work, bounds_work, (int)(sizeof bounds_work / sizeof *bounds_work));
    histogram_init(&s->inter_token, bounds_latency, bounds_latency_n);
    histogram_init(&s->queue, bounds_latency, bounds_latency_n);
    for (int p = 0; p < PHASE_COUNT; p++)
        histogram_init(&s->step[p], bounds_step, bounds_step_n);
    histogram_init(&s->step_tokens, bounds_tokens,
                   (int)(sizeof bounds_tokens / sizeof *bounds_tokens));
    pthread_mutex_init(&s->recent_lock, NULL);
    history_init(&s->history, clock_ns(), clock_wall_s());
}

/* Which kernels ran, read from the slots again: a swap between the two reads counts one step of
 * launches under the other origin. */
struct launches {
    struct engine *e;
    const struct step *step;
    const struct overrides *overrides;
};

static int count_node(void *ctx, const struct plan_node *n, struct err *err)
{
    const struct launches *l = ctx;
    struct engine *e = l->e;
    int m = region_m(n->region, l->step->m, l->step->rows);
    struct slot *slot = dispatch_slot(e->dispatch, n->region, n->layer, m, l->step->context);
    (void)err;
    if (!slot && n->region >= REGION_COUNT)
        return 0; /* ranks meet there, but have no kernels for it */
    if (!slot) {
        atomic_fetch_add(&e->stats.launches[n->region][ORIGIN_EAGER], 1);
    } else if (n->layer == slot_layer(slot) && plan_node_turn(n) == 0) {
        const struct kernel *k = slot_kernel_with(l->overrides, slot);
        atomic_fetch_add(&e->stats.launches[n->region][k->origin],
                         (uint64_t)slot_runs(slot, e->model->shape.layers));
    }
    return 0;
}

static void count_launches(struct engine *e, const struct step *s, const struct overrides *o)
{
    struct launches l = {e, s, o};
    uint32_t whole = dispatch_whole(e->dispatch, s->m, o);
    plan_walk(e->plan, s->rows, whole, count_node, &l, NULL);
}

void engine_stats_step(struct engine *e, const struct batch *b, int64_t ns, int32_t generated)
{
    struct engine_stats *s = &e->stats;
    const struct schedule *plan = &b->schedule;
    enum phase phase = plan->decodes == plan->items ? PHASE_DECODE
                       : plan->decodes == 0         ? PHASE_PREFILL
                                                    : PHASE_MIXED;
    histogram_observe(&s->step[phase], (double)ns * 1e-9);
    histogram_observe(&s->step_tokens, b->step.m);
    atomic_fetch_add(&s->steps, 1);
    atomic_fetch_add(&s->step_ns, (uint64_t)ns);
    count_launches(e, &b->step, b->trial);
    int64_t now = clock_ns();
    history_step(&s->history, now, generated, plan->items);
    pthread_mutex_lock(&s->recent_lock);
    s->recent[s->recents++ % RECENT_STEPS] =
        (struct recent_step){.end_ns = now, .ns = ns, .m = b->step.m, .generated = generated};
    pthread_mutex_unlock(&s->recent_lock);
}

void engine_stats_gap(struct engine *e, const struct batch *b, int64_t before, int64_t ns)
{
    const struct schedule *plan = &b->schedule;
    bool decode = plan->decodes == plan->items;
    bool swap = b->swapped || b->report.swapped;
    /* What observing a step costs is the hook's, also in the first step with a new kernel. */
    enum latency_cause kind = swap && !b->report.hooked ? GAP_SWAP
                              : b->after_slice          ? GAP_SLICE
                              : b->report.hooked        ? GAP_HOOK
                              : b->report.uncaptured    ? GAP_UNCAPTURED
                              : b->trial                ? GAP_CANARY
                                                        : GAP_PLAIN;
    struct gap gap = {kind, b->step.m, e->landed_decode ? e->landed_ns - before : 0, ns};
    if (decode)
        latency_add(&e->stats.latency, &gap);
    e->landed_decode = decode;
}

/* ---- regions ------------------------------------------------------------------------------- */

struct region_total {
    double seconds, bound_seconds, bytes;
};

static struct region_total region_total(const struct engine *e, enum region r)
{
    const struct machine *machine = e->ops->machine(e->backend);
    struct region_total t = {0};
    for (int i = 0; i < dispatch_slots(e->dispatch); i++) {
        const struct slot *slot = dispatch_slot_at(e->dispatch, i);
        const struct slot_counters *c = &slot->counters;
        uint64_t runs = atomic_load(&c->runs);
        if (slot->region != r || runs == 0)
            continue;
        int m = (int)((atomic_load(&c->tokens) + runs / 2) / runs);
        int sequences = (int)((atomic_load(&c->sequences) + runs / 2) / runs);
        int64_t context = (int64_t)(atomic_load(&c->context) / runs);
        struct region_cost cost =
            plan_cost(e->model, r, slot_layer(slot), m, sequences, context, m);
        t.seconds += (double)atomic_load(&c->ns) * 1e-9;
        t.bound_seconds += roofline_s(machine, &cost) * (double)runs;
        t.bytes += machine_bytes(machine, &cost) * (double)runs;
    }
    return t;
}

/* ---- Prometheus ---------------------------------------------------------------------------- */

static void put(FILE *out, const char *name, const char *type, const char *help, double value)
{
    metric_head(out, name, type, help);
    metric_value(out, name, NULL, value);
}

static void put_latencies(struct engine_stats *s, FILE *out)
{
    metric_head(out, "time_to_first_token_seconds", "histogram",
                "From submission of a request to its first token");
    metric_histogram(out, "time_to_first_token_seconds", NULL, &s->first_token);
    metric_head(out, "work_to_first_token_tokens", "histogram",
                "Tokens computed for all clients from submission of a request to its first token");
    metric_histogram(out, "work_to_first_token_tokens", NULL, &s->first_work);
    metric_head(out, "inter_token_latency_seconds", "histogram", "Between two tokens of a request");
    metric_histogram(out, "inter_token_latency_seconds", NULL, &s->inter_token);
    metric_head(out, "queue_seconds", "histogram", "From submission to the first step");
    metric_histogram(out, "queue_seconds", NULL, &s->queue);
    metric_head(out, "step_seconds", "histogram", "Time of a step by what it contained");
    for (int p = 0; p < PHASE_COUNT; p++) {
        char label[32];
        snprintf(label, sizeof label, "phase=\"%s\"", phase_name[p]);
        metric_histogram(out, "step_seconds", label, &s->step[p]);
    }
    metric_head(out, "step_tokens", "histogram", "Tokens in a step");
    metric_histogram(out, "step_tokens", NULL, &s->step_tokens);
}

static void put_counters(const struct engine *e, FILE *out)
{
    const struct engine_stats *s = &e->stats;
    put(out, "prompt_tokens_total", "counter", "Prompt tokens of requests that began to run",
        (double)atomic_load(&s->prompt_tokens));
    put(out, "prefix_cache_hit_tokens_total", "counter", "Prompt tokens found in the prefix cache",
        (double)atomic_load(&s->cached_tokens));
    put(out, "generation_tokens_total", "counter", "Tokens generated",
        (double)atomic_load(&s->generated_tokens));
    put(out, "speculation_proposed_tokens_total", "counter",
        "Tokens guessed and checked beside the next one of a sequence",
        (double)atomic_load(&s->guessed_tokens));
    put(out, "speculation_accepted_tokens_total", "counter",
        "Guessed tokens that were what the sampler drew", (double)atomic_load(&s->accepted_tokens));
    put(out, "speculation_steps_total", "counter",
        "Decode steps of a sequence that checked guesses: each gave one token and those accepted",
        (double)atomic_load(&s->speculations));
    put(out, "speculation_draft_proposed_tokens_total", "counter",
        "Of the tokens guessed and checked, those that the draft model guessed",
        (double)atomic_load(&s->draft_guessed));
    put(out, "speculation_draft_accepted_tokens_total", "counter",
        "Of the guessed tokens that were right, those that the draft model guessed",
        (double)atomic_load(&s->draft_accepted));
    put(out, "speculation_draft_steps_total", "counter", "Steps of the draft model",
        (double)atomic_load(&s->draft_steps));
    put(out, "speculation_draft_seconds_total", "counter", "Time of these steps",
        (double)atomic_load(&s->draft_ns) * 1e-9);
    put(out, "requests_running", "gauge", "Requests in the running batch",
        atomic_load(&s->running));
    put(out, "requests_waiting", "gauge", "Requests waiting to run", atomic_load(&s->waiting));
    put(out, "kv_pages", "gauge", "Pages of the KV cache", kvcache_pages(e->kv));
    put(out, "kv_pages_used", "gauge", "KV pages held by requests", atomic_load(&s->pages_used));
    put(out, "kv_pages_forgotten_total", "counter",
        "Pages that left the prefix cache because a kernel that may have written them was wrong",
        (double)atomic_load(&s->forgotten_pages));
    put(out, "preemptions_total", "counter",
        "Times a request gave up its KV pages because others needed some",
        (double)atomic_load(&s->preemptions));
    put(out, "yields_total", "counter",
        "Times a request gave up its place in the batch to a client with fewer",
        (double)atomic_load(&s->yields));
    put(out, "displaced_total", "counter",
        "Waiting requests ended for a client with fewer, the queue being full",
        (double)atomic_load(&s->ended[FINISH_DISPLACED]));
    put(out, "failed_steps_total", "counter", "Steps that the device failed",
        (double)atomic_load(&s->failed_steps));
    put(out, "hot_path_compiles_total", "counter",
        "Compilers started on the request path; must stay 0", (double)engine_hot_path_compiles());
}

static void put_regions(const struct engine *e, FILE *out)
{
    struct region_total total[REGION_NODES];
    char label[64];
    for (int r = 0; r < REGION_NODES; r++)
        total[r] = region_total(e, (enum region)r);
    metric_head(out, "region_seconds", "gauge", "Time spent in a region of the step since start");
    for (int r = 0; r < REGION_NODES; r++) {
        if (r >= REGION_COUNT && total[r].seconds <= 0)
            continue; /* a fused region that no step ran as one */
        snprintf(label, sizeof label, "region=\"%s\"", region_name((enum region)r));
        metric_value(out, "region_seconds", label, total[r].seconds);
    }
    metric_head(out, "region_roofline_ratio", "gauge",
                "Least time the region could have taken over the time it took");
    for (int r = 0; r < REGION_NODES; r++) {
        snprintf(label, sizeof label, "region=\"%s\"", region_name((enum region)r));
        if (total[r].seconds > 0)
            metric_value(out, "region_roofline_ratio", label,
                         total[r].bound_seconds / total[r].seconds);
    }
    metric_head(out, "kernel_launches_total", "counter", "Kernel runs by region and origin");
    for (int r = 0; r < REGION_NODES; r++)
        for (int o = 0; o < ORIGINS; o++) {
            uint64_t n = atomic_load(&e->stats.launches[r][o]);
            snprintf(label, sizeof label, "region=\"%s\",origin=\"%s\"",
                     region_name((enum region)r), origin_name((enum origin)o));
            if (n > 0 || (o == ORIGIN_EAGER && r < REGION_COUNT))
                metric_value(out, "kernel_launches_total", label, (double)n);
        }
}

/* One process counts the kernels that it has exchanged. */
static void put_ranks(const struct engine *e, FILE *out)
{
    char label[32];
    metric_head(out, "rank_table_version", "gauge",
                "Version of the dispatch table that a rank ran its last step with");
    for (int32_t i = 0; i < engine_ranks(e); i++) {
        double version =
            e->ranks ? (double)ranks_version(e->ranks, i) : (double)dispatch_swaps(e->dispatch);
        snprintf(label, sizeof label, "rank=\"%d\"", i);
        metric_value(out, "rank_table_version", label, version);
    }
}

static void put_machine(const struct machine *m, FILE *out)
{
    char label[64];
    put(out, "machine_peak_flops", "gauge", "FLOP/s that this machine can do, measured at start",
        m->peak_flops);
    if (!m->product_core)
        return;
    snprintf(label, sizeof label, "core=\"%s\"", m->product_core);
    metric_head(out, "machine_product_flops", "gauge",
                "FLOP/s of the matrix product of eager kernels, measured at start");
    metric_value(out, "machine_product_flops", label, m->product_flops);
}

void engine_metrics(const struct engine *e, FILE *out)
{
    int state = atomic_load(&e->state);
    if (state != ENGINE_READY && state != ENGINE_LOST)
        return;
    put_latencies((struct engine_stats *)&e->stats, out);
    put_counters(e, out);
    latency_metrics(&e->stats.latency, out);
    put_regions(e, out);
    put_ranks(e, out);
    put_machine(e->ops->machine(e->backend), out);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

/* Latencies are of this many seconds; first tokens are rarer. */
enum { LATELY_S = 10, FIRSTS_S = 60 };

struct recent_summary {
    double tokens_per_s, p50_ms, p99_ms;
    int32_t steps;
};

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Over the last five seconds, or since the oldest step remembered. */
static struct recent_summary summarize_recent(struct engine_stats *s)
{
    struct recent_summary sum = {0};
    int64_t *ns = xmalloc(RECENT_STEPS * sizeof *ns), now = clock_ns(), since = now - 5000000000;
    int64_t tokens = 0, oldest = now;
    pthread_mutex_lock(&s->recent_lock);
    uint64_t have = s->recents < RECENT_STEPS ? s->recents : RECENT_STEPS;
    for (uint64_t i = 1; i <= have; i++) {
        const struct recent_step *step = &s->recent[(s->recents - i) % RECENT_STEPS];
        if (step->end_ns < since)
            break;
        ns[sum.steps++] = step->ns;
        tokens += step->generated;
        oldest = step->end_ns - step->ns;
    }
    bool wrapped = have == RECENT_STEPS && sum.steps == RECENT_STEPS;
    pthread_mutex_unlock(&s->recent_lock);
    if (sum.steps > 0) {
        qsort(ns, (size_t)sum.steps, sizeof *ns, by_value);
        sum.p50_ms = (double)ns[sum.steps / 2] * 1e-6;
        sum.p99_ms = (double)ns[(int64_t)sum.steps * 99 / 100] * 1e-6;
        sum.tokens_per_s = (double)tokens * 1e9 / (double)(now - (wrapped ? oldest : since));
    }
    free(ns);
    return sum;
}

char *engine_json(const struct engine *e)
{
    if (atomic_load(&e->state) != ENGINE_READY)
        return xstrdup("{}");
    struct engine_stats *s = (struct engine_stats *)&e->stats;
    struct recent_summary recent = summarize_recent(s);
    struct history_latency gaps = history_latency(&s->history, clock_ns(), LATELY_S);
    struct history_latency firsts = history_latency(&s->history, clock_ns(), FIRSTS_S);
    char *text = NULL;
    size_t n = 0;
    FILE *out = xmemstream(&text, &n);
    fprintf(out,
            "{\"tokens_per_s\":%.3f,\"step_p50_ms\":%.4f,\"step_p99_ms\":%.4f,"
            "\"recent_steps\":%d,\"running\":%d,\"waiting\":%d,\"kv_pages\":%d,"
            "\"kv_pages_used\":%d,\"generated_tokens\":%llu,\"prompt_tokens\":%llu,"
            "\"preemptions\":%llu,\"steps\":%llu,\"speculation\":{\"steps\":%llu,"
            "\"proposed\":%llu,\"accepted\":%llu},\"gap_p50_ms\":%.3f,\"gap_p99_ms\":%.3f,"
            "\"first_p50_ms\":%.2f,\"first_p99_ms\":%.2f,\"regions\":[",
            recent.tokens_per_s, recent.p50_ms, recent.p99_ms, recent.steps,
            atomic_load(&s->running), atomic_load(&s->waiting), kvcache_pages(e->kv),
            atomic_load(&s->pages_used), (unsigned long long)atomic_load(&s->generated_tokens),
            (unsigned long long)atomic_load(&s->prompt_tokens),
            (unsigned long long)atomic_load(&s->preemptions),
            (unsigned long long)atomic_load(&s->steps),
            (unsigned long long)atomic_load(&s->speculations),
            (unsigned long long)atomic_load(&s->guessed_tokens),
            (unsigned long long)atomic_load(&s->accepted_tokens), gaps.gap_p50 * 1e3,
            gaps.gap_p99 * 1e3, firsts.first_p50 * 1e3, firsts.first_p99 * 1e3);
    for (int r = 0; r < REGION_NODES; r++) {
        struct region_total t = region_total(e, (enum region)r);
        if (r >= REGION_COUNT && t.seconds <= 0)
            continue;
        fprintf(out, "%s{\"region\":\"%s\",\"seconds\":%.6f,\"bytes\":%.0f,\"roofline\":%.4f}",
                r ? "," : "", region_name((enum region)r), t.seconds, t.bytes,
                t.seconds > 0 ? t.bound_seconds / t.seconds : 0);
    }
    fputs("]}", out);
    fclose(out);
    return text;
}

char *engine_history_json(const struct engine *e, int seconds)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = atomic_load(&e->state) == ENGINE_READY ? xmemstream(&text, &n) : NULL;
    if (!out)
        return xstrdup("{}");
    history_json(&e->stats.history, clock_ns(), seconds, out);
    fclose(out);
    return text;
}
