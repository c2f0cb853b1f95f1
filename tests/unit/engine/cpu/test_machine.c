/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of engine/cpu/machine: what a processor is called, after excerpts of real /proc/cpuinfo;
 * when operators are told of slow products. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/cpu/blas.h"
#include "engine/cpu/machine.h"

static void is_called(const char *cpuinfo, const char *name)
{
    char path[64], got[64];
    snprintf(path, sizeof path, "/tmp/whet-test-machine-%d", (int)getpid());
    FILE *f = fopen(path, "w");
    fputs(cpuinfo, f);
    fclose(f);
    machine_processor(path, got, sizeof got);
    unlink(path);
    assert_string_equal(got, name);
}

static void x86_has_a_name(void **state)
{
    (void)state;
    is_called("processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel\t\t: 17\n"
              "model name\t: AMD EPYC 9R14\n\nprocessor\t: 1\nmodel name\t: another\n",
              "AMD EPYC 9R14");
}

static void arm_has_numbers(void **state)
{
    (void)state;
    const char *n1 = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp\n"
                     "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\n"
                     "CPU part\t: 0xd0c\nCPU revision\t: 1\n\n"
                     "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n";
    is_called(n1, "ARM 0x41:0xd0c r0x3p1");
}

static void what_says_nothing_is_a_processor(void **state)
{
    (void)state;
    is_called("", "CPU");
    is_called("CPU part\t: 0xd0c\n", "CPU");
    is_called("no colon\nmodel names\t: none\n", "CPU");
    char got[64];
    machine_processor("/nowhere/cpuinfo", got, sizeof got);
    assert_string_equal(got, "CPU");
}

static void slow_products_are_said(void **state)
{
    (void)state;
    char said[256];
    struct machine m = {.peak_flops = 100e9, .product_flops = 34e9};
    struct blas blas = {.core = "Prescott"};
    machine_products_warning(&m, &blas, said, sizeof said);
    assert_string_equal(said, "");
    m.product_flops = 25e9;
    machine_products_warning(&m, &blas, said, sizeof said);
    assert_non_null(strstr(said, "25 % of this processor's peak with OpenBLAS core Prescott: "));
    blas.asked = "Prescott";
    machine_products_warning(&m, &blas, said, sizeof said);
    assert_non_null(strstr(said, "core Prescott (as OPENBLAS_CORETYPE says): "));
    blas.missing = "no such file";
    machine_products_warning(&m, &blas, said, sizeof said);
    assert_string_equal(said, "OpenBLAS cannot be used, so prompts are slow: no such file");
}

static void many_threads_read_enough_each(void **state)
{
    (void)state;
    int64_t all, chunk, few_all, few_chunk;
    machine_reads(2, &few_all, &few_chunk);
    for (int32_t threads = 1; threads <= 256; threads++) {
        machine_reads(threads, &all, &chunk);
        assert_true(all >= few_all && chunk >= few_chunk && chunk <= all);
        assert_true(all / threads >= 16 << 20); /* more than its part of the caches */
        assert_true(chunk / threads >= 1 << 20);
        if (threads <= 8)
            assert_true(all == few_all && chunk == few_chunk);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_threads_read_enough_each),
        cmocka_unit_test(x86_has_a_name),
        cmocka_unit_test(arm_has_numbers),
        cmocka_unit_test(what_says_nothing_is_a_processor),
        cmocka_unit_test(slow_products_are_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
