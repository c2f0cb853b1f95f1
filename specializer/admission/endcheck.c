/* SPDX-License-Identifier: Apache-2.0 */
/* endcheck.c - a fixed prompt set through the whole model, twice.
 *
 * The prompts are ids drawn from the vocabulary by a fixed rule, continued greedily by the eager
 * kernels, so most of what is scored is text as the model writes it. The eager run produces tokens
 * and reference logits; then a forked child runs the same tokens with the candidate, in steps of
 * the slot's size, sealed like any runner, and leaves its logits in a shared mapping.
 *
 * That took 0.9 of the 1.0 seconds of a probe (SmolLM2-135M, one core of a Zen 4, 2026-11-26), so
 * what is the same for every candidate is done once. Eager's run is kept (reference_cache.h): the
 * tokens, which the child is given anyway, and apart from them the logits, which are opened when it
 * is dead. And where the slot has one token, the child goes through a whole sequence layer by layer
 * (forward_by_rows()): all tokens are known, so the candidate is called with the same inputs as
 * step by step, and eager's regions, which give each token the same bits in steps of up to
 * EAGER_NARROW, read their weights once for all of them.
 *
 * Of a model that several ranks compute this is rank 0's part by itself: its heads, its columns and
 * its tokens, with nothing where the other ranks' sums would be. Both runs are of that part, so
 * they are compared as ever; what the sum of all ranks makes of a difference is not seen here.
 *
 * Limits: `bit_equal` the same bits; `tolerance` a mean divergence of 1e-6 nats and no first choice
 * changed unless eager's two best were within 1e-3; `reduced` and `fp8` 1e-3 nats
 * and 99 % of first choices. What declares activations in e4m3, on a GPU alone, has limits of its
 * own (end_verdict()).
 *
 * About 4.3 G multiply-adds a run decide how many tokens there are (32 for SmolLM2-135M); lower
 * precisions take four times as many, or one token would be all of its one percent.
 */
#include "specializer/admission/endcheck.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/exec_map.h"
#include "config/watchdog.h"
#include "engine/cpu/eager.h"
#include "engine/cpu/sizes.h"
#include "engine/plan.h"
#include "engine/sandbox.h"
#include "kernels/isa.h"
#include "specializer/admission/forward.h"
#include "specializer/admission/reference.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/admission/room.h"
#include "specializer/candidate/hash.h"

enum {
    GIVEN = 4,
    LENGTH_MIN = 6,
    LENGTH_MAX = 16,
    SEQUENCES = 2,
    SEQUENCES_LOWER = 8,
    SLEEP_MAX_S = 5,
    WHY_MOST = 240,
    OUTSIDE = 2, /* exit status: `why` says nothing about the candidate, */
    KILLED = 3,  /* and was that its child was killed */
    TIE_NOISE = 8
};
static const int64_t packed_most = 16LL << 30;
static const double work_wanted = 4.3e9, float_tie = 1e-3;
static const double slowest = 2e8; /* multiply-adds a second, below which it is a hang */

struct prompts {
    int32_t sequences, length;
    int32_t *token; /* [sequences, length] */
    float *eager;   /* logits [sequences * length, vocab] */
    float *own;     /* the same in shared memory */
    size_t bytes;
    const char *references;
    uint64_t key; /* of its tokens there; the logits are next to it */
};

/* Multiply-adds of one token. */
static double token_work(const struct model *m)
{
    double work = 0;
    for (int r = REGION_ATTN_IN; r < REGION_COUNT; r++) {
        struct region_cost c = plan_cost(m, (enum region)r, 0, 1, 1, LENGTH_MAX, 1);
        work += (double)c.flops / 2 * region_runs((enum region)r, m->shape.layers);
    }
    return work;
}

/* Of each sequence of the prompt set, where a token takes `work`. */
static int32_t prompt_length(double work)
{
    return (int32_t)fmin(fmax(work_wanted / work / SEQUENCES, LENGTH_MIN), LENGTH_MAX);
}

static int32_t best(const float *logits, int32_t vocab)
{
    int32_t at = 0;
    for (int32_t i = 1; i < vocab; i++)
        at = logits[i] > logits[at] ? i : at;
    return at;
}

/* Eager writes the prompts' continuations and the reference logits in one go. */
static void write_prompts(const struct model *model, struct prompts *p)
{
    int32_t vocab = model->head.rows;
    struct forward *f = forward_open(model, p->sequences, p->length);
    for (int32_t s = 0; s < p->sequences; s++)
        for (int32_t i = 0; i < GIVEN; i++)
            p->token[s * p->length + i] =
                (int32_t)(hash_mix((uint64_t)(s * GIVEN + i + 1)) % (uint64_t)vocab);
    forward_step(f, p->token, 0, p->sequences, 0, GIVEN, p->eager);
    for (int32_t at = GIVEN; at < p->length; at++) {
        for (int32_t s = 0; s < p->sequences; s++) {
            int64_t last = (int64_t)s * p->length + at - 1;
            p->token[last + 1] = best(p->eager + last * vocab, vocab);
        }
        forward_step(f, p->token, 0, p->sequences, at, 1, p->eager);
    }
    forward_close(f);
}

static size_t token_bytes(const struct prompts *p)
{
    return (size_t)p->sequences * (size_t)p->length * sizeof *p->token;
}

/* Whether `bytes` bytes are kept under `key`; then they are in `out`. */
static bool kept(const struct prompts *p, uint64_t key, void *out, size_t bytes)
{
    size_t n = 0;
    void *data = reference_cache_read(p->references, key, &n);
    bool found = data && n == bytes;
    if (found)
        memcpy(out, data, bytes);
    free(data);
    return found;
}

/* The tokens, before the candidate runs. True if the logits are there, too: eager had to run. */
static bool have_tokens(const struct model *model, struct prompts *p)
{
    uint64_t h = reference_key(model);
    const int32_t set[] = {p->sequences, p->length, GIVEN};
    p->key = hash_mix(hash_bytes(hash_text(h, "whole model"), set, sizeof set));
    if (kept(p, p->key, p->token, token_bytes(p)))
        return false;
    write_prompts(model, p);
    reference_cache_write(p->references, p->key, p->token, token_bytes(p));
    reference_cache_write(p->references, p->key + 1, p->eager, p->bytes);
    return true;
}

/* The logits, when the candidate's process is dead. */
static void have_logits(const struct model *model, struct prompts *p)
{
    if (!kept(p, p->key + 1, p->eager, p->bytes))
        write_prompts(model, p);
}

/* Steps of up to m tokens: as many sequences as fit, then as many positions of each. Where that is
 * one token, as many of a sequence as eager is narrow, and the candidate gets them one by one. */
struct steps {
    int32_t together, width;
    bool by_rows;
};

static struct steps steps_of(const struct prompts *p, int32_t m)
{
    if (m == 1)
        return (struct steps){1, p->length < EAGER_NARROW ? p->length : EAGER_NARROW, true};
    int32_t together = m < p->sequences ? m : p->sequences;
    int32_t width = m / together < p->length ? m / together : p->length;
    return (struct steps){together, width < 1 ? 1 : width, false};
}

static void run_prompts(struct forward *f, struct prompts *p, struct steps steps)
{
    for (int32_t s = 0; s < p->sequences; s += steps.together) {
        int32_t left = p->sequences - s, count = left < steps.together ? left : steps.together;
        for (int32_t at = 0; at < p->length; at += steps.width) {
            int32_t w = p->length - at < steps.width ? p->length - at : steps.width;
            forward_step(f, p->token, s, count, at, w, p->own);
        }
    }
}

/* Eager's buffers (and OpenBLAS's) grow with the width of a step, and a sealed process can grow
 * nothing. So they grow before, on tokens that are not the prompts': no reference is left behind.
 */
static void stretch(struct forward *f, const struct prompts *p, struct steps steps)
{
    int32_t *zero = xcalloc((size_t)p->sequences * (size_t)p->length, sizeof *zero);
    forward_stretch(f, zero, steps.together, 0, steps.width);
    if (steps.width < p->length)
        forward_stretch(f, zero, steps.together, p->length - steps.width, steps.width);
    free(zero);
}

struct candidate_run {
    const struct model *model;
    const char *object;
    const struct format_class *formats; /* of the layers that it runs in; NULL: all */
    int32_t m;
    bool must_seal;
    int64_t pack_most; /* bytes of its packed weights, all layers together */
};

/* 0, or why there is nothing to run; then the parent finds the words in `why`. */
static int prepare(const struct candidate_run *run, const struct prompts *p,
                   const struct cpu_kernel **k, struct kernel_sizes *sizes, struct err *err)
{
    void *handle = dlopen(run->object, RTLD_NOW | RTLD_LOCAL);
    *k = handle ? dlsym(handle, "whet_kernel") : NULL;
    if (!*k)
        return !handle && exec_map_file(run->object, err) != 0 ? -1 : err_set(err, "does not load");
    int rc = sizes_ask(*k, run->model, run->formats, p->sequences * p->length, 1, run->pack_most,
                       run->must_seal, sizes, err);
    return rc ? rc : room_for("", sizes->packed_total + sizes->scratch, run->must_seal, err);
}

/* Memory is laid out first, by what a sealed child was told; then the process is sealed; only then
 * it calls the candidate, to pack its weights and to run. */
static void child(const struct candidate_run *run, struct prompts *p, char why[WHY_MOST],
                  int socket)
{
    struct err err = {""};
    const struct cpu_kernel *k;
    struct kernel_sizes sizes;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    isa_facts(); /* asks for AMX tiles, before a kernel may use them */
    if (prepare(run, p, &k, &sizes, &err) != 0) {
        snprintf(why, WHY_MOST, "%s", err.msg);
        _exit(err.killed ? KILLED : err.outside ? OUTSIDE : 1);
    }
    struct forward *f = forward_open(run->model, p->sequences, p->length);
    struct steps steps = steps_of(p, run->m);
    stretch(f, p, steps);
    forward_room(f, k, run->formats, &sizes);
    if (!sandbox_enter((struct sandbox){.fd = socket}) && run->must_seal)
        _exit(1);
    forward_use(f, k);
    if (steps.by_rows)
        forward_by_rows(f);
    run_prompts(f, p, steps);
    char done = 'd';
    _exit(write(socket, &done, 1) == 1 ? 0 : 1);
}

/* 0 once the child has reported; -1 with what happened instead. */
static int await(pid_t pid, int socket, double limit_s, const char *said, struct err *err)
{
    struct pollfd poller = {socket, POLLIN, 0};
    struct watchdog dog;
    int status = 0;
    bool over = false;
    char byte = 0;
    watchdog_start(&dog, pid, limit_s, SLEEP_MAX_S);
    while (!over && poll(&poller, 1, 20) <= 0) /* interrupted: it has said nothing either */
        over = watchdog_over(&dog);
    bool done = !over && read(socket, &byte, 1) == 1;
    if (done || over)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (done)
        return 0;
    if (over)
        return err_set(err, "%s", dog.why);
    int exited = *said && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (exited == OUTSIDE || exited == KILLED)
        return (exited == KILLED ? err_killed : err_outside)(err, "%.*s", WHY_MOST - 1, said);
    if (*said)
        return err_set(err, "%.*s", WHY_MOST - 1, said);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return err_killed(err, "killed by SIGKILL");
    if (WIFSIGNALED(status))
        return err_set(err, "killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
    return err_set(err, "ended the process with status %d", WEXITSTATUS(status));
}

static int run_candidate(const struct candidate_run *run, struct prompts *p, struct err *err)
{
    int end[2];
    char *why = mmap(NULL, WHY_MOST, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (why == MAP_FAILED)
        return err_outside(err, "no memory: %s", strerror(errno));
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end) != 0) {
        munmap(why, WHY_MOST);
        return err_outside(err, "no socket: %s", strerror(errno));
    }
    pid_t pid = fork();
    if (pid == 0)
        child(run, p, why, end[1]);
    close(end[1]);
    double work = token_work(run->model) * p->sequences * p->length;
    int rc = pid < 0 ? err_outside(err, "no process: %s", strerror(errno))
                     : await(pid, end[0], 10 + work / slowest, why, err);
    close(end[0]);
    munmap(why, WHY_MOST);
    return rc;
}

/* KL(p || q) in nats of the softmaxes of two rows of logits. */
static double divergence(const float *p, const float *q, int32_t n)
{
    double top_p = p[best(p, n)], top_q = q[best(q, n)], sum_p = 0, sum_q = 0, kl = 0;
    for (int32_t i = 0; i < n; i++) {
        sum_p += exp(p[i] - top_p);
        sum_q += exp(q[i] - top_q);
    }
    for (int32_t i = 0; i < n; i++)
        kl += exp(p[i] - top_p) / sum_p * (p[i] - top_p - log(sum_p) - (q[i] - top_q - log(sum_q)));
    return kl < 0 ? 0 : kl; /* NaN is no small number */
}

/* The larger of two distances. NaN is farther than any number: it is never less than what comes
 * after it. */
static double farther(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

/* The worst element of a row against the row's largest, and the rms of the difference. */
static double distance(const float *e, const float *c, int32_t vocab, double *rms)
{
    double top = 0, far = 0, sum = 0;
    for (int32_t i = 0; i < vocab; i++) {
        top = fmax(top, fabs((double)e[i]));
        double d = fabs((double)c[i] - (double)e[i]);
        far = farther(far, d);
        sum += d * d;
    }
    *rms = sqrt(sum / vocab);
    return far / top;
}

/* Of a row about its mean. */
static double variance(const float *v, int32_t n)
{
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += v[i];
        squares += (double)v[i] * v[i];
    }
    return squares / n - sum / n * (sum / n);
}

/* The same bits, all of them numbers, as nearly every row of a kernel with eager's bits: then
 * nothing diverges, and exponentials, most of what the comparison costs, need not show it. */
static bool same_numbers(const float *e, const float *c, int32_t n)
{
    float zero = 0;
    if (memcmp(e, c, (size_t)n * sizeof *e) != 0)
        return false;
    for (int32_t i = 0; i < n; i++)
        zero += e[i] * 0;
    return zero == 0;
}

void end_compare(const float *eager, const float *own, int32_t tokens, int32_t vocab, double tie,
                 struct end_result *r)
{
    size_t bytes = (size_t)tokens * (size_t)vocab * sizeof *own;
    int32_t same = 0;
    double squares = 0;
    *r = (struct end_result){.tokens = tokens, .bit_equal = memcmp(eager, own, bytes) == 0};
    for (int64_t t = 0; t < tokens; t++) {
        const float *e = eager + t * vocab, *c = own + t * vocab;
        squares += variance(e, vocab) / tokens;
        if (same_numbers(e, c, vocab)) {
            same++;
            continue;
        }
        double rms, far = distance(e, c, vocab, &rms);
        r->max_error = farther(r->max_error, far);
        r->kl += divergence(e, c, vocab) / tokens;
        int32_t first = best(e, vocab), second = best(c, vocab);
        same += first == second;
        r->changed += e[first] - e[second] > (tie > 0 ? tie : TIE_NOISE * rms);
    }
    r->top1 = (double)same / tokens;
    r->spread = sqrt(fmax(squares, 0));
}

/* A softmax whose logits are off by errors of rms e diverges by e^2 / 2. Bits of a float or of bf16
 * are held to `limit`. e4m3 may move the logits by twice as much of their spread as a region's
 * outputs by of their rms, because admission looks at 16 tokens, of which one often has half of all
 * divergence. Measured (tests/kernels/test_e4m3.c), a region in all layers at a time: 1.5 to 7.7 %
 * of the spread, 10.4 % in the worst of 512 samples of 16, the one that was beyond.
 */
static double divergence_limit(enum precision p, double limit, double spread)
{
    double e = 2 * precision_rms(p) * spread;
    return p == PRECISION_E4M3 ? fmax(limit, e * e / 2) : limit;
}

int end_verdict(enum numerics numerics, enum precision precision, double limit,
                const struct end_result *r, struct err *err)
{
    bool by_share = precision == PRECISION_BF16 || precision == PRECISION_INT8;
    limit = divergence_limit(precision, limit, r->spread);
    if (numerics == NUMERICS_BIT_EQUAL && !r->bit_equal)
        return err_set(err, "logits differ from eager's by up to %.2g of the largest",
                       r->max_error);
    if (!(r->kl <= limit) || !isfinite(r->max_error))
        return err_set(err, "logits diverge from eager's: KL %.3g nats, limit %.1e", r->kl, limit);
    if (by_share && r->top1 < 0.99)
        return err_set(err, "first choice differs from eager's in %.1f %% of %d tokens",
                       100 * (1 - r->top1), r->tokens);
    if (!by_share && r->changed > 0)
        return err_set(err, "eager's first choice in %d of %d tokens is another, and was no tie",
                       r->changed, r->tokens);
    return 0;
}

int end_check(const struct model *model, const char *object, const struct format_class *formats,
              int32_t m, bool must_seal, int64_t pack_most, enum numerics numerics,
              const char *references, struct end_result *result, struct err *err)
{
    const struct candidate_run run = {model, object,    formats,
                                      m,     must_seal, must_seal ? pack_most : packed_most};
    bool lower = numerics_allows(numerics, PRECISION_INT8);
    struct prompts p = {.sequences = lower ? SEQUENCES_LOWER : SEQUENCES, .references = references};
    p.length = prompt_length(token_work(model));
    p.bytes = (size_t)p.sequences * (size_t)p.length * (size_t)model->head.rows * sizeof(float);
    p.token = xcalloc((size_t)p.sequences * (size_t)p.length, sizeof *p.token);
    p.own = mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(result, 0, sizeof *result);
    if (p.own == MAP_FAILED) {
        free(p.token);
        return err_outside(err, "end to end: no memory for %zu bytes of logits", p.bytes);
    }
    memset(p.own, 0xff, p.bytes);
    /* The candidate's child is a copy of this process, so it must not find the reference: that is
     * computed into memory which the child does not get. */
    p.eager = mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int rc = p.eager == MAP_FAILED ? err_outside(err, "no memory for %zu bytes of logits", p.bytes)
                                   : madvise(p.eager, p.bytes, MADV_DONTFORK);
    if (rc == 0) {
        bool computed = have_tokens(model, &p);
        rc = run_candidate(&run, &p, err);
        if (rc == 0 && !computed)
            have_logits(model, &p);
        if (rc == 0) {
            end_compare(p.eager, p.own, p.sequences * p.length, model->head.rows, float_tie,
                        result);
            rc = end_verdict(numerics, lower ? PRECISION_INT8 : PRECISION_F32, lower ? 1e-3 : 1e-6,
                             result, err);
        }
    }
    if (p.eager != MAP_FAILED)
        munmap(p.eager, p.bytes);
    munmap(p.own, p.bytes);
    free(p.token);
    return rc == 0 ? 0 : err_prefix(err, "end to end");
}
