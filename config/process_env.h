/* SPDX-License-Identifier: Apache-2.0 */
/* process_env.h - inside process.c: what a child may see of our environment, and where programs are
 * looked for. */
#ifndef WHET_CONFIG_PROCESS_ENV_H
#define WHET_CONFIG_PROCESS_ENV_H

#include "config/err.h"

enum { ENVIRONMENT_MAX = 14 };

/* The variables for a child into `out`, NULL at the end, each malloc'ed. `temporary`: the folder
 * for its temporary files, NULL for where ours are. -1 with a message when no file can be opened to
 * look at folders: a compiler without its assembler would seem to blame the kernel. */
int process_environment(const char *temporary, char *out[ENVIRONMENT_MAX + 1], struct err *err);

/* `name` with the folder of PATH where it is executable; with a slash in it, itself. malloc'ed, or
 * NULL with a message that names what of PATH was left out. */
char *process_program(const char *name, struct err *err);

#endif
