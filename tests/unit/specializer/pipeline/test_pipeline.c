/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/pipeline/pipeline.c: the order of stages, children beside each other, and
 * who decides what. The stages here only write down that they were there; what a batch and a
 * restore make of the driver is watched in test_drills.c and test_restore.c. */
#include "tests/unit/unit.h"

#include "specializer/candidate/life.h"
#include "specializer/pipeline/pipeline.c"

static char said[256];            /* "build0 ", "probe1 ", ...: stages as they began */
static int polls, ended, no_fork; /* how often a child is still running; ended; not to be started */
static struct candidate some[3];

static void say(const char *what, const struct candidate *c)
{
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s%d ", what, (int)(c - some));
}

struct build {
    int left;
};
static void *child(const char *what, struct candidate *c, struct err *err)
{
    static struct build room[16];
    static int used;
    if (no_fork) {
        err_set(err, "no process");
        return NULL;
    }
    say(what, c);
    struct build *b = &room[used++ % 16];
    b->left = polls;
    return b;
}
struct build *build_start(const struct stage_env *env, struct candidate *c, struct err *err)
{
    (void)env;
    return child("build", c, err);
}
enum stage_result build_poll(struct build *b)
{
    return b->left-- > 0 ? STAGE_RUNNING : STAGE_PASS;
}
void build_end(struct build *b)
{
    ended += b != NULL;
}
struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err)
{
    (void)env, (void)depth, (void)captured, (void)captures;
    return child("probe", c, err);
}
enum stage_result probe_poll(struct probe *p)
{
    return build_poll((struct build *)p);
}
void probe_end(struct probe *p)
{
    build_end((struct build *)p);
}
enum stage_result load_run(const struct stage_env *env, struct store *marks, struct candidate *c)
{
    (void)env, (void)marks;
    say("load", c);
    return STAGE_PASS;
}
enum stage_result bench_run(const struct stage_env *env, struct candidate *c,
                            const struct kernel *incumbent, const struct capture *inputs,
                            enum bench_kind kind)
{
    (void)env, (void)incumbent, (void)inputs, (void)kind;
    say("bench", c);
    return STAGE_PASS;
}
enum stage_result bench_sample(const struct stage_env *env, struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs,
                               int pairs)
{
    (void)env, (void)incumbent, (void)inputs, (void)pairs;
    say("sample", c);
    return STAGE_PASS;
}
enum stage_result shadow_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    (void)env, (void)timeout_s;
    say("shadow", c);
    return STAGE_PASS;
}
enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    (void)env, (void)timeout_s;
    say("canary", c);
    return STAGE_RETRY;
}

/* ---- rules ----------------------------------------------------------------------------------- */

static enum stage skipped; /* STAGES: none */

static bool one_at_once(const struct pipeline *p, enum stage stage)
{
    return p->children[stage] < 1;
}

static enum stage_result enter(struct pipeline *p, struct trial *t)
{
    (void)p;
    return t->at == skipped ? STAGE_PASS : STAGE_RUNNING;
}

static void began(struct pipeline *p, struct trial *t, const struct err *err)
{
    (void)p;
    if (err && strcmp(err->msg, "no process") == 0)
        t->c = NULL;
}

static bool came(struct pipeline *p, struct trial *t, enum stage_result r)
{
    (void)p;
    (void)t;
    return r == STAGE_PASS;
}

static const struct pipeline_rules rules = {one_at_once, enter, began, came};

static struct pipeline fresh(enum stage last)
{
    said[0] = 0;
    polls = ended = no_fork = 0;
    skipped = STAGES;
    return (struct pipeline){.rules = &rules, .last = last};
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void stages_come_in_the_order_of_their_names_and_of_the_law(void **state)
{
    (void)state;
    struct pipeline p = fresh(STAGE_CANARY);
    struct trial t = {.c = &some[0]};
    enum life before = LIFE_PROPOSED;
    for (int i = 0; i < STAGES; i++) {
        enum life reached = pipeline_reached((enum stage)i);
        assert_true(i == STAGE_LOAD || life_allowed(before, reached));
        before = reached;
    }
    for (int i = 0; i < 5; i++) {
        pipeline_advance(&p, &t, true);
        pipeline_block(&p, &t);
    }
    /* The last one did not decide: it waits, and is asked again. */
    assert_string_equal(said, "build0 probe0 load0 bench0 shadow0 canary0 canary0 canary0 ");
    assert_int_equal(t.at, STAGE_CANARY);
    assert_true(pipeline_ready(&p, &t) && !pipeline_over(&p, &t));
    assert_int_equal(ended, 2);
}

static void children_wait_for_room_and_move_on_in_the_same_turn(void **state)
{
    (void)state;
    struct pipeline p = fresh(STAGE_PROBE);
    struct trial t[3] = {{.c = &some[0]}, {.c = &some[1]}, {.c = &some[2]}};
    for (int turn = 0; turn < 6; turn++)
        for (int i = 0; i < 3; i++) {
            pipeline_advance(&p, &t[i], turn != 1); /* in the second nobody may begin */
            pipeline_block(&p, &t[i]);
            assert_true(p.children[STAGE_BUILD] <= 1 && p.children[STAGE_PROBE] <= 1);
            if (turn == 1)
                assert_string_equal(said, "build0 ");
        }
    assert_string_equal(said, "build0 probe0 build1 probe1 build2 probe2 ");
    for (int i = 0; i < 3; i++)
        assert_true(pipeline_over(&p, &t[i]) && t[i].c && !t[i].child);
    assert_int_equal(ended, 6);
}

static void rules_pass_stages_over_and_hear_what_could_not_be_started(void **state)
{
    (void)state;
    struct pipeline p = fresh(STAGE_BENCH);
    struct trial t = {.c = &some[0], .bench.pairs = 24};
    skipped = STAGE_PROBE;
    pipeline_advance(&p, &t, true);
    pipeline_advance(&p, &t, true);
    pipeline_block(&p, &t);
    assert_string_equal(said, "build0 load0 sample0 ");
    assert_true(pipeline_over(&p, &t) && t.c);
    t = (struct trial){.c = &some[1]};
    no_fork = 1;
    pipeline_advance(&p, &t, true);
    assert_true(!t.c && pipeline_over(&p, &t));
    assert_int_equal(p.children[STAGE_BUILD], 0);
}

static void a_child_that_is_stopped_leaves_its_room(void **state)
{
    (void)state;
    struct pipeline p = fresh(STAGE_BENCH);
    struct trial t = {.c = &some[0]};
    polls = 1000;
    pipeline_advance(&p, &t, true);
    pipeline_advance(&p, &t, true);
    assert_true(t.child && p.children[STAGE_BUILD] == 1 && !pipeline_ready(&p, &t));
    pipeline_stop(&p, &t);
    pipeline_stop(&p, &t);
    assert_true(!t.child && p.children[STAGE_BUILD] == 0 && ended == 1);
    assert_string_equal(said, "build0 ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_come_in_the_order_of_their_names_and_of_the_law),
        cmocka_unit_test(children_wait_for_room_and_move_on_in_the_same_turn),
        cmocka_unit_test(rules_pass_stages_over_and_hear_what_could_not_be_started),
        cmocka_unit_test(a_child_that_is_stopped_leaves_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
