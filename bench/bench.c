/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - `whet bench`: options, what each mode measures, opening and closing.
 *
 *   decode    one token for each of `--batch` sequences at each `--context`: tokens/s
 *   prefill   prompts of `--prompt` tokens in chunks of engine.prefill_chunk: tokens/s
 *   step      decode steps region by region, against the step as a whole
 *   region    the regions of decode steps and prompts: bytes, GB/s, share of the roofline
 *
 * No HTTP, no scheduler, no specializer: synthetic tokens through the backend, as the engine would
 * feed it. "Specialized" is what the store's winners make of the same steps, or with --starts the
 * points that a search starts from. With --points those are what kernels are measured against that
 * a file names (bench_points.c).
 *
 * With engine.ranks or engine.gpus, decode and prefill measure several processes that compute one
 * model: this one is rank 0, and the others, started by it, run what it sends (engine/lead.h).
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_private.h"
#include "engine/device_weights.h"
#include "engine/engine.h"
#include "engine/kv_dtype.h"
#include "engine/launch.h"
#include "engine/lead.h"
#include "engine/numa.h"
#include "engine/ranks.h"
#include "specializer/winners.h"

enum { RESULTS_MAX = LIST_MAX * LIST_MAX + LIST_MAX };

const char bench_usage[] =
    "usage: whet bench decode|prefill|step|region --model PATH [--json FILE]\n"
    "         [--shape llama-3.2-1b (short for --model random:llama-3.2-1b)]\n"
    "         [--batch 1,2,4,8] [--context 128,512] [--prompt 128,512,2048] [--pairs 7]\n"
    "         [--starts: kernels at the points that searches start from, not the store's]\n"
    "         [--points FILE: with decode or prefill, whole steps or prompts with what each line\n"
    "          names, \"SLOT TEMPLATE NAME=value ... [; SLOT ...]\", against the points that\n"
    "          searches start from; TEMPLATE start: such a point but for what is named]\n"
    "         [options of whet serve]\n";

static int usage(const char *why)
{
    fprintf(stderr, "whet bench: %s\n\n%s", why, bench_usage);
    return 2;
}

/* ---- options -------------------------------------------------------------------------------- */

static int parse_list(const char *text, int most, struct list *out)
{
    out->n = 0;
    while (*text) {
        char *end;
        long v = strtol(text, &end, 10);
        if (end == text || v < 1 || v > most || out->n == LIST_MAX || (*end && *end != ','))
            return -1;
        out->value[out->n++] = (int)v;
        if (*end && !end[1])
            return -1; /* a comma, and nothing behind it */
        text = *end ? end + 1 : end;
    }
    return out->n ? 0 : -1;
}

/* Flags that do nothing in some modes are refused there, instead of being measured without. */
static int check_mode(const struct bench *b, const char *flag, struct err *e)
{
    static const struct {
        const char *flag, *modes;
    } some[] = {{"--batch", "decode, step, region"},
                {"--context", "decode, step, region"},
                {"--prompt", "prefill, region"},
                {"--points", "decode, prefill"}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (strcmp(flag, some[i].flag) == 0 && !strstr(some[i].modes, b->mode))
            return err_set(e, "%s does nothing in %s: it is for %s", flag, b->mode, some[i].modes);
    return 0;
}

static int take_points(struct bench *b, struct err *e)
{
    b->starts = true;
    if (strcmp(b->mode, "prefill") == 0 && b->prompt.n != 1)
        return err_set(e, "--points is for prefill with one --prompt");
    if (strcmp(b->mode, "decode") == 0 && (b->batch.n != 1 || b->context.n != 1))
        return err_set(e, "--points is for decode with one --batch and one --context");
    return b->json ? err_set(e, "--points writes no --json") : 0;
}

/* Takes our own flags out of argv; the rest is for config_parse. */
static int own_flags(struct bench *b, int *argc, char **argv, struct err *e)
{
    int left = 1;
    struct list pairs = {1, {b->pairs}};
    const struct {
        const char *flag;
        struct list *list;
        int most;
    } lists[] = {{"--batch", &b->batch, 512},
                 {"--context", &b->context, 1 << 20},
                 {"--prompt", &b->prompt, 1 << 20},
                 {"--pairs", &pairs, PAIRS_MAX}};
    for (int i = 1; i < *argc; i++) {
        struct list *list = NULL;
        int most = 0;
        for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
            if (strcmp(argv[i], lists[k].flag) == 0) {
                list = lists[k].list;
                most = lists[k].most;
            }
        }
        const char **word = strcmp(argv[i], "--shape") == 0    ? &b->shape
                            : strcmp(argv[i], "--json") == 0   ? &b->json
                            : strcmp(argv[i], "--points") == 0 ? &b->points
                                                               : NULL;
        if (strcmp(argv[i], "--starts") == 0) {
            b->starts = true;
            continue;
        }
        if (!list && !word) {
            argv[left++] = argv[i];
            continue;
        }
        if (check_mode(b, argv[i], e))
            return -1;
        if (++i == *argc)
            return err_set(e, "%s wants a value", argv[i - 1]);
        if (word)
            *word = argv[i];
        else if (parse_list(argv[i], most, list))
            return err_set(e,
                           "%s %s: want up to %d whole numbers from 1 to %d, with commas between",
                           argv[i - 1], argv[i], (int)LIST_MAX, most);
    }
    if (pairs.n != 1)
        return err_set(e, "--pairs: want one whole number from 1 to %d", (int)PAIRS_MAX);
    b->pairs = pairs.value[0];
    *argc = left;
    return b->points ? take_points(b, e) : 0;
}

static int largest(const struct list *l)
{
    int most = 0;
    for (int i = 0; i < l->n; i++)
        most = l->value[i] > most ? l->value[i] : most;
    return most;
}

/* What the mode measures, and so which of the lists count. */
static bool decodes(const struct bench *b)
{
    return strcmp(b->mode, "prefill") != 0;
}

static bool prefills(const struct bench *b)
{
    return strcmp(b->mode, "prefill") == 0 || strcmp(b->mode, "region") == 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int open_backend(struct bench *b, struct err *e)
{
    const struct config *c = &b->config;
    int32_t batch = decodes(b) ? largest(&b->batch) : 1;
    int32_t context = decodes(b) ? largest(&b->context) : 0;
    int32_t prompt = prefills(b) ? largest(&b->prompt) : 0;
    int32_t most = context > prompt ? context : prompt;
    if (most > b->model->shape.max_context)
        return err_set(e, "the model's context ends at %d tokens; %s asks for %d",
                       b->model->shape.max_context, context > prompt ? "--context" : "--prompt",
                       most);
    b->pages_each = (most + KV_PAGE - 1) / KV_PAGE;
    if (b->lead)
        b->ops = lead_ops(b->lead);
    else
        b->ops = strcmp(c->engine_backend, "cuda") == 0 ? backend_cuda_load(e) : &backend_cpu;
    if (!b->ops)
        return -1;
    b->chunk = backend_chunk(b->ops, c->engine_prefill_chunk);
    struct backend_options o = {.threads = (int32_t)c->engine_threads,
                                .texts = strcmp(c->specializer_agentic, "on") == 0,
                                .kv_pages = b->pages_each * batch,
                                .max_tokens = b->chunk > batch ? b->chunk : batch,
                                .max_rows = batch,
                                .pack_bytes = c->specializer_pack_mib * 1048576,
                                .huge_pages = c->engine_huge_pages};
    if (kv_dtype_settle(b->model, c->engine_kv_dtype, b->ops, e))
        return -1;
    struct kv_wish kv = {.pages = o.kv_pages};
    bool e4m3 = strcmp(c->specializer_numerics, "fp8") == 0;
    device_weights_settle(b->model, c->engine_device_weights, e4m3, b->ops, &o, &kv);
    int32_t pages = o.kv_pages;
    if (b->lead && lead_agree(b->lead, &o, e))
        return -1;
    if (o.kv_pages < pages)
        return err_set(e, "a rank has room for %d KV pages; %d are asked for", o.kv_pages, pages);
    if (b->lead)
        b->ops = lead_ops(b->lead);
    b->backend = b->ops->open(b->model, &o, e);
    return !b->backend ? -1 : b->lead ? lead_begin(b->lead, b->backend, e) : 0;
}

static void note_winner(void *ctx, const struct slot *slot, const struct kernel *k)
{
    (void)ctx;
    printf("  %-16s %s\n", slot->name, k->name);
}

/* Adds what starts there; false: it failed. */
static bool add_starts(struct bench *b, int m, int context, int *all, struct err *e)
{
    int n = starts_load(&b->config, b->model, b->backend, b->ops, b->table[SET_SPECIALIZED], m,
                        context, note_winner, NULL, e);
    *all += n;
    return n >= 0;
}

/* What the points of a file are measured against has its kernels in both tables. */
static void copy_starts(struct bench *b)
{
    for (int i = 0; i < dispatch_slots(b->table[SET_EAGER]); i++)
        dispatch_publish(b->table[SET_EAGER], dispatch_slot_at(b->table[SET_EAGER], i),
                         dispatch_slot_at(b->table[SET_SPECIALIZED], i)->kernel);
}

/* In the slots of every prompt's steps, and of every batch and context; returns how many. */
static int load_starts(struct bench *b, struct err *e)
{
    int all = 0;
    for (int i = 0; prefills(b) && i < b->prompt.n; i++) {
        int most = b->prompt.value[i] < b->chunk ? b->prompt.value[i] : b->chunk;
        if (!add_starts(b, most, b->prompt.value[i], &all, e))
            return -1;
    }
    for (int c = 0; decodes(b) && c < b->context.n; c++)
        for (int i = 0; i < b->batch.n; i++)
            if (!add_starts(b, b->batch.value[i], b->context.value[c], &all, e))
                return -1;
    return all;
}

/* Before minutes of measuring, not after them. What is in the file stays there for now. */
static int check_json(const struct bench *b, struct err *e)
{
    FILE *f = b->json ? fopen(b->json, "a") : NULL;
    if (b->json && !f)
        return err_set(e, "--json %s: cannot be written: %s", b->json, strerror(errno));
    return f ? fclose(f) : 0;
}

static int open_all(struct bench *b, const struct rank_place *place, struct err *e)
{
    if (check_json(b, e) || bench_points_check(b, e))
        return -1;
    if (place->world > 1 && !(b->lead = lead_open(&b->config, place, e)))
        return -1;
    numa_open(strcmp(b->config.engine_numa, "off") != 0);
    b->model =
        b->lead ? lead_model(b->lead, e) : model_open(b->config.engine_model, false, NULL, NULL, e);
    if (!b->model || open_backend(b, e))
        return -1;
    b->plan = plan_build(&b->model->shape);
    for (int s = 0; s < SETS; s++)
        b->table[s] =
            b->lead ? lead_table(b->lead) : dispatch_open_alone(b->ops, b->backend, b->model);
    b->winners = b->starts ? load_starts(b, e)
                           : winners_load(&b->config, b->model, b->backend, b->ops,
                                          b->table[SET_SPECIALIZED], note_winner, NULL, e);
    b->sets = b->winners > 0 || b->points ? SETS : 1;
    if (b->points && b->winners > 0)
        copy_starts(b);
    return b->winners < 0 ? -1 : 0;
}

/* Eager into the slot of each table that holds this kernel, which nobody has then. */
static void unload_winner(struct bench *b, int slot, const struct kernel *k)
{
    for (int s = 0; s < SETS; s++) {
        struct slot *at = b->table[s] ? dispatch_slot_at(b->table[s], slot) : NULL;
        if (at && at->kernel == k)
            dispatch_publish(b->table[s], at, at->eager);
    }
    b->ops->unload(b->backend, (struct kernel *)k);
}

/* What loading put there is the table's owner's to unload. */
static void unload_winners(struct bench *b)
{
    for (int s = 0; s < SETS; s++) {
        for (int i = 0; b->table[s] && i < dispatch_slots(b->table[s]); i++) {
            struct slot *slot = dispatch_slot_at(b->table[s], i);
            if (slot->kernel != slot->eager)
                unload_winner(b, i, slot->kernel);
        }
    }
}

static void close_all(struct bench *b)
{
    unload_winners(b);
    if (b->backend)
        b->ops->close(b->backend);
    lead_close(b->lead);
    for (int s = 0; s < SETS; s++)
        if (b->table[s])
            dispatch_close(b->table[s]);
    plan_free(b->plan);
    model_close(b->model);
}

/* ---- modes ---------------------------------------------------------------------------------- */

static int measure_decode(struct bench *b, struct result *r, int *n, struct err *e)
{
    if (bench_fill(b, largest(&b->batch), largest(&b->context), e))
        return -1;
    for (int c = 0; c < b->context.n; c++) {
        for (int i = 0; i < b->batch.n; i++) {
            struct work w = {b->batch.value[i], b->context.value[c], 0};
            if (bench_measure(b, &w, &r[(*n)++], e))
                return -1;
        }
    }
    return 0;
}

static int measure_prefill(struct bench *b, struct result *r, int *n, struct err *e)
{
    for (int i = 0; i < b->prompt.n; i++) {
        struct work w = {1, b->prompt.value[i], b->chunk};
        if (bench_measure(b, &w, &r[(*n)++], e))
            return -1;
    }
    return 0;
}

static int measure(struct bench *b, struct err *e)
{
    static struct result result[RESULTS_MAX];
    int n = 0;
    bench_print_head(b);
    if (b->points)
        return bench_points(b, e);
    if ((decodes(b) && measure_decode(b, result, &n, e)) ||
        (prefills(b) && measure_prefill(b, result, &n, e)))
        return -1;
    if (strcmp(b->mode, "decode") == 0 || strcmp(b->mode, "prefill") == 0)
        bench_print_rates(b, result, n);
    else
        bench_print_regions(b, result, n);
    return b->json ? bench_write_json(b, result, n, e) : 0;
}

static void default_lists(struct bench *b)
{
    bool regions = strcmp(b->mode, "region") == 0, step = strcmp(b->mode, "step") == 0;
    b->pairs = 7;
    parse_list(step ? "1" : regions ? "1,8" : "1,2,4,8", 512, &b->batch);
    parse_list(step || regions ? "512" : "128,512", 1 << 20, &b->context);
    parse_list(regions ? "512" : "128,512,2048", 1 << 20, &b->prompt);
}

/* Regions are timed on one device's clock, and are rank 0's alone. Before any other rank starts. */
static int check_ranks(const struct bench *b, struct err *e)
{
    const struct config *c = &b->config;
    bool several =
        strcmp(c->engine_ranks, "1") != 0 || (*c->engine_gpus && strcmp(c->engine_gpus, "1") != 0);
    if (several && strcmp(b->mode, "decode") != 0 && strcmp(b->mode, "prefill") != 0)
        return err_set(e, "%s measures regions, which it cannot of several ranks", b->mode);
    return 0;
}

/* As rank 0 or the only one, or as another rank; argv as it was before options were taken out. */
static int run(struct bench *b, int argc, char **argv)
{
    struct rank_place place = {.world = 1};
    struct launched others = {0};
    struct err e = {""};
    int failed = check_ranks(b, &e) || launch_ranks(&b->config, argc, argv, &place, &others, &e);
    bool leads = !failed && place.rank == 0;
    if (leads)
        failed = open_all(b, &place, &e) || measure(b, &e);
    else if (!failed)
        failed = engine_follow(&b->config, &place, &e);
    if (failed) /* before what may not come back where a device answers no more */
        fprintf(stderr, "whet bench: %s\n", e.msg);
    if (leads)
        close_all(b);
    launch_wait(&others);
    return !failed ? 0 : place.world > 1 ? RANKS_EXIT_LOST : 1;
}

/* Copied, since own_flags() moves what it leaves. */
static char **copy_of(int argc, char **argv)
{
    char **copy = xcalloc((size_t)argc + 1, sizeof *copy);
    memcpy(copy, argv, (size_t)argc * sizeof *copy);
    return copy;
}

int bench_main(int argc, char **argv)
{
    static const char *const modes[] = {"decode", "prefill", "step", "region"};
    struct bench b = {0};
    struct err e = {0};
    int all = argc;
    for (int i = 0; argc > 1 && i < 4; i++)
        if (strcmp(argv[1], modes[i]) == 0)
            b.mode = modes[i];
    if (!b.mode)
        return usage("the first word says what to measure");
    char **given = copy_of(argc, argv);
    argc--, argv++;
    default_lists(&b);
    int parsed = own_flags(&b, &argc, argv, &e) ? -1 : config_parse(&b.config, argc, argv, &e);
    if (parsed == 0 && b.shape) {
        free(b.config.engine_model);
        b.config.engine_model = xasprintf("random:%s", b.shape);
    }
    const char *wrong = parsed < 0                               ? e.msg
                        : parsed == 0 && !*b.config.engine_model ? "--model is missing"
                                                                 : NULL;
    int rc = wrong ? usage(wrong) : parsed > 0 ? 0 : run(&b, all, given);
    config_free(&b.config);
    free(given);
    return rc;
}
