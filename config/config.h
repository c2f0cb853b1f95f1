/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - every option of whet, from one table (options.def).
 *
 * Precedence: command-line flag, then environment (WHET_SECTION_NAME), then file (INI,
 * section.name), then the default. An ill-typed value, and a name in the file or among the flags
 * that is no option, is an error that names it and where it came from. Of the environment, which
 * others write to as well, an unknown WHET_SECTION_NAME is a warning in the log. Filled once at
 * start, read-only afterwards (SIGHUP reloads only what server/ re-reads itself: key files, limits
 * of clients, CORS origins and the log level).
 */
#ifndef WHET_CONFIG_CONFIG_H
#define WHET_CONFIG_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "config/err.h"

struct config {
#define SECTION(section, help)
#define OPT_STR(section, name, def, help) char *section##_##name;
#define OPT_INT(section, name, def, lo, hi, help) int64_t section##_##name;
#define OPT_NUM(section, name, def, lo, hi, help) double section##_##name;
#define OPT_BOOL(section, name, def, help) bool section##_##name;
#define OPT_ENUM(section, name, def, choices, help) char *section##_##name;
#include "config/options.def"
};

/* Reads defaults, --config FILE, environment and argv[1..]. Flags are --section-name VALUE,
 * --section-name=VALUE, booleans also --section-name / --no-section-name, and the aliases in
 * options.def. 0 done; 1 --help was printed to stdout; -1 error. */
int config_parse(struct config *c, int argc, char **argv, struct err *err);
void config_free(struct config *c);

/* Writes `--help` text, or the Markdown table of docs/configuration.md, from the option table. */
void config_help(FILE *out);
void config_markdown(FILE *out);

#endif
