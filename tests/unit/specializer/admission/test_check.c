/* SPDX-License-Identifier: Apache-2.0 */
/* test_check.c - the plan, and the probe's files. The error rule is in test_comparator.c, the
 * kernels that the checks must catch are in tests/kernels. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/admission/capture_file.h"
#include "specializer/admission/check_plan.h"
#include "specializer/admission/probe_request.h"
#include "specializer/admission/runner.h"
#include "tests/unit/specializer/shapes.h"

/* ---- plan ----------------------------------------------------------------------------------- */

static const struct model_shape small = {SMALL_MODEL};

static void plan_covers_edges_fills_and_captures_within_the_range(void **state)
{
    (void)state;
    struct model *model = model_random(&small, DTYPE_F32, 1);
    struct check_range range = {REGION_MLP_OUT, 5, 6, 0};
    struct capture live = {.region = REGION_MLP_OUT, .layer = 2, .m = 6};
    const struct capture *captured[] = {&live};
    struct planned plan[PLAN_MAX];
    int n = check_plan(model, &range, captured, 1, true, 0, plan), fills = 0, edges = 0, live_n = 0;
    for (int i = 0; i < n; i++) {
        assert_in_range(plan[i].shape.m, 5, 6);
        fills |= 1 << plan[i].fill;
        edges |= 1 << plan[i].shape.m;
        live_n += plan[i].capture == &live;
    }
    assert_int_equal(fills, (1 << FILL_COUNT) - 1);
    assert_int_equal(edges, 1 << 5 | 1 << 6);
    assert_int_equal(live_n, 1);
    n = check_plan(model, &range, captured, 1, false, 0, plan);
    assert_in_range(n, 2, 4);
    model_close(model);
}

/* Kernels may do otherwise where tokens follow each other. */
static void plan_of_attn_in_has_a_prompt(void **state)
{
    (void)state;
    struct model *model = model_random(&small, DTYPE_F32, 1);
    struct check_range range = {REGION_ATTN_IN, 65, 128, 0};
    struct planned plan[PLAN_MAX];
    int n = check_plan(model, &range, NULL, 0, true, 0, plan), prompts = 0, others = 0;
    for (int i = 0; i < n; i++)
        if (plan[i].shape.sequences == 1) {
            assert_int_equal(plan[i].shape.m, 128);
            assert_in_range(plan[i].shape.context, 65, model->shape.max_context);
            prompts++;
        } else {
            others++;
        }
    assert_int_equal(prompts, 1);
    assert_true(others > 5);
    model_close(model);
}

static void plan_of_attention_has_contexts_around_a_page_border(void **state)
{
    (void)state;
    struct model *model = model_random(&small, DTYPE_F32, 1);
    struct check_range range = {REGION_ATTN, 1, 1, 256};
    struct planned plan[PLAN_MAX];
    int n = check_plan(model, &range, NULL, 0, true, 0, plan);
    static const int32_t want[] = {1, KV_PAGE - 1, KV_PAGE, KV_PAGE + 1, 256};
    for (size_t w = 0; w < sizeof want / sizeof *want; w++) {
        bool found = false;
        for (int i = 0; i < n; i++)
            found = found || plan[i].shape.context == want[w];
        assert_true(found);
    }
    model_close(model);
}

static void plan_puts_what_was_warned_about_first_and_drops_nothing(void **state)
{
    (void)state;
    struct model *model = model_random(&small, DTYPE_F32, 1);
    struct check_range range = {REGION_MLP_OUT, 5, 6, 0};
    struct planned plain[PLAN_MAX], warned[PLAN_MAX];
    int n = check_plan(model, &range, NULL, 0, true, 0, plain);
    assert_int_equal(check_plan(model, &range, NULL, 0, true, RISK_NUMERIC, warned), n);
    assert_int_equal(plain[0].fill, FILL_NORMAL);
    assert_int_equal(warned[0].fill, FILL_OUTLIER);
    for (int i = 0; i < n; i++) {
        int found = 0;
        for (int k = 0; k < n; k++)
            found += strcmp(plain[i].label, warned[k].label) == 0;
        assert_int_equal(found, 1);
    }
    model_close(model);
}

/* ---- files ---------------------------------------------------------------------------------- */

static char *temporary(void)
{
    char *path = strdup("/tmp/whet-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    return path;
}

static struct capture *attention_capture(void)
{
    struct capture *c = calloc(1, sizeof *c);
    c->region = REGION_ATTN;
    c->layer = 1;
    c->m = 2;
    c->spans = 2;
    c->context = 18;
    c->pages = 3;
    c->in = calloc(2 * 64, sizeof(float));
    c->in[5] = 1.5f;
    c->span = calloc(2, sizeof *c->span);
    c->span[0] = (struct span){0, 1, 18, 0};
    c->span[1] = (struct span){1, 1, 4, 2};
    c->page_table = calloc(3, sizeof *c->page_table);
    c->page_table[0] = 2;
    c->page_table[2] = 1;
    c->k_pages = calloc(3 * 2 * KV_PAGE * 16, sizeof(float));
    c->v_pages = calloc(3 * 2 * KV_PAGE * 16, sizeof(float));
    ((float *)c->v_pages)[77] = -2;
    return c;
}

static void capture_file_returns_what_was_saved(void **state)
{
    (void)state;
    char *path = temporary();
    struct err err = {""};
    struct capture *c = attention_capture();
    assert_int_equal(capture_save(c, &small, path, &err), 0);
    struct capture *r = capture_load(path, &small, &err);
    assert_non_null(r);
    assert_int_equal(r->layer, 1);
    assert_int_equal(r->context, 18);
    assert_memory_equal(r->span, c->span, 2 * sizeof *c->span);
    assert_memory_equal(r->page_table, c->page_table, 3 * sizeof(int32_t));
    assert_memory_equal(r->in, c->in, 2 * 64 * sizeof(float));
    assert_memory_equal(r->v_pages, c->v_pages, 3 * 2 * KV_PAGE * 16 * sizeof(float));
    assert_null(r->x);
    capture_free(c);
    free(c);
    capture_free(r);
    free(r);
    unlink(path);
    free(path);
}

/* Saves the capture, has the head of the file say something else (a number by its place there), and
 * loads it: what is wrong with it, or "" if nothing is. */
static const char *loaded(const struct capture *c, int at, int32_t number)
{
    static struct err err;
    char *path = temporary();
    assert_int_equal(capture_save(c, &small, path, &err), 0);
    if (at >= 0) {
        FILE *f = fopen(path, "r+");
        assert_int_equal(fseek(f, at * (long)sizeof number, SEEK_SET), 0);
        assert_int_equal(fwrite(&number, sizeof number, 1, f), 1);
        fclose(f);
    }
    err.msg[0] = '\0';
    struct capture *r = capture_load(path, &small, &err);
    assert_int_equal(r == NULL, err.msg[0] != '\0');
    if (r)
        capture_free(r);
    free(r);
    unlink(path);
    free(path);
    return err.msg;
}

#define REFUSED(c, at, number, why) assert_non_null(strstr(loaded(c, at, number), "(" why ")"))

/* A span that ends where its pages or the step end is right, one further is not. */
static void capture_file_with_spans_that_leave_the_step_or_their_pages_is_refused(void **state)
{
    (void)state;
    struct capture *c = attention_capture();
    enum { SPAN = 9 + 2 * 64 + 4 }; /* the second, behind the head and what is in front of it */
    enum { FIRST = SPAN, COUNT, CONTEXT, PAGES_AT };
    assert_string_equal(loaded(c, -1, 0), "");
    assert_string_equal(loaded(c, FIRST, 0), "");
    assert_string_equal(loaded(c, CONTEXT, KV_PAGE), "");
    assert_string_equal(loaded(c, CONTEXT, 1), "");
    assert_string_equal(loaded(c, PAGES_AT, 0), "");
    REFUSED(c, FIRST, -1, "span");
    REFUSED(c, FIRST, 2, "span");
    REFUSED(c, COUNT, 0, "span");
    REFUSED(c, COUNT, 2, "span");
    REFUSED(c, CONTEXT, 0, "span");
    REFUSED(c, CONTEXT, KV_PAGE + 1, "span");
    REFUSED(c, CONTEXT, INT32_MAX, "span");
    REFUSED(c, PAGES_AT, -1, "span");
    REFUSED(c, PAGES_AT, 3, "span");
    REFUSED(c, COUNT - 4, 0, "span"); /* of the first */
    REFUSED(c, PAGES_AT + 1, 3, "page_table");
    REFUSED(c, PAGES_AT + 1, -1, "page_table");
    REFUSED(c, 7, 2, "span"); /* its page table is shorter than they say */
    capture_free(c);
    free(c);
}

static void capture_file_with_a_bad_head_is_refused(void **state)
{
    (void)state;
    struct capture *c = attention_capture();
    REFUSED(c, 0, 1, "not a capture");
    REFUSED(c, 1, -1, "region");
    REFUSED(c, 1, REGION_NODES, "region");
    REFUSED(c, 2, -1, "layer");
    REFUSED(c, 2, small.layers, "layer");
    REFUSED(c, 3, 0, "m");
    REFUSED(c, 3, 1 << 24, "m");
    REFUSED(c, 4, -1, "spans");
    REFUSED(c, 4, 3, "spans");
    REFUSED(c, 6, -1, "pages");
    REFUSED(c, 6, (1 << 24) + 1, "pages");
    REFUSED(c, 7, -1, "pages");
    REFUSED(c, 7, (1 << 24) + 1, "pages");
    const int32_t all = 2 | 16 | 32 | 64 | 128; /* in, span, page_table, k_pages, v_pages */
    for (int bit = 0; bit < 8; bit++)
        if (all >> bit & 1)
            REFUSED(c, 8, all & ~(1 << bit), "an array is missing");
    capture_free(c);
    free(c);
}

/* Of the other regions: what is read by all, and what by those that add to it. */
static void capture_file_without_what_its_region_reads_is_refused(void **state)
{
    (void)state;
    static const struct {
        enum region region;
        bool reads_in;
    } of[] = {{REGION_ATTN_OUT, true}, {REGION_MLP_IN, false}, {REGION_MLP_OUT, true},
              {REGION_HEAD, false},    {REGION_MLP, false},    {REGION_REDUCE, true}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct capture c = {.region = of[i].region, .m = 1};
        c.x = xcalloc((size_t)small.hidden, sizeof *c.x);
        c.in = xcalloc((size_t)small.ffn + (size_t)small.hidden, sizeof *c.in);
        assert_string_equal(loaded(&c, -1, 0), "");
        if (of[i].reads_in)
            REFUSED(&c, 8, 1, "an array is missing");
        else
            assert_string_equal(loaded(&c, 8, 1), "");
        REFUSED(&c, 8, 2, "an array is missing");
        capture_free(&c);
    }
}

/* attn_in writes where these say. */
static void capture_file_with_rows_outside_its_pages_is_refused(void **state)
{
    (void)state;
    struct capture *c = xcalloc(1, sizeof *c);
    c->region = REGION_ATTN_IN;
    c->m = 2;
    c->pages = 3;
    c->x = xcalloc(2 * (size_t)small.hidden, sizeof *c->x);
    c->position = xcalloc(2, sizeof *c->position);
    c->kv_at = xcalloc(2, sizeof *c->kv_at);
    c->kv_at[0] = 3 * KV_PAGE - 1;
    c->position[0] = c->position[1] = 1 << 24;
    assert_string_equal(loaded(c, -1, 0), "");
    for (int i = 0; i < 2; i++) {
        const int32_t at = c->kv_at[i];
        c->kv_at[i] = 3 * KV_PAGE;
        REFUSED(c, -1, 0, "kv_at or position");
        c->kv_at[i] = -1;
        REFUSED(c, -1, 0, "kv_at or position");
        c->kv_at[i] = at;
        c->position[i]++;
        REFUSED(c, -1, 0, "kv_at or position");
        c->position[i] = -1;
        REFUSED(c, -1, 0, "kv_at or position");
        c->position[i] = 0;
    }
    for (int bit = 0; bit < 4; bit++) /* x, position, kv_at */
        if (bit != 1)
            REFUSED(c, 8, (1 | 4 | 8) & ~(1 << bit), "an array is missing");
    capture_free(c);
    free(c);
}

static void capture_file_with_bad_indices_or_cut_short_is_refused(void **state)
{
    (void)state;
    char *path = temporary();
    struct err err = {""};
    struct capture *c = attention_capture();
    c->page_table[1] = 3; /* pages are 0 to 2 */
    assert_int_equal(capture_save(c, &small, path, &err), 0);
    assert_null(capture_load(path, &small, &err));
    assert_non_null(strstr(err.msg, "page_table"));
    c->page_table[1] = 0;
    assert_int_equal(capture_save(c, &small, path, &err), 0);
    assert_int_equal(truncate(path, 500), 0);
    assert_null(capture_load(path, &small, &err));
    assert_non_null(strstr(err.msg, "cut short"));
    assert_int_equal(truncate(path, 10), 0);
    assert_null(capture_load(path, &small, &err));
    unlink(path);
    assert_null(capture_load(path, &small, &err));
    assert_non_null(strstr(err.msg, path));
    capture_free(c);
    free(c);
    free(path);
}

static void probe_request_survives_its_file_and_names_a_bad_field(void **state)
{
    (void)state;
    char *path = temporary();
    struct err err = {""};
    struct probe_request q = {.model = "/m.gguf",
                              .ranks = 3,
                              .object = "/o.so",
                              .name = "a \"name\"",
                              .shape = {.scaling = {ROPE_YARN, 4, 1, 32, 128, 1.25F, true}},
                              .region = REGION_ATTN,
                              .m_from = 3,
                              .m_to = 4,
                              .context = 512,
                              .threads = 2,
                              .numerics = NUMERICS_REDUCED,
                              .precision = PRECISION_BF16,
                              .depth = PROBE_END,
                              .seed = 12345,
                              .capture = {"/c0", "/c1"},
                              .captures = 2};
    struct probe_request r;
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&r, path, &err), 0);
    assert_int_equal(r.ranks, 3);
    assert_int_equal(r.shape.scaling.type, ROPE_YARN);
    assert_int_equal(r.shape.scaling.original_context, 128);
    assert_true(r.shape.scaling.attention_factor == 1.25F && r.shape.scaling.whole_ramp);
    assert_string_equal(r.name, q.name);
    assert_string_equal(r.capture[1], "/c1");
    assert_int_equal(r.region, REGION_ATTN);
    assert_int_equal(r.m_from, 3);
    assert_int_equal(r.context, 512);
    assert_int_equal(r.numerics, NUMERICS_REDUCED);
    assert_int_equal(r.precision, PRECISION_BF16);
    assert_int_equal(r.depth, PROBE_END);
    assert_int_equal(r.seed, 12345);
    probe_request_free(&r);
    q.numerics = NUMERICS_FP8;
    q.precision = PRECISION_E4M3;
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&r, path, &err), 0);
    assert_int_equal(r.numerics, NUMERICS_FP8);
    assert_int_equal(r.precision, PRECISION_E4M3);
    probe_request_free(&r);
    q.m_from = 5; /* beyond m_to */
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&r, path, &err), -1);
    assert_non_null(strstr(err.msg, "m_from"));
    FILE *f = fopen(path, "w");
    fputs("[1, 2", f);
    fclose(f);
    assert_int_equal(probe_request_read(&r, path, &err), -1);
    assert_non_null(strstr(err.msg, "not a JSON object"));
    unlink(path);
    free(path);
}

static void probe_answer_is_read_back_and_anything_else_is_no_answer(void **state)
{
    (void)state;
    struct probe_answer a = {.verdict = PROBE_REFUSE,
                             .stage = "check",
                             .reason = "row 1: \"x\"",
                             .sealed = true,
                             .kl = 1e-9,
                             .top1 = 1},
                        b;
    a.evidence.own_max = 1.25e-7;
    a.evidence.probe_cases = 17;
    a.evidence.bit_equal = true;
    a.evidence.refusal = (struct refusal){CAUSE_ERROR, STAGE_PROBE, 3.5, "m=3 \"outlier\""};
    char *text = probe_answer_text(&a);
    assert_null(strchr(text, '\n'));
    assert_int_equal(probe_answer_parse(&b, text), 0);
    assert_int_equal(b.verdict, PROBE_REFUSE);
    assert_string_equal(b.reason, a.reason);
    assert_float_equal(b.evidence.own_max, 1.25e-7, 0);
    assert_int_equal(b.evidence.probe_cases, 17);
    assert_true(b.evidence.bit_equal && b.sealed);
    assert_memory_equal(&b.evidence.refusal, &a.evidence.refusal, sizeof a.evidence.refusal);
    char *kl = strstr(text, "\"kl\":");
    assert_non_null(kl);
    char *huge = xasprintf("%.*s\"kl\":1e999%s", (int)(kl - text), text, strchr(kl, ','));
    assert_int_equal(probe_answer_parse(&b, huge), -1); /* JSON has it, a double has not */
    free(huge);
    free(text);
    assert_int_equal(probe_answer_parse(&b, ""), -1);
    assert_int_equal(probe_answer_parse(&b, "{\"verdict\":\"pass\"}"), -1);
    assert_int_equal(probe_answer_parse(&b, "{\"verdict\":\"maybe\"}"), -1);
}

/* What is to serve with a team is tried with it. */
static void probe_has_the_largest_team_that_serves(void **state)
{
    (void)state;
    static const struct {
        const char *section, *name;
        double most;
    } integers[] = {
#define SECTION(section, help)
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, lo, hi, help) {#section, #name, (double)(hi)},
#define OPT_NUM(section, name, def, lo, hi, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help)
#include "config/options.def"
    };
    int found = 0;
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (strcmp(integers[i].section, "engine") == 0 &&
            strcmp(integers[i].name, "threads") == 0) {
            found++;
            assert_int_equal(RUNNER_TEAM_MAX, (int)integers[i].most);
        }
    assert_int_equal(found, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(probe_has_the_largest_team_that_serves),
        cmocka_unit_test(plan_covers_edges_fills_and_captures_within_the_range),
        cmocka_unit_test(plan_of_attn_in_has_a_prompt),
        cmocka_unit_test(plan_of_attention_has_contexts_around_a_page_border),
        cmocka_unit_test(plan_puts_what_was_warned_about_first_and_drops_nothing),
        cmocka_unit_test(capture_file_returns_what_was_saved),
        cmocka_unit_test(capture_file_with_bad_indices_or_cut_short_is_refused),
        cmocka_unit_test(capture_file_with_spans_that_leave_the_step_or_their_pages_is_refused),
        cmocka_unit_test(capture_file_with_a_bad_head_is_refused),
        cmocka_unit_test(capture_file_without_what_its_region_reads_is_refused),
        cmocka_unit_test(capture_file_with_rows_outside_its_pages_is_refused),
        cmocka_unit_test(probe_request_survives_its_file_and_names_a_bad_field),
        cmocka_unit_test(probe_answer_is_read_back_and_anything_else_is_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
