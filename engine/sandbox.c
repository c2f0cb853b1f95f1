/* SPDX-License-Identifier: Apache-2.0 */
/* sandbox.c - seccomp: foreign code computes, or it is stopped.
 *
 * A kernel needs no system call. Its team needs futexes, a command loop at most one descriptor,
 * signal handlers rt_sigreturn and exit, a disturber a timer; time comes from the vDSO. Memory maps
 * are not on the list (a kernel could make its inputs writable), and neither are sleep, clone or
 * anything with a name. Of futexes only waiting and waking: what the kernel does for priority
 * inheritance and requeueing has been a way out of such filters before (CVE-2014-3153). A refused
 * call raises SIGSYS rather than killing, so that a report can say which call it was.
 */
#include "engine/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif
#if !defined(ARCH) || defined(SANITIZED) || defined(__SANITIZE_ADDRESS__) || \
    defined(__SANITIZE_THREAD__)

bool sandbox_enter(struct sandbox allowed)
{
    (void)allowed;
    return false;
}

bool sandbox_works(struct err *why)
{
    err_set(why, "this build cannot filter system calls (seccomp)");
    return false;
}

#else

#define LOAD(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TRAP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)
/* Allows system call `number`; the accumulator holds the number asked for. */
#define CALL(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), ALLOW
/* Allows it if the lower half of argument `i`, masked, is `value`. */
#define CALL_WITH(number, i, mask, value)                               \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 5), LOAD(args[i]), \
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, (mask)),                    \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, 1), ALLOW, LOAD(nr)
/* A filter cannot go back, so a call that has several rows is looked at in each. */
#define FUTEX(operation) \
    CALL_WITH(SYS_futex, 1, ~(uint32_t)(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME), operation)

bool sandbox_enter(struct sandbox allowed)
{
    /* No descriptor and no timer: a value that no call can have. */
    const uint32_t fd = allowed.fd < 0 ? 0x7fffffff : (uint32_t)allowed.fd;
    const uint32_t timer = allowed.timer ? ITIMER_REAL : 0x7fffffff;
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        TRAP,
        LOAD(nr),
        FUTEX(FUTEX_WAIT),
        FUTEX(FUTEX_WAKE),
        FUTEX(FUTEX_WAIT_BITSET), /* glibc's semaphores */
        CALL(SYS_sched_yield),
        CALL(SYS_clock_gettime),
        CALL(SYS_rt_sigreturn),
        CALL(SYS_restart_syscall),
        CALL(SYS_exit),
        CALL(SYS_exit_group),
        CALL_WITH(SYS_setitimer, 0, ~0U, timer),
        CALL_WITH(SYS_read, 0, ~0U, fd),
        CALL_WITH(SYS_write, 0, ~0U, fd),
        TRAP,
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return false;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

/* Calls getppid(), which is not on the list, and ends by it: a handler of ours would run in our own
 * memory. */
static int try_it(void *unused)
{
    (void)unused;
    const struct sigaction fresh = {.sa_handler = SIG_DFL};
    sigaction(SIGSYS, &fresh, NULL);
    if (sandbox_enter((struct sandbox){.fd = -1}))
        syscall(SYS_getppid);
    return 1;
}

/* The child is made as vfork() makes one (config/process.c says why), and the filter is its own. -1
 * and errno: there is none. */
static int try_once(bool *works)
{
    enum { STACK = 64 * 1024 };
    int status = 0;
    char *stack =
        mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED)
        return -1;
    pid_t pid = clone(try_it, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
    int failed = errno;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    munmap(stack, STACK);
    errno = failed;
    *works = WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS;
    return pid > 0 ? 0 : -1;
}

/* A moment without processes or memory says nothing of the filter, and who asks does so once. */
bool sandbox_works(struct err *why)
{
    enum { TRIES = 20, PAUSE_US = 50000 };
    bool works = false;
    int rc = try_once(&works);
    for (int i = 1; rc != 0 && i < TRIES; i++) {
        usleep(PAUSE_US);
        rc = try_once(&works);
    }
    if (rc != 0)
        err_set(why, "there is no process to try whether system calls can be filtered: %s",
                strerror(errno));
    else if (!works)
        err_set(why, "system calls cannot be filtered here (seccomp)");
    return works;
}

#endif

const char *sandbox_call_name(int number)
{
    static const struct {
        int number;
        const char *name;
    } known[] = {
#ifdef SYS_open
        {SYS_open, "open"},
        {SYS_fork, "fork"},
        {SYS_vfork, "vfork"},
#endif
        {SYS_openat, "openat"},
        {SYS_socket, "socket"},
        {SYS_connect, "connect"},
        {SYS_clone, "clone"},
        {SYS_clone3, "clone3"},
        {SYS_execve, "execve"},
        {SYS_kill, "kill"},
        {SYS_tgkill, "tgkill"},
        {SYS_read, "read"},
        {SYS_write, "write"},
        {SYS_mmap, "mmap"},
        {SYS_mprotect, "mprotect"},
        {SYS_munmap, "munmap"},
        {SYS_brk, "brk"},
        {SYS_nanosleep, "nanosleep"},
        {SYS_clock_nanosleep, "clock_nanosleep"},
        {SYS_ptrace, "ptrace"},
        {SYS_prctl, "prctl"},
        {SYS_process_vm_readv, "process_vm_readv"},
    };
    static _Thread_local char text[32];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].number == number)
            return known[i].name;
    snprintf(text, sizeof text, "number %d", number);
    return text;
}
