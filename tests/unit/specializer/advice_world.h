/* SPDX-License-Identifier: Apache-2.0 */
/* advice_world.h - a slot to give advice on: a space, a cost model, a request about them. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_ADVICE_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_ADVICE_WORLD_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/adviser_request.h"
#include "specializer/adviser/cpu_facts.h"
#include "specializer/search/strategy.h"
#include "tests/unit/specializer/shapes.h"

static const struct cpu_facts world_cpu = {.family = "vendor_id GenuineIntel, model 143",
                                           .cpus = 2,
                                           .cores = 1,
                                           .cache_bytes = {49152, 2097152, 503316480},
                                           .clock_ghz = 2.6,
                                           .vector_bits = 512,
                                           .fma_cycle = 2,
                                           .dot_cycle = 2,
                                           .load_bytes = {16384, 262144, 4194304, 67108864},
                                           .load_ns = {1.9, 5.4, 28, 110},
                                           .read = 9e9,
                                           .read_first = 14e9,
                                           .read_second = 12e9,
                                           .page_bytes = 4096,
                                           .huge_share = 0.98};
static const struct machine world_machine = {.cpu = &world_cpu,
                                             .device = "test machine, 2 threads",
                                             .read_bandwidth = 40e9,
                                             .peak_flops = 100e9,
                                             .boundary_s = 2e-6};

struct world {
    struct cost cost;
    struct space *space;
    struct search search;
    char slot[40];
    struct live_shape live[3];
    struct dead_end dead[12];
    struct lesson lesson[4];
    struct advice_request request;
    struct advice heuristic;
};

static const struct machine world_gpu = {.device = "test device, compute capability 9.0",
                                         .read_bandwidth = 4.3e12,
                                         .peak_flops = 8e14,
                                         .boundary_s = 2e-6,
                                         .kv_element = 2,
                                         .kind = MACHINE_CUDA,
                                         .sms = 132,
                                         .sm_registers = 65536,
                                         .sm_shared = 233472,
                                         .block_shared = 232448,
                                         .l2_bytes = 62914560,
                                         .clock_mhz = 1980,
                                         .target = "sm_90a"};

/* A CPU with SmolLM2-135M, or a GPU with Qwen3-1.7B. */
static inline struct facts world_facts(const struct machine *machine, enum region region, int m)
{
    struct facts cpu = {.HAS_AVX2 = 1,
                        .HAS_AVX512 = 1,
                        .HAS_VNNI = 1,
                        .HAS_AMX = 1,
                        .REGION = (int32_t)region,
                        .M_MAX = m,
                        SMOLLM_SHAPE};
    struct facts gpu = {.REGION = (int32_t)region, .M_MAX = m, QWEN3_SHAPE};
    facts_machine(&gpu, machine);
    return machine->kind == MACHINE_CUDA ? gpu : cpu;
}

static inline void world_open_on(struct world *w, const struct machine *machine, enum region region,
                                 int m)
{
    struct facts f = world_facts(machine, region, m);
    memset(w, 0, sizeof *w);
    cost_open(&w->cost, machine, 2);
    w->space = space_open(&f, region, m, NUMERICS_TOLERANCE);
    search_open(&w->search, w->space);
    snprintf(w->slot, sizeof w->slot, "%s/m%d", region_name(region), m);
    w->live[0] = (struct live_shape){1, 256, 0.7};
    w->live[1] = (struct live_shape){4, 512, 0.2};
    w->live[2] = (struct live_shape){256, 256, 0.1};
    w->request = (struct advice_request){.space = w->space,
                                         .cost = &w->cost,
                                         .share = 0.31,
                                         .run_s = 61e-6,
                                         .roofline_s = 33e-6,
                                         .eager_s = 116e-6,
                                         .m = 1.2,
                                         .context = 300,
                                         .speed = w->search.speed,
                                         .trial = w->search.trial,
                                         .slot = w->slot,
                                         .incumbent = "eager",
                                         .incumbent_speed = 1.9,
                                         .work = {.weight_bytes = 552960, .flops = 1769472},
                                         .live = w->live,
                                         .lives = 3,
                                         .dead = w->dead};
    space_predict(w->space, &w->cost);
    advise_heuristic(&w->request, &w->heuristic);
    w->search.advice = &w->heuristic;
}

static inline void world_open(struct world *w, enum region region, int m)
{
    world_open_on(w, &world_machine, region, m);
}

/* Some results: every 97th point measured, every 389th refused. */
static inline void world_results(struct world *w)
{
    for (int32_t i = 0; i < space_size(w->space); i += 97)
        search_learn(&w->search, i, i % 389 ? 0.8 + (i % 50) / 50.0 : 0);
    for (int i = 0; i < 12; i++) {
        w->dead[i].id = i * 389 % (space_size(w->space) > 0 ? space_size(w->space) : 1);
        snprintf(w->dead[i].reason, sizeof w->dead[i].reason,
                 "build: compiler: exit 1: /home/somebody/.cache/whet/k.c:12: error %d %s", i,
                 "in a text that is as long as the longest of reasons may be, and then a little "
                 "longer still, so that it is cut");
    }
    w->request.deads = 12;
    for (int i = 0; i < 4 && space_size(w->space) > 0; i++) {
        struct lesson *l = &w->lesson[i];
        snprintf(l->slot, sizeof l->slot, "%s", i < 2 ? "mlp_out/m1" : "head/m1");
        adviser_id_text(w->space, i % space_size(w->space), l->id);
        l->speed = 2 - 0.3 * i;
    }
    w->request.lesson = w->lesson;
    w->request.lessons = 4;
}

static inline void world_close(struct world *w)
{
    advice_free(&w->heuristic);
    search_close(&w->search);
    space_close(w->space);
    cost_close(&w->cost);
}

/* A reply in which everything is right: `n` of the heuristic's last ids, one hint, one risk. */
static inline char *world_reply(const struct world *w, int n, const char *label, const char *note)
{
    char id[ID_TEXT];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "version", 1);
    cJSON *region = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(o, "regions"), region);
    cJSON_AddStringToObject(region, "region", w->slot);
    cJSON_AddStringToObject(region, "label", label);
    cJSON *priority = cJSON_AddArrayToObject(region, "priority");
    for (int i = 1; i <= n; i++) {
        adviser_id_text(w->space, w->heuristic.priority[w->heuristic.priorities - i], id);
        cJSON_AddItemToArray(priority, cJSON_CreateString(id));
    }
    const int rows[] = {2, 4};
    cJSON_AddItemToObject(cJSON_AddObjectToObject(region, "hints"), "ROWS",
                          cJSON_CreateIntArray(rows, 2));
    cJSON *risk = cJSON_CreateObject();
    cJSON_AddItemToArray(cJSON_AddArrayToObject(region, "risks"), risk);
    cJSON_AddStringToObject(risk, "kind", "boundary");
    adviser_id_text(w->space, w->heuristic.priority[0], id);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(risk, "candidates"), cJSON_CreateString(id));
    cJSON_AddStringToObject(risk, "note", note);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

#endif
