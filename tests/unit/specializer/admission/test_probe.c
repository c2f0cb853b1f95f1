/* SPDX-License-Identifier: Apache-2.0 */
/* test_probe.c - what a probe is told of a model that is one rank's part: whether to cut it out of
 * a whole, and how many rows of a head to draw where there is no file. And how much memory what it
 * runs may ask for, and what of it is the kernel's fault. */
#include "tests/unit/unit.h"

#include <sys/stat.h>

#include "config/safe_path.h"
#include "engine/model.h"
#include "specializer/admission/probe.c"
#include "specializer/admission/room.h"

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

static void a_probe_knows_what_the_server_may_pack(void **state)
{
    (void)state;
    struct err err;
    struct config config = {.engine_threads = 1};
    static const struct machine machine = {.kind = MACHINE_CPU};
    struct slot slot = {.region = REGION_HEAD, .m = 1};
    struct candidate c = {.object = (char *)"/nowhere/object", .slot = &slot};
    struct model *m = model_open("random:tiny", false, NULL, NULL, &err);
    const struct stage_env env = {.config = &config, .machine = &machine, .model = m};
    static const int64_t asked_for[] = {-1, 0, 64};
    static const int32_t told[] = {PACK_MIB_USUAL, 0, 64};
    char path[] = "/tmp/whet-request-XXXXXX";
    close(mkstemp(path));
    for (int i = 0; i < 3; i++) {
        struct probe_request q = {.captures = 0}, back;
        config.specializer_pack_mib = asked_for[i];
        fill_request(&env, &c, PROBE_FULL, &q);
        assert_int_equal(probe_request_write(&q, path, &err), 0);
        assert_int_equal(probe_request_read(&back, path, &err), 0);
        assert_int_equal(back.pack_mib, told[i]);
        probe_request_free(&q);
        probe_request_free(&back);
    }
    unlink(path);
    model_close(m);
}

/* That something outside killed what ran the kernel comes back with the answer, and marks it. */
static void a_probe_says_that_its_runner_was_killed(void **state)
{
    (void)state;
    for (int killed = 0; killed < 2; killed++) {
        struct probe_answer a = {.verdict = PROBE_ERROR, .killed = killed}, back;
        struct candidate c = {.probe_died = !killed};
        struct probe p = {.c = &c};
        char *text = probe_answer_text(&a);
        assert_int_equal(probe_answer_parse(&back, text), 0);
        assert_int_equal(take_answer(&p, &back, 0, 0), STAGE_RETRY);
        assert_int_equal(c.probe_died, killed);
        free(text);
    }
}

/* Killed, or gone without a word: it died. Starved is another matter, and a crash is a verdict. */
static void a_probe_that_was_killed_has_died(void **state)
{
    (void)state;
    const struct process_result killed = {.signal = SIGKILL, .err = (char *)""},
                                silent = {.status = 1, .err = (char *)""},
                                starved = {.signal = SIGKILL, .timed_out = true, .err = (char *)""},
                                crashed = {.signal = SIGSEGV, .err = (char *)""};
    struct candidate c = {.name = "c"};
    struct probe p = {.c = &c};
    assert_int_equal(no_answer(&p, &killed), STAGE_RETRY);
    assert_true(c.probe_died);
    assert_int_equal(no_answer(&p, &starved), STAGE_RETRY);
    assert_false(c.probe_died);
    assert_int_equal(no_answer(&p, &silent), STAGE_RETRY);
    assert_true(c.probe_died);
    assert_int_equal(no_answer(&p, &crashed), STAGE_REFUSE);
    assert_false(c.probe_died);
}

static void a_kernel_that_asks_for_more_than_there_is_is_told_apart(void **state)
{
    (void)state;
    static char root[] = "/tmp/whet-room-XXXXXX";
    char path[80];
    struct err err;
    const int64_t left = 512LL << 20, mib = 1 << 20;
    assert_non_null(mkdtemp(root));
    assert_int_equal(room_for(root, INT64_MAX, true, &err), 0); /* nothing says */
    snprintf(path, sizeof path, "%s/proc", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *f = fopen(path, "w");
    fprintf(f, "MemAvailable: %lld kB\n", (long long)left / 1024);
    fclose(f);
    assert_int_equal(room_for(root, left, true, &err), 0);
    assert_int_equal(room_for(root, left + 1, true, &err), -1); /* a text's own fault */
    assert_false(err.outside);
    assert_non_null(strstr(err.msg, "where 512.0 MiB are left (MemAvailable"));
    assert_int_equal(room_for(root, left + 1, false, &err),
                     -1); /* a template needs what it needs */
    assert_true(err.outside);
    assert_false(err.killed);
    assert_int_equal(room_for(root, INT64_MAX, false, &err), -1); /* which no machine has */
    assert_false(err.outside);
    f = fopen(path, "w");
    fprintf(f, "MemAvailable: 1024 kB\n");
    fclose(f);
    assert_int_equal(room_for(root, 2 * mib, true, &err), -1); /* who could do with less? */
    assert_true(err.outside);
    safe_folder_remove(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_probe_of_a_part_has_the_ranks_head),
        cmocka_unit_test(a_probe_knows_what_the_server_may_pack),
        cmocka_unit_test(a_probe_says_that_its_runner_was_killed),
        cmocka_unit_test(a_probe_that_was_killed_has_died),
        cmocka_unit_test(a_kernel_that_asks_for_more_than_there_is_is_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
