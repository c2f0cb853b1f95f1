/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of measured points: thinning keeps neighbours and families, files come back as they were,
 * damaged ones are refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/specializer/shapes.h"
#include "tune/table.h"

static const struct facts facts = {.HAS_AVX2 = 1,
                                   .HAS_AVX512 = 1,
                                   .HAS_VNNI = 1,
                                   .REGION = REGION_MLP_OUT,
                                   .M_MAX = 4,
                                   SMOLLM_SHAPE};

static struct table *add(struct tables *t, int most)
{
    return tables_add(t, "mlp_out/m4", REGION_MLP_OUT, 4, &facts, NUMERICS_TOLERANCE, most);
}

static int families(const struct space *s)
{
    unsigned char *has = calloc((size_t)space_families() + 1, 1);
    int n = 0;
    for (int32_t i = 0; i < space_size(s); i++) {
        n += !has[space_family(s, i)];
        has[space_family(s, i)] = 1;
    }
    free(has);
    return n;
}

static void thinning_keeps_families_and_neighbours(void **unused)
{
    (void)unused;
    struct tables t = {.seed = 7}, again = {.seed = 7}, other = {.seed = 8};
    struct table *whole = add(&t, 0);
    int all = families(whole->space), size = space_size(whole->space);
    struct space *thin = add(&t, 150)->space;
    assert_true(size > 300 && size == t.table[0].whole && size == t.table[1].whole);
    assert_in_range(space_size(thin), 75, 150);
    assert_int_equal(families(thin), all);
    int neighbours = 0;
    for (int32_t i = 0; i < space_size(thin); i++) {
        int32_t near[2 * KNOBS_MAX];
        struct point p;
        neighbours += space_neighbours(thin, i, near);
        space_point(thin, i, &p);
        assert_null(template_illegal(space_template(thin, i), &p, &facts));
        assert_int_equal(space_find(thin, space_template(thin, i), &p), i);
    }
    assert_true(neighbours >=
                3 * space_size(thin)); /* a lattice; by lot there would be hardly any */
    assert_int_equal(space_size(add(&again, 150)->space), space_size(thin));
    struct point a, b;
    bool differs = space_size(add(&other, 150)->space) != space_size(thin);
    for (int32_t i = 0; !differs && i < space_size(thin); i++) {
        space_point(thin, i, &a);
        space_point(other.table[0].space, i, &b);
        differs = memcmp(&a, &b, sizeof a) != 0;
    }
    assert_true(differs);
    tables_free(&t);
    tables_free(&again);
    tables_free(&other);
}

static char *scratch(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/whet-test-table-%d.json", (int)getpid());
    return path;
}

static void a_file_comes_back_as_it_was(void **unused)
{
    (void)unused;
    static const struct cpu_facts cpu = {.family = "a \"family\"",
                                         .cpus = 2,
                                         .cores = 1,
                                         .cache_bytes = {49152, 2097152, 503316480},
                                         .clock_ghz = 2.6,
                                         .vector_bits = 512,
                                         .fma_cycle = 1.98,
                                         .load_bytes = {16384, 262144, 4194304, 67108864},
                                         .load_ns = {1.9, 5.4, 28, 110},
                                         .read = 9.25e9,
                                         .page_bytes = 4096,
                                         .huge_share = -1};
    struct tables t = {.seed = 7, .threads = 2}, back;
    struct err err;
    t.machine.cpu = &cpu;
    snprintf(t.machine.device, sizeof t.machine.device, "a \"machine\"");
    t.machine.read_bandwidth = 28e9;
    t.machine.peak_flops = 430e9;
    t.machine.boundary_s = 4e-7;
    struct table *of = add(&t, 100);
    of->row[3] = (struct measured){.state = POINT_MEASURED,
                                   .build_s = 0.5f,
                                   .probe_s = 0.25f,
                                   .bench_s = 0.125f,
                                   .own_s = 33e-6f,
                                   .gain = 0.5f,
                                   .low = 0.25f,
                                   .high = 0.75f,
                                   .pairs = 24};
    of->row[5].state = POINT_REFUSED;
    snprintf(of->row[5].reason, sizeof of->row[5].reason, "probe: \"row\" 4 <of> 5\n");
    assert_int_equal(tables_write(&t, scratch(), &err), 0);
    if (tables_read(&back, scratch(), &err) != 0)
        fail_msg("%s", err.msg);
    assert_string_equal(back.machine.device, t.machine.device);
    assert_float_equal(back.machine.peak_flops, 430e9, 1);
    assert_int_equal(back.threads, 2);
    assert_non_null(back.machine.cpu); /* and a file without it: the golden tables */
    assert_memory_equal(back.machine.cpu, &cpu, sizeof cpu);
    const struct table *is = tables_find(&back, "mlp_out/m4");
    assert_non_null(is);
    assert_null(tables_find(&back, "mlp_out/m8"));
    assert_int_equal(space_size(is->space), space_size(of->space));
    assert_memory_equal(&is->facts, &facts, sizeof facts);
    for (int32_t i = 0; i < space_size(of->space); i++) {
        struct point a, b;
        space_point(of->space, i, &a);
        space_point(is->space, i, &b);
        assert_memory_equal(&a, &b, sizeof a);
        assert_int_equal(is->row[i].state, of->row[i].state);
    }
    assert_float_equal(is->row[3].own_s, 33e-6f, 1e-10);
    assert_float_equal(measured_speed(&is->row[3]), 1.5, 1e-6);
    assert_string_equal(is->row[5].reason, of->row[5].reason);
    int32_t best = -1;
    assert_float_equal(table_best(is, &best), 1.5, 1e-6);
    assert_int_equal(best, 3);
    assert_float_equal(table_eager_s(is), 49.5e-6, 1e-10);
    assert_int_equal(table_count(is, POINT_REFUSED), 1);
    tables_free(&back);
    tables_free(&t);
    unlink(scratch());
}

static void refuses(const char *text, const char *word)
{
    struct tables t;
    struct err err;
    FILE *f = fopen(scratch(), "w");
    fputs(text, f);
    fclose(f);
    assert_int_equal(tables_read(&t, scratch(), &err), -1);
    if (!strstr(err.msg, word))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, word);
    unlink(scratch());
}

static void damaged_files_are_refused_with_a_reason(void **unused)
{
    (void)unused;
#define FACTS(kv_heads)                                                                     \
    "\"facts\":{\"REGION\":5,\"M_MAX\":4,\"HIDDEN\":576,\"HEADS\":9,\"KV_HEADS\":" kv_heads \
    ",\"HEAD_DIM\":64,\"FFN\":1536,\"VOCAB\":49152}"
#define ONE(rows)                                                                                \
    "{\"version\":1,\"tables\":[{\"slot\":\"mlp_out/m4\",\"m\":4," FACTS("3") ",\"rows\":[" rows \
                                                                              "]}]}"
    refuses("", "version");
    /* Numbers that are none of ours, in the place of what indexes a list. */
    refuses("{\"version\":1,\"tables\":[{\"m\":1,\"numerics\":99," FACTS("3") "}]}", "numerics");
    refuses("{\"version\":1,\"tables\":[{\"m\":-1," FACTS("3") "}]}", "unknown");
    /* And what is divided by. */
    refuses("{\"version\":1,\"tables\":[{\"m\":1," FACTS("0") "}]}", "shape");
    refuses("{\"version\":1,\"tables\":[{\"m\":1," FACTS("2000000000") "}]}", "shape");
    refuses("{\"version\":1,\"tables\":[{\"facts\":{\"REGION\":-7}}]}", "region");
    refuses("{\"version\":2,\"tables\":[]}", "version");
    refuses(ONE("[\"none\",\"\",\"new\"]"), "none");
    refuses(ONE("[\"mlp_out\",\"ISA=77\",\"new\"]"), "ISA");
    refuses(ONE("[\"mlp_out\",\"ISA=2 PACK=0 DIGITS=0 ROWS=4 TOKENS=1 PREFETCH=0 SPLIT=0 PREP=0\","
                "\"new\",1,2]"),
            "number");
#undef ONE
#undef FACTS
    struct tables t;
    struct err err;
    assert_int_equal(tables_read(&t, "/nowhere/table.json", &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thinning_keeps_families_and_neighbours),
        cmocka_unit_test(a_file_comes_back_as_it_was),
        cmocka_unit_test(damaged_files_are_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
