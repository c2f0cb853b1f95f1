/* SPDX-License-Identifier: Apache-2.0 */
/* Stages that wait for live steps, on a machine whose clock runs a thousand times faster than its
 * steps come: what ends them is traffic, not time. */
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

#include "config/clock.h"
#include "config/config.h"
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
    int64_t noise;       /* of a step; then both sides are alike */
    struct slot *beside; /* its steps are those of `slot` */
    struct slot *second; /* has steps of its own, or NULL */
    int slow;            /* the cell whose candidates are slower, or -1 */
    struct slot *wrong;  /* audits of it find nonsense */
    int audits[REGION_COUNT];
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

static void record(struct canary *c, int cell)
{
    int32_t i = atomic_load(&c->have);
    if (i >= c->want || atomic_load(&c->decided) >> cell & 1)
        return;
    bool candidate = (i >> (world.second != NULL)) % 2;
    int64_t ns = candidate && !world.noise ? 900000 + i % 7 : 1000000 + i % 5;
    ns += candidate && cell == world.slow ? 300000 : 0;
    ns += world.noise * (i * 7919 % 13) / 13;
    c->step[i] = (struct canary_step){ns, world.slot->m, 100, candidate, (int8_t)cell};
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
        record(world.canary, 0);
    if (world.second && world.canary)
        record(world.canary, 1);
    if (world.second)
        atomic_fetch_add(&world.second->counters.steps, 1);
    if (own && world.hook && world.looked++ % world.hook->every == 0 &&
        atomic_load(&world.hook->left) > 0) {
        world.hook->comparisons++;
        world.hook->served_nonfinite += world.hook->slot == world.wrong;
        world.audits[world.hook->slot->region]++;
        atomic_fetch_sub(&world.hook->left, 1);
    }
}

static const struct backend_ops ops = {.name = "slow", .hook = hang, .check_model = check_model};
static const struct machine machine = {.device = "slow", .kind = MACHINE_CPU};
static const struct model model = {.shape = {.layers = 2}};
static const struct config config = {.specializer_min_gain = 0.02};
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
    world.dispatch = dispatch_open(table, NULL);
    world.slow = -1;
    world.slot = dispatch_find(world.dispatch, "mlp_in/m512");
    world.other = dispatch_find(world.dispatch, "mlp_in/m1");
    filled = (struct stage_env){.ops = &ops,
                                .dispatch = world.dispatch,
                                .machine = &machine,
                                .config = &config,
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

/* ---- tests ---------------------------------------------------------------------------------- */

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

/* ---- several together ----------------------------------------------------------------------- */

/* Two of one M bucket, and one of another. */
struct three {
    struct candidate c[3], *of[3];
    enum stage_result r[3];
};

static void judge(struct three *t, int slow, struct slot *wrong)
{
    world.beside = dispatch_find(world.dispatch, "attn_out/m512");
    world.second = dispatch_find(world.dispatch, "mlp_in/m64");
    world.slow = slow;
    world.wrong = wrong;
    memset(world.audits, 0, sizeof world.audits);
    t->c[0] = candidate_on(world.slot);
    t->c[1] = candidate_on(world.beside);
    t->c[2] = candidate_on(world.second);
    for (int i = 0; i < 3; i++)
        t->of[i] = &t->c[i];
    assert_true(canary_may_join(t->of, 2, t->of[2]));
    traffic(1, 1);
    canary_run_set(env, t->of, 3, 60, t->r);
    world.second = NULL;
    world.slow = -1;
}

static void what_makes_steps_faster_together_passes_together(void **state)
{
    (void)state;
    struct three t;
    judge(&t, -1, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t.r[i], STAGE_PASS);
        assert_true(t.c[i].evidence.canary.low > 0);
    }
    assert_int_equal(t.c[0].evidence.together, 2);
    assert_int_equal(t.c[1].evidence.together, 2);
    assert_int_equal(t.c[2].evidence.together, 0); /* of steps of its own */
    /* Each was looked at beside eager. */
    assert_true(world.audits[REGION_MLP_IN] > 0 && world.audits[REGION_ATTN_OUT] > 0);
}

static void nobody_is_blamed_for_a_bucket_that_was_slower_and_no_other_bucket(void **state)
{
    (void)state;
    struct three t;
    uint64_t distrusts = dispatch_distrusts(world.dispatch);
    judge(&t, 0, NULL);
    assert_int_equal(dispatch_distrusts(world.dispatch), distrusts);
    assert_int_equal(t.r[0], STAGE_RUNNING);
    assert_int_equal(t.r[1], STAGE_RUNNING);
    assert_int_equal(t.r[2], STAGE_PASS);
    judge(&t, 1, NULL);
    assert_int_equal(t.r[0], STAGE_PASS);
    assert_int_equal(t.r[1], STAGE_PASS);
    assert_int_equal(t.r[2], STAGE_REFUSE); /* nobody else was there */
    assert_int_equal(t.c[2].steps, STEPS_SLOWER);
}

static void who_computes_nonsense_is_named_and_the_rest_of_its_bucket_is_asked_again(void **state)
{
    (void)state;
    struct three t;
    uint64_t distrusts = dispatch_distrusts(world.dispatch);
    judge(&t, -1, dispatch_find(world.dispatch, "attn_out/m512"));
    assert_int_equal(dispatch_distrusts(world.dispatch), distrusts + 1); /* live steps ran it */
    assert_int_equal(t.r[0], STAGE_RUNNING);
    assert_int_equal(t.r[1], STAGE_REFUSE);
    assert_non_null(strstr(t.c[1].reason, "not finite"));
    assert_int_equal(t.r[2], STAGE_PASS);
}

/* A step has one context: each attention candidate is judged with what its steps share. */
static void attention_of_two_contexts_is_judged_by_steps_of_its_own(void **state)
{
    struct slot *of[] = {dispatch_find(world.dispatch, "attn/m1/c512"), world.other,
                         dispatch_find(world.dispatch, "attn/m1/c1024")};
    struct candidate c[3], *set[3];
    enum stage_result r[3];
    (void)state;
    for (int slow = -1; slow < 2; slow++) {
        for (int i = 0; i < 3; i++) {
            c[i] = candidate_on(of[i]);
            set[i] = &c[i];
        }
        struct slot *was = world.slot;
        world.slot = of[0];
        world.second = of[2];
        world.slow = slow;
        traffic(1, 1);
        canary_run_set(env, set, 3, 60, r);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r[i], slow < 0 ? STAGE_PASS : STAGE_RUNNING);
            assert_int_equal(c[i].evidence.together, 2);
        }
        world.slot = was;
        world.second = NULL;
        world.slow = -1;
    }
}

static void who_cannot_share_a_step_is_not_judged_together(void **state)
{
    (void)state;
    struct candidate a = candidate_on(world.slot), *set[] = {&a};
    struct candidate other_m = candidate_on(dispatch_find(world.dispatch, "mlp_in/m64"));
    struct slot fused = {.region = REGION_MLP, .m_index = 0};
    struct candidate whole = candidate_on(&fused);
    struct candidate attn = candidate_on(dispatch_find(world.dispatch, "attn/m1/c512"));
    struct candidate longer = candidate_on(dispatch_find(world.dispatch, "attn/m1/c1024"));
    (void)state;
    assert_true(canary_may_join(set, 1, &other_m));
    assert_false(canary_may_join(set, 1, &a));
    assert_false(canary_may_join(set, 1, &whole));
    set[0] = &whole;
    assert_false(canary_may_join(set, 1, &a));
    set[0] = &attn;
    assert_true(canary_may_join(set, 1, &longer));
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
        cmocka_unit_test(what_makes_steps_faster_together_passes_together),
        cmocka_unit_test(nobody_is_blamed_for_a_bucket_that_was_slower_and_no_other_bucket),
        cmocka_unit_test(who_computes_nonsense_is_named_and_the_rest_of_its_bucket_is_asked_again),
        cmocka_unit_test(attention_of_two_contexts_is_judged_by_steps_of_its_own),
        cmocka_unit_test(who_cannot_share_a_step_is_not_judged_together),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
