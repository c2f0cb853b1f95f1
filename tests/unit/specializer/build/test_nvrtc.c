/* SPDX-License-Identifier: Apache-2.0 */
/* test_nvrtc.c - NVRTC as a background worker, for real: it needs neither GPU nor driver. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/build/build.h"
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/cubin.h"
#include "specializer/build/sources.h"
#include "specializer/search/space.h"

struct shop {
    char dir[40], kernels[60];
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct candidate c;
};

static const char *program(void)
{
    const char *p = getenv("WHET_BINARY");
    assert_non_null(p);
    return p;
}

static int shop_open(void **state)
{
    struct shop *s = calloc(1, sizeof *s);
    char *argv[] = {"test"};
    struct err err = {""};
    strcpy(s->dir, "/tmp/whet-nvrtc-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->kernels, sizeof s->kernels, "%s/kernels", s->dir);
    assert_int_equal(config_parse(&s->config, 1, argv, &err), 0);
    if (nvrtc_find(&s->config, program(), "sm_90a", &s->compiler, &err) != 0)
        fail_msg("%s", err.msg);
    assert_int_equal(kernel_sources_write(s->kernels, &err), 0);
    s->env = (struct stage_env){.config = &s->config,
                                .compiler = &s->compiler,
                                .program = program(),
                                .kernel_dir = s->kernels,
                                .alone = true};
    s->c.object = malloc(80);
    s->c.source = malloc(120);
    sprintf(s->c.object, "%s/k.cubin", s->dir);
    *state = s;
    return 0;
}

static int shop_close(void **state)
{
    struct shop *s = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", s->dir);
    int rc = system(command);
    config_free(&s->config);
    free(s->c.object);
    free(s->c.source);
    free(s->c.log);
    free(s);
    return rc;
}

static enum stage_result build(struct shop *s)
{
    struct err err = {""};
    struct build *b = build_start(&s->env, &s->c, &err);
    assert_non_null(b);
    enum stage_result r;
    while ((r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    return r;
}

static enum stage_result build_text(struct shop *s, const char *text)
{
    sprintf(s->c.source, "%s/k.cu", s->dir);
    FILE *f = fopen(s->c.source, "w");
    fputs(text, f);
    fclose(f);
    return build(s);
}

#define INFO                                                                                      \
    "#include \"cuda.h\"\n"                                                                       \
    "extern \"C\" __device__ const struct cuda_kernel_info whet_info = {WHET_CUDA_ABI, 5, 1, 0, " \
    "1, 0, 0, 0, \"\", {{{1, 1, 1}, 256, 0, 1, 0, 0}}};\n"

static void a_template_becomes_a_cubin_that_says_what_it_is(void **state)
{
    struct shop *s = *state;
    struct cubin_facts f;
    struct err err = {""};
    const struct template *t = template_find("gemv_mlp_out");
    char *define[KNOBS_MAX + 4] = {"-DREGION=5", "-DHIDDEN=1024", "-DFFN=2048"}, sum[17];
    for (int k = 0; k < t->knobs; k++)
        define[3 + k] = xasprintf("-D%s=%d", t->knob[k].name, t->knob[k].fallback);
    s->c.define = define;
    sprintf(s->c.source, "%s/cuda/gemv.cu", s->kernels);
    if (build(s) != STAGE_PASS)
        fail_msg("%s\n%s", s->c.reason, s->c.log ? s->c.log : "");
    assert_int_equal(cubin_inspect(s->c.object, &f, &err), 0);
    assert_int_equal(f.info.region, REGION_MLP_OUT);
    assert_int_equal(f.info.m_max, 1);
    assert_int_equal(f.stack, 0);
    assert_in_range(f.registers, 16, 255);
    assert_int_equal(object_checksum(s->c.object, sum), 0);
    assert_string_equal(sum, s->c.object_sum);
    assert_non_null(strstr(s->c.log, "registers"));
    assert_true(s->c.evidence.build_s > 0);
    for (int k = 0; k < t->knobs; k++)
        free(define[3 + k]);
}

static void a_kernel_that_keeps_memory_on_the_stack_is_refused(void **state)
{
    struct shop *s = *state;
    assert_int_equal(build_text(s, INFO
                                "extern \"C\" __global__ void whet_kernel(struct "
                                "cuda_out_args a) {\n volatile float v[64];\n"
                                " for (int i = 0; i < 64; i++) v[(int)a.x[i] & 63] = a.in[i];\n"
                                " a.y[threadIdx.x] = v[(int)a.x[64] & 63]; }\n"),
                     STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "local memory"));
    assert_int_not_equal(access(s->c.object, F_OK), 0);
}

static void what_does_not_compile_is_refused_in_the_words_of_the_compiler(void **state)
{
    struct shop *s = *state;
    assert_int_equal(build_text(s, INFO "extern \"C\" __global__ void whet_kernel() { nonsense; }"),
                     STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "nonsense"));
    assert_non_null(strstr(s->c.log, "error"));
}

static void a_cubin_without_facts_or_function_is_refused(void **state)
{
    struct shop *s = *state;
    assert_int_equal(
        build_text(s, "extern \"C\" __global__ void whet_kernel(float *y) { *y = 1; }"),
        STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "whet_info"));
    assert_int_equal(build_text(s, INFO "extern \"C\" __global__ void other(float *y) { *y = 1; }"),
                     STAGE_REFUSE);
    assert_non_null(strstr(s->c.reason, "whet_kernel"));
}

static void a_compiler_that_takes_too_long_is_ended(void **state)
{
    struct shop *s = *state;
    s->config.specializer_build_timeout = 0.2; /* of CPU, in whole seconds: one */
    enum stage_result r =
        build_text(s, "template <int N> struct f { static const long v = f<N-1>::v + f<N-2>::v; };"
                      "template <> struct f<0> { static const long v = 0; };"
                      "template <> struct f<1> { static const long v = 1; };"
                      "constexpr long g(int n) { long s = 0; for (int i = 0; i < n; i++) "
                      "for (int k = 0; k < n; k++) s += i ^ k; return s; }"
                      "__device__ constexpr long v = g(100000);");
    assert_int_not_equal(r, STAGE_PASS);
    assert_int_not_equal(access(s->c.object, F_OK), 0);
}

static void a_library_that_is_none_or_cannot_do_the_target_is_not_taken(void **state)
{
    struct shop *s = *state;
    struct compiler found = {0};
    struct err err = {""};
    assert_int_equal(nvrtc_find(&s->config, program(), "sm_17", &found, &err), -1);
    assert_non_null(strstr(err.msg, "sm_17"));
    free(s->config.specializer_compiler);
    s->config.specializer_compiler = strdup("/nowhere/libnvrtc.so");
    assert_int_equal(nvrtc_find(&s->config, program(), "sm_90a", &found, &err), -1);
    assert_non_null(strstr(err.msg, "/nowhere"));
    assert_string_equal(found.arch, "-arch=sm_90a"); /* keys are made with it even so */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, shop_open, shop_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_template_becomes_a_cubin_that_says_what_it_is),
        TEST(a_kernel_that_keeps_memory_on_the_stack_is_refused),
        TEST(what_does_not_compile_is_refused_in_the_words_of_the_compiler),
        TEST(a_cubin_without_facts_or_function_is_refused),
        TEST(a_compiler_that_takes_too_long_is_ended),
        TEST(a_library_that_is_none_or_cannot_do_the_target_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
