/* SPDX-License-Identifier: Apache-2.0 */
/* The host's half of the probe of a device: which cases are asked for, on which part of the model,
 * and what becomes of the answers. The device is a fake that computes nothing and is told what to
 * answer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "specializer/admission/check_device.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe_request.h"

static const struct model_shape shape = {.arch = ARCH_QWEN3,
                                         .layers = 5,
                                         .hidden = 64,
                                         .heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = 64,
                                         .ffn = 96,
                                         .vocab = 512,
                                         .max_context = 4096,
                                         .eps = 1e-6f,
                                         .rope_base = 1e6f,
                                         .tied_head = true};

/* ---- the fake ------------------------------------------------------------------------------ */

static struct {
    int opens, closes, runs, drawn, captured;
    int32_t layers, vocab, rows_wq, rows_wo, positions, layer_of_capture;
    int slices;
    bool strayed;                /* memory of nobody was written to */
    bool sound;                  /* as the probe was closed */
    int bad_run;                 /* which run is wrong, from 1; 0: none */
    enum device_verdict verdict; /* of that run */
    float eager_by;              /* how far eager is off in all runs */
    float by;                    /* or how far its outputs are off */
    bool skip_value;             /* or one value that was not written */
} fake;

static struct device_probe *fake_open(struct device_session *session,
                                      const struct device_probe_options *o,
                                      enum device_verdict *verdict, struct err *err)
{
    (void)session;
    (void)err;
    fake.opens++;
    fake.layers = o->model->shape.layers;
    fake.vocab = o->model->shape.vocab;
    fake.rows_wq = o->model->layer[0].wq.rows;
    fake.rows_wo = o->model->layer[0].wo.rows;
    fake.positions = o->positions;
    *verdict = DEVICE_OK;
    return (struct device_probe *)&fake;
}

static enum device_verdict fake_case(const struct device_case *c, struct device_outcome *out,
                                     struct err *err)
{
    bool bad = ++fake.runs == fake.bad_run;
    fake.drawn += c->random_params;
    fake.captured += c->capture != NULL;
    if (c->capture)
        fake.layer_of_capture = c->shape.layer;
    memset(out, 0, sizeof *out);
    if (bad && fake.verdict != DEVICE_OK) {
        err_set(err, "planted");
        return fake.verdict;
    }
    out->outputs = 1;
    out->contents = c->capture ? 1 : 2;
    out->output[0].rows = c->shape.m;
    out->output[0].cols = shape.hidden;
    size_t n = (size_t)c->shape.m * (size_t)shape.hidden;
    for (int k = 0; k < out->contents; k++) {
        float *own = out->output[0].own[k] = malloc(n * 4);
        float *eager = out->output[0].eager[k] = malloc(n * 4);
        double *truth = out->output[0].truth[k] = malloc(n * 8);
        bool exact = c->fill == FILL_BITS;
        for (size_t i = 0; i < n; i++) {
            truth[i] = (double)(i % 7) - 3;
            eager[i] = (float)truth[i] + (exact ? 0 : (1e-3f + fake.eager_by) * (i % 2 ? 1 : -1));
            own[i] = (float)truth[i] + (bad ? fake.by : 0);
        }
        if (bad && fake.skip_value)
            memset(&own[n - 1], 0xff, 4);
    }
    return DEVICE_OK;
}

/* Four cases fit a slice. */
static enum device_verdict fake_run(struct device_probe *p, const struct device_case *c, int n,
                                    struct device_outcome *out, int *done, int *failed,
                                    struct err *err)
{
    (void)p;
    enum device_verdict v = DEVICE_OK;
    fake.slices++;
    memset(out, 0, (size_t)n * sizeof *out);
    for (*done = 0; *done < n && *done < 4; (*done)++)
        if ((v = fake_case(&c[*done], &out[*done], err)) != DEVICE_OK)
            break;
    *failed = *done;
    return v;
}

static enum device_verdict fake_finish(struct device_probe *p, struct err *err)
{
    (void)p;
    if (fake.strayed)
        err_set(err, "wrote far outside");
    return fake.strayed ? DEVICE_FAULT : DEVICE_OK;
}

static void fake_close(struct device_probe *p, bool sound)
{
    (void)p;
    fake.closes++;
    fake.sound = sound;
}

static const struct device_probe_ops fake_ops = {NULL, fake_open, fake_run, fake_finish,
                                                 fake_close};
static struct drawn_model drawn;

/* ---- asking -------------------------------------------------------------------------------- */

static bool spent; /* what the last check_device() said of its process */

static int ask(const struct model *model, const struct capture *captured, struct check_result *r,
               struct err *err)
{
    struct check_device_request q = {.check = {.model = model,
                                               .object = "k.cubin",
                                               .range = {REGION_ATTN_OUT, 3, 4, 0},
                                               .full = true,
                                               .rule = {.factor = 2},
                                               .captured = &captured,
                                               .captures = captured ? 1 : 0,
                                               .seed = 7},
                                     .shape = shape,
                                     .device = &fake_ops,
                                     .drawn = &drawn};
    return check_device(&q, r, &spent, err);
}

static int reset(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof fake);
    return 0;
}

static void a_kernel_nearer_to_the_truth_than_eager_passes_all_cases(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    int rc = ask(model, NULL, &r, &err);
    if (rc != 0)
        fail_msg("%s", err.msg);
    assert_true(r.cases >= 10);
    assert_int_equal(r.cases, fake.runs);
    assert_true(fake.drawn > 0 && fake.drawn < fake.runs); /* drawn weights and the model's own */
    assert_true(r.comparison.eager_rms > 0 && r.comparison.own_rms < r.comparison.eager_rms);
    assert_int_equal(fake.closes, 1);
    model_close(model);
}

static void the_device_gets_no_more_of_the_model_than_the_region_reads(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    assert_int_equal(ask(model, NULL, &r, &err), 0);
    assert_in_range(fake.layers, 1, 3);
    assert_int_equal(fake.vocab, 64);
    assert_int_equal(fake.rows_wq, 0);
    assert_int_equal(fake.rows_wo, shape.hidden);
    assert_int_equal(model->layer[0].wq.rows,
                     shape.heads * shape.head_dim); /* the model is whole */
    model_close(model);
}

static void a_captured_case_runs_in_the_layer_it_came_from(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct capture c = {.region = REGION_ATTN_OUT, .layer = 4, .m = 4, .spans = 4, .context = 9};
    c.x = calloc(4 * 64, 4);
    c.in = calloc(4 * 256, 4);
    struct check_result r;
    struct err err = {""};
    assert_int_equal(ask(model, &c, &r, &err), 0);
    assert_int_equal(fake.captured, 1);
    assert_int_equal(fake.layer_of_capture, 0); /* the first that was cut out: layer 4 */
    free(c.x);
    free(c.in);
    model_close(model);
}

static void without_a_model_file_weights_are_drawn_in_its_shape(void **state)
{
    (void)state;
    struct check_result r;
    struct err err = {""};
    assert_int_equal(ask(NULL, NULL, &r, &err), 0);
    assert_int_equal(fake.layers, 1);
    assert_true(r.cases > 0);
}

static void an_error_of_twice_eagers_and_more_is_refused_with_its_case(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    fake.bad_run = 3;
    fake.by = 0.01f;
    assert_int_equal(ask(model, NULL, &r, &err), -1);
    assert_non_null(strstr(err.msg, "m="));
    assert_non_null(strstr(err.msg, "eager"));
    assert_int_equal(fake.slices, 1); /* nothing runs after the slice of a refusal */
    assert_false(spent);              /* wrong numbers hurt nobody: the process goes on */
    assert_true(fake.sound);
    model_close(model);
}

static void a_value_that_was_not_written_is_refused(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    fake.bad_run = 2;
    fake.skip_value = true;
    assert_int_equal(ask(model, NULL, &r, &err), -1);
    assert_non_null(strstr(err.msg, "not written"));
    model_close(model);
}

static void a_fault_is_the_kernels_and_an_error_is_nobodys(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    fake.bad_run = 1;
    fake.verdict = DEVICE_FAULT;
    assert_int_equal(ask(model, NULL, &r, &err), -1);
    assert_non_null(strstr(err.msg, "planted"));
    assert_true(spent && !fake.sound);
    reset(NULL);
    fake.bad_run = 1;
    fake.verdict = DEVICE_ERROR;
    assert_int_equal(ask(model, NULL, &r, &err), 1);
    assert_true(spent && !fake.sound);
    model_close(model);
}

static void a_fault_in_the_middle_of_a_turn_is_told_with_its_own_case(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r, all;
    struct err err = {""};
    assert_int_equal(ask(model, NULL, &all, &err), 0);
    assert_in_range(fake.slices, all.cases / 4, all.cases / 4 + 1);
    reset(NULL);
    fake.bad_run = 7; /* the third of the second slice */
    fake.verdict = DEVICE_FAULT;
    assert_int_equal(ask(model, NULL, &r, &err), -1);
    assert_int_equal(r.cases, 7);
    assert_non_null(strstr(err.msg, "m="));
    model_close(model);
}

static void a_kernel_that_wrote_where_nobody_looked_is_refused_at_the_end(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    fake.strayed = true;
    assert_int_equal(ask(model, NULL, &r, &err), -1);
    assert_non_null(strstr(err.msg, "far outside"));
    assert_true(spent && !fake.sound);
    model_close(model);
}

static void an_eager_kernel_far_from_the_oracle_condemns_the_process_not_the_kernel(void **state)
{
    (void)state;
    struct model *model = model_random(&shape, DTYPE_BF16, 1);
    struct check_result r;
    struct err err = {""};
    fake.eager_by = 0.5f;
    assert_int_equal(ask(model, NULL, &r, &err), 1);
    assert_non_null(strstr(err.msg, "eager"));
    assert_true(spent);
    model_close(model);
}

static void a_drawn_model_serves_the_next_request_of_its_region_too(void **state)
{
    (void)state;
    struct check_result r;
    struct err err = {""};
    assert_int_equal(ask(NULL, NULL, &r, &err), 0);
    const struct model *first = drawn.model;
    assert_int_equal(ask(NULL, NULL, &r, &err), 0);
    assert_ptr_equal(drawn.model, first);
    drawn.seed++; /* as if the next request had another */
    assert_int_equal(ask(NULL, NULL, &r, &err), 0);
    assert_int_equal(fake.vocab, 64);
}

/* ---- what goes there and back -------------------------------------------------------------- */

static void a_request_brings_machine_and_shape_to_the_probe(void **state)
{
    (void)state;
    struct err err = {""};
    char path[] = "/tmp/whet-request-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    struct probe_request q = {.ranks = 1,
                              .machine = MACHINE_CUDA,
                              .shape = shape,
                              .model = "random:x",
                              .object = "k.cubin",
                              .name = "k",
                              .region = REGION_HEAD,
                              .m_from = 1,
                              .m_to = 4,
                              .precision = PRECISION_E4M3,
                              .threads = 1},
                         back;
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&back, path, &err), 0);
    assert_int_equal(back.machine, MACHINE_CUDA);
    assert_int_equal(back.precision, PRECISION_E4M3);
    assert_int_equal(back.shape.arch, ARCH_QWEN3);
    assert_int_equal(back.shape.vocab, shape.vocab);
    assert_true(back.shape.tied_head && !back.shape.rope_interleaved);
    assert_float_equal(back.shape.rope_base, shape.rope_base, 0);
    assert_float_equal(back.shape.eps, shape.eps, 1e-12);
    probe_request_free(&back);
    q.shape.arch = ARCH_COUNT;
    assert_int_equal(probe_request_write(&q, path, &err), 0);
    assert_int_equal(probe_request_read(&back, path, &err), -1);
    unlink(path);
}

static void logits_that_drift_are_told_from_ties(void **state)
{
    (void)state;
    enum { TOKENS = 4, VOCAB = 50 };
    static float eager[TOKENS * VOCAB], own[TOKENS * VOCAB];
    struct end_result r;
    struct err err = {""};
    for (int i = 0; i < TOKENS * VOCAB; i++)
        own[i] = eager[i] = (float)(i * 37 % VOCAB) / 10;
    end_compare(eager, own, TOKENS, VOCAB, 0, &r);
    assert_true(r.bit_equal && r.top1 == 1 && r.changed == 0 && r.kl < 1e-12);
    for (int i = 0; i < TOKENS * VOCAB; i++)
        own[i] += i % 2 ? 0.02f : -0.02f; /* noise: may only change what is nearly a tie */
    end_compare(eager, own, TOKENS, VOCAB, 0, &r);
    assert_true(!r.bit_equal && r.changed == 0);
    assert_int_equal(end_verdict(NUMERICS_TOLERANCE, PRECISION_F32, 2e-3, &r, &err), 0);
    for (int i = 0; i < VOCAB; i++)
        own[i] = -own[i];
    end_compare(eager, own, TOKENS, VOCAB, 0, &r);
    assert_int_equal(end_verdict(NUMERICS_TOLERANCE, PRECISION_F32, 2e-3, &r, &err), -1);
}

/* Activations in e4m3 may move the logits by 10 % of their spread, and change what was nearly a
 * tie.
 */
static void logits_of_e4m3_are_held_to_their_own_spread(void **state)
{
    (void)state;
    struct err err = {""};
    struct end_result r = {.tokens = 16, .top1 = 0.94, .kl = 0.044, .spread = 3};
    assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_E4M3, 2e-3, &r, &err), 0);
    assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_INT8, 2e-3, &r, &err), -1);
    assert_non_null(strstr(err.msg, "KL 0.044 nats, limit 2.0e-03"));
    r.kl = 0.046; /* (0.1 * 3)^2 / 2 is 0.045 */
    assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_E4M3, 2e-3, &r, &err), -1);
    assert_non_null(strstr(err.msg, "KL 0.046 nats, limit 4.5e-02"));
    r.kl = 0.001;
    r.changed = 1;
    assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_E4M3, 2e-3, &r, &err), -1);
    assert_non_null(strstr(err.msg, "in 1 of 16 tokens is another, and was no tie"));

    float eager[4] = {1, 5, 1, 5}, own[4] = {1, 5, 1, 5};
    end_compare(eager, own, 1, 4, 0, &r);
    assert_float_equal(r.spread, 2, 1e-9);
}

/* What keeps a float's precision is admitted by the rule of `tolerance` at every level: of a few
 * tokens one tie would be more than a percent. Lower ones are held to their share. */
static void a_tie_refuses_only_what_declares_less_than_a_float(void **state)
{
    (void)state;
    static const enum numerics levels[] = {NUMERICS_TOLERANCE, NUMERICS_REDUCED, NUMERICS_FP8};
    struct err err = {""};
    struct end_result r = {.tokens = 16, .top1 = 0.9375, .kl = 1e-4, .spread = 3};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        assert_int_equal(end_verdict(levels[i], PRECISION_F32, 2e-3, &r, &err), 0);
    assert_int_equal(end_verdict(NUMERICS_REDUCED, PRECISION_INT8, 2e-3, &r, &err), -1);
    assert_int_equal(end_verdict(NUMERICS_FP8, PRECISION_BF16, 2e-3, &r, &err), -1);
    assert_non_null(strstr(err.msg, "6.2 % of 16 tokens"));
    r.changed = 1;
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        assert_int_equal(end_verdict(levels[i], PRECISION_F32, 2e-3, &r, &err), -1);
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_kernel_nearer_to_the_truth_than_eager_passes_all_cases),
        TEST(the_device_gets_no_more_of_the_model_than_the_region_reads),
        TEST(a_captured_case_runs_in_the_layer_it_came_from),
        TEST(without_a_model_file_weights_are_drawn_in_its_shape),
        TEST(an_error_of_twice_eagers_and_more_is_refused_with_its_case),
        TEST(a_value_that_was_not_written_is_refused),
        TEST(a_fault_is_the_kernels_and_an_error_is_nobodys),
        TEST(a_fault_in_the_middle_of_a_turn_is_told_with_its_own_case),
        TEST(a_kernel_that_wrote_where_nobody_looked_is_refused_at_the_end),
        TEST(an_eager_kernel_far_from_the_oracle_condemns_the_process_not_the_kernel),
        TEST(a_drawn_model_serves_the_next_request_of_its_region_too),
        TEST(a_request_brings_machine_and_shape_to_the_probe),
        TEST(logits_that_drift_are_told_from_ties),
        TEST(logits_of_e4m3_are_held_to_their_own_spread),
        TEST(a_tie_refuses_only_what_declares_less_than_a_float),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
