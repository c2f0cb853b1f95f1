/* SPDX-License-Identifier: Apache-2.0 */
/* test_target.c - what kinds of machines differ in, where it is reckoned. */
#include "tests/unit/unit.h"

#include "specializer/candidate/target.h"

static void beside_a_gpu_a_quarter_of_the_cores_compile(void **state)
{
    (void)state;
    const struct target *gpu = target_of(MACHINE_CUDA);
    assert_int_equal(target_compilers(gpu, 0, 1), 1);
    assert_int_equal(target_compilers(gpu, 0, 7), 1);
    assert_int_equal(target_compilers(gpu, 0, 8), 2);
    assert_int_equal(target_compilers(gpu, 0, 16), 4);
    assert_int_equal(target_compilers(gpu, 0, 256), 8);
}

static void on_a_cpu_one_compiles_however_many_cores_there_are(void **state)
{
    (void)state;
    assert_int_equal(target_compilers(target_of(MACHINE_CPU), 0, 1), 1);
    assert_int_equal(target_compilers(target_of(MACHINE_CPU), 0, 256), 1);
}

static void what_is_asked_for_is_what_there_is(void **state)
{
    (void)state;
    assert_int_equal(target_compilers(target_of(MACHINE_CPU), 3, 256), 3);
    assert_int_equal(target_compilers(target_of(MACHINE_CUDA), 1, 256), 1);
    assert_int_equal(target_compilers(target_of(MACHINE_CUDA), 64, 2), 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_a_gpu_a_quarter_of_the_cores_compile),
        cmocka_unit_test(on_a_cpu_one_compiles_however_many_cores_there_are),
        cmocka_unit_test(what_is_asked_for_is_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
