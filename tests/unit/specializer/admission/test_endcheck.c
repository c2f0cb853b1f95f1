/* SPDX-License-Identifier: Apache-2.0 */
/* The whole model with a candidate in its place: what becomes of a child however it
 * ends, which steps it is given, and what is kept of eager's run. Kernels are one object that does
 * as it is told. How logits are compared is in test_end_compare.c. */
#include "tests/unit/unit.h"

#include <dirent.h>
#include <sys/time.h>

#include "config/clock.h"
#include "specializer/admission/endcheck.c"
#include "tests/unit/specializer/shapes.h"

static struct model *model;

/* ---- steps ----------------------------------------------------------------------------------- */

static void steps_are_as_wide_as_the_slot_and_the_prompts_allow(void **state)
{
    (void)state;
    const struct {
        int32_t sequences, length, m;
        struct steps want;
    } row[] = {
        {2, 16, 1, {1, EAGER_NARROW < 16 ? EAGER_NARROW : 16, true}},
        {2, 6, 1, {1, EAGER_NARROW < 6 ? EAGER_NARROW : 6, true}},
        {2, 16, 2, {2, 1, false}},
        {2, 16, 3, {2, 1, false}},
        {2, 16, 8, {2, 4, false}},
        {2, 16, 32, {2, 16, false}},
        {2, 16, 512, {2, 16, false}},
        {8, 16, 6, {6, 1, false}},
        {8, 16, 8, {8, 1, false}},
        {8, 16, 17, {8, 2, false}},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct prompts p = {.sequences = row[i].sequences, .length = row[i].length};
        struct steps s = steps_of(&p, row[i].m);
        assert_int_equal(s.together, row[i].want.together);
        assert_int_equal(s.width, row[i].want.width);
        assert_int_equal(s.by_rows, row[i].want.by_rows);
    }
}

/* Large models have short prompts, down to what a first choice can be seen in. */
static void prompts_are_as_long_as_the_work_allows(void **state)
{
    (void)state;
    assert_int_equal(prompt_length(4.3e9 / 2 / 20), 16);
    assert_int_equal(prompt_length(4.3e9 / 2 / 15.9), 15);
    assert_int_equal(prompt_length(4.3e9 / 2 / 10), 10);
    assert_int_equal(prompt_length(4.3e9 / 2 / 6.5), 6);
    assert_int_equal(prompt_length(1e12), 6);
}

/* All products of all layers, and those of the head. */
static void a_tokens_work_is_that_of_the_whole_model(void **state)
{
    (void)state;
    const struct model_shape *s = &model->shape;
    double width = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim, hidden = s->hidden;
    double layer = hidden * (2 * width + 2 * kv + 3 * (double)s->ffn);
    double products = s->layers * layer + hidden * s->vocab, work = token_work(model);
    double attention = s->layers * 2 * width * LENGTH_MAX;
    assert_true(work >= products && work < 1.1 * (products + attention));
}

/* ---- a child --------------------------------------------------------------------------------- */

enum how { REPORTS, ENDS, ENDS_WELL, SAYS, SAYS_OUTSIDE, SAYS_KILLED, CRASHES, IS_KILLED, SPINS };

/* What is said of a child that does so, and with what kind of blame. */
static int await_child(enum how how, double limit_s, struct err *err)
{
    int end[2];
    char *why = mmap(NULL, WHY_MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *err = (struct err){""};
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, end), 0);
    pid_t pid = fork();
    if (pid == 0) {
        static const int status[] = {
            [ENDS] = 7, [SAYS] = 1, [SAYS_OUTSIDE] = OUTSIDE, [SAYS_KILLED] = KILLED};
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        if (how == SAYS || how == SAYS_OUTSIDE || how == SAYS_KILLED)
            snprintf(why, WHY_MOST, "so it is");
        if (how == REPORTS && write(end[1], "d", 1) == 1)
            pause();
        if (how == CRASHES)
            raise(SIGSEGV);
        if (how == IS_KILLED)
            raise(SIGKILL);
        for (int64_t until = clock_ns() + INT64_C(3000000000); how == SPINS && clock_ns() < until;)
            ;
        _exit(how < CRASHES ? status[how] : 0);
    }
    close(end[1]);
    int rc = await(pid, end[0], limit_s, why, err);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), -1); /* it is gone */
    close(end[0]);
    munmap(why, WHY_MOST);
    return rc;
}

static void a_child_that_reported_is_done(void **state)
{
    (void)state;
    struct err err;
    assert_int_equal(await_child(REPORTS, 10, &err), 0);
}

static void how_a_child_ends_says_who_is_at_fault(void **state)
{
    (void)state;
    const struct {
        enum how how;
        bool outside, killed;
        const char *why;
    } row[] = {{ENDS, false, false, "ended the process with status 7"},
               {ENDS_WELL, false, false, "ended the process with status 0"},
               {SAYS, false, false, "so it is"},
               {SAYS_OUTSIDE, true, false, "so it is"},
               {SAYS_KILLED, true, true, "so it is"},
               {CRASHES, false, false, "killed by SIGSEGV"},
               {IS_KILLED, true, true, "killed by SIGKILL"}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct err err;
        assert_int_equal(await_child(row[i].how, 10, &err), -1);
        assert_string_equal(err.msg, row[i].why);
        assert_int_equal(err.outside, row[i].outside);
        assert_int_equal(err.killed, row[i].killed);
    }
}

static void note_alarm(int signal)
{
    (void)signal;
}

/* Signals that come to this process meanwhile change nothing. */
static void a_child_that_does_not_end_is_ended(void **state)
{
    (void)state;
    struct err err;
    struct sigaction on = {.sa_handler = note_alarm}, before;
    const struct itimerval soon = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    assert_int_equal(await_child(SPINS, 0.05, &err), -1);
    assert_non_null(strstr(err.msg, "hang"));
    assert_false(err.outside || err.killed);
    sigaction(SIGALRM, &on, &before);
    setitimer(ITIMER_REAL, &soon, NULL);
    int rc = await_child(SPINS, 0.05, &err);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    assert_int_equal(rc, -1);
    assert_non_null(strstr(err.msg, "hang"));
}

/* ---- the whole of it --------------------------------------------------------------------------
 */

/* An honest kernel of mlp_out that does one thing more: what `how` says, set from outside. */
static const char source[] =
    "#include \"kernel.h\"\n"
    "__attribute__((visibility(\"default\"))) int how, how_many;\n"
    "static void run(const void *args, const struct team *t) {\n"
    "    const struct out_args *a = args;\n"
    "    good_out(a, t);\n"
    "    if (how == 'x') *(volatile int *)8 = 1;\n"
    "    if (how == 'd') a->y[0] *= 1 + 1e-3f;\n"
    "    if (how == 'w') for (int i = 0; i < a->w.rows; i++) a->y[i] = -a->y[i];\n"
    "    if (how == 's') for (int i = 0; i < a->w.rows; i++) a->y[i] *= 1 + how_many * 1e-4f;\n"
    "    if (how == 'n') a->y[3] = __builtin_nanf(\"\");\n"
    "    if (how == 'm' && a->m != how_many) a->y[0] = 1e9f;\n"
    "}\n"
    "static int64_t bytes(const struct weight *w) { return float_rows_bytes(w); }\n"
    "static void pack(const struct weight *w, void *p, int32_t from, int32_t to) {\n"
    "    pack_float_rows(w, p, from, to);\n"
    "}\n"
    "__attribute__((visibility(\"default\"))) struct cpu_kernel whet_kernel = {.abi = "
    "WHET_CPU_ABI,\n"
    "    .region = REGION_MLP_OUT, .m_max = 64, .run = run, .scratch_bytes = no_scratch};\n"
    "__attribute__((visibility(\"default\"))) struct cpu_kernel packs = {.layout = \"rows\",\n"
    "    .packed_bytes = bytes, .pack = pack};\n";

static char dir[] = "/tmp/whet-test-endcheck-XXXXXX";
static char object[80], references[80];
static struct cpu_kernel *kernel, *packs;
static int *how, *how_many;

static int make_kernel(void **state)
{
    (void)state;
    static const struct model_shape shape = {SMALL_MODEL};
    struct err err;
    const char *root = getenv("WHET_SOURCE_ROOT"), *cc = getenv("CC");
    assert_non_null(mkdtemp(dir));
    snprintf(object, sizeof object, "%s/kernel.so", dir);
    snprintf(references, sizeof references, "%s/kept", dir);
    root = root ? root : ".";
    char *file = xasprintf("%s/kernel.c", dir);
    char *command = xasprintf("%s -O1 -std=gnu11 -ffp-contract=off -shared -fPIC -I%s/kernels "
                              "-I%s/tests/kernels/bad -o %s %s",
                              cc ? cc : "cc", root, root, object, file);
    FILE *f = fopen(file, "w");
    fputs(source, f);
    fclose(f);
    assert_int_equal(system(command), 0);
    free(command);
    free(file);
    void *handle = dlopen(object, RTLD_NOW | RTLD_LOCAL); /* a child's is the same, as it is then */
    assert_non_null(handle);
    kernel = dlsym(handle, "whet_kernel");
    packs = dlsym(handle, "packs");
    how = dlsym(handle, "how");
    how_many = dlsym(handle, "how_many");
    model = model_random(&shape, DTYPE_F32, 1);
    return reference_cache_clear(references, &err);
}

static int remove_kernel(void **state)
{
    (void)state;
    char *command = xasprintf("rm -r %s", dir);
    model_close(model);
    int rc = system(command);
    free(command);
    return rc;
}

static int honest(void **state)
{
    (void)state;
    *how = 0;
    kernel->layout = NULL;
    kernel->packed_bytes = NULL;
    kernel->pack = NULL;
    return 0;
}

static struct err said;

static int check(int32_t m, enum numerics numerics, const char *kept_in, struct end_result *r)
{
    said = (struct err){""};
    return end_check(model, object, NULL, m, false, 0, numerics, kept_in, r, &said);
}

static void an_honest_kernel_passes_in_steps_of_any_size(void **state)
{
    (void)state;
    const int32_t m[] = {1, 2, 7, 64};
    for (int i = 0; i < 4; i++) {
        struct end_result r;
        bool narrow = m[i] <= EAGER_NARROW; /* eager's own bits are others in wide steps */
        enum numerics numerics = narrow ? NUMERICS_BIT_EQUAL : NUMERICS_TOLERANCE;
        assert_int_equal(check(m[i], numerics, NULL, &r), 0);
        assert_int_equal(r.tokens, 2 * 16); /* a model so small has the longest prompts */
        assert_true(r.bit_equal || !narrow);
        assert_true(r.spread > 0 && r.kl < 1e-6);
    }
}

/* Lower precisions take four times as many tokens: of a few, one would be all of one percent. */
static void lower_precision_is_judged_by_more_tokens(void **state)
{
    (void)state;
    struct end_result r;
    assert_int_equal(check(8, NUMERICS_REDUCED, NULL, &r), 0);
    assert_int_equal(r.tokens, 8 * 16);
}

static void a_kernel_is_given_as_many_tokens_as_its_slot_has(void **state)
{
    (void)state;
    const int32_t m[] = {1, 2, 8};
    *how = 'm';
    for (int i = 0; i < 3; i++) {
        struct end_result r;
        *how_many = m[i];
        assert_int_equal(check(m[i], NUMERICS_BIT_EQUAL, NULL, &r), 0);
        *how_many = m[i] + 1;
        assert_int_equal(check(m[i], NUMERICS_BIT_EQUAL, NULL, &r), -1);
    }
}

static void a_kernel_that_drifts_or_dies_is_refused(void **state)
{
    (void)state;
    struct end_result r;
    *how = 'd';
    assert_int_equal(check(2, NUMERICS_BIT_EQUAL, NULL, &r), -1);
    assert_non_null(strstr(said.msg, "end to end: logits differ from eager's by up to"));
    assert_true(r.max_error > 0 && r.kl < 1e-3);
    assert_int_equal(check(2, NUMERICS_REDUCED, NULL, &r), 0); /* where less is asked */
    for (int i = 0; i < 2; i++) {
        *how = "wn"[i];
        assert_int_equal(check(2, NUMERICS_TOLERANCE, NULL, &r), -1);
        assert_non_null(strstr(said.msg, "end to end: logits diverge from eager's"));
        assert_int_equal(check(1, NUMERICS_FP8, NULL, &r), -1);
    }
    *how = 'x';
    void (*before)(int) = signal(SIGSEGV, SIG_DFL); /* cmocka's would go on with the tests there */
    int rc = check(1, NUMERICS_FP8, NULL, &r);
    signal(SIGSEGV, before);
    assert_int_equal(rc, -1);
    assert_string_equal(said.msg, "end to end: killed by SIGSEGV");
    assert_false(said.outside);
}

/* What floats must not do, kernels of lower precision may: 1e-6 and 1e-3 nats. */
static void a_small_divergence_is_for_lower_precisions_alone(void **state)
{
    (void)state;
    struct end_result r;
    int rc = 0;
    *how = 's';
    for (*how_many = 1; rc == 0 && *how_many < 4096; *how_many *= 2)
        rc = check(2, NUMERICS_TOLERANCE, NULL, &r);
    assert_int_equal(rc, -1);
    assert_non_null(strstr(said.msg, "limit 1.0e-06"));
    assert_true(r.kl > 1e-6 && r.kl < 1e-4);
    *how_many /= 2;
    assert_int_equal(check(2, NUMERICS_REDUCED, NULL, &r), 0);
}

static void an_object_that_is_not_there_is_no_kernel(void **state)
{
    (void)state;
    struct err err = {""};
    struct end_result r;
    assert_int_equal(end_check(model, "/nowhere/kernel.so", NULL, 1, false, 0, NUMERICS_TOLERANCE,
                               NULL, &r, &err),
                     -1);
    assert_non_null(strstr(err.msg, "end to end: "));
}

/* What a language model wrote is held to its room for packed weights, others to what a machine has.
 */
static void packed_weights_of_a_text_have_a_bound(void **state)
{
    (void)state;
    struct end_result r;
    kernel->layout = packs->layout;
    kernel->packed_bytes = packs->packed_bytes;
    kernel->pack = packs->pack;
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, NULL, &r), 0);
    assert_int_equal(
        end_check(model, object, NULL, 1, true, 64, NUMERICS_BIT_EQUAL, NULL, &r, &said), -1);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

static int kept_files(void)
{
    int n = 0;
    DIR *d = opendir(references);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The prompts that are run, as end_check() has them. */
static struct prompts prompts_kept(float *logits)
{
    struct prompts p = {.sequences = 2, .length = 16, .references = references};
    p.bytes = (size_t)(2 * 16 * model->head.rows) * sizeof *logits;
    p.token = xcalloc(2 * 16, sizeof *p.token);
    p.eager = logits;
    assert_false(have_tokens(model, &p));
    return p;
}

static void eagers_run_is_kept_and_what_is_kept_is_what_is_compared_with(void **state)
{
    (void)state;
    struct end_result r;
    float *logits = xcalloc((size_t)(2 * 16 * model->head.rows), sizeof *logits);
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, references, &r), 0);
    assert_int_equal(kept_files(), 2);
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, references, &r), 0);
    struct prompts p = prompts_kept(logits);
    have_logits(model, &p);
    float was = logits[5];
    logits[5] += 1;
    reference_cache_write(references, p.key + 1, logits, p.bytes);
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, references, &r), -1);
    /* Cut short, it is no answer, and is computed again. */
    reference_cache_write(references, p.key + 1, logits, p.bytes - sizeof *logits);
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, references, &r), 0);
    have_logits(model, &p);
    assert_true(logits[5] == was);
    /* So are tokens. */
    reference_cache_write(references, p.key, p.token, token_bytes(&p) - 4);
    assert_true(have_tokens(model, &p));
    assert_int_equal(check(1, NUMERICS_BIT_EQUAL, references, &r), 0);
    free(p.token);
    free(logits);
}

/* Longer prompts, or more, are others. */
static void prompts_of_another_size_are_kept_apart(void **state)
{
    (void)state;
    struct end_result r;
    assert_int_equal(check(2, NUMERICS_BIT_EQUAL, references, &r), 0);
    int before = kept_files();
    assert_int_equal(check(2, NUMERICS_REDUCED, references, &r), 0);
    assert_int_equal(kept_files(), before + 2);
    /* So are those of another model. */
    static const struct model_shape narrow = {SMALL_MODEL};
    struct model_shape shape = narrow;
    shape.ffn = 64;
    struct model *mine = model;
    model = model_random(&shape, DTYPE_F32, 1);
    int rc = check(2, NUMERICS_BIT_EQUAL, references, &r);
    model_close(model);
    model = mine;
    assert_int_equal(rc, 0);
    assert_int_equal(kept_files(), before + 4);
}

/* Ids by a fixed rule, then what eager likes best. */
static void prompts_go_on_as_eager_chooses(void **state)
{
    (void)state;
    int32_t vocab = model->head.rows;
    float *logits = xcalloc((size_t)(2 * 16 * vocab), sizeof *logits);
    struct prompts p = {.sequences = 2, .length = 16, .eager = logits};
    p.token = xcalloc(2 * 16, sizeof *p.token);
    write_prompts(model, &p);
    for (int32_t s = 0; s < 2; s++)
        for (int32_t i = 0; i < 16; i++) {
            int32_t token = p.token[s * 16 + i], fixed = s * GIVEN + i + 1;
            assert_in_range(token, 0, vocab - 1);
            assert_int_equal(token, i < GIVEN
                                        ? (int32_t)(hash_mix((uint64_t)fixed) % (uint64_t)vocab)
                                        : best(logits + (s * 16 + i - 1) * vocab, vocab));
        }
    free(p.token);
    free(logits);
}

#define WHOLE(f) cmocka_unit_test_setup(f, honest)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_as_wide_as_the_slot_and_the_prompts_allow),
        cmocka_unit_test(prompts_are_as_long_as_the_work_allows),
        cmocka_unit_test(a_tokens_work_is_that_of_the_whole_model),
        cmocka_unit_test(a_child_that_reported_is_done),
        cmocka_unit_test(how_a_child_ends_says_who_is_at_fault),
        cmocka_unit_test(a_child_that_does_not_end_is_ended),
        WHOLE(an_honest_kernel_passes_in_steps_of_any_size),
        WHOLE(lower_precision_is_judged_by_more_tokens),
        WHOLE(a_kernel_is_given_as_many_tokens_as_its_slot_has),
        WHOLE(a_kernel_that_drifts_or_dies_is_refused),
        WHOLE(a_small_divergence_is_for_lower_precisions_alone),
        WHOLE(an_object_that_is_not_there_is_no_kernel),
        WHOLE(packed_weights_of_a_text_have_a_bound),
        WHOLE(eagers_run_is_kept_and_what_is_kept_is_what_is_compared_with),
        WHOLE(prompts_of_another_size_are_kept_apart),
        WHOLE(prompts_go_on_as_eager_chooses),
    };
    return cmocka_run_group_tests(tests, make_kernel, remove_kernel);
}
