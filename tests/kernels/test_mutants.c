/* SPDX-License-Identifier: Apache-2.0 */
/* test_mutants.c - good kernels made slightly wrong, and what the admission says to them.
 *
 *   test_mutants                         a seeded sample; fails if one wrong mutant of a hundred,
 *                                        or one of fewer, gets through (WHET_MUTANTS=n of a kernel)
 *   test_mutants SEED TARGETS MUTANTS    that many templates at a point each, mutants of each
 *
 * For every point a template's source and its headers are mutated (mutants/mutate.c), one change a
 * mutant, and built by the build stage. A mutant whose object is the original's byte for byte, or
 * whose outputs are the original's bit for bit on many inputs (mutants/witness.c), is equivalent
 * and counts for nothing. The others go through the real admission: build's look at the object,
 * every check of the probe, the model's logits. Which of them are let through is the result: the
 * share refused of those that compute something wrong, by operator, by stage, with every miss
 * named.
 *
 * Output is one line for each mutant and a summary, for scripts/mutate-kernels to make a page of.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/quant.h"
#include "specializer/admission/check.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe.h"
#include "specializer/build/build.h"
#include "specializer/build/sources.h"
#include "specializer/candidate/hash.h"
#include "specializer/search/space.h"
#include "tests/kernels/mutants/sources.h"
#include "tests/kernels/mutants/witness.h"
#include "tests/kernels/sample.h"

enum { JOBS = 2, TARGETS_MAX = 400 };

/* Where a mutant ended. */
enum fate { STILLBORN, EQUIVALENT, ROUNDING, BY_BUILD, BY_PROBE, BY_LOGITS, MISSED, FATES };
static const char *const fate_name[FATES] = {"stillborn", "equivalent", "rounding", "build",
                                             "probe",     "logits",     "MISSED"};

/* Counted by all workers. */
struct tally {
    atomic_int fate[MUTATION_KINDS][FATES];
    atomic_int alarms; /* equivalent, and refused all the same */
    atomic_int rounding_refused, bits_changed, bits_noticed;
    atomic_int broken; /* a worker could not do its work */
};

/* One point of one template, in one model. */
struct mutated {
    const struct template *t;
    struct point point;
    enum dtype type;
    enum arch arch;
    int m;
};

struct shop {
    struct config config;
    struct compiler compiler;
    struct stage_env env;
    struct tally *tally;
    char *root, *kernels; /* this worker's copy of the kernel folder */
    /* of the target at hand */
    const struct mutated *target;
    struct model *model;
    struct check_range range;
    struct facts facts;
    char **define;
    struct sources sources;
    char *object, *original;
    struct witness *witness;
};

/* ---- building ------------------------------------------------------------------------------- */

static enum stage_result build(struct shop *s, struct candidate *c, char *object)
{
    struct err err = {""};
    *c = (struct candidate){.template = s->target->t, .origin = ORIGIN_TEMPLATE};
    c->source = s->sources.main;
    c->object = object;
    c->define = s->define;
    struct build *b = build_start(&s->env, c, &err);
    enum stage_result r = b ? STAGE_RUNNING : STAGE_RETRY;
    while (b && (r = build_poll(b)) == STAGE_RUNNING)
        usleep(2000);
    build_end(b);
    free(c->log);
    c->log = NULL;
    return r;
}

static bool same_file(const char *a, const char *b)
{
    char sum[2][17];
    return object_checksum(a, sum[0]) == 0 && object_checksum(b, sum[1]) == 0 &&
           strcmp(sum[0], sum[1]) == 0;
}

/* ---- one mutant ----------------------------------------------------------------------------- */

/* The admission after the build. BY_PROBE, BY_LOGITS, or MISSED: let through. */
static enum fate admit(struct shop *s, const char *object, bool *same_bits, struct err *err)
{
    struct check_request q = {.model = s->model,
                              .object = object,
                              .range = s->range,
                              .threads = 2,
                              .full = true,
                              .rule = {.factor = 2},
                              .seed = 1};
    struct check_result r;
    struct end_result end;
    *same_bits = false;
    if (check_kernel(&q, &r, err) != 0)
        return BY_PROBE;
    *same_bits = r.comparison.bit_equal;
    return end_check(s->model, object, NULL, s->range.m_to, false, 0, NUMERICS_TOLERANCE, NULL,
                     &end, err) != 0
               ? BY_LOGITS
               : MISSED;
}

static enum fate examine(struct shop *s, struct err *seen, struct err *said)
{
    struct candidate c;
    enum stage_result built = build(s, &c, s->object);
    if (built != STAGE_PASS) {
        err_set(said, "%s", c.reason);
        return built == STAGE_REFUSE && !strncmp(c.reason, "build: object", 13) ? BY_BUILD
                                                                                : STILLBORN;
    }
    if (same_file(s->object, s->original))
        return EQUIVALENT;
    enum change change = witness_look(s->witness, s->object, seen);
    bool same_bits;
    enum fate fate = admit(s, s->object, &same_bits, said);
    /* Memory that only the admission's inputs lead astray is witness enough. */
    if (fate != MISSED && change == CHANGE_NONE && strstr(said->msg, "SIG"))
        change = CHANGE_WRONG;
    struct tally *t = s->tally;
    bool promises = s->target->t->bit_equal(&s->target->point, &s->facts);
    if (change != CHANGE_NONE && promises) {
        atomic_fetch_add(&t->bits_changed, 1);
        atomic_fetch_add(&t->bits_noticed, !same_bits);
    }
    if (change == CHANGE_WRONG)
        return fate;
    if (fate != MISSED)
        atomic_fetch_add(change == CHANGE_NONE ? &t->alarms : &t->rounding_refused, 1);
    return change == CHANGE_NONE ? EQUIVALENT : ROUNDING;
}

static void one_mutant(struct shop *s, const struct source *f, const struct mutation *m)
{
    char *text = mutation_apply(f->text, m);
    char what[240];
    struct err seen = {""}, said = {""};
    mutation_describe(f->text, m, what, sizeof what);
    if (source_write(&s->sources, f, text)) {
        enum fate fate = examine(s, &seen, &said);
        atomic_fetch_add(&s->tally->fate[m->kind][fate], 1);
        bool odd = fate == EQUIVALENT && said.msg[0];
        printf("%-10s %s m=%d %s: %s | %.150s%s%.150s\n", odd ? "alarm" : fate_name[fate],
               s->target->t->id, s->target->m, f->name, what, seen.msg, said.msg[0] ? " | " : "",
               said.msg);
        fflush(stdout);
    } else {
        atomic_fetch_add(&s->tally->broken, 1);
    }
    unlink(s->object);
    if (!source_write(&s->sources, f, f->text))
        atomic_fetch_add(&s->tally->broken, 1);
    free(text);
}

/* ---- one target ----------------------------------------------------------------------------- */

static struct model *target_model(const struct mutated *t)
{
    const bool supers = SUPER_TYPE(t->type); /* blocks of 256 */
    struct model_shape shape = {.arch = t->arch,
                                .layers = 2,
                                .hidden = supers ? 256 : 192,
                                .heads = supers ? 8 : 6,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .ffn = supers ? 512 : 352,
                                .vocab = 333,
                                .max_context = 512,
                                .eps = 1e-5f,
                                .rope_base = 1e4f,
                                .rope_interleaved = arch_traits(t->arch)->gguf_interleaved};
    return model_random(&shape, t->type, 7);
}

static void target_close(struct shop *s)
{
    witness_close(s->witness);
    sources_close(&s->sources);
    for (int i = 0; s->define && s->define[i]; i++)
        free(s->define[i]);
    free(s->define);
    unlink(s->original);
    model_close(s->model);
    s->witness = NULL;
    s->define = NULL;
    s->model = NULL;
}

/* Builds the original and lists its mutations. */
static bool target_open(struct shop *s, const struct mutated *t, struct err *err)
{
    char knobs[400], name[80];
    struct candidate c;
    s->target = t;
    s->model = target_model(t);
    facts_fill(&s->facts, s->model, t->t->region, t->m, NUMERICS_TOLERANCE);
    s->env.model = s->model;
    s->range = (struct check_range){t->t->region, t->m > 1 ? t->m - t->m / 3 : 1, t->m,
                                    t->t->region == REGION_ATTN ? 256 : 0};
    s->define = point_flags(t->t, &t->point, &s->facts);
    snprintf(name, sizeof name, "cpu/%s.c", t->t->file);
    sources_open(&s->sources, s->kernels, name, s->compiler.path, s->define);
    point_text(t->t, &t->point, knobs, sizeof knobs);
    printf("target     %s m=%d %s: %s\n", t->t->id, t->m, dtype_name(t->type), knobs);
    if (build(s, &c, s->original) != STAGE_PASS)
        return err_set(err, "the original: %s", c.reason) == 0;
    s->witness = witness_open(s->model, &s->range, s->original, 99, err);
    if (!s->witness)
        return false;
    /* The admission must have nothing against the original, or its refusals mean nothing. */
    bool same_bits;
    if (admit(s, s->original, &same_bits, err) == MISSED)
        return true;
    atomic_fetch_add(&s->tally->alarms, 1);
    return false;
}

/* `n` mutants: an operator by chance, then one of its edits in any file. */
static void mutate_target(struct shop *s, uint64_t *seed, int n)
{
    const struct sources *of = &s->sources;
    for (int made = 0, tries = 0; made < n && tries < 100 * n; tries++) {
        enum mutation_kind kind = (enum mutation_kind)random_below(seed, MUTATION_KINDS);
        int all = 0;
        for (int i = 0; i < of->files; i++)
            for (int j = 0; j < of->file[i].list.n; j++)
                all += of->file[i].list.item[j].kind == kind;
        if (all == 0)
            continue;
        int wanted = random_below(seed, all);
        for (int i = 0; i < of->files; i++)
            for (int j = 0; j < of->file[i].list.n; j++)
                if (of->file[i].list.item[j].kind == kind && wanted-- == 0)
                    one_mutant(s, &of->file[i], &of->file[i].list.item[j]);
        made++;
    }
}

/* ---- the sample ----------------------------------------------------------------------------- */

/* Six points of every template, on instruction sets in turn; formats and architectures vary. */
static int choose_targets(struct mutated *out, uint64_t seed)
{
    static const enum dtype types[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_0,   DTYPE_BF16,
                                       DTYPE_F32,  DTYPE_F16,  DTYPE_Q4_K,   DTYPE_Q6_K,
                                       DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_IQ4_NL, DTYPE_MXFP4,
                                       DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_IQ4_XS};
    static const enum arch archs[] = {ARCH_LLAMA, ARCH_QWEN3, ARCH_QWEN2};
    int n = 0;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        /* A witness runs in one process: mutants of reduce would need ranks, and their luck. What
         * its probe must refuse is in tests/kernels/bad. */
        for (int k = 0; k < 6 && t->region != REGION_REDUCE; k++) {
            int m = t->m_min > 6 ? (t->m_min > 24 ? t->m_min : 24) : 3 + k % 4;
            struct mutated target = {.t = t,
                                     .type = types[random_below(&seed, 2) ? 0 : (i + k) % 15],
                                     .arch = archs[(i + k) % 3],
                                     .m = m};
            struct model *model = target_model(&target);
            struct facts f;
            facts_fill(&f, model, t->region, m, NUMERICS_TOLERANCE);
            struct space *space = space_open(&f, t->region, m, NUMERICS_TOLERANCE);
            bool found = false;
            for (int tries = 0; !found && space_size(space) > 0 && tries < 5000; tries++) {
                int32_t id = random_below(&seed, space_size(space));
                space_point(space, id, &target.point);
                int isa = template_role(t, ROLE_ISA);
                found = space_template(space, id) == t &&
                        (isa < 0 || tries > 2500 || target.point.value[isa] == k % 5);
            }
            if (found && n < TARGETS_MAX)
                out[n++] = target;
            space_close(space);
            model_close(model);
        }
    }
    return n;
}

static void shuffle(struct mutated *t, int n, uint64_t seed)
{
    for (int i = n - 1; i > 0; i--) {
        int j = random_below(&seed, i + 1);
        struct mutated other = t[i];
        t[i] = t[j];
        t[j] = other;
    }
}

static bool shop_open(struct shop *s, struct err *err)
{
    char *none[] = {(char *)"test_mutants", NULL}, root[] = "/tmp/whet-mutants-XXXXXX";
    if (config_parse(&s->config, 1, none, err) != 0 ||
        compiler_find(&s->config, &s->compiler, err) != 0)
        return false;
    if (!mkdtemp(root) || kernel_sources_write(root, err) != 0)
        return false;
    s->root = xstrdup(root);
    s->kernels = xstrdup(root);
    s->object = xasprintf("%s/mutant.so", root);
    s->original = xasprintf("%s/original.so", root);
    s->env = (struct stage_env){
        .config = &s->config, .compiler = &s->compiler, .kernel_dir = s->kernels, .alone = true};
    return true;
}

static void shop_close(struct shop *s)
{
    char *command = xasprintf("rm -rf '%s'", s->root);
    if (system(command) != 0)
        printf("%s is left\n", s->root);
    free(command);
    free(s->root);
    free(s->kernels);
    free(s->object);
    free(s->original);
    config_free(&s->config);
}

static void work(struct tally *tally, const struct mutated *target, int n, int job, uint64_t seed,
                 int mutants)
{
    struct shop s = {.tally = tally};
    struct err err = {""};
    if (!shop_open(&s, &err)) {
        printf("broken     %s\n", err.msg);
        atomic_fetch_add(&tally->broken, 1);
        return;
    }
    for (int i = job; i < n; i += JOBS) {
        uint64_t own = seed * 1000003 + (uint64_t)i;
        if (target_open(&s, &target[i], &err)) {
            mutate_target(&s, &own, mutants);
        } else {
            printf("broken     %s: %s\n", target[i].t->id, err.msg);
            atomic_fetch_add(&tally->broken, 1);
        }
        target_close(&s);
    }
    shop_close(&s);
}

/* ---- the result ----------------------------------------------------------------------------- */

static int sum(struct tally *t, enum fate fate)
{
    int n = 0;
    for (int k = 0; k < MUTATION_KINDS; k++)
        n += atomic_load(&t->fate[k][fate]);
    return n;
}

/* The share of wrong mutants that were refused. */
static double summary(struct tally *t)
{
    printf("\nsummary\n%-11s", "operator");
    for (int f = 0; f < FATES; f++)
        printf(" %10s", fate_name[f]);
    printf("\n");
    for (int k = 0; k < MUTATION_KINDS; k++) {
        printf("%-11s", mutation_kind_name((enum mutation_kind)k));
        for (int f = 0; f < FATES; f++)
            printf(" %10d", atomic_load(&t->fate[k][f]));
        printf("\n");
    }
    printf("%-11s", "all");
    for (int f = 0; f < FATES; f++)
        printf(" %10d", sum(t, (enum fate)f));
    int refused = sum(t, BY_BUILD) + sum(t, BY_PROBE) + sum(t, BY_LOGITS);
    int wrong = refused + sum(t, MISSED);
    double share = wrong > 0 ? (double)refused / wrong : 0;
    printf("\n\nwrong mutants refused: %d of %d (%.2f %%)\n", refused, wrong, share * 100);
    printf("equivalent mutants refused: %d of %d\n", atomic_load(&t->alarms), sum(t, EQUIVALENT));
    printf("other roundings refused: %d of %d\n", atomic_load(&t->rounding_refused),
           sum(t, ROUNDING));
    printf("changed bits noticed where bits are promised: %d of %d\n",
           atomic_load(&t->bits_noticed), atomic_load(&t->bits_changed));
    return share;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "probe") == 0)
        return probe_main(argc - 1, argv + 1);
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 5;
    int targets = argc > 2 ? atoi(argv[2]) : 12,
        mutants = argc > 3 ? atoi(argv[3]) : sample_size("WHET_MUTANTS", 4);
    static struct mutated target[TARGETS_MAX];
    struct tally *tally =
        mmap(NULL, sizeof *tally, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int n = choose_targets(target, seed);
    shuffle(target, n, seed);
    n = targets < n ? targets : n;
    for (int job = 0; job < JOBS; job++)
        if (fork() == 0) {
            setvbuf(stdout, NULL, _IOLBF, 0);
            work(tally, target, n, job, seed, mutants);
            fflush(stdout);
            _exit(0);
        }
    int status;
    while (wait(&status) > 0)
        if (status != 0)
            atomic_fetch_add(&tally->broken, 1);
    double share = summary(tally);
    printf("work that could not be done: %d\n", atomic_load(&tally->broken));
    /* Of the usual sample some thirty-five are wrong: none may get through. */
    return share < 0.99 || atomic_load(&tally->broken) > 0;
}
