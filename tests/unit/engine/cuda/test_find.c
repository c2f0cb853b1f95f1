/* SPDX-License-Identifier: Apache-2.0 */
/* test_find.c - which module is taken: one of the same build, and no other. */
#include "tests/unit/unit.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/module.h"

static const struct module_build ours = MODULE_BUILD(WHET_VERSION);

static void the_module_beside_the_program_is_of_its_build(void **state)
{
    (void)state;
    struct err e = {""};
    const char *path = getenv("WHET_CUDA_MODULE");
    if (!path)
        skip();
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(module);
    assert_int_equal(module_check(dlsym(module, "whet_cuda_build"), path, &e), 0);
}

static void a_module_of_another_build_is_refused_by_name(void **state)
{
    (void)state;
    struct module_build version = ours, size = ours;
    strcpy(version.version, "9.8.7");
    size.step += 8;
    const struct module_build *const others[] = {&version, &size, NULL};
    static const char *const say[] = {"9.8.7", "(" WHET_VERSION ") than", "(older)"};
    for (int i = 0; i < 3; i++) {
        struct err e = {""};
        assert_int_equal(module_check(others[i], "/opt/libwhet-cuda.so", &e), -1);
        assert_non_null(strstr(e.msg, "/opt/libwhet-cuda.so is of another build"));
        assert_non_null(strstr(e.msg, say[i]));
        assert_non_null(strstr(e.msg, "(" WHET_VERSION ")"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_module_beside_the_program_is_of_its_build),
        cmocka_unit_test(a_module_of_another_build_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
