/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of specializer/search_batch.c: which candidate of a batch goes to live steps. The batches
 * themselves are watched in test_drills.c. */
#include "tests/unit/specializer/store_world.h"

#include "specializer/search_batch.c"

static struct candidate benched(double low)
{
    struct candidate c = {.state = LIFE_BENCHED};
    c.evidence.bench.low = low;
    snprintf(c.evidence.against, sizeof c.evidence.against, "eager");
    return c;
}

static void a_clear_gain_does_not_wait_but_gives_way_to_a_clearer_one(void **state)
{
    (void)state;
    struct candidate small = benched(0.05), first = benched(0.9), faster = benched(1.6);
    struct slot_search p = {0};
    struct trial trial[2] = {{.c = &first, .at = STAGE_SHADOW, .from = {&proposer_points, 3}},
                             {.c = &faster, .at = STAGE_SHADOW, .from = {&proposer_texts, 7}}};
    assert_false(leads(&p, &small));
    assert_true(leads(&p, &first));
    promote(&p, &trial[0]);
    assert_ptr_equal(p.promoted.c, &first);
    assert_null(trial[0].c);
    assert_true(leads(&p, &faster));
    promote(&p, &trial[1]);
    assert_ptr_equal(p.promoted.c, &faster);
    assert_int_equal(p.promoted.from.id, 7);
    assert_ptr_equal(p.promoted.from.by, &proposer_texts);
    assert_ptr_equal(trial[1].c, &first); /* a runner-up of the batch */
    assert_int_equal(trial[1].from.id, 3);
    assert_ptr_equal(trial[1].from.by, &proposer_points);
    assert_false(leads(&p, &first));
}

static void a_promoted_candidate_that_live_steps_have_seen_stays(void **state)
{
    (void)state;
    struct candidate first = benched(0.2), faster = benched(0.9);
    struct slot_search p = {.promoted = {.c = &first, .at = STAGE_SHADOW}};
    assert_true(leads(&p, &faster));
    p.promoted.at = STAGE_CANARY;
    assert_false(leads(&p, &faster));
    p.promoted.at = STAGE_SHADOW;
    first.retries = 1;
    assert_false(leads(&p, &faster));
    first.retries = 0;
    snprintf(faster.evidence.against, sizeof faster.evidence.against, "another");
    assert_false(leads(&p, &faster)); /* gains over two kernels do not compare */
}

static void the_shortest_bench_of_an_opening_goes_first(void **state)
{
    (void)state;
    static struct candidate c[3];
    struct slot_search head = {.locked.run_s = 0.003}, out = {.locked.run_s = 0.00003},
                       unprobed = {.locked.run_s = 0.00001};
    static struct specializer s;
    pthread_mutex_init(&s.lock, NULL);
    s.batch =
        (struct search_batch){.n = 3,
                              .pipeline.last = STAGE_BENCH,
                              .trial = {{.c = &c[0], .at = STAGE_PROBE, .slot_search = &unprobed},
                                        {.c = &c[1], .at = STAGE_LOAD, .slot_search = &head},
                                        {.c = &c[2], .at = STAGE_LOAD, .slot_search = &out}}};
    assert_ptr_equal(next_ready(&s), &s.batch.trial[1]); /* those of one slot: as they came */
    s.batch.opening = true;
    assert_ptr_equal(next_ready(&s), &s.batch.trial[2]);
    s.batch.trial[2].c = NULL;
    assert_ptr_equal(next_ready(&s), &s.batch.trial[1]);
    s.batch.trial[1].c = NULL;
    assert_null(next_ready(&s));
    pthread_mutex_destroy(&s.lock);
}

/* In an opening on a CPU also no more than cores. */
static void no_more_compilers_at_once_than_there_may_be(void **state)
{
    (void)state;
    static struct config config = {.engine_threads = 2};
    static struct machine machine;
    static struct specializer s = {.config = &config, .env.machine = &machine, .build_jobs = 3};
    struct pipeline *p = &s.batch.pipeline;
    p->ctx = &s;
    p->children[STAGE_BUILD] = 2;
    assert_true(room(p, STAGE_BUILD));
    p->children[STAGE_BUILD] = 3;
    assert_false(room(p, STAGE_BUILD));
    assert_true(room(p, STAGE_PROBE));
    s.batch.opening = true;
    p->children[STAGE_BUILD] = 1;
    assert_false(room(p, STAGE_BUILD));
}

/* A text that can make the compiler say what it says when it was killed is not built for ever. */
static void what_is_not_built_three_times_is_refused(void **state)
{
    (void)state;
    static struct unbuilts u;
    struct candidate c = {.object = (char *)"/nowhere/k.so", .body = "0123456789abcdef"}, other = c,
                     point = {.object = (char *)"/nowhere/k.so"};
    for (int round = 0; round < 2; round++) { /* beside as many others as there are places */
        snprintf(c.key, sizeof c.key, "%016x", round);
        for (int tries = 1; tries < UNBUILT_MOST; tries++) {
            assert_int_equal(unbuilt_came(&u, &c), STAGE_RETRY);
            for (int i = 1; i < UNBUILT_KNOWN; i++) {
                snprintf(other.key, sizeof other.key, "%08x%08x", round * 2 + tries, i);
                assert_int_equal(unbuilt_came(&u, &other), STAGE_RETRY);
            }
        }
        candidate_explain(&c, STAGE_BUILD, CAUSE_OTHER, 0, "compiler: killed by SIGKILL");
        assert_int_equal(unbuilt_came(&u, &c), STAGE_REFUSE);
        assert_non_null(strstr(c.reason, "3 tries"));
        assert_non_null(strstr(c.reason, "SIGKILL"));
        assert_int_equal(unbuilt_came(&u, &point), STAGE_RETRY); /* a template's, ever so often */
    }
}

/* What kills its probe, over and over, is refused, though another server of the store saw the
 * first times; one that had a verdict between them is not. */
static void what_kills_its_probe_three_times_is_refused(void **state)
{
    (void)state;
    const char *path = fresh_path();
    struct err err;
    struct candidate c = {.name = "a point"};
    struct record r = row_of(1, "head/m1");
    struct store *s = store_open(path, &err);
    memcpy(c.key, r.key, sizeof c.key);
    assert_int_equal(unprobed_came(s, &c), STAGE_RETRY); /* no row: it is only not counted */
    store_move(s, &r, LIFE_BUILT, NULL, NULL, &err);
    assert_int_equal(unprobed_came(s, &c), STAGE_RETRY);
    store_move(s, &r, LIFE_PROBED, NULL, NULL, &err);
    for (int tries = 1; tries < PROBE_DEATHS_MOST; tries++) {
        assert_int_equal(unprobed_came(s, &c), STAGE_RETRY);
        store_close(s);
        s = store_open(path, &err);
    }
    candidate_explain(&c, STAGE_PROBE, CAUSE_OTHER, 0, "no verdict: killed by SIGKILL");
    assert_int_equal(unprobed_came(s, &c), STAGE_REFUSE);
    assert_non_null(strstr(c.reason, "died 3 times without a verdict"));
    assert_non_null(strstr(c.reason, "SIGKILL"));
    store_close(s);
}

static int learnt, forgotten;
static void learn(struct specializer *s, struct slot_search *p, int32_t id,
                  const struct candidate *c, double speed)
{
    (void)s, (void)p, (void)id, (void)c;
    learnt += speed == 0;
}
static void forgets(struct specializer *s, struct slot_search *p, int32_t id)
{
    (void)s, (void)p, (void)id;
    forgotten++;
}

/* The same seen by a batch, which lets go of a candidate that is tried again: refused at last, with
 * the reason in the store. Probes that were only starved are no deaths. */
static void a_batch_refuses_what_kills_its_probe(void **state)
{
    (void)state;
    static const struct proposer by = {.learn = learn, .forget = forgets};
    struct err err;
    struct slot slot = {.name = "head/m1"};
    struct slot_search p = {.slot = &slot};
    static struct specializer s;
    struct record r = row_of(1, "head/m1");
    s = (struct specializer){.store = store_open(fresh_path(), &err)};
    pthread_mutex_init(&s.lock, NULL);
    store_move(s.store, &r, LIFE_BUILT, NULL, NULL, &err);
    for (int tries = 0; tries < PROBE_DEATHS_MOST + 4; tries++) {
        struct candidate *c = xcalloc(1, sizeof *c);
        struct trial t = {.c = c, .slot_search = &p, .at = STAGE_PROBE, .from = {&by, 1}};
        memcpy(c->key, r.key, sizeof c->key);
        c->slot = &slot;
        c->template = template_find("head");
        c->state = LIFE_BUILT;
        c->probe_died = tries >= 4;
        candidate_explain(c, STAGE_PROBE, CAUSE_OTHER, 0, "no verdict: killed by SIGKILL");
        assert_false(child_came(&s, &t, STAGE_RETRY));
        assert_null(t.c);
        assert_int_equal(learnt, tries == PROBE_DEATHS_MOST + 3);
        assert_int_equal(forgotten, tries + 1 - learnt);
    }
    assert_int_equal(store_get(s.store, r.key, &r, &err), 1);
    free(r.log);
    assert_int_equal(r.state, LIFE_REFUSED);
    assert_non_null(strstr(r.reason, "died 3 times without a verdict"));
    store_close(s.store);
    pthread_mutex_destroy(&s.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clear_gain_does_not_wait_but_gives_way_to_a_clearer_one),
        cmocka_unit_test(a_promoted_candidate_that_live_steps_have_seen_stays),
        cmocka_unit_test(the_shortest_bench_of_an_opening_goes_first),
        cmocka_unit_test(what_is_not_built_three_times_is_refused),
        cmocka_unit_test(what_kills_its_probe_three_times_is_refused),
        cmocka_unit_test(a_batch_refuses_what_kills_its_probe),
        cmocka_unit_test(no_more_compilers_at_once_than_there_may_be),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
