/* SPDX-License-Identifier: Apache-2.0 */
/* crash.c - see crash.h. What handlers call is async-signal-safe: it copies, and writes to files
 * that are open. The first fault has the word; threads that meet theirs meanwhile wait for the end.
 */
#include "engine/crash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "config/err.h"
#include "config/safe_path.h"
#include "engine/crash_trace.h"
#include "engine/fault.h"

static const char magic[8] = "whetcr1";

/* In the file. Magic comes last: what was cut off is no record. */
struct page {
    struct crash_record record;
    char magic[sizeof magic];
};

static struct {
    char *path;
    _Atomic int fd;
    struct page page; /* filled by a handler, or by the engine thread */
    char head[CRASH_HEAD];
    size_t head_n; /* above 0: fd is a socket */
    _Atomic bool noted;
    _Atomic bool dying;      /* a thread has met a fault, and has the word */
    bool caught, to_the_end; /* faults are, whether or not there is a place to note them */
    struct sigaction before[NSIG];
} crash = {.fd = -1};

static _Atomic(const struct crash_kernels *) step_kernels;
static _Atomic(const struct kernel *) running;

static _Thread_local bool computes, dies;
static _Thread_local void *own_stack;

/* ---- what the threads say ------------------------------------------------------------------- */

enum { STACK = 64 * 1024 };

void crash_stack(void)
{
    stack_t now, s = {.ss_size = STACK};
    if (sigaltstack(NULL, &now) != 0 || !(now.ss_flags & SS_DISABLE))
        return; /* it has one, a sanitizer's */
    s.ss_sp = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.ss_sp != MAP_FAILED && sigaltstack(&s, NULL) == 0)
        own_stack = s.ss_sp;
}

void crash_stack_end(void)
{
    const stack_t none = {.ss_flags = SS_DISABLE};
    if (!own_stack)
        return;
    sigaltstack(&none, NULL);
    munmap(own_stack, STACK);
    own_stack = NULL;
}

void crash_thread(void)
{
    computes = true;
    crash_stack();
}

void crash_thread_end(void)
{
    computes = false;
    crash_stack_end();
}

void crash_step(const struct crash_kernels *step)
{
    atomic_store_explicit(&step_kernels, step, memory_order_release);
}

void crash_runs(const struct kernel *k)
{
    atomic_store_explicit(&running, k, memory_order_release);
}

/* ---- noting --------------------------------------------------------------------------------- */

static void add(struct crash_record *r, const struct kernel *k)
{
    if (r->n < CRASH_KERNELS)
        memcpy(r->kernel[r->n++], k->id, sizeof *r->kernel);
}

/* At once or not at all: a process that dies waits for nobody. */
static ssize_t send_record(void)
{
    struct iovec part[2] = {{crash.head, crash.head_n},
                            {&crash.page.record, sizeof crash.page.record}};
    struct msghdr m = {.msg_iov = part, .msg_iovlen = 2};
    return sendmsg(crash.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void save(void)
{
    memcpy(crash.page.magic, magic, sizeof magic);
    if (crash.fd >= 0 &&
        (crash.head_n ? send_record() : pwrite(crash.fd, &crash.page, sizeof crash.page, 0)) < 0)
        return; /* the place was made before; nobody is left who could do more */
}

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strlen(from);
    n = n < size ? n : size - 1;
    memcpy(to, from, n);
    to[n] = 0;
}

/* Onto stderr, beside the lines of the log. */
static void say(const char *signal_name, const struct kernel *k)
{
    char line[320] = "error engine: ";
    size_t n = strlen(line);
    const char *part[] = {signal_name,      k ? " in kernel " : " in a step",
                          k ? k->id : "",   k ? " (" : "",
                          k ? k->name : "", k ? "); it is noted\n" : "; it is noted\n"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        copy_text(line + n, sizeof line - n, part[i]);
        n += strlen(line + n);
    }
    if (write(STDERR_FILENO, line, n) < 0)
        return;
}

/* SIGSEGV and the like by the processor or by this process (abort()), and not by kill(1). */
static bool of_our_own(const siginfo_t *info)
{
    return info->si_code > 0 || (info->si_code == SI_TKILL && info->si_pid == getpid());
}

/* The kernel that it happened in, if any did. False: there is nothing to note. */
static bool note(int sig, const struct kernel **in)
{
    struct crash_record *r = &crash.page.record;
    const struct kernel *k = atomic_load_explicit(&running, memory_order_acquire);
    const struct crash_kernels *step = atomic_load_explicit(&step_kernels, memory_order_acquire);
    const char *name = sigabbrev_np(sig);
    memcpy(r->what, "SIG", 3);
    copy_text(r->what + 3, sizeof r->what - 3, name ? name : "?");
    if (k && k->origin == ORIGIN_EAGER)
        k = NULL;
    r->n = 0;
    r->inside = k != NULL;
    if (k)
        add(r, k);
    for (int32_t i = 0; !k && step && i < step->n; i++)
        add(r, step->of[i]);
    if (r->n == 0)
        return false;
    save();
    *in = k;
    return true;
}

/* What must not be lost comes first, and what people look for, the last line, last. */
static void last_words(int sig, const siginfo_t *info, const void *context)
{
    const struct kernel *in = NULL;
    bool noted =
        crash.fd >= 0 && computes && !atomic_exchange(&crash.noted, true) && note(sig, &in);
    crash_trace(sig, info, context);
    if (noted)
        say(crash.page.record.what, in);
}

/* The first process of a container is not ended by a signal that it sends to itself: it goes on
 * where the fault was, and what the system itself finds there ends it. So a thread may come here
 * twice: abort() goes on with an instruction that is none. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
    if (of_our_own(info) && !dies) {
        while (atomic_exchange(&crash.dying, true))
            pause();
        dies = true;
        last_words(sig, info, context);
    }
    sigaction(sig, &crash.before[sig], NULL);
    raise(sig); /* delivered when this handler returns, with the registers of the fault */
}

void crash_device(const struct crash_kernels *step, const char *what)
{
    struct crash_record *r = &crash.page.record;
    if (step->n == 0 || atomic_exchange(&crash.noted, true))
        return;
    copy_text(r->what, sizeof r->what, what);
    r->inside = false;
    for (int32_t i = 0; i < step->n; i++)
        add(r, step->of[i]);
    save();
}

void crash_of_rank(const struct crash_record *r, int32_t rank)
{
    if (atomic_exchange(&crash.noted, true))
        return;
    memcpy(&crash.page.record, r, sizeof *r); /* into a page that is written as it lies there */
    snprintf(crash.page.record.what, sizeof r->what, "%.140s on rank %d", r->what, rank);
    save();
}

/* ---- the file ------------------------------------------------------------------------------- */

static void catch_faults(void)
{
    if (crash.caught)
        return;
    crash.caught = true;
    crash_trace_prepare();
    fault_each(crash.before, NULL);
    fault_catch(on_fault);
}

void crash_catch(void)
{
    crash.to_the_end = true;
    crash_stack();
    catch_faults();
}

static void begin(int fd)
{
    memset(&crash.page, 0, sizeof crash.page);
    atomic_store(&crash.noted, false);
    crash.fd = fd;
    catch_faults();
}

int crash_open(const char *path, struct err *err)
{
    if (crash.fd >= 0)
        return err_set(err, "%.300s: crashes are noted in %.100s already", path,
                       crash.path ? crash.path : "rank 0");
    FILE *f = safe_create(path);
    int fd = f ? fcntl(fileno(f), F_DUPFD_CLOEXEC, 3) : -1;
    int failed = fd < 0 ? errno : posix_fallocate(fd, 0, sizeof crash.page);
    if (f)
        fclose(f);
    if (failed) {
        if (fd >= 0)
            close(fd);
        unlink(path);
        return err_set(err, "%.300s: %s", path, strerror(failed));
    }
    crash.path = xstrdup(path);
    begin(fd);
    return 0;
}

int crash_send(int fd, const void *head, size_t n, struct err *err)
{
    if (crash.fd >= 0 || n < 1 || n > sizeof crash.head)
        return err_set(err, "crashes are noted already, or behind %zu bytes", n);
    memcpy(crash.head, head, n);
    crash.head_n = n;
    begin(fd);
    return 0;
}

void crash_close(void)
{
    if (crash.fd < 0)
        return;
    if (!crash.to_the_end) {
        fault_each(NULL, crash.before);
        crash.caught = false;
    }
    if (crash.path && (!atomic_load(&crash.noted) || crash.page.record.n == 0))
        unlink(crash.path);
    if (crash.path)
        close(crash.fd);
    crash.fd = -1;
    crash.head_n = 0;
    free(crash.path);
    crash.path = NULL;
}

/* What a program that is no longer this one wrote is looked at before it is believed. */
bool crash_sound(struct crash_record *r)
{
    unsigned char inside; /* any byte: one that is neither 0 nor 1 must not be read as a bool */
    if (r->n < 1 || r->n > CRASH_KERNELS)
        return false;
    memcpy(&inside, &r->inside, sizeof inside);
    r->what[sizeof r->what - 1] = 0;
    r->inside = inside != 0 && r->n == 1;
    for (int32_t i = 0; i < r->n; i++)
        r->kernel[i][sizeof r->kernel[i] - 1] = 0;
    return true;
}

int crash_read(const char *path, struct crash_record *out)
{
    struct page p;
    int fd = safe_open(path, NULL);
    if (fd < 0)
        return 0;
    bool whole = read(fd, &p, sizeof p) == (ssize_t)sizeof p;
    close(fd);
    if (!whole || memcmp(p.magic, magic, sizeof magic) != 0 || !crash_sound(&p.record))
        return 0;
    *out = p.record;
    return 1;
}
