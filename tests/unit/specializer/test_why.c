/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/why.c: which of many reasons is the one to tell, and how short it is. What
 * the loop makes of it: test_retrial.c. */
#include "tests/unit/unit.h"

#include "config/clock.h"
#include "specializer/why.c"

static struct slot_search nobody_came(void)
{
    static struct slot slot = {.name = "attn_in/m8", .region = REGION_ATTN_IN, .m = 8};
    return (struct slot_search){.slot = &slot};
}

static void say(struct slot_search *p, enum life left, const char *reason, struct evidence e)
{
    struct candidate c = {.evidence = e};
    snprintf(c.reason, sizeof c.reason, "%s", reason);
    if (e.refusal.cause == CAUSE_NONE) /* as it is read from a store without it */
        refusal_of_sentence(&c.evidence.refusal, reason);
    why_note_locked(p, left, &c);
}

static void the_one_that_came_farthest_is_told(void **state)
{
    (void)state;
    struct slot_search p = nobody_came();
    struct evidence none = {0}, slow = {.bench = {48, -0.164, -0.201, -0.073}},
                    near = {.bench = {144, 0.004, -0.002, 0.0101}},
                    lost = {.bench = {16, 0.9, 0.8, 1}, .canary = {96, -0.0063, -0.0101, -0.0033}};
    say(&p, LIFE_REFUSED, "build: exit status 1", none);
    assert_string_equal(p.locked.why.words, "build: exit status 1");
    say(&p, LIFE_REFUSED, "bench: gain -16.4 % [-20.1, -7.3] over 48 pairs, wanted +2.0 %", slow);
    assert_string_equal(p.locked.why.words, "bench: -16.4 % [-20.1, -7.3]");
    say(&p, LIFE_REFUSED, "bench: gain +0.4 % [-0.2, +1.0] over 144 pairs, wanted +2.0 %", near);
    assert_string_equal(p.locked.why.words, "bench: +0.4 % [-0.2, +1.0]");
    say(&p, LIFE_REFUSED, "bench: gain -16.4 % [-20.1, -7.3] over 48 pairs, wanted +2.0 %", slow);
    assert_string_equal(p.locked.why.words, "bench: +0.4 % [-0.2, +1.0]");
    say(&p, LIFE_DEFERRED, "canary: whole steps -0.63 % [-1.01, -0.33] over 96 pairs", lost);
    assert_string_equal(p.locked.why.words, "canary: whole steps -0.6 % [-1.0, -0.3]");
    assert_string_equal(p.locked.why.last, "canary: whole steps -0.6 % [-1.0, -0.3]");
    say(&p, LIFE_REFUSED, "probe: hang: asleep for 1.0 s", none);
    assert_string_equal(p.locked.why.words, "canary: whole steps -0.6 % [-1.0, -0.3]");
    assert_string_equal(p.locked.why.last,
                        "probe: hang: asleep for 1.0 s"); /* however far it came */
    say(&p, LIFE_ROLLED_BACK, "largest distance 0.2 of a row's scale, limit 0.1", lost);
    assert_string_equal(p.locked.why.words,
                        "rolled back: largest distance 0.2 of a row's scale, limit 0.1");
    say(&p, LIFE_DISABLED, "incident 42", lost);
    assert_string_equal(p.locked.why.words, "disabled: incident 42");
}

/* As the loop says it of one that it has just tried. */
static void after_a_start_texts_are_told_of_too(void **state)
{
    (void)state;
    struct slot_search p = nobody_came();
    struct specializer s = {.slot_search = &p, .slot_searches = 1};
    struct recalling g = {&s, xcalloc((size_t)template_count() + 1, sizeof *g.source)};
    struct record r = {.slot = "attn_in/m8",
                       .template = "attn_in",
                       .source = "0123456789abcdef",
                       .state = LIFE_ROLLED_BACK,
                       .reason = "its executor: it was killed"};
    recall_row(&g, &r);
    assert_string_equal(p.locked.why.words, ""); /* of another text of the template */
    snprintf(r.template, sizeof r.template, "agent_attn_in");
    recall_row(&g, &r);
    assert_string_equal(p.locked.why.words, "rolled back: its executor: it was killed");
    free(g.source);
}

static void errors_are_told_as_times_of_eagers_and_in_which_case(void **state)
{
    (void)state;
    static const struct {
        const char *reason, *words;
    } said[] = {
        {"probe: m=3 outlier, team of 2: row 4: largest error 2.8e-06 is 3.1 times eager's 9e-07",
         "probe: error 3.1x eager's in case m=3 outlier, team of 2"},
        {"probe: m=8 seeded: all rows: rms error 0.1 is 42 times eager's 0.01",
         "probe: error 42x eager's in case m=8 seeded"},
        {"probe: row 0: largest error 1 is 1.5e+07 times eager's 6.67e-08",
         "probe: error 1.5e+07x eager's"},
        {"probe: row 0: -0.50690645 where the exact result is 22",
         "probe: row 0: -0.50690645 where the exact result is 22"},
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        struct slot_search p = nobody_came();
        say(&p, LIFE_REFUSED, said[i].reason, (struct evidence){0});
        assert_string_equal(p.locked.why.words, said[i].words);
    }
}

/* What a sentence says is for people: a stage that words it in another way is understood alike. */
static void a_refusal_is_read_as_data_whatever_its_sentence(void **state)
{
    (void)state;
    struct slot_search p = nobody_came();
    struct candidate c = {.evidence = {.bench = {48, -0.164, -0.201, -0.073},
                                       .canary = {96, -0.0063, -0.0101, -0.0033}}};
    candidate_explain(&c, STAGE_PROBE, CAUSE_ERROR, 3.1, "row 4 is wrong");
    snprintf(c.evidence.refusal.in_case, sizeof c.evidence.refusal.in_case, "m=3 outlier");
    assert_string_equal(c.reason, "probe: row 4 is wrong");
    why_note_locked(&p, LIFE_REFUSED, &c);
    assert_string_equal(p.locked.why.words, "probe: error 3.1x eager's in case m=3 outlier");
    candidate_explain(&c, STAGE_BENCH, CAUSE_GAIN, -0.164, "slower");
    why_note_locked(&p, LIFE_REFUSED, &c);
    assert_string_equal(p.locked.why.words, "bench: -16.4 % [-20.1, -7.3]");
    candidate_explain(&c, STAGE_CANARY, CAUSE_OTHER, 0, "whole steps went wrong");
    why_note_locked(&p, LIFE_REFUSED, &c);
    assert_string_equal(p.locked.why.words, "canary: whole steps went wrong");
    candidate_explain(&c, STAGE_CANARY, CAUSE_GAIN, -0.0063, "slower, %s", c.reason);
    assert_string_equal(c.reason, "canary: slower, canary: whole steps went wrong");
    c.evidence.canary.mean = 0;
    why_note_locked(&p, LIFE_DEFERRED, &c);
    assert_string_equal(p.locked.why.words, "canary: whole steps +0.0 % [-1.0, -0.3]");
    candidate_withdrawn(&c, "distance 0.2");
    why_note_locked(&p, LIFE_REFUSED, &c); /* rolled back twice */
    assert_string_equal(p.locked.why.words, "rolled back: distance 0.2");
    candidate_unexplain(&c);
    assert_true(!c.reason[0] && c.evidence.refusal.cause == CAUSE_NONE);
}

static void no_reason_is_wider_than_its_column(void **state)
{
    (void)state;
    char longest[240], out[WHY_TEXT];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    memcpy(longest, "build: ", 7);
    struct slot_search p = nobody_came();
    say(&p, LIFE_REFUSED, longest, (struct evidence){0});
    assert_int_equal(strlen(p.locked.why.words), WHY_TEXT - 1);
    assert_string_equal(p.locked.why.words + WHY_TEXT - 4, "...");
    struct refusal wrong = {.cause = CAUSE_ERROR, .stage = STAGE_PROBE, .value = 9};
    memset(wrong.in_case, 'x', sizeof wrong.in_case - 1);
    brief("probe: wrong", &(struct evidence){.refusal = wrong}, out);
    assert_true(strlen(out) < WHY_TEXT);
    say(&p, LIFE_ROLLED_BACK, longest, (struct evidence){0});
    assert_true(strlen(p.locked.why.words) < WHY_TEXT);
}

static void a_slot_that_nobody_tried_says_what_is_in_the_way(void **state)
{
    (void)state;
    static const struct machine cpu = {.kind = MACHINE_CPU};
    static struct slot wide = {.name = "mlp/m64", .region = REGION_MLP, .m = 64};
    struct specializer s = {.env = {.machine = &cpu}};
    struct slot_search p = nobody_came();
    char out[WHY_TEXT];
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "not searched yet");
    p.locked.candidates = 2;
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "nothing was decided yet");
    p.inputless = 1;
    p.locked.waits = slot_search_waits(&p);
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "live steps gave no inputs to search on");
    p.promoted.c = &(struct candidate){.key = "k"};
    p.locked.waits = slot_search_waits(&p);
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "a candidate waits for live steps of the slot");
    p.ran_ns = clock_ns();
    p.locked.waits = slot_search_waits(&p);
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "a candidate is before live steps");
    struct candidate c = {.reason = "probe: a case of 2817 pages; the probe has room for 2304"};
    why_undecided_locked(&p, &c);
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "undecided; probe: a case of 2817 pages; the probe has room for 2304");
    say(&p, LIFE_REFUSED, "bench: too slow", (struct evidence){0});
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "bench: too slow");
    p = nobody_came();
    p.left_out = true;
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "left out by specializer.slots");
    p.unequal = 3;
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "rank 3 has another shape or machine there");
    p.unequal = 0;
    why_no_point_locked(&p);
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "no point of its templates is legal here");
    snprintf(p.locked.pinned, sizeof p.locked.pinned, "eager");
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "pinned to it");
    p = (struct slot_search){.slot = &wide};
    why_eager_locked(&s, &p, out);
    assert_string_equal(out, "no template takes 64 tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_that_came_farthest_is_told),
        cmocka_unit_test(after_a_start_texts_are_told_of_too),
        cmocka_unit_test(errors_are_told_as_times_of_eagers_and_in_which_case),
        cmocka_unit_test(a_refusal_is_read_as_data_whatever_its_sentence),
        cmocka_unit_test(no_reason_is_wider_than_its_column),
        cmocka_unit_test(a_slot_that_nobody_tried_says_what_is_in_the_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
