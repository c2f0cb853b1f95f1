/* SPDX-License-Identifier: Apache-2.0 */
/* process.c - starting, watching and burying child processes.
 *
 * fork() would write-protect every page of a server that holds a KV cache, and the engine thread
 * would pay a fault for each page it touches until the child has called exec. So children are made
 * as vfork() makes them - clone(CLONE_VM | CLONE_VFORK), on a stack of their own - which copies
 * nothing and stops only the calling thread until exec. Between clone and exec the child lives in
 * our memory: child_main() touches nothing but its argument and its own stack, and makes only
 * system calls. All signals are blocked meanwhile, so no handler of ours runs in the child.
 *
 * A child may close its output and go on, leave grandchildren holding the pipes, ignore SIGTERM or
 * write without end. Hence: its end is learnt from waitid(), never from end-of-file; the group is
 * killed with SIGKILL while the leader is still a zombie (its id cannot be reused before it is
 * reaped); and output beyond the bound is read and thrown away.
 */
#include "config/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/descriptors.h"
#include "config/process_env.h"

enum { CHILD_STACK = 64 * 1024, CORES_MAX = 8192, FILES_MAX = 4096, GROUPS_MAX = 256 };

struct stream {
    int fd; /* -1: at its end */
    char *data;
    size_t n;
};

struct process {
    pid_t pid;
    int64_t started_ns, deadline_ns; /* deadline 0: none */
    int32_t cpu_limit_s;
    int32_t guests; /* 1: counted among those that the compute threads make room for */
    size_t output_max;
    struct stream stream[2]; /* stdout, stderr */
    bool ended;
    struct process_result result;
};

/* What the child needs, prepared before it exists. */
struct child {
    const struct process_spec *spec;
    const char *program; /* with its path */
    char *environment[ENVIRONMENT_MAX + 1];
    int out, err; /* write ends */
    pid_t parent;
    int failed; /* errno of exec, set in shared memory by the child */
};

static _Atomic int32_t guests;

void process_guests_add(int32_t change)
{
    atomic_fetch_add(&guests, change);
}

int32_t process_guests(void)
{
    return atomic_load_explicit(&guests, memory_order_relaxed);
}

/* ---- the child, between clone and exec ------------------------------------------------------ */

#define CHILD_CODE __attribute__((no_sanitize("address", "thread", "undefined")))

CHILD_CODE static void child_limit(int resource, int64_t value)
{
    if (value <= 0)
        return;
    /* One second from SIGXCPU to SIGKILL; other limits ignore the difference. */
    struct rlimit limit = {(rlim_t)value, (rlim_t)value + (resource == RLIMIT_CPU)};
    setrlimit((__rlimit_resource_t)resource, &limit);
}

/* Leaves the child the upper half of the cores. A core whose compute thread sleeps would take over
 * a thread that is queued on another core, behind a request for instance; it does not while it has
 * a task of its own, of however low a priority. With a child on every core that was a tenth of the
 * 99th percentile of the time between tokens, on two cores. Compute threads that keep to their
 * cores are not moved anyhow: then children may run on all of them (PROCESS_IDLE_ANYWHERE). */
CHILD_CODE static void child_cores(void)
{
    unsigned long set[CORES_MAX / 64];
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof set, set);
    int32_t all = 0;
    for (int32_t i = 0; i < bytes * 8; i++)
        all += (int32_t)(set[i / 64] >> (i % 64) & 1);
    for (int32_t i = 0, left = all / 2; left > 0; i++) {
        left -= (int32_t)(set[i / 64] >> (i % 64) & 1);
        set[i / 64] &= ~(1UL << (i % 64));
    }
    if (all > 1)
        syscall(SYS_sched_setaffinity, 0, bytes, set);
}

CHILD_CODE static void child_priority(enum process_priority priority)
{
    if (priority == PROCESS_NORMAL)
        return;
    setpriority(PRIO_PROCESS, 0, 19);
    struct sched_param none = {0};
    if (priority != PROCESS_LOW)
        sched_setscheduler(0, SCHED_IDLE, &none);
    if (priority == PROCESS_IDLE)
        child_cores();
    /* Should memory run out, the kernel is to take the child, not the server. */
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && write(fd, "1000", 4) < 0)
        errno = 0; /* a hint only */
}

CHILD_CODE static int child_main(void *arg)
{
    struct child *c = arg;
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent)
        _exit(127); /* the server died before the line above */
    struct sigaction fresh = {.sa_handler = SIG_DFL};
    for (int s = 1; s < NSIG; s++)
        sigaction(s, &fresh, NULL);
    sigset_t none;
    sigemptyset(&none);

    int in = c->spec->input ? c->spec->input : descriptor_nowhere(O_RDONLY);
    if (in < 0 || dup2(in, 0) < 0 || dup2(c->out, 1) < 0 || dup2(c->err, 2) < 0) {
        c->failed = errno;
        _exit(127);
    }
    descriptors_close_from(
        3); /* ours are all close-on-exec; we may have been started with others */
    child_priority(c->spec->priority);
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    child_limit(RLIMIT_CPU, c->spec->cpu_s);
    child_limit(RLIMIT_AS, c->spec->address_bytes);
    child_limit(RLIMIT_FSIZE, c->spec->file_bytes);
    child_limit(RLIMIT_NOFILE, FILES_MAX); /* ours may be a million; of processes there is no limit
                                              that would count the child's and not the user's */
    umask(077);                            /* what it writes is ours alone */
    sigprocmask(SIG_SETMASK, &none, NULL);
    execve(c->program, (char *const *)c->spec->argv, c->environment);
    c->failed = errno;
    _exit(127);
}

/* ---- starting ------------------------------------------------------------------------------- */

/* A pipe whose ends are above the standard streams, reading end non-blocking. */
static int pipe_open(int *reading, int *writing)
{
    int fd[2], high[2];
    if (pipe2(fd, O_CLOEXEC) != 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        high[i] = fd[i] > 2 ? fd[i] : fcntl(fd[i], F_DUPFD_CLOEXEC, 3);
        if (high[i] != fd[i])
            close(fd[i]);
    }
    *reading = high[0];
    *writing = high[1];
    return fcntl(*reading, F_SETFL, O_NONBLOCK);
}

/* ThreadSanitizer keeps books about forks in memory that such a child would share with us, and then
 * takes the server for a forked child; under it children get memory of their own. */
#ifdef __SANITIZE_THREAD__
enum { CHILD_FLAGS = CLONE_VFORK };
#else
enum { CHILD_FLAGS = CLONE_VM | CLONE_VFORK };
#endif

/* Runs child_main() in a process of its own; returns once it has called exec or failed. */
static pid_t child_clone(struct child *c)
{
    char *stack = mmap(NULL, CHILD_STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return -1;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    pid_t pid = clone(child_main, stack + CHILD_STACK, CHILD_FLAGS | SIGCHLD, c);
    int saved = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stack, CHILD_STACK);
    errno = saved;
    return pid;
}

/* Groups whose leader was reaped and of which members may be left. Whose parent is gone is the
 * first process's to reap, which in a container is this one: without that each compiler that is
 * given up would leave a zombie there for good. */
static struct {
    pthread_mutex_t lock;
    pid_t group[GROUPS_MAX];
    int n;
} left = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Reaps those of a group that have ended. True while others have not: until then no process can get
 * the group's id as its own. */
static bool reap_group(pid_t group)
{
    pid_t r;
    while ((r = waitpid(-group, NULL, WNOHANG)) > 0 || (r < 0 && errno == EINTR))
        ;
    return r == 0;
}

/* Of `group` (0: none) and of those before it. Members that are not ours end the same way: there is
 * nothing to wait for. */
static void reap_groups(pid_t group)
{
    pthread_mutex_lock(&left.lock);
    int kept = 0;
    for (int i = 0; i < left.n; i++)
        if (reap_group(left.group[i]))
            left.group[kept++] = left.group[i];
    left.n = kept;
    if (group && reap_group(group) && left.n < GROUPS_MAX)
        left.group[left.n++] = group;
    pthread_mutex_unlock(&left.lock);
}

struct process *process_start(const struct process_spec *spec, struct err *err)
{
    struct child c = {.spec = spec, .out = -1, .err = -1, .parent = getpid()};
    struct process *p = xcalloc(1, sizeof *p);
    p->stream[0].fd = p->stream[1].fd = -1;
    p->pid = -1;
    p->output_max = spec->output_max;
    p->cpu_limit_s = spec->cpu_s;
    reap_groups(0);
    bool known = process_environment(spec->temporary, c.environment, err) == 0;
    char *program = known ? process_program(spec->argv[0], err) : NULL;
    c.program = program;
    if (!program) {
        err_prefix(err, "no process for %.100s", spec->argv[0]);
    } else if (pipe_open(&p->stream[0].fd, &c.out) != 0 ||
               pipe_open(&p->stream[1].fd, &c.err) != 0) {
        err_set(err, "%s: no pipe for its output: %s", spec->argv[0], strerror(errno));
    } else {
        p->pid = child_clone(&c);
        if (p->pid < 0)
            err_set(err, "%s: no process for it: %s", spec->argv[0], strerror(errno));
        else if (c.failed)
            err_set(err, "%s: cannot be run: %s", spec->argv[0], strerror(c.failed));
    }
    if (c.out >= 0)
        close(c.out);
    if (c.err >= 0)
        close(c.err);
    for (int i = 0; c.environment[i]; i++)
        free(c.environment[i]);
    free(program);
    if (p->pid < 0 || c.failed) {
        process_end(p);
        return NULL;
    }
    p->guests = spec->priority != PROCESS_NORMAL;
    process_guests_add(p->guests);
    p->started_ns = clock_ns();
    p->deadline_ns = spec->wall_s > 0 ? p->started_ns + (int64_t)(spec->wall_s * 1e9) : 0;
    return p;
}

/* ---- watching ------------------------------------------------------------------------------- */

/* Takes what is in the pipe; a fast writer cannot keep us here for more than a few reads. */
static void stream_drain(struct process *p, struct stream *s)
{
    char buffer[16384];
    for (int reads = 0; s->fd >= 0 && reads < 64; reads++) {
        ssize_t n = read(s->fd, buffer, sizeof buffer);
        if (n < 0)
            return; /* nothing more for now */
        if (n == 0) {
            close(s->fd);
            s->fd = -1;
            return;
        }
        size_t room = p->output_max - s->n, take = (size_t)n < room ? (size_t)n : room;
        if (take < (size_t)n)
            p->result.truncated = true;
        if (take == 0)
            continue;
        s->data = xrealloc(s->data, s->n + take);
        memcpy(s->data + s->n, buffer, take);
        s->n += take;
    }
}

static void stream_finish(struct stream *s, char **text, size_t *n)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    *text = xrealloc(s->data, s->n + 1);
    (*text)[s->n] = 0;
    *n = s->n;
    s->data = NULL;
}

/* The leader is dead but not reaped: ends its group, reaps it, keeps how it went. */
static void bury(struct process *p)
{
    kill(-p->pid, SIGKILL);
    for (int i = 0; i < 2; i++)
        stream_drain(p, &p->stream[i]);
    int status = 0, rc;
    struct rusage used = {0};
    do
        rc = wait4(p->pid, &status, 0, &used);
    while (rc < 0 && errno == EINTR);
    reap_groups(p->pid);
    process_guests_add(-p->guests);
    struct process_result *r = &p->result;
    if (rc < 0)
        r->status = 255; /* reaped by somebody else: how it went is not known */
    else if (WIFSIGNALED(status))
        r->signal = WTERMSIG(status);
    else
        r->status = WEXITSTATUS(status);
    r->wall_s = (double)(clock_ns() - p->started_ns) / 1e9;
    r->cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    /* The kernel enforces the limit by counting ticks, so on a crowded machine it strikes well
     * before or after what rusage, which is exact, calls a second: believe the signal. SIGKILL is
     * what follows a second later if SIGXCPU was ignored. */
    r->cpu_out = p->cpu_limit_s > 0 &&
                 (r->signal == SIGXCPU ||
                  (r->signal == SIGKILL && !r->timed_out && r->cpu_s > p->cpu_limit_s));
    stream_finish(&p->stream[0], &r->out, &r->out_n);
    stream_finish(&p->stream[1], &r->err, &r->err_n);
    p->ended = true;
}

bool process_poll(struct process *p)
{
    if (p->ended)
        return true;
    for (int i = 0; i < 2; i++)
        stream_drain(p, &p->stream[i]);
    if (p->deadline_ns && !p->result.timed_out && clock_ns() >= p->deadline_ns) {
        p->result.timed_out = true;
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL); /* it may have left its group */
    }
    siginfo_t info = {0};
    int rc = waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    /* ECHILD: somebody made SIGCHLD ignored, and the kernel has reaped it for us. */
    if ((rc == 0 && info.si_pid == p->pid) || (rc < 0 && errno == ECHILD))
        bury(p);
    return p->ended;
}

const struct process_result *process_result(const struct process *p)
{
    return &p->result;
}

pid_t process_pid(const struct process *p)
{
    return p->pid;
}

void process_end(struct process *p)
{
    if (!p)
        return;
    if (!p->ended && p->pid > 0) {
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL);
        bury(p);
    }
    for (int i = 0; i < 2; i++) {
        if (p->stream[i].fd >= 0)
            close(p->stream[i].fd);
        free(p->stream[i].data);
    }
    process_result_free(&p->result);
    free(p);
}

int process_run(const struct process_spec *spec, struct process_result *result, struct err *err)
{
    struct process *p = process_start(spec, err);
    if (!p)
        return -1;
    while (!process_poll(p)) {
        if (spec->stop && atomic_load(spec->stop)) {
            process_end(p);
            return err_set(err, "%s: given up, because we stop", spec->argv[0]);
        }
        /* Output wakes us at once, the end of a silent child within two milliseconds. */
        struct pollfd fd[2] = {{p->stream[0].fd, POLLIN, 0}, {p->stream[1].fd, POLLIN, 0}};
        poll(fd, 2, 2);
    }
    *result = p->result;
    p->result.out = p->result.err = NULL;
    process_end(p);
    return 0;
}

void process_result_free(struct process_result *r)
{
    free(r->out);
    free(r->err);
    r->out = r->err = NULL;
}

const char *process_describe(const struct process_result *r, char *buf, size_t n)
{
    if (r->timed_out)
        snprintf(buf, n, "timed out after %.1f s", r->wall_s);
    else if (r->cpu_out)
        snprintf(buf, n, "killed after %.1f s of CPU time", r->cpu_s);
    else if (r->signal)
        snprintf(buf, n, "killed by SIG%s",
                 sigabbrev_np(r->signal) ? sigabbrev_np(r->signal) : "?");
    else
        snprintf(buf, n, "exit status %d", r->status);
    return buf;
}
