/* SPDX-License-Identifier: Apache-2.0 */
/* What a language model is told of a processor: as the system has it, and whole. How fast anything
 * is decides nothing here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/adviser/cpu_facts.h"

static void the_facts_are_those_of_this_machine(void **state)
{
    (void)state;
    struct cpu_facts c;
    cpu_set_t allowed;
    cpu_facts_measure(&c, NULL);
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    assert_int_equal(c.cpus, CPU_COUNT(&allowed));
    assert_in_range(c.cores, 0, c.cpus);
    assert_int_equal(c.page_bytes, sysconf(_SC_PAGESIZE));
    assert_true(c.huge_share < 0);          /* of no model */
    if (access("/proc/cpuinfo", R_OK) == 0) /* lscpu reads the same file */
        assert_true(strlen(c.family) > 0);
    assert_true(isfinite(c.clock_ghz) && c.clock_ghz > 0);
    assert_true(isfinite(c.fma_cycle) && c.fma_cycle > 0);
    for (int i = 0; i < LOAD_SIZES; i++)
        assert_true(isfinite(c.load_ns[i]) && c.load_ns[i] * c.clock_ghz > 0.8); /* a cycle */
    assert_true(c.read > 0 && c.read_first > 0 && c.read_second > 0);
    cJSON *o = cJSON_CreateObject();
    cpu_facts_put(&c, o);
    char *text = cJSON_PrintUnformatted(o);
    print_message("%s\n", text);
    assert_null(strstr(text, "null"));
    free(text);
    cJSON_Delete(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_facts_are_those_of_this_machine)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
