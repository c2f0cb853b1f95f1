/* SPDX-License-Identifier: Apache-2.0 */
/* test_speculated.c - the specializer sees the widths of steps that check guesses, and nothing of
 * the draft model's own steps. */
#include "tests/unit/unit.h"

#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/engine_private.h"
#include "specializer/observe.h"
#include "tests/unit/engine/real_engine.h"

static _Atomic int ended;

static void on_event(void *user, const struct engine_event *event)
{
    (void)user;
    if (event->kind == EVENT_END)
        ended++;
}

static struct engine *start(int draft_tokens)
{
    struct config c = {.engine_model = (char *)"random:tiny",
                       .engine_backend = (char *)"cpu",
                       .engine_speculate = (char *)"draft:random:tiny",
                       .engine_draft_tokens = draft_tokens,
                       .engine_threads = 2,
                       .engine_kv_pages = 64,
                       .engine_max_batch = 4,
                       .engine_prefill_chunk = 64,
                       .server_max_queue = 10};
    return start_ready(&c);
}

static void ask(struct engine *e, int32_t max_tokens)
{
    const int32_t prompt[] = {300, 301, 302, 303, 304};
    struct engine_request r = {
        .prompt = prompt,
        .prompt_n = 5,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .speculates = true,
        .sampling = {.temperature = 0.7f, SAMPLING_NEUTRAL, .seed = 3, .top_logprobs = -1},
        .on_event = on_event};
    struct err err = {""};
    ended = 0;
    if (engine_submit(e, &r, NULL, &err) != SUBMIT_OK)
        fail_msg("%s", err.msg);
    while (ended == 0)
        usleep(200);
}

static int slot_of(struct engine *e, const char *name)
{
    for (int i = 0; i < dispatch_slots(e->dispatch); i++)
        if (strcmp(dispatch_slot_at(e->dispatch, i)->name, name) == 0)
            return i;
    fail_msg("no slot %s", name);
    return -1;
}

/* Steps that the slots of embed have counted. A step is counted when its tokens have been
 * delivered: the last one may not be yet, and is waited for. */
static uint64_t counted_steps(struct engine *e)
{
    uint64_t embeds = 0;
    for (int wait = 0; wait < 60000 && embeds != atomic_load(&e->stats.steps); wait++) {
        usleep(wait ? 1000 : 0);
        embeds = 0;
        for (int i = 0; i < dispatch_slots(e->dispatch); i++) {
            const struct slot *s = dispatch_slot_at(e->dispatch, i);
            embeds += s->region == REGION_EMBED ? atomic_load(&s->counters.steps) : 0;
        }
    }
    return embeds;
}

/* As if every run of every kernel had taken 0.1 ms: one during which the machine did something else
 * may well have taken longer than all others together. */
static void count_equal_times(struct engine *e)
{
    for (int i = 0; i < dispatch_slots(e->dispatch); i++) {
        struct slot_counters *c = &dispatch_slot_at(e->dispatch, i)->counters;
        atomic_store(&c->ns, 100000 * atomic_load(&c->runs));
    }
}

/* Three guesses and the token before them are four tokens: with a draft model that is the served
 * one, nearly all steps are such. */
static void widths_of_guesses_are_worth_a_search(void **state)
{
    (void)state;
    struct engine *e = start(3);
    struct observe o;
    observe_open(&o, e->dispatch, e->model, e->ops->machine(e->backend));
    ask(e, 200);
    assert_int_equal(counted_steps(e), atomic_load(&e->stats.steps));
    count_equal_times(e);
    observe_update(&o);
    int wide = slot_of(e, "mlp_in/m4"), one = slot_of(e, "mlp_in/m1");
    assert_float_equal(observe_m(&o, wide), 4, 1e-9);
    assert_true(o.slot[wide].share > 0.02 && o.slot[wide].share > 4 * o.slot[one].share);
    assert_true(observe_worth(&o, wide, 0, 0) > OBSERVE_LEAST);
    assert_true(observe_worth(&o, wide, 0, 0) > observe_worth(&o, one, 0, 0));
    assert_true(atomic_load(&e->stats.draft_accepted) > 100);
    observe_close(&o);
    engine_stop(e);
}

static void the_draft_models_steps_are_in_no_slot(void **state)
{
    (void)state;
    struct engine *e = start(2);
    ask(e, 60);
    uint64_t embeds = counted_steps(e);
    assert_true(atomic_load(&e->stats.draft_steps) > 30);
    assert_int_equal(embeds, atomic_load(&e->stats.steps));
    engine_stop(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_of_guesses_are_worth_a_search),
        cmocka_unit_test(the_draft_models_steps_are_in_no_slot),
    };
    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
