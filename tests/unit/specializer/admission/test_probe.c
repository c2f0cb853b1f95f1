/* SPDX-License-Identifier: Apache-2.0 */
/* test_probe.c - what a probe is told of a model that is one rank's part: whether to cut it out of
 * a whole, and how many rows of a head to draw where there is no file. */
#include "tests/unit/unit.h"

#include "engine/model.h"
#include "specializer/admission/probe.c"

/* The request that a probe of head/m1 would be given. */
static void asked(const char *path, int32_t world, struct probe_request *q, struct model **model)
{
    static const struct config config = {.engine_threads = 1};
    static const struct machine machine = {.kind = MACHINE_CUDA};
    struct err err = {""};
    struct slot slot = {.region = REGION_HEAD, .m = 1};
    struct candidate c = {.object = (char *)"/nowhere/object", .slot = &slot};
    *model = model_open_part(path, world, 0, false, NULL, NULL, NULL, &err);
    assert_non_null(*model);
    const struct stage_env env = {.config = &config, .machine = &machine, .model = *model};
    *q = (struct probe_request){.captures = 0};
    fill_request(&env, &c, PROBE_FULL, q);
}

static void assert_asked(const char *path, int32_t world, int32_t ranks, int32_t vocab)
{
    struct probe_request q;
    struct model *m, *again;
    struct facts f;
    asked(path, world, &q, &m);
    facts_fill(&f, m, REGION_HEAD, 1, NUMERICS_TOLERANCE);
    assert_int_equal(q.ranks, ranks);
    assert_int_equal(q.shape.vocab, vocab);
    assert_int_equal(q.shape.vocab, f.VOCAB); /* what its kernel is compiled for */
    assert_string_equal(q.model, path);
    again = model_open_part(q.model, q.ranks, 0, false, NULL, NULL, NULL, NULL); /* as it does */
    assert_non_null(again);
    assert_int_equal(again->shape.heads, m->shape.heads);
    assert_int_equal(again->head.rows, m->head.rows);
    model_close(again);
    model_close(m);
    probe_request_free(&q);
}

static void a_probe_of_a_part_has_the_ranks_head(void **state)
{
    (void)state;
    assert_asked("random:tiny", 1, 1, 512);
    assert_asked("random:tiny", 2, 2, 256);
    assert_asked("random:tiny/2", 1, 1, 256);
    assert_asked("random:tiny/4", 1, 1, 128);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_probe_of_a_part_has_the_ranks_head)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
