/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_facts.c - see cpu_facts.h.
 *
 * Each figure is the best of some short rounds, because what disturbs a measurement only makes it
 * slower. Latency is that of a walk through all lines of a working set in an order that no
 * prefetcher foresees (one random cycle, Sattolo's algorithm).
 */
#include "specializer/adviser/cpu_facts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "config/clock.h"
#include "config/cores.h"
#include "config/table.h"
#include "engine/cpu/eager.h"
#include "engine/memory.h"
#include "specializer/adviser/adviser_points.h"
#include "specializer/candidate/hash.h"

enum { LINE = 64, READ_BYTES = 64 << 20, PIECE = 1024, AHEAD = 2048 };

static const int64_t load_bytes[LOAD_SIZES] = {16 << 10, 256 << 10, 4 << 20, READ_BYTES};

/* ---- what the system says ------------------------------------------------------------------ */

/* The fields of the first processor in /proc/cpuinfo that tell which one it is, on x86 and ARM. */
static void read_family(char *out, size_t n)
{
    static const char *const field[] = {"vendor_id",   "cpu family",      "model",
                                        "stepping",    "CPU implementer", "CPU architecture",
                                        "CPU variant", "CPU part",        "CPU revision"};
    char line[256];
    size_t at = 0;
    FILE *f = fopen("/proc/cpuinfo", "re");
    out[0] = 0;
    while (f && fgets(line, sizeof line, f) && line[0] != '\n') {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        size_t k = strcspn(line, "\t:");
        colon[strcspn(colon, "\n")] = 0;
        for (size_t i = 0; i < sizeof field / sizeof *field; i++)
            if (strlen(field[i]) == k && memcmp(line, field[i], k) == 0 && at < n)
                at += (size_t)snprintf(out + at, n - at, "%s%.*s %s", at ? ", " : "", (int)k, line,
                                       colon + 1 + strspn(colon + 1, " \t"));
    }
    if (f)
        fclose(f);
}

/* The lowest sibling of a processor's core: one for each core. -1: not told. */
static int first_sibling(int cpu)
{
    char path[96];
    int first = -1;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%d", &first) != 1)
        first = -1;
    if (f)
        fclose(f);
    return first;
}

static void count_cores(struct cpu_facts *c)
{
    struct cores_set allowed, seen = {{0}};
    if (!cores_affinity(&allowed))
        return;
    c->cpus = cores_count(&allowed);
    for (int cpu = 0; cpu < CORES_SET_MOST; cpu++) {
        int first = cores_has(&allowed, cpu) ? first_sibling(cpu) : CORES_SET_MOST;
        if (first < 0)
            return;
        cores_add(&seen, first);
    }
    c->cores = cores_count(&seen);
}

static void read_caches(struct cpu_facts *c)
{
    static const int key[CACHE_LEVELS] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                          _SC_LEVEL3_CACHE_SIZE};
    for (int i = 0; i < CACHE_LEVELS; i++) {
        long bytes = sysconf(key[i]);
        c->cache_bytes[i] = bytes > 0 ? bytes : 0;
    }
}

/* How much of the mapping that holds `at` is resident, and of that in huge pages, in KiB. */
static void find_pages(const void *at, double *resident, double *huge)
{
    char line[512];
    unsigned long from, to;
    long kib;
    bool here = false;
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            if (here)
                break;
            here = (unsigned long)(uintptr_t)at >= from && (unsigned long)(uintptr_t)at < to;
        } else if (here && sscanf(line, "Rss: %ld", &kib) == 1) {
            *resident += (double)kib;
        } else if (here && (sscanf(line, "AnonHugePages: %ld", &kib) == 1 ||
                            sscanf(line, "FilePmdMapped: %ld", &kib) == 1 ||
                            sscanf(line, "ShmemPmdMapped: %ld", &kib) == 1)) {
            *huge += (double)kib;
        }
    }
    if (f)
        fclose(f);
}

static void look_at_pages(struct cpu_facts *c, const struct model *model)
{
    double resident = 0, huge = 0;
    c->page_bytes = (int32_t)sysconf(_SC_PAGESIZE);
    c->huge_share = -1;
    if (model && model->shape.layers > 0)
        find_pages(model->layer[model->shape.layers / 2].gate.data, &resident, &huge);
    if (resident > 0)
        c->huge_share = fmin(1, huge / resident);
}

/* ---- what is measured ---------------------------------------------------------------------- */

/* Nanoseconds of the best of `rounds` calls. */
static double best_of(int rounds, void (*fn)(void *), void *ctx)
{
    double best = INFINITY;
    for (int r = 0; r < rounds; r++) {
        int64_t t0 = clock_ns();
        fn(ctx);
        best = fmin(best, (double)(clock_ns() - t0));
    }
    return best;
}

enum { ADDS = 400000 };

/* A chain of additions: the compiler may not shorten it, nor a processor overtake it. */
static void add(void *ctx)
{
    uint64_t x = 1, y = *(volatile uint64_t *)ctx;
    for (int i = 0; i < ADDS / 8; i++)
        for (int k = 0; k < 8; k++) {
            x += y;
            __asm__ volatile("" : "+r"(x));
        }
    *(volatile uint64_t *)ctx = x | 1;
}

static void multiply_add(void *flops)
{
    *(double *)flops = eager_probe()->multiply_add(20000);
}

#if defined(__x86_64__)
enum { DOTS = 20000, CHAINS = 12 };

__attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni"))) static void dot(void *ctx)
{
    __m512i acc[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(1);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm512_set1_epi32(i);
    for (int r = 0; r < DOTS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
        __asm__ volatile("" : "+v"(a), "+v"(b)); /* no two rounds are one */
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    *(volatile int *)ctx = _mm512_cvtsi512_si32(acc[0]);
}

static double dots_ns(void)
{
    int keep = 0;
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")
               ? best_of(8, dot, &keep) / (DOTS * (double)CHAINS)
               : 0;
}
#else
static double dots_ns(void)
{
    return 0;
}
#endif

static void measure_units(struct cpu_facts *c)
{
    uint64_t one = 1;
    double flops = 0, add_ns = best_of(8, add, &one) / ADDS;
    double fma_ns = best_of(8, multiply_add, &flops), dot_ns = dots_ns();
    c->clock_ghz = 1 / add_ns;
    c->vector_bits = eager_probe()->vector_bits;
    c->fma_cycle = flops / (2.0 * c->vector_bits / 32) / fma_ns * add_ns;
    c->dot_cycle = dot_ns > 0 ? add_ns / dot_ns : 0;
}

struct walk {
    void **at;
    int64_t steps;
};

static void follow(void *ctx)
{
    struct walk *w = ctx;
    void **at = w->at;
    for (int64_t i = 0; i < w->steps; i++)
        at = *at;
    __asm__ volatile("" : "+r"(at) : : "memory"); /* it was wanted */
    w->at = at;
}

/* One cycle through the first `lines` lines, in an order drawn by lot. */
static void link_lines(char *data, int64_t lines)
{
    uint64_t random = 1;
    int32_t *order = xmalloc((size_t)lines * sizeof *order);
    for (int64_t i = 0; i < lines; i++)
        order[i] = (int32_t)i;
    for (int64_t i = lines - 1; i > 0; i--) {
        int64_t other = random_below(&random, (int)i);
        int32_t moved = order[i];
        order[i] = order[other];
        order[other] = moved;
    }
    for (int64_t i = 0; i < lines; i++)
        *(void **)(void *)(data + (int64_t)order[i] * LINE) =
            data + (int64_t)order[(i + 1) % lines] * LINE;
    free(order);
}

static void measure_loads(struct cpu_facts *c, char *data)
{
    for (int i = 0; i < LOAD_SIZES; i++) {
        struct walk w = {(void **)(void *)data, 50000};
        link_lines(data, load_bytes[i] / LINE);
        c->load_bytes[i] = load_bytes[i];
        c->load_ns[i] = best_of(4, follow, &w) / (double)w.steps;
    }
}

struct stream {
    const char *data;
    int level; /* of cache that lines are fetched into; 0: none are */
};

static void read_stream(void *ctx)
{
    const struct stream *s = ctx;
    for (int64_t at = 0; at < READ_BYTES; at += PIECE) {
        for (int i = 0; s->level && i < PIECE; i += LINE) {
            const char *line = s->data + (at + i + AHEAD) % READ_BYTES;
            if (s->level == 1)
                __builtin_prefetch(line, 0, 3);
            else
                __builtin_prefetch(line, 0, 2);
        }
        eager_probe()->read((const uint8_t *)s->data + at, PIECE);
    }
}

static void measure_reading(struct cpu_facts *c, const char *data)
{
    double *const out[] = {&c->read, &c->read_first, &c->read_second};
    for (int level = 0; level < 3; level++) {
        struct stream s = {data, level};
        *out[level] = READ_BYTES * 1e9 / best_of(3, read_stream, &s);
    }
}

void cpu_facts_measure(struct cpu_facts *out, const struct model *model)
{
    *out = (struct cpu_facts){0};
    read_family(out->family, sizeof out->family);
    count_cores(out);
    read_caches(out);
    look_at_pages(out, model);
    measure_units(out);
    char *data = out->huge_share > 0.5 ? memory_huge(READ_BYTES) : xaligned(READ_BYTES);
    memset(data, 1, READ_BYTES);
    measure_loads(out, data);
    measure_reading(out, data);
    free(data);
}

/* ---- what is told -------------------------------------------------------------------------- */

static void put_caches(const struct cpu_facts *c, cJSON *device)
{
    static const char *const name[] = {"l1d", "l2", "l3"};
    EVERY_ROW(name, CACHE_LEVELS);
    cJSON *sizes = cJSON_AddObjectToObject(device, "cache_kib");
    for (int i = 0; i < CACHE_LEVELS; i++)
        if (c->cache_bytes[i] > 0)
            adviser_put_number(sizes, name[i], (double)c->cache_bytes[i] / 1024);
}

static void put_loads(const struct cpu_facts *c, cJSON *device)
{
    cJSON *list = cJSON_AddArrayToObject(device, "dependent_load");
    for (int i = 0; i < LOAD_SIZES; i++) {
        cJSON *o = adviser_add_object(list);
        adviser_put_number(o, "working_set_kib", (double)c->load_bytes[i] / 1024);
        adviser_put_number(o, "ns", c->load_ns[i]);
    }
}

void cpu_facts_put(const struct cpu_facts *c, cJSON *device)
{
    put_caches(c, device);
    if (c->family[0])
        cJSON_AddStringToObject(device, "family", c->family);
    if (c->cores > 0) {
        adviser_put_number(device, "logical_processors", c->cpus);
        adviser_put_number(device, "cores", c->cores);
    }
    adviser_put_number(device, "clock_ghz", c->clock_ghz);
    cJSON *core = cJSON_AddObjectToObject(device, "a_core");
    adviser_put_number(core, "vector_bits", c->vector_bits);
    adviser_put_number(core, "f32_fma_a_cycle", c->fma_cycle);
    if (c->dot_cycle > 0)
        adviser_put_number(core, "vnni_dpbusd_512_a_cycle", c->dot_cycle);
    adviser_put_number(core, "read_64_mib_gb_s", c->read * 1e-9);
    adviser_put_number(core, "with_prefetch_t0_2_kib_ahead_gb_s", c->read_first * 1e-9);
    adviser_put_number(core, "with_prefetch_t1_2_kib_ahead_gb_s", c->read_second * 1e-9);
    put_loads(c, device);
    adviser_put_number(device, "page_kib", c->page_bytes / 1024.0);
    if (c->huge_share >= 0)
        adviser_put_number(device, "weights_in_huge_pages", c->huge_share);
}
