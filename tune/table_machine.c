/* SPDX-License-Identifier: Apache-2.0 */
/* table_machine.c - see table_machine.h. */
#include "tune/table_machine.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "config/err.h"

enum number { INT32, INT64, REAL };

struct field {
    const char *name;
    size_t at;
    enum number is;
    int n; /* of an array; 0: one */
};

#define AT(member) offsetof(struct cpu_facts, member)
static const struct field of_cpu[] = {
    {"logical_processors", AT(cpus), INT32, 0},
    {"cores", AT(cores), INT32, 0},
    {"cache_bytes", AT(cache_bytes), INT64, CACHE_LEVELS},
    {"clock_ghz", AT(clock_ghz), REAL, 0},
    {"vector_bits", AT(vector_bits), INT32, 0},
    {"fma_a_cycle", AT(fma_cycle), REAL, 0},
    {"dot_a_cycle", AT(dot_cycle), REAL, 0},
    {"load_bytes", AT(load_bytes), INT64, LOAD_SIZES},
    {"load_ns", AT(load_ns), REAL, LOAD_SIZES},
    {"read", AT(read), REAL, 0},
    {"read_first", AT(read_first), REAL, 0},
    {"read_second", AT(read_second), REAL, 0},
    {"page_bytes", AT(page_bytes), INT32, 0},
    {"huge_share", AT(huge_share), REAL, 0},
};
#undef AT
#define AT(member) offsetof(struct machine, member)
static const struct field of_gpu[] = {
    {"sm_registers", AT(sm_registers), INT32, 0}, {"sm_shared", AT(sm_shared), INT32, 0},
    {"block_shared", AT(block_shared), INT32, 0}, {"l2_bytes", AT(l2_bytes), INT32, 0},
    {"clock_mhz", AT(clock_mhz), INT32, 0},
};
#undef AT
enum { CPU_FIELDS = sizeof of_cpu / sizeof *of_cpu, GPU_FIELDS = sizeof of_gpu / sizeof *of_gpu };

static double get(const void *base, const struct field *f, int i)
{
    const char *at = (const char *)base + f->at;
    switch (f->is) {
    case INT32:
        return ((const int32_t *)(const void *)at)[i];
    case INT64:
        return (double)((const int64_t *)(const void *)at)[i];
    case REAL:
        break;
    }
    return ((const double *)(const void *)at)[i];
}

static void set(void *base, const struct field *f, int i, double v)
{
    char *at = (char *)base + f->at;
    switch (f->is) {
    case INT32:
        ((int32_t *)(void *)at)[i] = v >= INT32_MIN && v <= INT32_MAX ? (int32_t)v : 0;
        break;
    case INT64: /* sizes: 2^53 is beyond them all */
        ((int64_t *)(void *)at)[i] = v >= 0 && v <= 0x1p53 ? (int64_t)v : 0;
        break;
    case REAL:
        ((double *)(void *)at)[i] = v;
        break;
    }
}

static cJSON *number_json(double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.10g", v);
    return cJSON_CreateRaw(text);
}

static void write_fields(const void *base, const struct field *f, int n, cJSON *o)
{
    for (int k = 0; k < n; k++) {
        if (f[k].n == 0) {
            cJSON_AddItemToObject(o, f[k].name, number_json(get(base, &f[k], 0)));
            continue;
        }
        cJSON *list = cJSON_AddArrayToObject(o, f[k].name);
        for (int i = 0; i < f[k].n; i++)
            cJSON_AddItemToArray(list, number_json(get(base, &f[k], i)));
    }
}

static void read_fields(void *base, const struct field *f, int n, const cJSON *o)
{
    for (int k = 0; k < n; k++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, f[k].name);
        for (int i = 0; i < (f[k].n ? f[k].n : 1); i++) {
            const cJSON *one = f[k].n ? cJSON_GetArrayItem(v, i) : v;
            if (cJSON_IsNumber(one))
                set(base, &f[k], i, one->valuedouble);
        }
    }
}

void table_machine_write(const struct tables *t, cJSON *o)
{
    if (t->machine.kind == MACHINE_CUDA) {
        cJSON *gpu = cJSON_AddObjectToObject(o, "gpu");
        cJSON_AddStringToObject(gpu, "target", t->machine.target);
        write_fields(&t->machine, of_gpu, GPU_FIELDS, gpu);
    } else if (t->machine.cpu) {
        cJSON *cpu = cJSON_AddObjectToObject(o, "cpu");
        cJSON_AddStringToObject(cpu, "family", t->machine.cpu->family);
        write_fields(t->machine.cpu, of_cpu, CPU_FIELDS, cpu);
    }
}

static void read_text(const cJSON *o, const char *name, char *out, size_t n)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    snprintf(out, n, "%s", cJSON_IsString(v) ? v->valuestring : "");
}

void table_machine_read(struct tables *t, const cJSON *o)
{
    const cJSON *gpu = cJSON_GetObjectItemCaseSensitive(o, "gpu");
    const cJSON *cpu = cJSON_GetObjectItemCaseSensitive(o, "cpu");
    read_text(gpu, "target", t->machine.target, sizeof t->machine.target);
    read_fields(&t->machine, of_gpu, GPU_FIELDS, gpu);
    if (!cpu)
        return;
    t->cpu = xcalloc(1, sizeof *t->cpu);
    t->cpu->huge_share = -1;
    read_text(cpu, "family", t->cpu->family, sizeof t->cpu->family);
    read_fields(t->cpu, of_cpu, CPU_FIELDS, cpu);
    t->machine.cpu = t->cpu;
}
