/* sandbox.c - seccomp: the runner computes, or it is stopped.
 *
 * A kernel needs no system call. Its team needs futexes, its command loop one file descriptor, its
 * signal handlers rt_sigreturn and exit, its disturbances a timer; time comes from the vDSO. Memory
 * maps are not on the list (a kernel could make its inputs writable), and neither are sleep, clone
 * or anything with a name. A refused call raises SIGSYS rather than killing, so that the report can
 * say which call it was.
 */
#include "specializer/admission/sandbox.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
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

bool sandbox_enter(int fd)
{
    (void)fd;
    return false;
}

#else

#define LOAD(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define TRAP BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)
/* Allows system call `number`; the accumulator holds the number asked for. */
#define CALL(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), ALLOW
/* Allows it with first argument `fd` only. */
#define CALL_ON(number, fd)                                             \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 4), LOAD(args[0]), \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(fd), 0, 1), ALLOW, TRAP

bool sandbox_enter(int fd)
{
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        TRAP,
        LOAD(nr),
        CALL(SYS_futex),
        CALL(SYS_sched_yield),
        CALL(SYS_clock_gettime),
        CALL(SYS_rt_sigreturn),
        CALL(SYS_restart_syscall),
        CALL(SYS_exit),
        CALL(SYS_exit_group),
        CALL_ON(SYS_setitimer, ITIMER_REAL),
        CALL_ON(SYS_read, fd),
        CALL_ON(SYS_write, fd),
        TRAP,
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return false;
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
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
