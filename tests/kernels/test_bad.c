/* SPDX-License-Identifier: Apache-2.0 */
/* test_bad.c - planted bad kernels through the real build and probe, and good ones too.
 *
 *   test_bad [NAME]      runs all of tests/kernels/bad, or one
 *
 * Every row of the table is compiled by the build stage and, if that lets it through, run by the
 * probe stage in its own process, exactly as the specializer does it. Asserted are the stage that
 * must refuse it and a word of the reason, and that no good kernel is refused: a false alarm costs
 * as much as a miss. Prints what caught what.
 *
 * Rows that only a seccomp filter can catch are left out where there is none (sanitizers bring
 * their own system calls).
 *
 * A race needs luck to show, so those rows get three probes (the specializer would meet them again
 * in shadow, canary and watch).
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/clock.h"
#include "engine/sandbox.h"
#include "specializer/admission/probe.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/build/build.h"
#include "specializer/candidate/hash.h"

enum { M_INDEX = 4 }; /* the bucket of 5 and 6 tokens: odd and even */

#define OUT REGION_MLP_OUT
#define IN REGION_MLP_IN
#define QKV REGION_ATTN_IN
#define ATTN REGION_ATTN
#define REDUCE REGION_REDUCE

static const struct row {
    const char *name;
    enum region region;
    const char *stage; /* that must refuse it; NULL: it must pass */
    const char *word;
    int tries;
    bool text; /* as if a language model had written it */
} row[] = {
    {"good_mlp_out", OUT, NULL, "", 1},
    {"good_attn_out", REGION_ATTN_OUT, NULL, "", 1},
    {"good_mlp_in", IN, NULL, "", 1},
    {"good_attn_in", QKV, NULL, "", 1},
    {"good_attn", ATTN, NULL, "", 1},
    {"good_head", REGION_HEAD, NULL, "", 1},
    {"good_other_order", OUT, NULL, "", 1},
    {"good_packed", OUT, NULL, "", 1},
    {"slow", OUT, NULL, "", 1}, /* the bench's business: test_bench */
    {"good_reduce", REDUCE, NULL, "", 1},
    /* outputs */
    {"no_op", OUT, "probe", "not written", 1},
    {"constant", OUT, "probe", "error", 1},
    {"residual_only", REGION_ATTN_OUT, "probe", "error", 1},
    {"stale_output", OUT, "probe", "", 1},
    {"caches_by_pointer", OUT, "probe", "", 1},
    {"missing_tail_row", OUT, "probe", "not written", 1},
    {"partial_write_odd", OUT, "probe", "not written", 1},
    {"only_m1", OUT, "probe", "row 1", 1},
    {"team_of_two", OUT, "probe", "team of 1", 1},
    {"uneven_split", OUT, "probe", "team of 3", 1},
    {"wrong_layer_state", OUT, "probe", "", 1},
    {"not_repeatable", OUT, "probe", "other bits", 3},
    /* numbers */
    {"bf16_accumulate", OUT, "probe", "error", 1},
    {"short_mantissa", OUT, "probe", "error", 1},
    {"small_inputs_only", OUT, "probe", "outlier", 1},
    {"sniffs_the_range", OUT, "probe", "error", 1},
    {"nan_on_zero", OUT, "probe", "not finite", 1},
    {"ignores_gain", IN, "probe", "error", 1},
    {"wrong_eps", IN, "probe", "error", 1},
    {"rough_exp", IN, "probe", "error", 1},
    {"wrong_rope_position", QKV, "probe", "output q", 1},
    {"rounds_upwards", OUT, "probe", "floating-point control", 1},
    {"packs_rounding_upwards", REGION_HEAD, "probe", "floating-point control", 1},
    {"leaves_mmx", OUT, "probe", "x87", 1},
    {"copies_backwards", OUT, "probe", "direction flag", 1},
    /* attention */
    {"wrong_page", ATTN, "probe", "permuted", 1},
    {"ignores_last_page", ATTN, "probe", "error", 1},
    {"ignores_first_token", ATTN, "probe", "context", 1},
    {"not_causal", ATTN, "probe", "x1", 1},
    {"softmax_without_max", ATTN, "probe", "not finite", 1},
    {"writes_foreign_kv", QKV, "probe", "position that is not the step's", 1},
    /* memory */
    {"reads_past_end", OUT, "probe", "SIGSEGV reading", 1},
    {"writes_past_end", OUT, "probe", "SIGSEGV writing", 1},
    {"writes_before_start", OUT, "probe", "output", 1},
    {"overwrites_input", OUT, "probe", "input in", 1},
    {"overwrites_weights", OUT, "probe", "SIGSEGV writing", 1},
    {"scratch_overflow", IN, "probe", "outside its scratch", 1},
    {"scratch_not_zeroed", IN, "probe", "other bits", 1},
    {"pack_overflow", OUT, "probe", "pack of weight", 1},
    {"packs_for_gigabytes", OUT, "probe", "specializer.pack_mib allows 1024.0 MiB", 1, true},
    {"packs_for_more_than_there_is", OUT, "probe", "MiB are left", 1},
    /* threads */
    {"missing_barrier", IN, "probe", "", 3},
    {"static_buffer", IN, "probe", "", 3},
    {"lonely_barrier", IN, "probe", "hang", 1},
    /* ranks */
    {"reduce_no_wait", REDUCE, "probe", "in the order of ranks", 1},
    {"reduce_one_place", REDUCE, "probe", "in the order of ranks", 1},
    {"reduce_early_flag", REDUCE, "probe", "in the order of ranks", 3},
    {"reduce_residual_first", REDUCE, "probe", "in the order of ranks", 1},
    {"reduce_own_count", REDUCE, "probe", "", 1},
    {"reduce_spins", REDUCE, "probe", "never comes", 1},
    {"reduce_past_end", REDUCE, "probe", "SIGSEGV writing", 1},
    {"reduce_short", REDUCE, "probe", "in the order of ranks", 1},
    /* ends */
    {"crashes", OUT, "probe", "SIGSEGV", 1},
    {"divides_by_zero", OUT, "probe", "SIGFPE", 1},
    {"overflows_stack", OUT, "probe", "SIGSEGV", 1},
    {"infinite_loop", OUT, "probe", "hang", 1},
    /* reaching outside */
    {"exits", OUT, "probe", "ended the process", 1},
    {"calls_exit", OUT, "build", "refers to exit", 1},
    {"sleeps_by_library", OUT, "build", "refers to usleep", 1},
    {"sleeps_by_system_call", OUT, "probe", "system call nanosleep", 1},
    {"sleeps_on_a_futex", OUT, "probe", "hang: asleep", 1},
    {"opens_a_file", OUT, "probe", "system call open", 1},
    {"opens_in_packed_bytes", OUT, "probe", "system call open", 1},
    {"opens_in_pack", OUT, "probe", "system call open", 1},
    {"opens_in_scratch_bytes", OUT, "probe", "system call open", 1},
    {"packs_all_rows_otherwise", REGION_HEAD, "probe", "in one call gives other bytes", 1},
    {"forks", OUT, "probe", "system call fork", 1},
    {"unprotects_input", OUT, "probe", "system call mprotect", 1},
    {"forges_a_verdict", OUT, "probe", "system call write", 1},
    {"constructor", OUT, "build", "constructor", 1},
    {"thread_local_state", OUT, "build", "thread-local", 1},
    /* the interface */
    {"wrong_interface", OUT, "probe", "interface version", 1},
    {"wrong_region", OUT, "probe", "region", 1},
    {"narrow_m_max", OUT, "probe", "tokens at most", 1},
    {"does_not_compile", OUT, "build", "expected", 1},
};

struct bench {
    struct stage_env env;
    struct config config;
    struct compiler compiler;
    atomic_bool stop;
    char *dir, *sources, *kernels, *references;
    bool sealed;
    enum probe_depth depth; /* PROBE_FULL, or PROBE_WHOLE */
    int checked, wrong, refused, bad;
};

static bool can_seal(void)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0)
        _exit(sandbox_enter((struct sandbox){.fd = 1}) ? 0 : 1);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static enum stage_result build(struct bench *b, struct candidate *c)
{
    struct err err = {""};
    struct build *p = build_start(&b->env, c, &err);
    enum stage_result r = p ? STAGE_RUNNING : STAGE_RETRY;
    if (!p)
        snprintf(c->reason, sizeof c->reason, "%.200s", err.msg);
    while (p && (r = build_poll(p)) == STAGE_RUNNING)
        usleep(1000);
    build_end(p);
    return r;
}

static enum stage_result probe(struct bench *b, struct candidate *c, enum probe_depth depth)
{
    struct err err = {""};
    struct probe *p = probe_start(&b->env, c, depth, NULL, 0, &err);
    enum stage_result r = p ? STAGE_RUNNING : STAGE_RETRY;
    if (!p)
        snprintf(c->reason, sizeof c->reason, "%.200s", err.msg);
    while (p && (r = probe_poll(p)) == STAGE_RUNNING)
        usleep(1000);
    probe_end(p);
    return r;
}

/* "build", "probe", "end", or NULL when everything passed. A probe without a verdict, which would
 * be tried again, has caught nothing. */
static const char *stages(struct bench *b, struct candidate *c, const struct row *r)
{
    if (build(b, c) != STAGE_PASS)
        return "build";
    if (r->text)
        memset(c->body, 'a', KEY_HEX);
    for (int i = 0; i < r->tries; i++) {
        enum stage_result said = probe(b, c, b->depth);
        if (said != STAGE_PASS)
            return said == STAGE_REFUSE ? "probe" : "nothing";
    }
    return probe(b, c, PROBE_END) != STAGE_PASS ? "end" : NULL;
}

static void examine(struct bench *b, const struct row *r)
{
    if (!b->sealed && (r->text || strncmp(r->word, "system call", 11) == 0)) {
        printf("%-22s left out: no seccomp here\n", r->name);
        return;
    }
    struct slot slot = {.region = r->region,
                        .m_index = M_INDEX,
                        .context_index = r->region == REGION_ATTN ? 0 : -1,
                        .m = m_bucket[M_INDEX],
                        .context = r->region == REGION_ATTN ? context_bucket[0] : 0};
    struct candidate c = {.slot = &slot, .origin = ORIGIN_TEMPLATE};
    snprintf(c.name, sizeof c.name, "%s", r->name);
    c.source = xasprintf("%s/%s.c", b->sources, r->name);
    c.object = xasprintf("%s/%s.so", b->dir, r->name);
    int64_t start = clock_ns();
    const char *caught = stages(b, &c, r);
    bool right =
        r->stage ? caught && strcmp(caught, r->stage) == 0 && strstr(c.reason, r->word) : !caught;
    if (r->word && strcmp(r->word, "error") == 0) /* the same as data: how large, and where */
        right &= c.evidence.refusal.cause == CAUSE_ERROR && c.evidence.refusal.value > 2 &&
                 strstr(c.reason, c.evidence.refusal.in_case) &&
                 strncmp(c.evidence.refusal.in_case, "m=", 2) == 0;
    printf("%-22s %-6s %5.2f s  %s%s\n", r->name, caught ? caught : "passed",
           (double)(clock_ns() - start) / 1e9, right ? "" : "WRONG: ", c.reason);
    fflush(stdout);
    b->checked++;
    b->wrong += !right;
    b->bad += r->stage != NULL;
    b->refused += r->stage && caught;
    unlink(c.object);
    free(c.source);
    free(c.object);
    free(c.log);
}

static int bench_open(struct bench *b, struct err *err)
{
    const char *root = getenv("WHET_SOURCE_ROOT");
    char *none[] = {"test_bad"}, dir[] = "/tmp/whet-bad-XXXXXX";
    if (!root)
        return err_set(err, "WHET_SOURCE_ROOT is not set");
    if (config_parse(&b->config, 1, none, err) != 0 ||
        compiler_find(&b->config, &b->compiler, err) != 0)
        return -1;
    char *model = xasprintf("%s/tests/golden/tiny-llama.gguf", root);
    b->env.model = model_open(model, false, NULL, NULL, err);
    free(model);
    if (!b->env.model || !mkdtemp(dir))
        return -1;
    b->dir = xstrdup(dir);
    b->sealed = can_seal();
    b->sources = xasprintf("%s/tests/kernels/bad", root);
    b->kernels = xasprintf("%s/kernels", root);
    b->references = xasprintf("%s/references", dir);
    if (reference_cache_clear(b->references, err) != 0)
        return -1;
    b->config.engine_threads = 2;
    static const struct machine machine = {.kind = MACHINE_CPU};
    b->env.config = &b->config;
    b->env.machine = &machine;
    b->env.compiler = &b->compiler;
    b->env.program = "/proc/self/exe";
    b->env.alone = true; /* at idle priority they would starve beside other tests */
    b->env.kernel_dir = b->kernels;
    b->env.stop = &b->stop;
    b->env.reference_dir = b->references;
    return 0;
}

static void bench_close(struct bench *b)
{
    if (b->references &&
        (reference_cache_clear(b->references, NULL) != 0 || rmdir(b->references) != 0))
        printf("%s is left\n", b->references);
    if (b->dir && rmdir(b->dir) != 0) {
        printf("%s is not empty\n", b->dir);
        b->wrong++;
    }
    model_close((struct model *)b->env.model);
    config_free(&b->config);
    free(b->dir);
    free(b->sources);
    free(b->kernels);
    free(b->references);
}

/* ---- references that are kept ---------------------------------------------------------------- */

/* Hash of all that probes have left for each other; `damage` changes a byte in the middle of it. */
static uint64_t references(const struct bench *b, bool damage, int *n)
{
    uint64_t h = 0;
    struct dirent *e;
    DIR *d = opendir(b->references);
    *n = 0;
    while (d && (e = readdir(d)) != NULL) {
        char path[400], sum[17];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", b->references, e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) != 0 || object_checksum(path, sum) != 0)
            continue;
        h += hash_text(hash_text(HASH_START, e->d_name), sum); /* in any order */
        FILE *f = damage ? fopen(path, "r+") : NULL;
        if (f && fseek(f, st.st_size / 2, SEEK_SET) == 0)
            fwrite("poison", 1, 6, f);
        if (f)
            fclose(f);
        ++*n;
    }
    if (d)
        closedir(d);
    return h;
}

/* What was learnt of an input while dozens of bad kernels crashed, hung and scribbled is what is
 * learnt of it without any; and poison among it saves no bad kernel and condemns no good one. */
static void examine_references(struct bench *b)
{
    static const struct row good = {"good_mlp_out", OUT, NULL, "", 1},
                            bad = {"bf16_accumulate", OUT, "probe", "error", 1};
    struct err err = {""};
    struct bench before = *b;
    int n, again;
    if (!b->sealed)
        return; /* then nothing is kept */
    reference_cache_clear(b->references, &err);
    examine(b, &good);
    uint64_t clean = references(b, false, &n);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (row[i].region == REGION_MLP_OUT && strstr("crashes exits writes_past_end", row[i].name))
            examine(b, &row[i]);
    bool same = references(b, false, &again) == clean && n == again && n > 0;
    printf("%d references, %s\n", n, same ? "untouched" : "WRONG: changed by bad kernels");
    b->wrong += !same;
    references(b, true, &n);
    examine(b, &bad);
    references(b, true, &n);
    examine(b, &good);
    same = references(b, false, &again) == clean;
    printf("%d references, %s\n", again, same ? "made again" : "WRONG: still poisoned");
    before.wrong = b->wrong + !same;
    *b = before; /* the table is counted, not its kernels once more */
}

/* good_other_order is as good as eager, but not the same: what bit_equal is for. */
static void examine_bit_equal(struct bench *b)
{
    static const struct row other = {"good_other_order", OUT, "probe", "eager's bits", 1};
    static const struct row same = {"good_mlp_out", OUT, NULL, "", 1};
    printf("numerics = bit_equal\n");
    b->env.numerics = NUMERICS_BIT_EQUAL;
    examine(b, &same);
    examine(b, &other);
    b->env.numerics = NUMERICS_TOLERANCE;
}

/* All of a probe in one process, as in an opening: no less is refused, and for the same reason. */
static void examine_whole(struct bench *b)
{
    static const struct row good = {"good_mlp_out", OUT, NULL, "", 1},
                            bad = {"bf16_accumulate", OUT, "probe", "error", 1};
    printf("probes with the whole model\n");
    b->depth = PROBE_WHOLE;
    examine(b, &good);
    examine(b, &bad);
    b->depth = PROBE_FULL;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "probe") == 0)
        return probe_main(argc - 1, argv + 1);
    struct bench b = {.env = {.numerics = NUMERICS_TOLERANCE}};
    struct err err = {""};
    if (bench_open(&b, &err) != 0) {
        printf("%s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (argc < 2 || strcmp(argv[1], row[i].name) == 0)
            examine(&b, &row[i]);
    if (argc < 2)
        examine_bit_equal(&b);
    if (argc < 2)
        examine_whole(&b);
    if (argc < 2)
        examine_references(&b);
    bench_close(&b);
    if (b.checked == 0)
        printf("there is no row %s\n", argc > 1 ? argv[1] : "");
    printf("%d kernels, %d of %d bad ones refused, %d wrong verdicts\n", b.checked, b.refused,
           b.bad, b.wrong);
    return b.wrong > 0 || b.checked == 0;
}
