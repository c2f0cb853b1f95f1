/* SPDX-License-Identifier: Apache-2.0 */
/* sizes.c - see sizes.h. The child writes its answers into a shared mapping; what it left there is
 * believed only after it was checked, and only if the child ended by itself. */
#include "engine/cpu/sizes.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/watchdog.h"
#include "engine/cpu/bind.h"
#include "engine/plan.h"
#include "engine/sandbox.h"

static const int64_t scratch_most = 4LL << 30; /* as in a probe's runner */
enum { ASK_CPU_S = 10, ASK_SLEEP_S = 5, CANNOT_SEAL = 77 };

int64_t sizes_lines(int64_t bytes)
{
    return bytes > 0 ? (bytes + 63) / 64 * 64 : 0;
}

/* The child, to its end: packed bytes of its layers' weights, then the scratch of every m. */
_Noreturn static void ask(const struct cpu_kernel *k, const struct model *model,
                          const struct format_class *formats, int32_t m_most, int32_t team,
                          bool must_seal, int64_t *answer)
{
    enum region r = (enum region)k->region;
    for (int s = 1; s < NSIG; s++)
        signal(s, SIG_DFL);
    if (!sandbox_enter((struct sandbox){.fd = -1}) && must_seal)
        _exit(CANNOT_SEAL);
    for (int32_t i = 0; i < class_layers(formats, r, model->shape.layers); i++) {
        int32_t l = class_layer(formats, i);
        union region_args args = {0};
        struct weight *w[3];
        bind_layer(model, r, l, &args);
        int n = k->packed_bytes && k->pack ? bind_weights(&args, r, w) : 0;
        for (int j = 0; j < n; j++)
            answer[3 * l + j] = k->packed_bytes(w[j]);
    }
    int64_t *scratch = answer + 3 * (int64_t)region_runs(r, model->shape.layers);
    for (int32_t m = 1; k->scratch_bytes && m <= m_most; m++)
        scratch[m - 1] = k->scratch_bytes(m, team);
    _exit(0);
}

static int await(pid_t pid, struct err *err)
{
    struct watchdog dog;
    int status = 0;
    watchdog_start(&dog, pid, ASK_CPU_S, ASK_SLEEP_S);
    for (;;) {
        pid_t ended = waitpid(pid, &status, WNOHANG);
        if (ended == pid)
            break;
        if (ended == 0 && watchdog_over(&dog)) {
            kill(pid, SIGKILL);
            while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
                ;
            return err_set(err, "asked for its sizes: %s", dog.why);
        }
        poll(NULL, 0, 1);
    }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        return err_set(err, "made a system call when it was asked for its sizes");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return err_killed(err, "killed by SIGKILL when it was asked for its sizes");
    if (WIFSIGNALED(status))
        return err_set(err, "killed by SIG%s when it was asked for its sizes",
                       sigabbrev_np(WTERMSIG(status)));
    if (WEXITSTATUS(status) == CANNOT_SEAL)
        return err_set(err, "cannot be sealed in: this machine or build has no seccomp");
    if (WEXITSTATUS(status) != 0)
        return err_set(err, "ended the process when it was asked for its sizes");
    return 0;
}

static int take(const struct model *model, enum region r, int32_t m_most, int64_t most,
                const int64_t *answer, struct kernel_sizes *s, struct err *err)
{
    int32_t layers = region_runs(r, model->shape.layers);
    s->packed = xcalloc((size_t)layers, sizeof *s->packed);
    for (int32_t l = 0; l < layers; l++)
        for (int i = 0; i < 3; i++) {
            int64_t bytes = answer[3 * l + i];
            if (bytes < 0 || bytes > most || s->packed_total > most)
                return err_set(err,
                               "asks for an absurd size of packed weights, or for more than "
                               "%.1f MiB of them",
                               (double)most / 1048576);
            s->packed[l][i] = bytes;
            s->packed_total += sizes_lines(bytes);
        }
    for (int32_t m = 1; m <= m_most; m++) {
        int64_t bytes = answer[3 * (int64_t)layers + m - 1];
        if (bytes < 0 || bytes > scratch_most)
            return err_set(err, "scratch_bytes(%d) is absurd: %lld", m, (long long)bytes);
        s->scratch = bytes > s->scratch ? bytes : s->scratch;
    }
    return s->packed_total > most ? err_set(err, "asks for %.1f MiB of packed weights",
                                            (double)s->packed_total / 1048576)
                                  : 0;
}

int sizes_ask(const struct cpu_kernel *k, const struct model *model,
              const struct format_class *formats, int32_t m_most, int32_t team, int64_t most,
              bool must_seal, struct kernel_sizes *s, struct err *err)
{
    enum region r = (enum region)k->region;
    size_t bytes =
        (3 * (size_t)region_runs(r, model->shape.layers) + (size_t)m_most) * sizeof(int64_t);
    int64_t *answer = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *s = (struct kernel_sizes){.packed = NULL};
    if (answer == MAP_FAILED)
        return err_outside(err, "no memory to ask a kernel for its sizes");
    pid_t pid = fork();
    if (pid == 0)
        ask(k, model, formats, m_most, team, must_seal, answer);
    int rc = pid < 0 ? err_outside(err, "no process: %s", strerror(errno)) : await(pid, err);
    if (rc == 0)
        rc = take(model, r, m_most, most, answer, s, err);
    munmap(answer, bytes);
    if (rc != 0)
        sizes_free(s);
    return rc;
}

void sizes_free(struct kernel_sizes *s)
{
    free(s->packed);
    s->packed = NULL;
}
