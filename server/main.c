/* main.c - the program `whet`: finds the subcommand and hands it the rest of the command line.
 *
 * Exit codes: 0 done, 1 failure, 2 usage. Nothing exits anywhere else.
 */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "server/server.h"

/* Entry points of the other folders; main.c is the one place that knows them all. */
int bench_main(int argc, char **argv);
int kernels_main(int argc, char **argv);
int probe_main(int argc, char **argv);

static int version_main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    puts("whet " WHET_VERSION);
    return 0;
}

static int help_main(int argc, char **argv);

static const struct command {
    const char *name, *help; /* help NULL: internal */
    int (*run)(int argc, char **argv);
} commands[] = {
    {"serve", "serve a model over HTTP, sharpening its kernels meanwhile", serve_main},
    {"bench", "measure decode, prefill, steps and regions: eager against specialized", bench_main},
    {"kernels", "list and show the kernels of a store", kernels_main},
    {"probe", NULL, probe_main},
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

int main(int argc, char **argv)
{
    for (int i = 0; argc > 1 && i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    if (argc > 1)
        fprintf(stderr, "whet: there is no command \"%s\"\n\n", argv[1]);
    usage(stderr);
    return 2;
}
