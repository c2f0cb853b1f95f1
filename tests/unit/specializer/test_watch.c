/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/watch.c: of which kernel an audit says something. How audits roll kernels
 * back is in test_drills.c. */
#include "tests/unit/unit.h"

#include <stdlib.h>

#include "specializer/watch.c"

/* A kernel that another server found wrong is looked at in so many live steps. Those of the one
 * that served before it are not among them. */
static void an_audit_counts_for_the_kernel_that_it_looked_at_alone(void **unused)
{
    (void)unused;
    struct specializer *s = xcalloc(1, sizeof *s);
    struct slot_search *p = xcalloc(1, sizeof *p);
    struct candidate *c = xcalloc(1, sizeof *c);
    struct slot slot = {.name = "mlp_in/m1"};
    pthread_mutex_init(&s->lock, NULL);
    p->slot = &slot;
    p->locked.active = c;
    p->locked.suspect = 3;
    s->audit.comparisons = 1;
    snprintf(c->key, sizeof c->key, "after");
    snprintf(s->audited_key, sizeof s->audited_key, "before");
    conclude_audit(s, p);
    assert_int_equal(p->locked.suspect, 3);
    assert_int_equal(p->locked.audits, 0);
    pthread_mutex_destroy(&s->lock);
    free(c);
    free(p);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_audit_counts_for_the_kernel_that_it_looked_at_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
