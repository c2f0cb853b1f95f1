/* SPDX-License-Identifier: Apache-2.0 */
/* The table of architectures: each has its names, and every name leads back to it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/arch.h"

static void every_architecture_is_found_by_its_names(void **state)
{
    (void)state;
    char gguf[128], checkpoints[128];
    arch_list_gguf(gguf, sizeof gguf);
    arch_list_checkpoints(checkpoints, sizeof checkpoints);
    for (int a = 0; a < ARCH_COUNT; a++) {
        const struct arch_traits *t = arch_traits((enum arch)a);
        const struct arch_checkpoint *found = NULL;
        assert_true(arch_known(a));
        assert_non_null(t->gguf);
        assert_int_equal(arch_of_gguf(t->gguf, strlen(t->gguf)), a);
        assert_non_null(strstr(gguf, t->gguf));
        assert_non_null(t->checkpoint[0].name);
        for (int i = 0; i < ARCH_CHECKPOINTS && t->checkpoint[i].name; i++) {
            assert_int_equal(arch_of_checkpoint(t->checkpoint[i].name, &found), a);
            assert_ptr_equal(found, &t->checkpoint[i]);
            assert_non_null(strstr(checkpoints, found->name));
        }
    }
}

static void other_names_and_numbers_are_none(void **state)
{
    (void)state;
    const struct arch_checkpoint *found = NULL;
    assert_int_equal(arch_of_gguf("llam", 4), -1);
    assert_int_equal(arch_of_gguf("llama2", 6), -1);
    assert_int_equal(arch_of_gguf("llama2", 5), ARCH_LLAMA); /* names in a file end by length */
    assert_int_equal(arch_of_checkpoint("GPT2LMHeadModel", &found), -1);
    assert_null(found);
    assert_false(arch_known(-1));
    assert_false(arch_known(ARCH_COUNT));
}

/* They are part of the hash of every model whose kernels a store remembers. */
static void the_numbers_stay(void **state)
{
    (void)state;
    assert_int_equal(arch_of_gguf("llama", 5), 0);
    assert_int_equal(arch_of_gguf("qwen2", 5), 1);
    assert_int_equal(arch_of_gguf("qwen3", 5), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_is_found_by_its_names),
        cmocka_unit_test(other_names_and_numbers_are_none),
        cmocka_unit_test(the_numbers_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
