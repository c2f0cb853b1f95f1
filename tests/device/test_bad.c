/* SPDX-License-Identifier: Apache-2.0 */
/* test_bad.c - planted bad CUDA kernels: what notices them?
 *
 *   test_bad_device [NAME]     all of tests/device/bad, or one
 *
 * Each is compiled as a candidate and asked, in a process of its own, what admission asks: every
 * row of the bucket and every kind of numbers against the oracle, on poisoned outputs between
 * guards; the same pointers with other contents; activations that arrive late; the same bits
 * again; inputs and counters as they were; contexts around the border of a page on shuffled pages.
 * A process that gets no answer for LIMIT_MS is killed; a device with more to do may take longer
 * for all of them. Asserted are a word of the reason, and that nothing good is refused. Rows with
 * races get several tries.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/err.h"
#include "tests/device/bad_rows.h"
#include "tests/device/device_test.h"
#include "tests/device/solo.h"

enum { LIMIT_MS = 15000, AGAIN = 8, ANSWERED = 6 /* what the child writes then */ };

/* ---- the child: one kernel ----------------------------------------------------------------- */

static const char *const kind[] = {"normal", "outlier", "zero"};

struct exam {
    struct model *model;
    struct solo_kernel kernel;
    enum region region;
    char why[WHY_SIZE];
};

static bool failed(struct exam *x, const char *what, int m, int context, enum numbers n)
{
    printf("M %d, context %d, %s numbers%s: %s\n", m, context, kind[n], what, x->why);
    return false;
}

static bool ask(struct exam *x, struct question *q, enum numbers n, int how, const char *what)
{
    double worst;
    bool right = solo_ask(&x->kernel, q, 3e-5, how, &worst, x->why);
    putchar(ANSWERED);
    fflush(stdout);
    return right || failed(x, what, q->m, q->context, n);
}

/* The same again is the same. */
static bool repeats(struct exam *x, struct question *q, enum numbers n)
{
    size_t bytes;
    void *first = solo_bits(q, &bytes);
    bool same = true;
    for (int i = 0; i < AGAIN && same; i++) {
        same = ask(x, q, n, 0, ", again");
        void *now = solo_bits(q, &bytes);
        if (same && memcmp(first, now, bytes) != 0) {
            snprintf(x->why, sizeof x->why, "the same inputs gave other bits");
            same = failed(x, "", q->m, q->context, n);
        }
        free(now);
    }
    free(first);
    return same;
}

static bool examine_case(struct exam *x, int m, int context, enum numbers n)
{
    uint64_t seed = (uint64_t)(m * 1000 + context);
    struct question *q = question_new(x->model, x->region, m, BUCKET, context, n, seed, false);
    struct question *p = question_new(x->model, x->region, m, BUCKET, context, n, seed + 1, false);
    bool ok = ask(x, q, n, 0, "");
    question_swap(q, p);
    ok = ok && ask(x, q, n, 0, ", other contents") && ask(x, q, n, SOLO_LATE, ", late inputs") &&
         repeats(x, q, n);
    question_free(q);
    question_free(p);
    return ok;
}

static bool examine_all(struct exam *x)
{
    static const int contexts[] = {1, 15, 16, 17, 40, 300};
    bool attn = x->region == REGION_ATTN;
    for (int c = 0; c < (attn ? 6 : 1); c++)
        for (int n = 0; n < (attn ? 1 : NUMBERS_COUNT); n++)
            for (int m = BUCKET / 2; m <= BUCKET; m++)
                if (!examine_case(x, m, contexts[c], (enum numbers)n))
                    return false;
    return true;
}

static int child(const struct row *r, const char *root)
{
    char path[4200], include[4200], why[WHY_SIZE], hidden[32], arch[16];
    const char *option[] = {include, hidden, "-DM_MAX=8", "-DHEADS=8", "-DHEAD_DIM=64"};
    struct exam x = {.region = r->region};
    struct cudaDeviceProp d;
    size_t size;
    if (cudaGetDeviceProperties(&d, 0) != cudaSuccess)
        return printf("no device\n"), 2;
    snprintf(arch, sizeof arch, "sm_%d%d%s", d.major, d.minor, d.major == 9 ? "a" : "");
    snprintf(path, sizeof path, "%s/tests/device/bad/%s.cu", root, r->name);
    snprintf(include, sizeof include, "-I%s/tests/device/bad", root);
    snprintf(hidden, sizeof hidden, "-DHIDDEN=%d", shape.hidden);
    char *cubin = cuda_build(root, path, arch, option, 5, &size, why);
    if (!cubin)
        return printf("%s\n", why), 2;
    x.model = model_random(&shape, DTYPE_BF16, 9);
    if (!solo_late_open(root, arch, why) || !solo_load(&x.kernel, cubin, r->region, why))
        return printf("%s\n", why), 2;
    return examine_all(&x) ? 0 : 1;
}

/* ---- the parent ---------------------------------------------------------------------------- */

/* Of n bytes that the child wrote, those that are words. */
static size_t words_of(char *said, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (said[i] != ANSWERED)
            said[kept++] = said[i];
    return kept;
}

/* What the child said, in out; its exit status, or -1 for one that was killed. */
static int run_child(const char *name, char *out, size_t size)
{
    int pipes[2], status = 0;
    size_t have = 0;
    ssize_t n = 0;
    if (pipe(pipes) != 0)
        return 2;
    pid_t pid = fork();
    if (pid == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        close(pipes[1]);
        execl("/proc/self/exe", "test_bad_device", "--child", name, (char *)NULL);
        _exit(2);
    }
    close(pipes[1]);
    for (;;) {
        struct pollfd p = {pipes[0], POLLIN, 0};
        errno = 0;
        int ready = poll(&p, 1, LIMIT_MS);
        if (ready == 0) {
            kill(pid, SIGKILL);
            snprintf(out, size, "hang: no answer for %d s", LIMIT_MS / 1000);
            break;
        }
        n = ready > 0 ? read(pipes[0], out + have, size - 1 - have) : 0;
        if (n <= 0 && errno != EINTR)
            break;
        have += n > 0 ? words_of(out + have, (size_t)n) : 0;
        out[have] = 0;
    }
    close(pipes[0]);
    waitpid(pid, &status, 0);
    out[strcspn(out, "\n")] = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void examine(const struct row *r)
{
    char said[2048] = "";
    int64_t t0 = clock_ns();
    int status = run_child(r->name, said, sizeof said);
    bool caught = status == 1 || status == -1;
    bool right = r->word ? caught && strstr(said, r->word) : status == 0;
    check(right, true, "%-18s %-7s %4.1f s  %s", r->name,
          status == 2 ? "broken"
          : caught    ? "caught"
                      : "passed",
          (double)(clock_ns() - t0) * 1e-9, said);
}

int main(int argc, char **argv)
{
    const char *root = getenv("WHET_SOURCE_ROOT") ? getenv("WHET_SOURCE_ROOT") : ".";
    bool is_child = argc > 2 && strcmp(argv[1], "--child") == 0;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (is_child && strcmp(argv[2], row[i].name) == 0) {
            int status = child(&row[i], root);
            fflush(stdout);
            _exit(status); /* not through a context that may be lost */
        }
        if (!is_child && (argc < 2 || strcmp(argv[1], row[i].name) == 0))
            examine(&row[i]);
    }
    printf("%d checks, %d failed\n", checks_made, checks_failed);
    return checks_failed > 0 || checks_made == 0;
}
