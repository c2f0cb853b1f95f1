/* SPDX-License-Identifier: Apache-2.0 */
/* test_executor.c - kernels that a language model wrote run in a sealed process: they serve, they
 * reach nothing, and whatever they do instead, the step's answer is eager's.
 *
 * The program that runs them is this one, started as `test executor`.
 */
#include "tests/unit/unit.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/backend.h"
#include "engine/capture.h"
#include "engine/cpu/executor.h"
#include "engine/sandbox.h"
#include "tests/unit/engine/golden.h"

enum { PAGES = 24, TOKENS = 64, PROMPT = 37, TOPS = 20 };

static struct model *model;
static struct backend *cpu;
static struct dispatch *table;
static const struct format_class *formats; /* of the kernels that are loaded; NULL: all layers */
static char folder[64];

/* ---- a step --------------------------------------------------------------------------------- */

static const struct sampling tops = {SAMPLING_NEUTRAL, .top_logprobs = TOPS};

struct built {
    struct step step;
    int32_t tokens[TOKENS], position[TOKENS], kv_at[TOKENS], page_table[4], row;
    struct span span;
    struct sample_row sample;
};

/* Tokens [from, to) of one sequence, in pages that are not in order. */
static void run_step(struct built *b, int32_t from, int32_t to)
{
    static const int32_t pages[4] = {7, 0, 11, 3};
    struct err e = {""};
    memset(b, 0, sizeof *b);
    memcpy(b->page_table, pages, sizeof pages);
    for (int32_t p = from; p < to; p++) {
        int32_t i = b->step.m++;
        b->tokens[i] = (p * 7 + 3) % model->shape.vocab;
        b->position[i] = p;
        b->kv_at[i] = pages[p / KV_PAGE] * KV_PAGE + p % KV_PAGE;
    }
    b->span = (struct span){0, to - from, to, 0};
    b->row = b->step.m - 1;
    b->sample = (struct sample_row){.params = &tops, .target = -1};
    b->step.tokens = b->tokens;
    b->step.position = b->position;
    b->step.kv_at = b->kv_at;
    b->step.spans = b->step.rows = 1;
    b->step.span = &b->span;
    b->step.page_table = b->page_table;
    b->step.pages = 4;
    b->step.context = to;
    b->step.row = &b->row;
    b->step.sample = &b->sample;
    assert_int_equal(backend_cpu.step(cpu, &b->step, NULL, &e), 0);
}

/* A prompt and the token after it. */
static void run_both(struct built b[2])
{
    run_step(&b[0], 0, PROMPT);
    run_step(&b[1], PROMPT, PROMPT + 1);
}

static void assert_same(const struct built *got, const struct built *want)
{
    for (int i = 0; i < TOPS; i++) {
        assert_int_equal(got->sample.out.top_id[i], want->sample.out.top_id[i]);
        float d = got->sample.out.top_logprob[i] - want->sample.out.top_logprob[i];
        assert_true(fabsf(d) < 1e-4f);
    }
}

/* ---- the backend ---------------------------------------------------------------------------- */

static int open_backend(struct model *m, int64_t pack_bytes)
{
    struct err e = {"the model does not open"};
    const struct kernel *eager[REGION_COUNT];
    struct backend_options o = {.threads = 2,
                                .kv_pages = PAGES,
                                .max_tokens = TOKENS,
                                .max_rows = 8,
                                .pack_bytes = pack_bytes,
                                .texts = true};
    model = m;
    cpu = model ? backend_cpu.open(model, &o, &e) : NULL;
    if (!cpu) {
        printf("%s\n", e.msg);
        return -1;
    }
    for (int r = 0; r < REGION_COUNT; r++)
        eager[r] = backend_cpu.eager(cpu, (enum region)r);
    table = dispatch_open(eager, formats_open(model, MACHINE_CPU));
    backend_cpu.set_dispatch(cpu, table);
    return 0;
}

static void close_backend(void)
{
    dispatch_close(table);
    backend_cpu.close(cpu);
    model_close(model);
}

/* ---- kernels -------------------------------------------------------------------------------- */

static struct kernel *load(enum region r, const char *defines, struct err *e)
{
    static int n;
    static char path[128];
    const char *root = getenv("WHET_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/text-%d.so", folder, n++);
    char *command = xasprintf("cc -O1 -w -shared -fPIC -I%s -I%s/kernels -DTEXT_REGION=%d "
                              "-DTEXT_CODE=%d %s -o %s %s/tests/unit/engine/cpu/text_kernels.c",
                              root ? root : ".", root ? root : ".", (int)r, (int)r, defines, path,
                              root ? root : ".");
    assert_int_equal(system(command), 0);
    free(command);
    struct kernel_object o = {.path = path,
                              .region = r,
                              .origin = ORIGIN_AGENT,
                              .id = "0123456789abcdef",
                              .name = "a text",
                              .text = true,
                              .formats = formats};
    return backend_cpu.load(cpu, &o, e);
}

static struct kernel *must_load(enum region r, const char *defines)
{
    struct err e = {""};
    struct kernel *k = load(r, defines, &e);
    if (!k)
        fail_msg("%s", e.msg);
    return k;
}

/* In every slot of its region. */
static void publish(enum region r, const struct kernel *k)
{
    for (int i = 0; i < dispatch_slots(table); i++) {
        struct slot *s = dispatch_slot_at(table, i);
        if (s->region == r)
            dispatch_publish(table, s, k ? k : s->eager);
    }
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* ---- serving -------------------------------------------------------------------------------- */

static void texts_of_every_region_serve_from_their_executors(void **state)
{
    (void)state;
    struct built want[2], got[2];
    run_both(want);
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct kernel *k = must_load((enum region)r, "");
        publish((enum region)r, k);
        run_both(got);
        assert_null(backend_cpu.broken(cpu, k));
        publish((enum region)r, NULL);
        backend_cpu.unload(cpu, k);
        assert_same(&got[0], &want[0]);
        assert_same(&got[1], &want[1]);
    }
}

static void a_text_packs_weights_in_its_executor(void **state)
{
    (void)state;
    struct built want[2], got[2];
    run_both(want);
    struct kernel *k = must_load(REGION_MLP_OUT, "-DPACKS");
    publish(REGION_MLP_OUT, k);
    run_both(got);
    assert_null(backend_cpu.broken(cpu, k));
    publish(REGION_MLP_OUT, NULL);
    backend_cpu.unload(cpu, k);
    assert_same(&got[1], &want[1]);
}

/* In a model of two layers with ffn_down in two formats, and memory for the weights of one. */
static void a_text_is_for_the_layers_of_a_class(void **state)
{
    (void)state;
    struct model *first_model = model;
    struct backend *first_cpu = cpu;
    struct dispatch *first_table = table;
    struct built want[2], got[2];
    struct err e = {""};
    assert_int_equal(
        open_backend(model_open("random:tiny:f32+bf16", false, NULL, NULL, &e), 140 << 10), 0);
    run_both(want);
    assert_null(load(REGION_MLP_OUT, "-DPACKS", &e)); /* of all layers */
    assert_non_null(strstr(e.msg, "packed weights"));
    formats = dispatch_slot(table, REGION_MLP_OUT, 1, 1, 1)->formats;
    assert_string_equal(formats->name, "bf16");
    struct kernel *k = must_load(REGION_MLP_OUT, "-DPACKS");
    dispatch_publish(table, dispatch_slot(table, REGION_MLP_OUT, 1, PROMPT, PROMPT), k);
    dispatch_publish(table, dispatch_slot(table, REGION_MLP_OUT, 1, 1, PROMPT), k);
    run_both(got);
    assert_null(backend_cpu.broken(cpu, k));
    assert_same(&got[0], &want[0]);
    assert_same(&got[1], &want[1]);
    publish(REGION_MLP_OUT, NULL);
    backend_cpu.unload(cpu, k);
    close_backend();
    formats = NULL;
    model = first_model;
    cpu = first_cpu;
    table = first_table;
}

/* The template `name` as an object of this model, and loaded as if it were a text. */
static struct kernel *load_template(enum region r, const char *name)
{
    const struct model_shape *s = &model->shape;
    const char *root = getenv("WHET_SOURCE_ROOT");
    struct err e = {""};
    char *path = xasprintf("%s/%s.so", folder, name);
    char *command = xasprintf(
        "cc -O1 -w -shared -fPIC -ffp-contract=off -I%s/kernels -DLANES_APART -DISA=0 -DREGION=%d "
        "-DM_MAX=64 -DHIDDEN=%d -DHEADS=%d -DKV_HEADS=%d -DHEAD_DIM=%d -DWTYPE=%d -DWTYPE_2=%d "
        "-DWTYPE_3=%d -DROPE_INTERLEAVED=%d -DHAS_BIAS=%d -DHAS_QK_NORM=%d -DKV_BF16=1 -DSHARE=0 "
        "-DSPLITS=1 -DFLIGHT=1 "
        "-DCHUNK=1024 -DPREFETCH=0 -DDEAL=0 -DPACK=0 -DDIGITS=0 -DROWS=1 -DTOKENS=1 -DSPLIT=0 "
        "-DPREP=0 -DPARTS=1 -o %s %s/kernels/cpu/%s.c -lm",
        root, (int)r, s->hidden, s->heads, s->kv_heads, s->head_dim, model->layer[0].wq.type,
        model->layer[0].wk.type, model->layer[0].wv.type, s->rope_interleaved,
        model->layer[0].bq != NULL, model->layer[0].q_norm != NULL, path, root, name);
    assert_int_equal(system(command), 0);
    struct kernel_object o = {.path = path,
                              .region = r,
                              .origin = ORIGIN_AGENT,
                              .id = "0123456789abcdef",
                              .name = "a text",
                              .text = true};
    struct kernel *k = backend_cpu.load(cpu, &o, &e);
    if (!k)
        fail_msg("%s", e.msg);
    free(command);
    free(path);
    return k;
}

/* What an executor has of keys and values is of the type that the server has. Bits are not eager's,
 * as products and sums are rounded apart, so now and then a key is rounded to its neighbour. */
static void texts_serve_where_the_cache_has_bf16(void **state)
{
    (void)state;
    struct model *first_model = model;
    struct backend *first_cpu = cpu;
    struct dispatch *first_table = table;
    struct built want[2], got[2];
    struct err e = {""};
    struct model *m = model_open("random:tiny", false, NULL, NULL, &e);
    m->shape.kv_bf16 = true;
    assert_int_equal(open_backend(m, 1 << 20), 0);
    run_both(want);
    for (int r = REGION_ATTN_IN; r <= REGION_ATTN; r++) {
        struct kernel *k = load_template((enum region)r, r == REGION_ATTN ? "attn" : "attn_in");
        publish((enum region)r, k);
        run_both(got);
        assert_null(backend_cpu.broken(cpu, k));
        publish((enum region)r, NULL);
        backend_cpu.unload(cpu, k);
        for (int i = 0; i < 2; i++)
            for (int t = 0; t < TOPS; t++)
                assert_true(fabsf(got[i].sample.out.top_logprob[t] -
                                  want[i].sample.out.top_logprob[t]) < 2e-2f);
    }
    close_backend();
    model = first_model;
    cpu = first_cpu;
    table = first_table;
}

static void wrong_texts_would_be_noticed_here(void **state)
{
    (void)state;
    struct built want[2], got[2];
    run_both(want);
    struct kernel *k = must_load(REGION_MLP_OUT, "-DEVIL='a->y[0] += 1000'");
    publish(REGION_MLP_OUT, k);
    run_both(got);
    publish(REGION_MLP_OUT, NULL);
    backend_cpu.unload(cpu, k);
    float d = got[0].sample.out.top_logprob[0] - want[0].sample.out.top_logprob[0];
    assert_true(fabsf(d) > 1e-4f || got[0].sample.out.top_id[0] != want[0].sample.out.top_id[0]);
}

static void hooks_and_benches_run_texts_too(void **state)
{
    (void)state;
    static const enum region regions[] = {REGION_ATTN_IN, REGION_ATTN, REGION_HEAD};
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++) {
        struct built b;
        struct err e = {""};
        struct capture c = {0};
        float a_ns[4], b_ns[4];
        enum region r = regions[i];
        int32_t m = r == REGION_HEAD ? 1 : PROMPT;
        struct kernel *k = must_load(r, "");
        struct slot *s = dispatch_slot(table, r, 0, m, PROMPT);
        struct hook compare = {.kind = HOOK_COMPARE, .every = 1, .left = 2, .slot = s, .kernel = k};
        assert_int_equal(backend_cpu.hook(cpu, &compare), 0);
        run_step(&b, 0, PROMPT);
        run_step(&b, 0, PROMPT);
        struct hook copy = {.kind = HOOK_CAPTURE, .every = 1, .left = 1, .slot = s, .capture = &c};
        assert_int_equal(backend_cpu.hook(cpu, &copy), 0);
        run_step(&b, 0, PROMPT);
        backend_cpu.hook(cpu, NULL);
        assert_int_equal(compare.comparisons, 2);
        assert_true(compare.worst_rms < 1e-5);
        struct bench_job job = {
            .slot = s, .a = s->eager, .b = k, .inputs = &c, .want = 4, .a_ns = a_ns, .b_ns = b_ns};
        int rc = 0;
        while (rc == 0)
            rc = backend_cpu.bench(cpu, &job, 1000000, &e);
        backend_cpu.bench_end(cpu, &job);
        assert_int_equal(rc, 1);
        assert_true(b_ns[3] > 0);
        assert_null(backend_cpu.broken(cpu, k));
        capture_free(&c);
        backend_cpu.unload(cpu, k);
    }
}

/* ---- reaching out --------------------------------------------------------------------------- */

/* No function of a text runs before its process is sealed, whichever it is. */
static void no_function_of_a_text_makes_a_system_call(void **state)
{
    (void)state;
    static const char *const where[] = {"EVIL_BYTES", "EVIL_PACK", "EVIL_SCRATCH"};
    char *file = xasprintf("%s/made-by-a-text", folder);
    for (int i = 0; i < 3; i++) {
        struct err e = {""};
        char *defines = xasprintf("-DPACKS -D%s='create(\"%s\")'", where[i], file);
        assert_null(load(REGION_MLP_OUT, defines, &e));
        assert_non_null(strstr(e.msg, "system call"));
        assert_false(exists(file));
        free(defines);
    }
    free(file);
}

static void break_in_a_step(const char *defines, const char *why)
{
    struct built want[2], got[2];
    run_both(want);
    struct kernel *k = must_load(REGION_MLP_OUT, defines);
    struct slot *s = dispatch_slot(table, REGION_MLP_OUT, 0, 1, 0);
    publish(REGION_MLP_OUT, k);
    run_both(got);
    const char *said = backend_cpu.broken(cpu, k);
    if (!said || !strstr(said, why))
        fail_msg("%s: broken: %s, wanted %s", defines, said ? said : "no", why);
    if (atomic_load(&s->kernel) != s->eager && got[1].step.m == 1)
        run_both(got); /* it broke in the prompt's slot: this one learns of it by itself */
    assert_same(&got[0], &want[0]);
    assert_same(&got[1], &want[1]);
    publish(REGION_MLP_OUT, NULL);
    backend_cpu.unload(cpu, k);
}

static void a_text_that_makes_a_system_call_is_redone_by_eager(void **state)
{
    (void)state;
    char *file = xasprintf("%s/made-by-a-text", folder);
    char *defines = xasprintf("-DAFTER=1 -DEVIL='create(\"%s\")'", file);
    break_in_a_step(defines, "system call open");
    assert_false(exists(file));
    free(defines);
    free(file);
}

static void a_text_that_crashes_is_redone_by_eager(void **state)
{
    (void)state;
    break_in_a_step("-DAFTER=1 -DEVIL='*(volatile int *)16 = 1'", "SIGSEGV writing");
    break_in_a_step("-DAFTER=2 -DEVIL='__builtin_trap()'", "SIG");
}

static void a_text_that_ends_its_process_is_redone_by_eager(void **state)
{
    (void)state;
#if defined(__x86_64__)
    break_in_a_step("-DAFTER=1 -DEVIL='system_call(231, 0, 0, 0)'", "ended the process");
#endif
}

static void a_text_that_hangs_is_redone_by_eager(void **state)
{
    (void)state;
    break_in_a_step("-DAFTER=1 -DEVIL='for (volatile int i = 0;; i++)'", "hang");
}

static void a_text_cannot_write_its_inputs_or_read_the_server(void **state)
{
    (void)state;
    static const char secret[] = "an API key";
    char *defines =
        xasprintf("-DEVIL='a->y[0] = *(const volatile char *)%pul'", (const void *)secret);
    break_in_a_step("-DEVIL='((float *)a->x)[0] = 0'", "SIGSEGV writing");
    break_in_a_step(defines, "SIGSEGV reading");
    free(defines);
}

static void attention_cannot_write_the_cache(void **state)
{
    (void)state;
    struct built want[2], got[2];
    run_both(want);
    struct kernel *k = must_load(
        REGION_ATTN, "-DEVIL='((float *)((const struct attn_args *)args)->k_pages)[0] = 1'");
    publish(REGION_ATTN, k);
    run_both(got);
    assert_non_null(strstr(backend_cpu.broken(cpu, k), "SIGSEGV writing"));
    assert_same(&got[1], &want[1]);
    publish(REGION_ATTN, NULL);
    backend_cpu.unload(cpu, k);
}

/* It says that it is done, and goes on writing: what was taken was taken, and then it hangs. The
 * control block lies one unit of 64 KiB before the outputs; `done` is its second line. */
static void a_text_that_raises_done_itself_changes_nothing_later(void **state)
{
    (void)state;
    break_in_a_step("-DAFTER=1 -DEVIL='"
                    "((volatile unsigned *)((char *)a->y - 65536))[16]++;"
                    "for (volatile float *y = a->y;;) y[0]++'",
                    "hang");
}

/* ---- ends ----------------------------------------------------------------------------------- */

/* A child of this process, or 0. */
static pid_t child(void)
{
    char path[300], text[64];
    struct dirent *e;
    pid_t found = 0;
    DIR *d = opendir("/proc");
    while (d && (e = readdir(d))) {
        int pid = atoi(e->d_name), parent = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        FILE *f = pid > 0 ? fopen(path, "r") : NULL;
        if (f && fgets(text, sizeof text, f) && strrchr(text, ')') &&
            sscanf(strrchr(text, ')') + 3, "%d", &parent) == 1 && parent == getpid())
            found = pid;
        if (f)
            fclose(f);
    }
    if (d)
        closedir(d);
    return found;
}

static void an_executor_that_is_killed_is_noticed(void **state)
{
    (void)state;
    struct built want[2], got[2];
    run_both(want);
    struct kernel *k = must_load(REGION_MLP_OUT, "");
    publish(REGION_MLP_OUT, k);
    run_both(got);
    assert_null(backend_cpu.broken(cpu, k));
    pid_t pid = child();
    assert_true(pid > 0);
    kill(pid, SIGKILL);
    run_both(got);
    assert_same(&got[1], &want[1]);
    assert_non_null(strstr(backend_cpu.broken(cpu, k), "SIGKILL"));
    publish(REGION_MLP_OUT, NULL);
    backend_cpu.unload(cpu, k);
    assert_int_equal(child(), 0);
}

static void a_text_that_is_not_said_to_be_one_is_not_loaded(void **state)
{
    (void)state;
    struct err e = {""};
    struct kernel_object o = {.path = "/tmp/x.so",
                              .region = REGION_MLP_OUT,
                              .origin = ORIGIN_AGENT,
                              .id = "0123456789abcdef",
                              .name = "a text"};
    assert_null(backend_cpu.load(cpu, &o, &e));
    assert_non_null(strstr(e.msg, "language model"));
}

static void texts_are_refused_where_nothing_can_be_sealed(void **state)
{
    (void)state;
    struct err e = {""};
    assert_null(load(REGION_MLP_OUT, "", &e));
    assert_non_null(strstr(e.msg, "cannot be sealed"));
}

/* ---- group ---------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    (void)state;
    struct err e = {""};
    snprintf(folder, sizeof folder, "/tmp/whet-test-executor-XXXXXX");
    char *path = golden_path("tiny-llama");
    struct model *m = model_open(path, false, NULL, NULL, &e);
    free(path);
    return open_backend(m, 1 << 20) || !mkdtemp(folder) ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    char command[96];
    close_backend();
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest sealed[] = {
        cmocka_unit_test(texts_of_every_region_serve_from_their_executors),
        cmocka_unit_test(a_text_packs_weights_in_its_executor),
        cmocka_unit_test(a_text_is_for_the_layers_of_a_class),
        cmocka_unit_test(texts_serve_where_the_cache_has_bf16),
        cmocka_unit_test(wrong_texts_would_be_noticed_here),
        cmocka_unit_test(hooks_and_benches_run_texts_too),
        cmocka_unit_test(no_function_of_a_text_makes_a_system_call),
        cmocka_unit_test(a_text_that_makes_a_system_call_is_redone_by_eager),
        cmocka_unit_test(a_text_that_crashes_is_redone_by_eager),
        cmocka_unit_test(a_text_that_ends_its_process_is_redone_by_eager),
        cmocka_unit_test(a_text_that_hangs_is_redone_by_eager),
        cmocka_unit_test(a_text_cannot_write_its_inputs_or_read_the_server),
        cmocka_unit_test(attention_cannot_write_the_cache),
        cmocka_unit_test(a_text_that_raises_done_itself_changes_nothing_later),
        cmocka_unit_test(an_executor_that_is_killed_is_noticed),
        cmocka_unit_test(a_text_that_is_not_said_to_be_one_is_not_loaded),
    };
    const struct CMUnitTest unsealed[] = {
        cmocka_unit_test(texts_are_refused_where_nothing_can_be_sealed),
        cmocka_unit_test(a_text_that_is_not_said_to_be_one_is_not_loaded),
    };
    if (argc > 1 && strcmp(argv[1], "executor") == 0)
        return executor_main(argc - 1, argv + 1);
    return sandbox_works(NULL) ? cmocka_run_group_tests(sealed, set_up, tear_down)
                               : cmocka_run_group_tests(unsealed, set_up, tear_down);
}
