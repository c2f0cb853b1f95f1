/* SPDX-License-Identifier: Apache-2.0 */
/* build_cc.c - a compiler as a background worker: the system's C compiler, or NVRTC.
 *
 * One candidate is one compiler process: idle priority, bounded CPU time, memory and output. The
 * object is written under a temporary name beside its place, read as data (object.c, cubin.c) and
 * only then renamed, so the cache never holds half an object or one that must not be loaded. What
 * the compiler's own parts hand each other lies in a folder beside it, which goes with the build: a
 * compiler that is killed leaves it behind.
 *
 * build_timeout limits CPU time. Wall time may be ten times that: at idle priority a busy server
 * can starve a compiler for long, which says nothing about the kernel - such a build is retried,
 * as is one that failed because the disk was full, the kernel took the process for its memory or
 * our folders were cleared away.
 *
 * The first build for an instruction set makes a header first (header.h), by a process like any
 * other, unless somebody makes it beside (header_work.h). A build that fails with it runs once more
 * without: what a compiler says of a kernel must not depend on a file that is only there to save
 * time. One of a text whose code has the bytes of a system call is made again in other ways: most
 * often they are part of a constant by accident, and a true one is still there then.
 *
 * Flags: -ffp-contract=off and no -ffast-math keep the canonical order of arithmetic (lanes.h);
 * -fno-math-errno and -fno-trapping-math change no result but let square roots and selects be
 * vectorized. Instruction sets are knobs: their flags come with the candidate's defines.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/process.h"
#include "config/process_env.h"
#include "config/safe_path.h"
#include "specializer/agent/agent_cubin.h"
#include "specializer/agent/agent_source.h"
#include "specializer/build/build.h"
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/build_private.h"
#include "specializer/build/cubin.h"
#include "specializer/build/header.h"
#include "specializer/build/header_work.h"
#include "specializer/build/object.h"
#include "specializer/search/space.h"

enum { LOG_MAX = 16 * 1024 };
static const int64_t compiler_memory = 2LL << 30, nvrtc_memory = 6LL << 30;

const char *const build_flags[] = {"-O3",
                                   "-std=gnu11",
                                   "-mtune=native",
                                   "-shared",
                                   "-fPIC",
                                   "-ffp-contract=off",
                                   "-fno-math-errno",
                                   "-fno-trapping-math",
                                   "-fno-asynchronous-unwind-tables",
                                   "-nostdlib",
                                   "-Wl,--build-id=none",
                                   NULL};

struct build {
    const struct stage_env *env;
    struct candidate *c;
    struct process *process;
    char *temporary, *folder; /* the object until it is put in place; the compiler's own files */
    bool library;             /* the compiler is one, in a child of our own program */
    struct header header;
    struct header_work *making; /* the header, which the object waits for */
    bool doubted;               /* it failed with the header and is tried without */
    int others;                 /* its code looked like a system call: other_ways[] begun */
    enum stage_result chosen;   /* without a process: a library's kernel, which is there at once */
};

/* ---- finding a compiler --------------------------------------------------------------------- */

static int write_file(const char *path, const char *text)
{
    FILE *f = safe_create(path);
    if (!f)
        return -1;
    int rc = fputs(text, f) < 0 ? -1 : 0;
    return fclose(f) == 0 ? rc : -1;
}

/* Nobody else may be able to exchange what we are about to run; a name without a slash is looked up
 * as it will be when it is run. 1: there is no such program. */
static int check_program(const char *name, struct err *err)
{
    char *program = strchr(name, '/') ? xstrdup(name) : process_program(name, err);
    if (!program)
        return 1;
    int rc = safe_program(program, err);
    if (rc != 0)
        err_prefix(err, "compiler %.100s is not used", name);
    free(program);
    return rc;
}

/* The first line of `path --version`. 1: there is no such program. */
static int read_version(const char *path, struct compiler *out, struct err *err)
{
    const char *argv[] = {path, "--version", NULL};
    struct process_spec spec = {.argv = argv,
                                .wall_s = 20,
                                .cpu_s = 20,
                                .address_bytes = compiler_memory,
                                .file_bytes = COMPILER_FILE_MOST,
                                .output_max = 4096,
                                .stop = out->stop};
    struct process_result r;
    int rc = check_program(path, err);
    if (rc != 0 || (rc = process_run(&spec, &r, err)) != 0)
        return rc;
    size_t n = strcspn(r.out, "\n");
    if (r.status != 0 || r.signal != 0 || n == 0)
        rc = err_set(err, "%s --version: no answer", path);
    snprintf(out->path, sizeof out->path, "%s", path);
    snprintf(out->version, sizeof out->version, "%.*s", (int)n, r.out);
    process_result_free(&r);
    return rc;
}

/* argv of a compilation, NULL-terminated in `argv`. `header` and `kernel_dir` may be NULL. */
static void build_command(const char **argv, const char *compiler, const char *header,
                          const char *kernel_dir, char *const *define, const char *source,
                          const char *object)
{
    int n = 0;
    argv[n++] = compiler;
    if (header) { /* before everything else, or it is of no use */
        argv[n++] = "-include";
        argv[n++] = header;
    }
    for (int i = 0; build_flags[i]; i++)
        argv[n++] = build_flags[i];
    if (kernel_dir) {
        argv[n++] = "-I";
        argv[n++] = kernel_dir;
    }
    for (int i = 0; define && define[i] && n < COMPILER_ARGUMENTS - 6; i++)
        argv[n++] = define[i];
    argv[n++] = "-o";
    argv[n++] = object;
    argv[n++] = source;
    argv[n++] = "-lgcc";
    argv[n] = NULL;
}

/* Builds a trivial kernel in a directory of its own with the flags that real ones get. */
static int try_compiler(const char *path, const atomic_bool *stop, struct err *err)
{
    char *dir = safe_folder_temporary("whet-cc-", err);
    if (!dir)
        return -1;
    char *source = xasprintf("%s/try.c", dir), *object = xasprintf("%s/try.so", dir);
    const char *argv[COMPILER_ARGUMENTS];
    build_command(argv, path, NULL, NULL, NULL, source, object);
    struct process_spec spec = {.argv = argv,
                                .wall_s = 60,
                                .cpu_s = 60,
                                .address_bytes = compiler_memory,
                                .file_bytes = COMPILER_FILE_MOST,
                                .output_max = 4096,
                                .temporary = dir,
                                .stop = stop};
    struct process_result r = {0};
    char how[80];
    int rc = write_file(source, "float whet_kernel(float x) { return __builtin_sqrtf(x); }\n");
    if (rc != 0)
        err_set(err, "%s: cannot be written", source);
    else if ((rc = process_run(&spec, &r, err)) == 0) {
        if (r.status != 0 || r.signal != 0)
            rc = err_set(err, "%s does not build shared objects (%s): %.200s", path,
                         process_describe(&r, how, sizeof how), r.err);
        else if (object_inspect(object, err) != 0)
            rc = err_prefix(err, "%s: what it builds", path);
        process_result_free(&r);
    }
    safe_folder_remove(dir);
    free(source);
    free(object);
    free(dir);
    return rc;
}

int compiler_find(const struct config *config, struct compiler *out, struct err *err)
{
    const char *wanted = config->specializer_compiler;
    out->machine = MACHINE_CPU;
    if (wanted && *wanted)
        return read_version(wanted, out, err) == 0 ? try_compiler(wanted, out->stop, err) : -1;
    static const char *const known[] = {"cc", "gcc", "clang"};
    struct err last = {""};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int found = read_version(known[i], out, &last);
        if (found == 0 && try_compiler(known[i], out->stop, &last) == 0)
            return 0;
        /* A compiler that is there but broken says more than one that is missing. */
        if (i == 0 || found <= 0)
            *err = last;
    }
    return err_prefix(err, "no C compiler (cc, gcc, clang) on PATH works");
}

/* ---- building ------------------------------------------------------------------------------- */

/* What was made becomes the candidate's object. */
static enum stage_result place_object(struct build *b, double seconds, double cpu)
{
    struct candidate *c = b->c;
    struct stat st;
    if (object_checksum(b->temporary, c->object_sum) != 0 || stat(b->temporary, &st) != 0 ||
        chmod(b->temporary, 0600) !=
            0 || /* whatever our umask is: it is loaded if it is ours alone */
        rename(b->temporary, c->object) != 0) {
        candidate_explain(c, STAGE_BUILD, CAUSE_OTHER, 0, "%.150s cannot be put in place: %s",
                          c->object, strerror(errno));
        return STAGE_RETRY;
    }
    c->evidence.build_s = seconds;
    c->evidence.build_cpu_s = cpu;
    c->evidence.object_bytes = st.st_size;
    return STAGE_PASS;
}

/* A library's kernel: asked for at once, in this process, by the backend that knows the library and
 * will read what it writes. */
static enum stage_result choose(const struct stage_env *env, struct build *b)
{
    struct candidate *c = b->c;
    struct err err = {""};
    int64_t start = clock_ns();
    char *log = NULL;
    free(c->log);
    c->log = NULL;
    c->log_words = 0;
    if (!env->ops->choose) {
        candidate_explain(c, STAGE_BUILD, CAUSE_OTHER, 0,
                          "the backend has no library to choose from");
        return STAGE_REFUSE;
    }
    if (env->ops->choose(env->backend, c->define, b->temporary, &log, &err) != 0) {
        candidate_explain(c, STAGE_BUILD, CAUSE_OTHER, 0, "%.200s", err.msg);
        return STAGE_REFUSE;
    }
    c->log = log;
    double seconds = (double)(clock_ns() - start) * 1e-9;
    return place_object(b, seconds, seconds);
}

struct process *compiler_process(const struct stage_env *env, const char *const *argv,
                                 const char *folder, struct err *err)
{
    double limit = env->config->specializer_build_timeout;
    bool library = target_of(env->compiler->machine)->compiler_library;
    struct process_spec spec = {.argv = argv,
                                .priority = stage_priority(env),
                                .wall_s = 10 * limit,
                                .cpu_s = (int32_t)ceil(limit),
                                .address_bytes = library ? nvrtc_memory : compiler_memory,
                                .file_bytes = COMPILER_FILE_MOST,
                                .output_max = LOG_MAX};
    if (folder && (mkdir(folder, 0700) == 0 || errno == EEXIST))
        spec.temporary = folder;
    engine_note_compile();
    return process_start(&spec, err);
}

static int start_process(struct build *b, const char *const *argv, struct err *err)
{
    process_end(b->process);
    b->process = compiler_process(b->env, argv, b->library ? NULL : b->folder, err);
    return b->process ? 0 : err_prefix(err, "build");
}

/* With the header if it is there. */
static int start_compiler(struct build *b, struct err *err)
{
    const struct stage_env *env = b->env;
    const char *argv[COMPILER_ARGUMENTS];
    build_command(argv, env->compiler->path,
                  b->header.state == HEADER_READY ? b->header.path : NULL, env->kernel_dir,
                  b->c->define, b->c->source, b->temporary);
    return start_process(b, argv, err);
}

/* One pass less or more each, without which a kernel is hardly slower: other registers, common
 * subexpressions, addresses in loops. With any one of them alone some bytes stay. */
static const char *const other_ways[] = {"-frename-registers", "-fno-gcse", "-fno-ivopts"};

/* Once more in the next way, so that what is no instruction comes out as other bytes. 1: there is
 * none left. */
static int start_otherwise(struct build *b, struct err *err)
{
    if (b->others == (int)(sizeof other_ways / sizeof *other_ways))
        return 1;
    const char *argv[COMPILER_ARGUMENTS + 1];
    int n = 0;
    build_command(argv, b->env->compiler->path, NULL, b->env->kernel_dir, b->c->define,
                  b->c->source, b->temporary);
    while (argv[n])
        n++;
    argv[n++] = other_ways[b->others++];
    argv[n] = NULL;
    candidate_log_start(b->c, argv);
    return start_process(b, argv, err);
}

/* The log begins with the command that makes this object wherever the sources are. */
static int start_cc(struct build *b, struct err *err)
{
    const struct stage_env *env = b->env;
    const char *argv[COMPILER_ARGUMENTS];
    build_command(argv, env->compiler->path, NULL, env->kernel_dir, b->c->define, b->c->source,
                  b->temporary);
    candidate_log_start(b->c, argv);
    b->header = header_look(env->compiler, env->kernel_dir, b->c->define);
    if (b->header.state == HEADER_MISSING && !env->headers_apart) {
        b->making = header_work_start(env, b->c->define, err);
        return b->making ? 0 : err_prefix(err, "build");
    }
    return start_compiler(b, err);
}

static int start_nvrtc(struct build *b, struct err *err)
{
    const char *argv[COMPILER_ARGUMENTS];
    char include[4096];
    nvrtc_command(argv, COMPILER_ARGUMENTS, b->env, b->c, b->temporary, include, sizeof include);
    candidate_log_start(b->c, argv);
    return start_process(b, argv, err);
}

struct build *build_start(const struct stage_env *env, struct candidate *c, struct err *err)
{
    static int counter;
    struct build *b = xcalloc(1, sizeof *b);
    b->env = env;
    b->c = c;
    b->temporary = xasprintf("%s.%ld-%d.tmp", c->object, (long)getpid(), counter++);
    b->folder = xasprintf("%s.d", b->temporary);
    if (build_files_restore(env, c, err) != 0) {
        build_end(b);
        return NULL;
    }
    if (c->template && c->template->library) {
        b->chosen = choose(env, b);
        return b;
    }
    b->library = target_of(env->compiler->machine)->compiler_library;
    if ((b->library ? start_nvrtc(b, err) : start_cc(b, err)) == 0)
        return b;
    build_end(b);
    return NULL;
}

/* The first line of the compiler's output that reports an error, else its first line. */
static void first_error(const char *log, char *dst, size_t n)
{
    const char *at = strstr(log, "error:");
    snprintf(dst, n, "%.*s", (int)strcspn(at ? at : log, "\n"), at ? at : log);
}

static enum stage_result compiler_failed(struct build *b, const struct process_result *r)
{
    char how[80], what[160];
    process_describe(r, how, sizeof how);
    first_error(r->err, what, sizeof what);
    candidate_explain(b->c, STAGE_BUILD, CAUSE_OTHER, 0, "compiler: %s%s%s", how, *what ? ": " : "",
                      what);
    bool starved = r->timed_out && !r->cpu_out;
    bool taken = r->signal == SIGKILL && !r->timed_out && !r->cpu_out;
    if (starved || taken || compiler_was_hindered(r->err, b->c->object) ||
        build_missed_files(b->env, b->c, r->err))
        return STAGE_RETRY;
    return STAGE_REFUSE;
}

/* A language model wrote it. */
static bool is_text(const struct candidate *c)
{
    return c->origin == ORIGIN_AGENT || c->body[0];
}

/* Resources as read back from the cubin go into the log beside what the compiler said. */
static int inspect_cubin(struct build *b, struct err *err)
{
    struct cubin_facts f;
    int rc = cubin_inspect(b->temporary, &f, err);
    if (rc == 0 && is_text(b->c))
        rc = agent_cubin_check(b->temporary, &f.info, (int32_t)b->c->slot->region, b->c->slot->m,
                               err);
    char line[160];
    snprintf(line, sizeof line,
             "%d registers, %d bytes of stack, %d threads, %d bytes of dynamic shared memory\n",
             f.registers, f.stack, f.info.launch[0].threads, f.info.launch[0].smem);
    candidate_log_add(b->c, line);
    return rc;
}

/* What the frame says of a text is compared with what the object says. As object_inspect_text(). */
static int inspect_object(const struct build *b, struct err *err)
{
    const struct candidate *c = b->c;
    char layout[40];
    if (!is_text(c))
        return object_inspect(b->temporary, err);
    struct object_frame frame = {.region = (int32_t)c->slot->region, .m_max = c->slot->m};
    if (c->body[0]) {
        candidate_body_name(c->template->machine, c->body, layout);
        frame.layout = layout;
    }
    return object_inspect_text(b->temporary, &frame, err);
}

static enum stage_result accept_object(struct build *b, const struct process_result *r)
{
    struct candidate *c = b->c;
    struct err err = {""};
    int rc = b->library ? inspect_cubin(b, &err) : inspect_object(b, &err);
    if (rc == OBJECT_CALLS && !b->library && start_otherwise(b, &err) == 0)
        return STAGE_RUNNING;
    if (rc != 0) {
        candidate_explain(c, STAGE_BUILD, CAUSE_OTHER, 0, "object %.200s", err.msg);
        return build_has_folder(c->object) ? STAGE_REFUSE : STAGE_RETRY;
    }
    return place_object(b, r->wall_s, r->cpu_s);
}

bool compiler_succeeded(const struct process_result *r)
{
    return !r->timed_out && !r->signal && r->status == 0;
}

bool compiler_refused(const struct process_result *r, const char *object)
{
    return !r->timed_out && !r->signal && r->status != 0 && !compiler_was_hindered(r->err, object);
}

/* The object, after a header was made or in vain, or once more without. */
static enum stage_result go_on(struct build *b)
{
    struct err err = {""};
    if (start_compiler(b, &err) == 0)
        return STAGE_RUNNING;
    candidate_explain(b->c, STAGE_BUILD, CAUSE_OTHER, 0, "%.220s", err.msg);
    return STAGE_RETRY;
}

static enum stage_result poll_header(struct build *b)
{
    if (header_work_poll(b->making) == STAGE_RUNNING)
        return STAGE_RUNNING;
    header_work_end(b->making);
    b->making = NULL;
    b->header = header_look(b->env->compiler, b->env->kernel_dir, b->c->define);
    return go_on(b);
}

enum stage_result build_poll(struct build *b)
{
    if (b->making)
        return poll_header(b);
    if (!b->process)
        return b->chosen;
    if (!process_poll(b->process))
        return STAGE_RUNNING;
    const struct process_result *r = process_result(b->process);
    if (b->header.state == HEADER_READY && compiler_refused(r, b->c->object)) {
        b->header.state = HEADER_NONE;
        b->doubted = true;
        return go_on(b);
    }
    candidate_log_add(b->c, r->err_n > 0 ? r->err : NULL);
    if (!compiler_succeeded(r))
        return compiler_failed(b, r);
    if (b->doubted)
        header_give_up(&b->header);
    return accept_object(b, r);
}

void build_end(struct build *b)
{
    if (!b)
        return;
    header_work_end(b->making);
    process_end(b->process);
    unlink(b->temporary);
    safe_folder_remove(b->folder);
    free(b->temporary);
    free(b->folder);
    free(b);
}
