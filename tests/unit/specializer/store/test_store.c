/* SPDX-License-Identifier: Apache-2.0 */
/* The store: what is kept, what moves on, what may come in from elsewhere. What becomes of its file
 * in a crash and under other programs: test_store_files.c. */
#include "tests/unit/specializer/store_world.h"

#include "specializer/search/space.h"
#include "specializer/store/store_json.h"
#include "specializer/transfer/transfer.h"

static void keep_winner(void *ctx, const struct winner *w)
{
    *(struct winner *)ctx = *w;
}

static void store_keeps_a_candidate_with_its_evidence(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err;
    struct store *s = store_open(path, &err);
    assert_non_null(s);
    struct record r = row_of(1, "mlp_out/m1"), back;
    r.evidence = (struct evidence){.build_s = 0.5,
                                   .object_bytes = 16384,
                                   .probe_cases = 31,
                                   .own_rms = 1.5e-7,
                                   .bit_equal = true,
                                   .worst = "m=3 outlier",
                                   .bench = {64, 0.31, 0.29, 0.33},
                                   .speed = 1.31,
                                   .refusal = {CAUSE_GAIN, STAGE_CANARY, -0.02, "where"}};
    snprintf(r.reason, sizeof r.reason, "none");
    r.log = (char *)"warning: x";
    assert_int_equal(store_move(s, &r, LIFE_BENCHED, "why", "request-7", &err), 0);
    store_close(s);
    s = store_open(path, &err);
    assert_non_null(s);
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    assert_int_equal(back.state, LIFE_BENCHED);
    assert_string_equal(back.name, r.name);
    assert_string_equal(back.knobs, r.knobs);
    assert_string_equal(back.log, "warning: x");
    assert_true(back.evidence.bit_equal);
    assert_int_equal(back.evidence.object_bytes, 16384);
    assert_string_equal(back.evidence.worst, "m=3 outlier");
    assert_true(back.evidence.bench.low == 0.29 && back.evidence.own_rms == 1.5e-7);
    assert_int_equal(back.evidence.bench.pairs, 64);
    assert_int_equal(back.evidence.refusal.cause, CAUSE_GAIN);
    assert_int_equal(back.evidence.refusal.stage, STAGE_CANARY);
    assert_true(back.evidence.refusal.value == -0.02);
    assert_string_equal(back.evidence.refusal.in_case, "where");
    free(back.log);
    store_close(s);
}

/* Stores of before have a sentence alone. */
static void store_reads_the_refusals_of_older_rows_out_of_their_sentences(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    assert_non_null(s);
    struct record r = row_of(1, "mlp_out/m1"), back;
    snprintf(r.reason, sizeof r.reason,
             "probe: m=3 outlier, team of 2: row 4: rms error 0.1 is 42 times eager's 0.0024");
    assert_int_equal(store_move(s, &r, LIFE_REFUSED, "", NULL, &err), 0);
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    assert_int_equal(back.evidence.refusal.cause, CAUSE_ERROR);
    assert_int_equal(back.evidence.refusal.stage, STAGE_PROBE);
    assert_true(back.evidence.refusal.value == 42);
    assert_string_equal(back.evidence.refusal.in_case, "m=3 outlier, team of 2");
    free(back.log);
    r = row_of(2, "mlp_out/m1");
    assert_int_equal(store_move(s, &r, LIFE_BENCHED, "", NULL, &err), 0);
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    assert_int_equal(back.evidence.refusal.cause, CAUSE_NONE);
    free(back.log);
    assert_int_equal(store_run(s, &err, "UPDATE candidate SET evidence=?", "s",
                               "{\"refusal\":{\"cause\":\"error\",\"stage\":7,\"value\":\"x\","
                               "\"case\":[]}}"),
                     0);
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    assert_int_equal(back.evidence.refusal.cause, CAUSE_ERROR);
    assert_int_equal(back.evidence.refusal.stage, STAGE_BUILD);
    assert_true(back.evidence.refusal.value == 0 && !back.evidence.refusal.in_case[0]);
    free(back.log);
    store_close(s);
}

static void store_has_one_winner_a_slot_and_retires_the_one_before(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    struct record a = row_of(1, "mlp_out/m1"), b = row_of(2, "mlp_out/m1"),
                  c = row_of(3, "head/m1");
    struct winner w = {0};
    assert_int_equal(store_move(s, &a, LIFE_ACTIVE, NULL, NULL, &err), 0);
    assert_int_equal(store_move(s, &c, LIFE_ACTIVE, NULL, NULL, &err), 0);
    assert_int_equal(store_move(s, &b, LIFE_ACTIVE, NULL, NULL, &err), 0);
    assert_int_equal(state_of(s, 1), LIFE_RETIRED);
    assert_int_equal(state_of(s, 2), LIFE_ACTIVE);
    assert_int_equal(state_of(s, 3), LIFE_ACTIVE);
    assert_int_equal(store_share(s, "env", "mlp_out/m1", 0.4, 0.3, &err), 0);
    assert_int_equal(store_share(s, "env", "head/m1", 0.6, 0.1, &err), 0);
    assert_int_equal(store_winners(s, "env", keep_winner, &w, &err), 0);
    assert_string_equal(w.slot, "mlp_out/m1"); /* the smaller share comes last */
    assert_string_equal(w.key, b.key);
    assert_string_equal(w.previous, a.key);
    assert_int_equal(store_move(s, &b, LIFE_ROLLED_BACK, "bad", NULL, &err), 0);
    assert_int_equal(store_winners(s, "env", keep_winner, &w, &err), 0);
    assert_string_equal(w.slot, "head/m1");
    store_close(s);
}

static void count_row(void *ctx, const struct record *r)
{
    (void)r;
    ++*(int *)ctx;
}

static void store_selects_rows_by_environment_slot_and_state(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    for (int i = 0; i < 20; i++) {
        struct record r = row_of(i, i % 2 ? "head/m1" : "mlp_out/m1");
        if (i >= 16)
            snprintf(r.env, sizeof r.env, "other");
        assert_int_equal(store_move(s, &r, i % 4 ? LIFE_REFUSED : LIFE_BENCHED, NULL, NULL, &err),
                         0);
    }
    int n = 0;
    struct record_filter f = {.env = "env"};
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 16);
    f.slot = "head/m1";
    n = 0;
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 8);
    f = (struct record_filter){.states = 1u << LIFE_BENCHED};
    n = 0;
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 5);
    f = (struct record_filter){.limit = 3};
    n = 0;
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 3);
    store_close(s);
}

static void keep_pair(void *ctx, const char *name, const char *value)
{
    snprintf(ctx, 80, "%s=%s", name, value);
}

static void store_keeps_pins_disables_and_settings(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err;
    char pair[80] = "";
    struct store *s = store_open(path, &err);
    assert_int_equal(store_pin(s, "head/m1", "eager", "req", &err), 0);
    assert_int_equal(store_disable(s, "mlp_out", "suspicious", "req", &err), 0);
    assert_int_equal(store_set(s, "mode", "pause", &err), 0);
    store_close(s);
    s = store_open(path, &err);
    assert_int_equal(store_pins(s, keep_pair, pair, &err), 0);
    assert_string_equal(pair, "head/m1=eager");
    assert_int_equal(store_disables(s, keep_pair, pair, &err), 0);
    assert_string_equal(pair, "mlp_out=suspicious");
    assert_true(store_value(s, "mode", pair, sizeof pair));
    assert_string_equal(pair, "pause");
    pair[0] = 0;
    assert_int_equal(store_unpin(s, "head/m1", "req", &err), 0);
    assert_int_equal(store_enable(s, "mlp_out", "req", &err), 0);
    assert_int_equal(store_pins(s, keep_pair, pair, &err), 0);
    assert_int_equal(store_disables(s, keep_pair, pair, &err), 0);
    assert_string_equal(pair, "");
    store_close(s);
}

static void keep_events(void *ctx, const struct trace_row *row)
{
    char *out = ctx;
    snprintf(out + strlen(out), 200 - strlen(out), "%s:%s;", row->event, row->who ? row->who : "");
}

static void store_traces_newest_first_with_who_did_it(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    char events[200] = "";
    struct record r = row_of(1, "head/m1");
    store_trace(s, "head/m1", NULL, "batch", NULL, "%d candidates", 8);
    store_move(s, &r, LIFE_BUILT, NULL, NULL, &err);
    store_pin(s, "head/m1", "eager", "req-9", &err);
    store_trace(s, "mlp_out/m1", NULL, "batch", NULL, "elsewhere");
    assert_int_equal(store_traces(s, "head/m1", 0, 10, keep_events, events, &err), 0);
    assert_string_equal(events, "pin:req-9;built:;batch:;");
    store_close(s);
}

static void store_blames_what_was_on_trial_when_the_process_died(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err;
    struct record r = row_of(1, "head/m1"), back;
    for (int death = 1; death <= 3; death++) {
        struct store *s = store_open(path, &err);
        assert_int_equal(store_move(s, &r, LIFE_PROBED, NULL, NULL, &err), 0);
        assert_int_equal(store_trial(s, r.key, true, &err), 0);
        store_close(s); /* as good as dying: the mark stays */
        s = store_open(path, &err);
        assert_int_equal(store_deaths(s, &err), 1);
        assert_int_equal(store_deaths(s, &err), 0);
        assert_int_equal(store_get(s, r.key, &back, &err), 1);
        free(back.log);
        assert_int_equal(back.deaths, death);
        store_close(s);
    }
    struct store *s = store_open(path, &err);
    assert_int_equal(store_trial(s, r.key, true, &err), 0);
    assert_int_equal(store_trial(s, r.key, false, &err), 0); /* survived */
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    free(back.log);
    assert_int_equal(back.deaths, 0);
    store_close(s);
}

static void store_counts_deaths_of_probes_until_there_is_a_verdict(void **unused)
{
    (void)unused;
    const char *path = fresh_path();
    struct err err = {""};
    struct record r = row_of(1, "head/m1"), back;
    struct store *s = store_open(path, &err);
    assert_int_equal(store_probe_death(s, r.key, &err), -1);
    assert_non_null(strstr(err.msg, "does not know"));
    for (int life = 0; life < 2; life++) {
        assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
        assert_int_equal(store_probe_death(s, r.key, &err), 1);
        store_close(s);
        s = store_open(path, &err); /* another server goes on counting, */
        assert_int_equal(store_move(s, &r, LIFE_PROPOSED, NULL, NULL, &err), 0);
        assert_int_equal(store_move(s, &r, LIFE_BUILT, NULL, NULL, &err), 0);
        assert_int_equal(store_probe_death(s, r.key, &err), 2);
        assert_int_equal(store_move(s, &r, life ? LIFE_REFUSED : LIFE_PROBED, NULL, NULL, &err), 0);
        assert_int_equal(store_get(s, r.key, &back, &err), 1); /* until a probe has answered */
        free(back.log);
        assert_int_equal(back.probe_deaths, 0);
    }
    assert_int_equal(back.deaths, 0); /* counts of their own */
    assert_int_equal(store_served_death(s, r.key, &err), 1);
    assert_int_equal(store_get(s, r.key, &back, &err), 1);
    free(back.log);
    assert_int_equal(back.served_deaths, 1);
    assert_int_equal(back.probe_deaths, 0);
    store_close(s);
}

/* ---- export and import --------------------------------------------------------------------- */

static void import_takes_admitted_kernels_as_proposals_only(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    const char *body =
        "{\"whet_store\":1,\"kernels\":["
        "{\"slot\":\"mlp_out/m1\",\"template\":\"mlp_out\",\"state\":\"active\",\"knobs\":\"%s\","
        "\"evidence\":{\"speed\":99}},"
        "{\"slot\":\"mlp_out/m1\",\"template\":\"mlp_out\",\"state\":\"refused\",\"knobs\":\"%s\"},"
        "{\"slot\":\"x\",\"template\":\"rm\",\"state\":\"active\",\"knobs\":\"%s\"},"
        "{\"slot\":\"x\",\"template\":\"mlp_out\",\"state\":\"active\",\"knobs\":\"EVIL=1\"},7]}";
    const struct template *t = template_find("mlp_out");
    struct point p = template_defaults(t);
    char knobs[400], text[2400];
    point_text(t, &p, knobs, sizeof knobs);
    snprintf(text, sizeof text, body, knobs, knobs, knobs);
    assert_int_equal(store_import(s, text, strlen(text), "req", &err), 1);
    int n = 0;
    struct record_filter f = {.env = ENV_IMPORTED, .states = 1u << LIFE_PROPOSED};
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 1);
    f = (struct record_filter){.states = 1u << LIFE_ACTIVE};
    n = 0;
    assert_int_equal(store_each(s, &f, count_row, &n, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(store_import(s, "[1,2", 4, NULL, &err), -1);
    assert_int_equal(store_import(s, "{}", 2, NULL, &err), -1);
    const char *newer = "{\"whet_store\":2,\"kernels\":[]}";
    assert_int_equal(store_import(s, newer, strlen(newer), NULL, &err), -1);
    store_close(s);
}

static void store_finds_the_newest_rows_of_an_event_with_their_kernels(void **unused)
{
    (void)unused;
    char got[200] = "";
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    for (int i = 1; i <= 3; i++) {
        struct record r = row_of(i, "head/m1");
        assert_int_equal(store_move(s, &r, LIFE_PROPOSED, "", NULL, &err), 0);
        assert_int_equal(store_move(s, &r, LIFE_REFUSED, i == 2 ? "slow" : "wrong", NULL, &err), 0);
    }
    store_trace(s, NULL, "head", "refused", NULL, "a family");
    FILE *out = fmemopen(got, sizeof got, "w");
    assert_int_equal(store_events(s, "refused", 0, 3, print_row, out, &err), 0);
    assert_int_equal(store_events(s, "refused", INT64_C(99999999999), 3, print_row, out, &err), 0);
    assert_int_equal(store_events(s, "never", 0, 3, print_row, out, &err), 0);
    fclose(out);
    assert_string_equal(got, "refused - a family|refused kernel 3 wrong|refused kernel 2 slow|");
    store_close(s);
}

static void store_counts_what_fails(void **unused)
{
    (void)unused;
    struct err err;
    struct store *s = store_open(fresh_path(), &err);
    assert_int_equal(store_errors(s), 0);
    assert_int_equal(store_run(s, &err, "DROP TABLE setting", ""), 0);
    assert_int_equal(store_set(s, "mode", "pause", &err), -1);
    assert_int_equal(store_errors(s), 1);
    assert_int_equal(store_run(s, &err, "DROP TABLE trace", ""), 0);
    store_trace(s, NULL, NULL, "lost", NULL, "nobody stops for it");
    assert_int_equal(store_errors(s), 2);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(store_keeps_a_candidate_with_its_evidence),
        cmocka_unit_test(store_reads_the_refusals_of_older_rows_out_of_their_sentences),
        cmocka_unit_test(store_has_one_winner_a_slot_and_retires_the_one_before),
        cmocka_unit_test(store_selects_rows_by_environment_slot_and_state),
        cmocka_unit_test(store_keeps_pins_disables_and_settings),
        cmocka_unit_test(store_traces_newest_first_with_who_did_it),
        cmocka_unit_test(store_counts_deaths_of_probes_until_there_is_a_verdict),
        cmocka_unit_test(store_blames_what_was_on_trial_when_the_process_died),
        cmocka_unit_test(import_takes_admitted_kernels_as_proposals_only),
        cmocka_unit_test(store_finds_the_newest_rows_of_an_event_with_their_kernels),
        cmocka_unit_test(store_counts_what_fails),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
