/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of tune/replay.c on an engine with a backend that pretends: steps fall into the slot, in
 * the contexts that were asked for, and only once they are wanted. */
#include "tests/unit/engine/engine_world.h"

#include "tune/replay.h"

enum { WANT = 400, SEQUENCES = 8 };

struct seen {
    struct canary canary;
    struct kernel candidate;
};

/* Counts steps of the slot from here on. */
static void watch(struct seen *w, struct engine *e, const struct slot *slot)
{
    *w = (struct seen){
        .candidate = {.id = "0123456789abcdef", .region = slot->region, .origin = ORIGIN_TEMPLATE}};
    w->canary = (struct canary){
        .candidates = {1,
                       {{dispatch_slot(engine_dispatch(e), slot->region, 0, slot->m, slot->context),
                         &w->candidate}}},
        .cell = {1},
        .cells = 1,
        .seed = 1,
        .want = WANT,
        .step = xcalloc(WANT, sizeof *w->canary.step)};
    engine_canary(e, &w->canary);
}

/* Replays the slot's steps: most are decodes of its m, in contexts (above, most]. */
static void expect_steps(struct engine *e, const struct slot *slot, int context, int above,
                         int most)
{
    struct seen w;
    struct err err = {""};
    int32_t longest = 0;
    struct replay *r = replay_new(e, slot, SEQUENCES, context, 1, &err);
    assert_non_null(r);
    watch(&w, e, slot);
    usleep(20000);
    assert_int_equal(atomic_load(&w.canary.have), 0); /* not wanted yet */
    assert_int_equal(replay_run(r, &err), 0);
    assert_int_equal(replay_run(r, &err), 0); /* they come already */
    for (int i = 0; i < 60000 && atomic_load(&w.canary.have) < WANT; i++)
        usleep(1000);
    assert_int_equal(atomic_load(&w.canary.have), WANT);
    replay_stop(r);
    engine_canary(e, NULL);
    int decodes = 0;
    for (int i = 0; i < WANT; i++) {
        const struct canary_step *s = &w.canary.step[i];
        if (s->m != slot->m) /* a prompt; now and then one has as many tokens or rows left */
            continue;
        decodes += s->context > above;
        longest = s->context > longest ? s->context : longest;
    }
    assert_true(decodes > WANT * 3 / 4);
    assert_true(longest <= most);
    free(w.canary.step);
}

static void decodes_stay_in_the_context_that_was_asked_for(void **state)
{
    (void)state;
    struct engine *e = start_with(4 * LONG / KV_PAGE, SEQUENCES);
    struct dispatch *d = engine_dispatch(e);
    expect_steps(e, dispatch_slot(d, REGION_MLP_IN, 0, 2, 0), 512, 256, 512);
    expect_steps(e, dispatch_slot(d, REGION_MLP_IN, 0, 2, 0), 256, 40, 256);
    expect_steps(e, dispatch_slot(d, REGION_HEAD, 0, 1, 0), 1024, 512, 768);
    engine_stop(e);
}

/* As many as a GPU decodes together. */
static void hundreds_of_sequences_decode_together(void **state)
{
    (void)state;
    enum { MANY = 128 };
    fake_reset();
    struct config c = config_of(MANY * 256 / KV_PAGE + 64, MANY);
    c.engine_prefill_chunk = 2048; /* or the first have ended before the last begin */
    struct engine *e = start(&c);
    struct err err = {""};
    struct seen w;
    struct slot *slot = dispatch_slot(engine_dispatch(e), REGION_ATTN, 0, MANY, 256);
    struct replay *r = replay_new(e, slot, MANY, 256, 1, &err);
    assert_non_null(r);
    watch(&w, e, slot);
    assert_int_equal(replay_run(r, &err), 0);
    for (int i = 0; i < 60000 && atomic_load(&w.canary.have) < WANT; i++)
        usleep(1000);
    replay_stop(r);
    engine_canary(e, NULL);
    int together = 0, have = atomic_load(&w.canary.have);
    for (int i = 0; i < have; i++)
        together += w.canary.step[i].m == MANY;
    assert_true(together > 10);
    free(w.canary.step);
    engine_stop(e);
}

static void attention_has_the_upper_half_of_its_own(void **state)
{
    (void)state;
    struct engine *e = start_with(4 * LONG / KV_PAGE, SEQUENCES);
    expect_steps(e, dispatch_slot(engine_dispatch(e), REGION_ATTN, 0, 2, 512), 256, 319, 512);
    expect_steps(e, dispatch_slot(engine_dispatch(e), REGION_ATTN, 0, 1, 1024), 256, 639, 896);
    engine_stop(e);
}

static void sequences_end_where_the_model_does(void **state)
{
    (void)state;
    fake_reset();
    struct config c = config_of(4 * LONG / KV_PAGE, SEQUENCES);
    c.engine_max_context = 700;
    struct engine *e = start(&c);
    expect_steps(e, dispatch_slot(engine_dispatch(e), REGION_ATTN, 0, 2, 1024), 256, 639, 700);
    engine_stop(e);
}

static void what_the_model_cannot_hold_is_refused_by_name(void **state)
{
    (void)state;
    struct err err = {""};
    struct engine *e = start_with(4 * LONG / KV_PAGE, SEQUENCES);
    struct slot *slot = dispatch_slot(engine_dispatch(e), REGION_ATTN, 0, 2, 2048);
    assert_null(replay_new(e, slot, SEQUENCES, 256, 1, &err));
    assert_string_equal(err.msg, "attn/m2/c2048: the context ends at 1024 tokens");
    struct replay *r = replay_new(e, dispatch_slot(engine_dispatch(e), REGION_HEAD, 0, 1, 0),
                                  SEQUENCES, 256, 1, &err);
    assert_non_null(r);
    replay_stop(r); /* that never ran */
    engine_stop(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_stay_in_the_context_that_was_asked_for),
        cmocka_unit_test(hundreds_of_sequences_decode_together),
        cmocka_unit_test(attention_has_the_upper_half_of_its_own),
        cmocka_unit_test(sequences_end_where_the_model_does),
        cmocka_unit_test(what_the_model_cannot_hold_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
