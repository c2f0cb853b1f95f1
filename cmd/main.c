/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the program `whet`: finds the subcommand and hands it the rest of the command line.
 *
 * Exit codes: 0 done, 1 failure, 2 usage, 3 another rank of the model was lost (engine/ranks.h).
 * A server ends here but for a load that is given up (cmd/serve.c), an engine that does not stop
 * (server/loop.c), a rank that is stuck in its device (engine/ranks.c) and a WHET_ISA that nobody
 * knows (kernels/isa.c); children end themselves.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/bench.h"
#include "config/config.h"
#include "config/descriptors.h"
#include "config/json_strict.h"
#include "engine/cpu/blas.h"
#include "engine/cpu/executor.h"
#include "engine/crash.h"
#include "server/server.h"
#include "specializer/admission/probe.h"
#include "specializer/build/build.h"
#include "specializer/fleet/fleet_main.h"
#include "specializer/transfer/kernels_main.h"
#include "tune/tune.h"

/* `whet kernels WORDS... [options]`: the words come first, the options choose the store. */
static int with_options(int argc, char **argv,
                        int (*run)(const struct config *c, int argc, char **argv))
{
    int words = 1;
    while (words < argc && strncmp(argv[words], "--", 2) != 0)
        words++;
    struct config c;
    struct err err;
    int parsed = config_parse(&c, argc - words + 1, argv + words - 1, &err);
    if (parsed < 0)
        fprintf(stderr, "whet %s: %s\n", argv[0], err.msg);
    int rc = parsed < 0 ? 2 : parsed > 0 ? 0 : run(&c, words - 1, argv + 1);
    config_free(&c);
    return rc;
}

static int kernels_command(int argc, char **argv)
{
    return with_options(argc, argv, kernels_main);
}

/* The same, with the database. */
static int fleet_command(int argc, char **argv)
{
    return with_options(argc, argv, fleet_main);
}

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("whet " WHET_VERSION);
    return 0;
}

/* The tables of docs/configuration.md (scripts/gen-docs). */
static int options_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    config_markdown(stdout);
    return 0;
}

static int help_main(int argc, char **argv);

static const struct command {
    const char *name, *help; /* help NULL: internal */
    int (*run)(int argc, char **argv);
    const char *usage; /* what --help says; NULL: the command's own business */
} commands[] = {
    {"serve", "serve a model over HTTP, sharpening its kernels meanwhile", serve_main},
    {"bench", "measure decode, prefill, steps and regions: eager against specialized", bench_main,
     bench_usage},
    {"tune", "search for kernels without a server; compare strategies; judge the cost model",
     tune_main, tune_usage},
    {"kernels", "list, show, export and import the kernels of a store", kernels_command,
     kernels_usage},
    {"fleet", "what servers share in PostgreSQL: status, retract, export, migrate, repair",
     fleet_command, fleet_usage},
    {"probe", NULL, probe_main},
    {"nvrtc", NULL, nvrtc_main},
    {"executor", NULL, executor_main},
    {"options", NULL, options_main},
    {"--version", "print the version", version_main},
    {"--help", "print this and every option", help_main},
    {"-h", NULL, help_main},
};
enum { COMMANDS = sizeof(commands) / sizeof(*commands) };

static void usage(FILE *out)
{
    fputs("usage: whet COMMAND [options]\n\n", out);
    for (int i = 0; i < COMMANDS; i++)
        if (commands[i].help)
            fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
}

static int help_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    usage(stdout);
    fputs("\noptions of `whet serve`, also as section.name in a --config file and as "
          "WHET_SECTION_NAME\nin the environment:\n\n",
          stdout);
    config_help(stdout);
    return 0;
}

/* Whether a word behind the command asks for help. */
static bool wants_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static int run(const struct command *c, int argc, char **argv)
{
    if (c->help)
        crash_catch(); /* internal ones have handlers of their own */
    if (!c->usage || !wants_help(argc, argv))
        return c->run(argc - 1, argv + 1);
    printf("%s\nThe options of whet serve: whet --help\n", c->usage);
    return 0;
}

/* A program that was started with one of 0, 1 and 2 closed gets the number for the next file that
 * it opens: what it prints and logs would be written there, into its store or to a client. */
static void open_standard_streams(void)
{
    int fd;
    do
        fd = descriptor_nowhere(O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static void end_at_once(int sig)
{
    _exit(128 + sig);
}

/* The first process of a container is spared the signals that it does not handle: one that begins,
 * or a rank that waits for rank 0, would not end until it is killed. A server handles them later
 * (server/loop.c). */
static void end_as_others_do(void)
{
    if (getpid() != 1)
        return;
    signal(SIGTERM, end_at_once);
    signal(SIGINT, end_at_once);
}

/* The limit of the stack is also the size of threads' stacks, and what compilers and probes get.
 * Under one for shells (ulimit -s 64, say) the first request would overflow one. */
static void enough_stack(void)
{
    enum { USUAL = 8 << 20 };
    struct rlimit r;
    pthread_attr_t threads;
    if (getrlimit(RLIMIT_STACK, &r) != 0 || r.rlim_cur >= USUAL)
        return;
    r.rlim_cur = r.rlim_max < USUAL ? r.rlim_max : USUAL;
    setrlimit(RLIMIT_STACK, &r);
    pthread_attr_init(&threads);
    pthread_attr_setstacksize(&threads, USUAL);
    pthread_setattr_default_np(&threads);
    pthread_attr_destroy(&threads);
}

/* `rc`, or 1 where what a command wrote did not arrive: a full disk, say. A closed pipe ends the
 * process by SIGPIPE, as it does with other tools. */
static int flushed(int rc)
{
    errno = 0;
    bool lost = fflush(stdout) != 0;
    int why = errno;
    if (!lost && !ferror(stdout))
        return rc;
    fprintf(stderr, "whet: the output could not be written: %s\n",
            lost && why ? strerror(why) : "some of it is lost");
    return rc ? rc : 1;
}

int main(int argc, char **argv)
{
    open_standard_streams();
    end_as_others_do();
    enough_stack();
    json_memory();
    blas_prepare();
    for (int i = 0; argc > 1 && i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return flushed(run(&commands[i], argc, argv));
    if (argc > 1)
        fprintf(stderr, "whet: there is no command \"%s\"\n\n", argv[1]);
    usage(stderr);
    return 2;
}
