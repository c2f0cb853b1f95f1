/* SPDX-License-Identifier: Apache-2.0 */
/* test_swaps.c - what the engine makes of kernels that come and go between two of its steps, or in
 * one: keys and values of a wrong one are shared with nobody, and answers say truly whether guesses
 * were checked by kernels with the bits of steps without them. */
#include "tests/unit/engine/engine_world.h"

static struct kernel wrong = {.id = "wrong", .m_max = 1 << 20};
static struct kernel other_bits = {.id = "other", .m_max = 1 << 20};

static struct slot *slot_of(struct engine *e)
{
    return fake_slot(engine_dispatch(e));
}

static void put(struct engine *e, const struct kernel *k)
{
    dispatch_publish(engine_dispatch(e), slot_of(e), k ? k : slot_of(e)->eager);
}

/* What watch.c does with a kernel that an audit finds wrong. */
static void take_out_as_wrong(struct engine *e)
{
    put(e, NULL);
    dispatch_distrust(engine_dispatch(e));
}

static void ask(struct engine *e, struct client *c, const char *text, int32_t tokens)
{
    int32_t ends = all_ends;
    prompt_text(c, text);
    struct engine_request r = request_of(c, tokens);
    submit(e, &r);
    wait_ends(ends + 1);
}

static bool is_right(struct client *c, int32_t tokens)
{
    char text[2 * LONG];
    int32_t ids[LONG];
    int32_t n = fake_text(c->prompt, c->prompt_n, tokens, &greedy, text, ids);
    return n == c->tokens && strcmp(text, c->text) == 0;
}

static const char *const two_pages = "0123456789abcdef0123456789abcdefXYZ";
#define FORGOTTEN "\nwhet_kv_pages_forgotten_total "

static void what_a_wrong_kernel_wrote_is_shared_with_nobody_once_it_is_out(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(4);
    put(e, &wrong);
    ask(e, &c[0], two_pages, 20);
    assert_false(is_right(&c[0], 20));
    put(e, NULL); /* for another reason than being wrong: what it wrote is believed */
    ask(e, &c[1], two_pages, 20);
    assert_int_equal(c[1].cached_tokens, 32);
    assert_true(metric(e, FORGOTTEN) == 0);
    take_out_as_wrong(e);
    ask(e, &c[2], two_pages, 20);
    assert_int_equal(c[2].cached_tokens, 0);
    assert_true(is_right(&c[2], 20));
    assert_true(metric(e, FORGOTTEN) >= 2);
    ask(e, &c[3], two_pages, 20);
    assert_int_equal(c[3].cached_tokens, 32);
    assert_true(is_right(&c[3], 20));
    check_idle(e);
    engine_stop(e);
    free(c);
}

/* Its only page is not full when the wrong kernel leaves, in the middle of a step, and is filled by
 * the right one. */
static void a_sequence_that_has_met_a_wrong_kernel_shares_nothing(void **state)
{
    (void)state;
    struct engine *e = start_with(64, 4);
    struct client *c = clients(2);
    put(e, &wrong);
    fake.hold = true;
    prompt_text(&c[0], "short");
    struct engine_request r = request_of(&c[0], 60);
    r.ignore_eos = true;
    submit(e, &r);
    while (!fake.held)
        usleep(200);
    take_out_as_wrong(e);
    fake.hold = false;
    wait_ends(1);
    c[1] = (struct client){.prompt_n = c[0].prompt_n + 50};
    memcpy(c[1].prompt, c[0].prompt, (size_t)c[0].prompt_n * sizeof *c[1].prompt);
    memcpy(c[1].prompt + c[0].prompt_n, c[0].ids, 50 * sizeof *c[1].prompt);
    r = request_of(&c[1], 20);
    submit(e, &r);
    wait_ends(2);
    assert_int_equal(c[1].cached_tokens, 0);
    assert_true(is_right(&c[1], 20));
    check_idle(e);
    engine_stop(e);
    free(c);
}

/* ---- bits ---------------------------------------------------------------------------------- */

/* Steps of up to 16 tokens give each the bits that it has alone, as on a CPU. The draft model's
 * step comes after the engine has looked at the slots, and before its own. */
static _Atomic int swap_in_draft, swap_in_step; /* the next one that can */
static struct engine *swapped_engine;

static int swapping_draft_step(struct backend *b, const struct step *s, const struct overrides *o,
                               struct err *e)
{
    if (atomic_exchange(&swap_in_draft, 0))
        put(swapped_engine, &other_bits);
    return fake_step(b, s, o, e);
}

/* In, for a step with guesses, and out again. */
static int swapping_step(struct backend *b, const struct step *s, const struct overrides *o,
                         struct err *e)
{
    bool swaps = s->rows > 1 && atomic_exchange(&swap_in_step, 0);
    if (swaps)
        put(swapped_engine, &other_bits);
    int rc = fake_step(b, s, o, e);
    if (swaps)
        put(swapped_engine, NULL);
    return rc;
}

#define SAME_BITS_OPS                                                                \
    .name = "fake", .usual_chunk = 72, .open = fake_open, .close = fake_close,       \
    .machine = fake_machine, .eager = fake_eager, .set_dispatch = fake_set_dispatch, \
    .same_bits_tokens = 16
static const struct backend_ops same_bits_ops = {SAME_BITS_OPS, .step = swapping_step};
static const struct backend_ops same_bits_draft = {SAME_BITS_OPS, .step = swapping_draft_step};

static struct {
    bool other_bits;
    int32_t guessed;
} said;

static void on_bits(void *user, const struct engine_event *event)
{
    if (event->kind == EVENT_END) {
        said.other_bits = event->other_bits;
        said.guessed = event->guessed_tokens;
    }
    on_event(user, event);
}

/* Whether its answer says that some guess was checked by kernels of other bits. */
static bool other_bits_in(struct engine *e, struct client *c)
{
    int32_t ends = all_ends;
    prompt_text(c, "Say it, and let somebody say it before you.");
    struct engine_request r = request_of(c, 60);
    r.ignore_eos = r.speculates = true;
    r.on_event = on_bits;
    submit(e, &r);
    wait_ends(ends + 1);
    assert_true(said.guessed > 0);
    return said.other_bits;
}

static void answers_say_truly_what_bits_their_guesses_had(_Atomic int *when)
{
    const struct backend_ops *was = ops;
    fake_reset();
    ops = &same_bits_ops;
    struct config config = config_of(64, 4);
    config.engine_draft_tokens = 4;
    struct engine *e = swapped_engine = start_beside(&config, &same_bits_draft);
    struct client *c = clients(3);
    assert_false(other_bits_in(e, &c[0]));
    atomic_store(when, 1);
    assert_true(other_bits_in(e, &c[1]));
    assert_int_equal(atomic_load(when), 0);
    bool stays = atomic_load(&slot_of(e)->kernel) == &other_bits;
    assert_true(other_bits_in(e, &c[2]) == stays); /* all of it after the swap */
    put(e, NULL);
    assert_false(other_bits_in(e, &c[0]));
    engine_stop(e);
    free(c);
    ops = was;
}

static void a_swap_behind_the_look_at_the_slots_is_seen(void **state)
{
    (void)state;
    answers_say_truly_what_bits_their_guesses_had(&swap_in_draft);
}

static void a_kernel_of_one_step_is_seen(void **state)
{
    (void)state;
    answers_say_truly_what_bits_their_guesses_had(&swap_in_step);
}

int main(void)
{
    log_set_level(LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_wrong_kernel_wrote_is_shared_with_nobody_once_it_is_out),
        cmocka_unit_test(a_sequence_that_has_met_a_wrong_kernel_shares_nothing),
        cmocka_unit_test(a_swap_behind_the_look_at_the_slots_is_seen),
        cmocka_unit_test(a_kernel_of_one_step_is_seen),
    };
    int failed = cmocka_run_group_tests_name("one by one", tests, NULL, NULL);
    ops = &fake_pipelined_ops;
    return failed + cmocka_run_group_tests_name("pipelined", tests, NULL, NULL);
}
