/* SPDX-License-Identifier: Apache-2.0 */
/* Stages that wait for live steps, on a machine whose clock runs a thousand times faster than its
 * steps come: what ends them is traffic, not time. */
#include "tests/unit/unit.h"

#include <math.h>

#include "config/clock.h"
#include "engine/tuning.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe.h"
#include "specializer/pipeline/canary.h"
#include "specializer/pipeline/stages.h"

/* The clock and the naps of live.c. */
static int64_t now_ns;
static int64_t slow_clock_ns(void)
{
    return now_ns;
}
#define clock_ns slow_clock_ns
#define nanosleep(nap, left) ((void)(nap))
#include "specializer/candidate/live.c"
#undef nanosleep
#undef clock_ns

static struct {
    struct dispatch *dispatch;
    struct kernel eager[REGION_COUNT], candidate;
    struct hook *hook;
    struct canary *canary;
    int each;          /* one step in so many is the slot's; 0: none is, below 0: no steps */
    int64_t step_ns;   /* between two steps */
    int turns, looked; /* steps of all, steps of the slot since the hook was hung up */
    struct slot *slot, *other;
    int64_t noise; /* of a step; then both sides are alike */
} world;

/* ---- an engine that takes a step every so often ---------------------------------------------- */

int32_t engine_load(const struct engine *e)
{
    (void)e;
    return world.each >= 0;
}

void engine_canary(struct engine *e, struct canary *c)
{
    (void)e;
    world.canary = c;
}

static int hang(struct backend *b, struct hook *t)
{
    (void)b;
    world.hook = t;
    world.looked = 0;
    return 0;
}

/* The whole model's logits, which are not waited for. */
enum stage_result end_check_live(const struct stage_env *env, struct candidate *c)
{
    (void)env;
    (void)c;
    return STAGE_PASS;
}

struct probe *probe_start(const struct stage_env *e, struct candidate *c, enum probe_depth mode,
                          const struct capture *const *inputs, int n, struct err *err)
{
    (void)e, (void)c, (void)mode, (void)inputs, (void)n, (void)err;
    return NULL;
}

enum stage_result probe_poll(struct probe *p)
{
    (void)p;
    return STAGE_STOPPED;
}

void probe_end(struct probe *p)
{
    (void)p;
}

static int check_model(struct backend *b, struct model_check *r, struct err *e)
{
    (void)b;
    (void)r;
    (void)e;
    return 1;
}

static void record(struct canary *c)
{
    int32_t i = atomic_load(&c->have);
    if (i >= c->want)
        return;
    bool candidate = i % 2;
    int64_t ns = candidate && !world.noise ? 900000 + i % 7 : 1000000 + i % 5;
    ns += world.noise * (i * 7919 % 13) / 13;
    c->step[i] = (struct canary_step){ns, world.slot->m, 100, candidate};
    atomic_store(&c->have, i + 1);
}

static void tick(void *ctx)
{
    (void)ctx;
    now_ns += world.step_ns;
    if (world.each < 0)
        return;
    bool own = world.each > 0 && ++world.turns % world.each == 0;
    struct slot *s = own ? world.slot : world.other;
    atomic_fetch_add(&s->counters.steps, 1);
    if (own && world.canary)
        record(world.canary);
    if (own && world.hook && world.looked++ % world.hook->every == 0 &&
        atomic_load(&world.hook->left) > 0) {
        world.hook->comparisons++;
        atomic_fetch_sub(&world.hook->left, 1);
    }
}

static const struct backend_ops ops = {.name = "slow", .hook = hang, .check_model = check_model};
static const struct machine machine = {.device = "slow", .kind = MACHINE_CPU};
static const struct model model = {.shape = {.layers = 2}};
static atomic_bool stop;
static const struct stage_env *env;

static int set_up(void **state)
{
    (void)state;
    static struct stage_env filled;
    const struct kernel *table[REGION_COUNT];
    for (int r = 0; r < REGION_COUNT; r++) {
        world.eager[r] = (struct kernel){.id = "eager", .name = "eager", .region = (enum region)r};
        table[r] = &world.eager[r];
    }
    world.dispatch = dispatch_open(table);
    world.slot = dispatch_find(world.dispatch, "mlp_in/m512");
    world.other = dispatch_find(world.dispatch, "mlp_in/m1");
    filled = (struct stage_env){.ops = &ops,
                                .dispatch = world.dispatch,
                                .machine = &machine,
                                .model = &model,
                                .stop = &stop,
                                .tick = tick};
    env = &filled;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dispatch_close(world.dispatch);
    return 0;
}

static struct candidate candidate_on(struct slot *slot)
{
    struct candidate c = {.slot = slot, .kernel = &world.candidate};
    c.evidence.eager_max = c.evidence.eager_rms = 1;
    return c;
}

static void traffic(int each, double step_s)
{
    world.each = each;
    world.turns = 0;
    world.step_ns = (int64_t)(step_s * 1e9);
}

/* ---- tests ------------------------------------------------------------------------------------
 */

static void a_look_every_minute_is_waited_for(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(3, 20);
    assert_int_equal(shadow_run(env, &c, 30), STAGE_PASS);
    assert_int_equal(c.evidence.shadow_runs, 8);
    traffic(20, 3);
    assert_int_equal(shadow_run(env, &c, 30), STAGE_PASS);
}

static void narrow_steps_are_looked_at_one_in_four(void **state)
{
    (void)state;
    struct slot *wide = world.slot;
    world.slot = world.other;
    world.other = wide;
    struct candidate c = candidate_on(world.slot);
    traffic(1, 5);
    assert_int_equal(shadow_run(env, &c, 30), STAGE_PASS);
    assert_int_equal(world.turns, 4 * 7 + 1);
    world.other = world.slot;
    world.slot = wide;
}

static void a_canary_of_slow_steps_is_decided(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(2,
            10); /* three of its steps in a minute: the first comparison is after eleven minutes */
    assert_int_equal(canary_run(env, &c, 60), STAGE_PASS);
    assert_true(c.evidence.canary.low > 0);
}

/* One of so small a gain that it would take all 864 steps: when the minute is over, 96 are enough.
 */
static void a_canary_of_slow_steps_ends_after_a_hundred(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(1, 4);
    world.noise = 400000;
    world.turns = 0;
    assert_int_not_equal(canary_run(env, &c, 60), STAGE_PASS);
    world.noise = 0;
    assert_int_equal(world.turns, 96);
}

static void a_slot_that_traffic_left_is_given_up(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(0, 1);
    int64_t began = now_ns;
    assert_int_equal(shadow_run(env, &c, 30), STAGE_RETRY);
    assert_string_equal(c.reason, "shadow: 0 of 8 comparisons, then 256 steps without mlp_in/m512");
    assert_int_equal(now_ns - began, INT64_C(256000000000));
    assert_int_equal(canary_run(env, &c, 60), STAGE_RETRY);
    assert_string_equal(c.reason, "canary: 0 steps, then 256 without mlp_in/m512");
}

static void a_fast_machine_is_given_the_time_too(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(2000, 0.001); /* one step in 2000, eight of them in 16 s */
    assert_int_equal(shadow_run(env, &c, 30), STAGE_PASS);
}

static void where_there_is_no_traffic_the_clock_ends_it(void **state)
{
    (void)state;
    struct candidate c = candidate_on(world.slot);
    traffic(-1, 1);
    int64_t began = now_ns;
    assert_int_equal(shadow_run(env, &c, 30), STAGE_RETRY);
    assert_int_equal(now_ns - began, INT64_C(30000000000));
    assert_string_equal(c.reason, "shadow: 0 of 8 comparisons, then 0 steps without mlp_in/m512");
}

/* A capture waits for a second, but not less than a step takes. */
static void a_short_wait_sees_a_long_step_through(void **state)
{
    (void)state;
    struct patience p;
    traffic(1, 4);
    patience_begin(&p, env, world.slot, 1);
    now_ns += 4000000000;
    assert_false(patience_over(&p));
    tick(NULL);
    assert_false(patience_over(&p));
    traffic(-1, 1); /* and nobody asks any more */
    tick(NULL);
    assert_true(patience_over(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_look_every_minute_is_waited_for),
        cmocka_unit_test(narrow_steps_are_looked_at_one_in_four),
        cmocka_unit_test(a_canary_of_slow_steps_is_decided),
        cmocka_unit_test(a_canary_of_slow_steps_ends_after_a_hundred),
        cmocka_unit_test(a_slot_that_traffic_left_is_given_up),
        cmocka_unit_test(a_fast_machine_is_given_the_time_too),
        cmocka_unit_test(where_there_is_no_traffic_the_clock_ends_it),
        cmocka_unit_test(a_short_wait_sees_a_long_step_through),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
