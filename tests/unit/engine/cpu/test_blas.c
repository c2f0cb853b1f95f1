/* SPDX-License-Identifier: Apache-2.0 */
/* Which of OpenBLAS's cores a processor gets: known ones by their registers, and the same with what
 * a hypervisor or an operating system can take away. And that the library took what it was told. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/cpu/blas.h"
#include "engine/cpu/blas_core.h"
#include "tests/unit/unit.h"

enum {
    INTEL = 0x756e6547,
    AMD = 0x68747541,
    SAVES_YMM = 0x7,
    SAVES_ZMM = 0xe7,
    SAVES_AMX = 0x602e7
};

static const struct x86_says haswell = {INTEL, 0x7ffafbff, 0x000027ab, 0x21, SAVES_YMM};
static const struct x86_says zen3 = {AMD, 0x7ef8320b, 0x219c97a9, 0x75c237ff, SAVES_YMM};
static const struct x86_says zen4 = {AMD, 0x7ef8320b, 0xf1bf97a9, 0x75c237ff, SAVES_ZMM};
static const struct x86_says skylake_x = {INTEL, 0x7ffefbff, 0xd39ffffb, 0x121, SAVES_ZMM};
static const struct x86_says sapphire_rapids = {INTEL, 0x7ffefbff, 0xf3bfbfbb, 0x121, SAVES_AMX};
static const struct x86_says sandy_bridge = {INTEL, 0x1fbae3ff, 0, 0x1, SAVES_YMM};
static const struct x86_says nehalem = {INTEL, 0x009ce3bd, 0, 0x1, 0};
static const struct x86_says bulldozer = {AMD, 0x1e98220b, 0, 0x1c9bfff, SAVES_YMM};

static void expect(const struct x86_says *s, const char *core)
{
    const char *got = blas_core_x86(s);
    if (core)
        assert_string_equal(got ? got : "none", core);
    else
        assert_null(got);
}

static void known_processors_get_the_widest_core_that_they_run(void **state)
{
    (void)state;
    expect(&haswell, "Haswell");
    expect(&zen3, "Zen");
    expect(&zen4, "SkylakeX");
    expect(&skylake_x, "SkylakeX");
    expect(&sapphire_rapids, "SkylakeX");
    expect(&sandy_bridge, "Sandybridge");
    expect(&nehalem, "Nehalem");
    expect(&bulldozer, NULL);
    expect(&(struct x86_says){0}, NULL);
}

/* AMX masked by a hypervisor: leaf 7 edx is not even asked for, and XCR0 lacks the tiles. */
static void amx_that_is_masked_costs_no_avx512(void **state)
{
    (void)state;
    struct x86_says s = sapphire_rapids;
    s.xcr0 = SAVES_ZMM;
    expect(&s, "SkylakeX");
}

static void what_the_system_does_not_save_is_not_used(void **state)
{
    (void)state;
    struct x86_says s = skylake_x;
    s.xcr0 = SAVES_YMM;
    expect(&s, "Haswell");
    s.xcr0 = SAVES_ZMM & ~0x20u; /* no mask registers */
    expect(&s, "Haswell");
    s.xcr0 = 0x3;
    expect(&s, "Nehalem");
    s.leaf1_ecx &= ~(1u << 27); /* no OSXSAVE: XCR0 says nothing */
    s.xcr0 = SAVES_ZMM;
    expect(&s, "Nehalem");
}

/* Each feature that a core's kernels were compiled with, taken away alone. */
static void a_core_needs_all_of_its_features(void **state)
{
    (void)state;
    static const int wide[] = {16, 17, 28, 30, 31}, bmi[] = {3, 5, 8}, one[] = {12, 22, 29};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        struct x86_says s = zen4;
        s.leaf7_ebx &= ~(1u << wide[i]);
        expect(&s, "Zen");
    }
    for (size_t i = 0; i < 3; i++) {
        struct x86_says s = skylake_x;
        s.leaf7_ebx &= ~(1u << bmi[i]);
        expect(&s, "Sandybridge");
        s = skylake_x;
        s.leaf1_ecx &= ~(1u << one[i]);
        expect(&s, "Sandybridge");
    }
    struct x86_says s = zen4;
    s.extended_ecx &= ~(1u << 5);
    expect(&s, NULL);
}

static void arm_goes_by_what_it_has_not_by_its_number(void **state)
{
    (void)state;
    const uint64_t n1 = 0x119fff, sve = 1 << 22; /* hwcaps of a Graviton 2; of SVE */
    const struct arm_says graviton2 = {0x413fd0c1, n1}, graviton3 = {0x411fd401, n1 | sve},
                          graviton4 = {0x410fd4f1, n1 | sve}, no_sve = {0x411fd401, n1},
                          graviton1 = {0x410fd083, 0xff}, unknown = {0, n1};
    assert_string_equal(blas_core_arm(&graviton2), "NEOVERSEN1");
    assert_string_equal(blas_core_arm(&graviton3), "NEOVERSEV1");
    assert_string_equal(blas_core_arm(&graviton4), "NEOVERSEN1");
    assert_string_equal(blas_core_arm(&no_sve), "NEOVERSEN1");
    assert_string_equal(blas_core_arm(&unknown), "NEOVERSEN1");
    assert_null(blas_core_arm(&graviton1));
}

/* The library that is here knows the name that we chose, and multiplies. */
static void the_library_uses_the_core_that_it_is_told(void **state)
{
    (void)state;
    const char *core = blas_core();
    const struct blas *blas = openblas_open(); /* which the test before loaded, without a name */
    assert_null(blas->missing);
    assert_null(blas->asked);
    if (core && strstr(blas->config, "DYNAMIC_ARCH"))
        assert_int_equal(strcasecmp(blas->core, core), 0); /* on ARM it answers in small letters */
    const float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {1, 0, 2, 0, 1, -1};
    float c[4] = {0};
    blas->sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 2, 2, 3, 1, a, 3, b, 3, 0, c, 2);
    const float expected[4] = {7, -1, 16, -1};
    assert_memory_equal(c, expected, sizeof c);
}

static int threads_of_this_process(void)
{
    DIR *d = opendir("/proc/self/task");
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Its own would wait for work on every core but ours. Others are there already: a sanitizer's. */
static void the_library_starts_no_threads(void **state)
{
    (void)state;
    int before = threads_of_this_process();
    unsetenv("OPENBLAS_CORETYPE");
    setenv("OPENBLAS_NUM_THREADS", "3", 1);
    assert_null(openblas_open()->missing);
    assert_int_equal(threads_of_this_process(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_processors_get_the_widest_core_that_they_run),
        cmocka_unit_test(amx_that_is_masked_costs_no_avx512),
        cmocka_unit_test(what_the_system_does_not_save_is_not_used),
        cmocka_unit_test(a_core_needs_all_of_its_features),
        cmocka_unit_test(arm_goes_by_what_it_has_not_by_its_number),
        cmocka_unit_test(the_library_starts_no_threads), /* as it is loaded: before the next */
        cmocka_unit_test(the_library_uses_the_core_that_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
