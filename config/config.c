/* SPDX-License-Identifier: Apache-2.0 */
/* config.c - the option parser, driven by options.def.
 *
 * The table is included five times: for the struct (config.h), and below for the rows, the
 * sections, the aliases and the enums that were booleans. A row knows where its value lives
 * (offset), its type and its range, so file, environment and flags all go through one function,
 * set_text(), which names the option, the value and its origin when it refuses.
 */
#include "config/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"

enum option_type { TYPE_STR, TYPE_INT, TYPE_NUM, TYPE_BOOL, TYPE_ENUM };

struct option {
    const char *section, *name, *def, *help, *choices;
    enum option_type type;
    size_t offset;
    double lo, hi;
};

#define AT(section, name) offsetof(struct config, section##_##name)
static const struct option options[] = {
#define SECTION(section, help)
#define OPT_STR(section, name, def, help) \
    {#section, #name, def, help, NULL, TYPE_STR, AT(section, name), 0, 0},
#define OPT_INT(section, name, def, lo, hi, help) \
    {#section, #name, #def, help, NULL, TYPE_INT, AT(section, name), (double)(lo), (double)(hi)},
#define OPT_NUM(section, name, def, lo, hi, help) \
    {#section, #name, #def, help, NULL, TYPE_NUM, AT(section, name), lo, hi},
#define OPT_BOOL(section, name, def, help) \
    {#section, #name, #def, help, NULL, TYPE_BOOL, AT(section, name), 0, 1},
#define OPT_ENUM(section, name, def, choices, help) \
    {#section, #name, def, help, choices, TYPE_ENUM, AT(section, name), 0, 0},
#include "config/options.def"
};
enum { OPTIONS = sizeof options / sizeof *options };

static const struct {
    const char *name, *help;
} sections[] = {
#define SECTION(section, help) {#section, help},
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, lo, hi, help)
#define OPT_NUM(section, name, def, lo, hi, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help)
#include "config/options.def"
};

static const struct {
    const char *flag, *section, *name;
} aliases[] = {
#define ALIAS(flag, section, name) {flag, #section, #name},
#define SECTION(section, help)
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, lo, hi, help)
#define OPT_NUM(section, name, def, lo, hi, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help)
#include "config/options.def"
};

static const struct {
    const char *section, *name, *yes, *no;
} were_bool[] = {
#define WAS_BOOL(section, name, yes, no) {#section, #name, yes, no},
#define SECTION(section, help)
#define OPT_STR(section, name, def, help)
#define OPT_INT(section, name, def, lo, hi, help)
#define OPT_NUM(section, name, def, lo, hi, help)
#define OPT_BOOL(section, name, def, help)
#define OPT_ENUM(section, name, def, choices, help)
#include "config/options.def"
};

static void *field(const struct config *c, const struct option *o)
{
    return (char *)c + o->offset;
}

static const struct option *find(const char *section, size_t section_n, const char *name)
{
    for (int i = 0; i < OPTIONS; i++)
        if (strlen(options[i].section) == section_n &&
            strncmp(options[i].section, section, section_n) == 0 &&
            strcmp(options[i].name, name) == 0)
            return &options[i];
    return NULL;
}

/* ---- one value ---------------------------------------------------------------------------- */

static bool in_choices(const char *choices, const char *value)
{
    size_t n = strlen(value);
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strcspn(p, "|") == n && strncmp(p, value, n) == 0)
            return n > 0;
    return false;
}

static int parse_bool(const char *text)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no",
                                                                                "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(text, yes[i]) == 0)
            return 1;
        if (strcmp(text, no[i]) == 0)
            return 0;
    }
    return -1;
}

/* What `text` means to an enum that was a boolean, or `text` itself. */
static const char *modern(const struct option *o, const char *text)
{
    int b = parse_bool(text);
    for (size_t i = 0; b >= 0 && i < sizeof were_bool / sizeof *were_bool; i++)
        if (!strcmp(were_bool[i].section, o->section) && !strcmp(were_bool[i].name, o->name) &&
            !in_choices(o->choices, text))
            return b ? were_bool[i].yes : were_bool[i].no;
    return text;
}

/* True for booleans, also former ones: a flag without a value means yes, with --no- no. */
static bool is_switch(const struct option *o)
{
    return o->type == TYPE_BOOL || (o->type == TYPE_ENUM && strcmp(modern(o, "true"), "true"));
}

static int refuse(const struct option *o, const char *text, const char *from, struct err *err)
{
    switch (o->type) {
    case TYPE_INT:
        return err_set(err, "%s.%s = \"%s\" (%s): want a whole number from %.0f to %.0f",
                       o->section, o->name, text, from, o->lo, o->hi);
    case TYPE_NUM:
        return err_set(err, "%s.%s = \"%s\" (%s): want a number from %g to %g", o->section, o->name,
                       text, from, o->lo, o->hi);
    case TYPE_BOOL:
        return err_set(err, "%s.%s = \"%s\" (%s): want true or false", o->section, o->name, text,
                       from);
    default:
        return err_set(err, "%s.%s = \"%s\" (%s): want one of %s", o->section, o->name, text, from,
                       o->choices);
    }
}

static int set_number(struct config *c, const struct option *o, const char *text, const char *from,
                      struct err *err)
{
    char *end;
    errno = 0;
    if (o->type == TYPE_INT) {
        long long v = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)v < o->lo || (double)v > o->hi)
            return refuse(o, text, from, err);
        *(int64_t *)field(c, o) = v;
        return 0;
    }
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v) || v < o->lo || v > o->hi)
        return refuse(o, text, from, err);
    *(double *)field(c, o) = v;
    return 0;
}

static int set_text(struct config *c, const struct option *o, const char *text, const char *from,
                    struct err *err)
{
    int b;
    switch (o->type) {
    case TYPE_INT:
    case TYPE_NUM:
        return set_number(c, o, text, from, err);
    case TYPE_BOOL:
        if ((b = parse_bool(text)) < 0)
            return refuse(o, text, from, err);
        *(bool *)field(c, o) = b;
        return 0;
    case TYPE_ENUM:
        text = modern(o, text);
        if (!in_choices(o->choices, text))
            return refuse(o, text, from, err);
        break;
    case TYPE_STR:
        break;
    }
    char **s = field(c, o);
    free(*s);
    *s = xstrdup(text);
    return 0;
}

/* ---- file, environment, flags ------------------------------------------------------------- */

struct file_pass {
    struct config *c;
    const char *path;
    FILE *in;
    int line;
    struct err *err;
    int failed; /* the first failure counts: inih goes on after it */
    int failed_line;
};

/* One line for inih, which would take an indented one for more of the value before it, and the end
 * of one that is longer than its buffer for a line of its own. */
static char *file_line(char *line, int room, void *stream)
{
    struct file_pass *f = stream;
    if (f->failed || !fgets(line, room, f->in))
        return NULL;
    f->line++;
    int next = strchr(line, '\n') ? EOF : getc(f->in);
    if (next != EOF) {
        f->failed = err_set(f->err,
                            "%s: line %d is longer than %d bytes (a flag or the environment may "
                            "have more)",
                            f->path, f->line, room - 2);
        return NULL;
    }
    size_t blank = strspn(line, " \t");
    return memmove(line, line + blank, strlen(line + blank) + 1);
}

static int file_entry(void *user, const char *section, const char *name, const char *value)
{
    struct file_pass *f = user;
    if (f->failed)
        return 0;
    const struct option *o = find(section, strlen(section), name);
    if (!o)
        f->failed = err_set(f->err, "%s: there is no option %s.%s", f->path, section, name);
    else
        f->failed = set_text(f->c, o, value, f->path, f->err);
    f->failed_line = f->line;
    return f->failed == 0;
}

static int read_file(struct config *c, const char *path, struct err *err)
{
    struct file_pass f = {.c = c, .path = path, .in = fopen(path, "r"), .err = err};
    if (!f.in)
        return err_set(err, "%s: cannot be opened: %s", path, strerror(errno));
    int line = ini_parse_stream(file_line, &f, file_entry, &f);
    if (!f.failed && ferror(f.in))
        f.failed = err_set(err, "%s: cannot be read: %s", path, strerror(errno));
    fclose(f.in);
    /* inih goes on after a line that it cannot read too, and the next may fail for that alone. */
    if (line != 0 && (!f.failed || line < f.failed_line))
        f.failed = err_set(err, "%s: line %d is neither [section] nor name = value", path, line);
    return f.failed;
}

/* Whether "SECTION_NAME", which begins with the name of a section, is no option of it. */
static bool names_nothing(const char *variable, size_t n)
{
    char name[96];
    if (n >= sizeof name)
        n = sizeof name - 1;
    for (size_t i = 0; i < n; i++)
        name[i] = (char)tolower((unsigned char)variable[i]);
    name[n] = 0;
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        size_t length = strlen(sections[s].name);
        if (strncmp(name, sections[s].name, length) == 0 && name[length] == '_')
            return !find(name, length, name + length + 1);
    }
    return false;
}

/* A slip of the pen, most likely; but not all of an environment is written for us. */
static void warn_of_unknown_variables(void)
{
    static const char ours[] = "WHET_";
    for (char **v = environ; v && *v; v++) {
        size_t n = strcspn(*v, "=");
        if (n > sizeof ours - 1 && strncmp(*v, ours, sizeof ours - 1) == 0 &&
            names_nothing(*v + sizeof ours - 1, n - (sizeof ours - 1)))
            log_warn("config", "%.*s in the environment names no option (whet --help lists them)",
                     (int)n, *v);
    }
}

/* Kubernetes and Docker tell a container of each service beside it by variables made of the
 * service's name: one called whet-server is WHET_SERVER_PORT=tcp://10.0.0.1:80. */
static bool is_service_link(const char *variable, const char *value)
{
    static const char port[] = "_PORT";
    size_t n = strlen(variable);
    return n >= sizeof port - 1 && strcmp(variable + n - (sizeof port - 1), port) == 0 &&
           (!strncmp(value, "tcp://", 6) || !strncmp(value, "udp://", 6) ||
            !strncmp(value, "sctp://", 7));
}

static int read_environment(struct config *c, struct err *err)
{
    warn_of_unknown_variables();
    for (int i = 0; i < OPTIONS; i++) {
        char name[96];
        snprintf(name, sizeof name, "WHET_%s_%s", options[i].section, options[i].name);
        for (char *p = name; *p; p++)
            *p = (char)toupper((unsigned char)*p);
        const char *value = getenv(name);
        if (value && is_service_link(name, value)) {
            log_warn("config",
                     "%s in the environment is the address of a service (%.60s), not an option, "
                     "and ignored (enableServiceLinks: false keeps Kubernetes from setting it)",
                     name, value);
            continue;
        }
        if (value && set_text(c, &options[i], value, name, err))
            return -1;
    }
    return 0;
}

/* "--section-some-name" (without the dashes in front) -> its option. */
static const struct option *find_flag(const char *flag)
{
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].flag + 2, flag) == 0)
            return find(aliases[i].section, strlen(aliases[i].section), aliases[i].name);
    const char *dash = strchr(flag, '-');
    if (!dash)
        return NULL;
    char name[96];
    snprintf(name, sizeof name, "%s", dash + 1);
    for (char *p = name; *p; p++)
        if (*p == '-')
            *p = '_';
    return find(flag, (size_t)(dash - flag), name);
}

/* One flag at argv[i]; returns how many arguments it took, or -1. */
static int read_flag(struct config *c, int left, char **argv, struct err *err)
{
    char flag[96];
    const char *eq = strchr(argv[0], '=');
    snprintf(flag, sizeof flag, "%.*s", eq ? (int)(eq - argv[0] - 2) : (int)sizeof flag,
             argv[0] + 2);
    const struct option *o = find_flag(flag);
    if (!o && strncmp(flag, "no-", 3) == 0 && !eq) {
        o = find_flag(flag + 3);
        if (o && is_switch(o))
            return set_text(c, o, "false", argv[0], err) ? -1 : 1;
        o = NULL;
    }
    if (!o)
        return err_set(err, "there is no option %s (whet --help lists them)", argv[0]);
    if (eq)
        return set_text(c, o, eq + 1, argv[0], err) ? -1 : 1;
    bool takes = left > 1 && (parse_bool(argv[1]) >= 0 ||
                              (o->type == TYPE_ENUM && in_choices(o->choices, argv[1])));
    if (is_switch(o) && !takes)
        return set_text(c, o, "true", argv[0], err) ? -1 : 1;
    if (left < 2)
        return err_set(err, "%s wants a value", argv[0]);
    return set_text(c, o, argv[1], argv[0], err) ? -1 : 2;
}

static const char *config_file(int argc, char **argv, struct err *err, int *failed)
{
    const char *path = getenv("WHET_CONFIG");
    for (int i = 1; i < argc; i++) {
        bool joined = strncmp(argv[i], "--config=", 9) == 0;
        if (!joined && strcmp(argv[i], "--config") != 0)
            continue;
        path = joined ? argv[i] + 9 : i + 1 < argc ? argv[i + 1] : NULL;
        if (!path || !*path) { /* "", as from a variable that is not set, is no file */
            *failed =
                err_set(err, "--config wants a file%s", path ? ", and has an empty name" : "");
            return NULL;
        }
    }
    return path;
}

int config_parse(struct config *c, int argc, char **argv, struct err *err)
{
    memset(c, 0, sizeof *c);
    for (int i = 0; i < OPTIONS; i++)
        if (set_text(c, &options[i], options[i].def, "default", err))
            return -1;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            config_help(stdout);
            return 1;
        }
    int failed = 0;
    const char *path = config_file(argc, argv, err, &failed);
    if (failed || (path && *path && read_file(c, path, err)) || read_environment(c, err))
        return -1;
    for (int i = 1; i < argc;) {
        if (strncmp(argv[i], "--", 2) != 0)
            return err_set(err, "\"%s\" is no option (options begin with --)", argv[i]);
        int took = strcmp(argv[i], "--config") == 0        ? 2
                   : strncmp(argv[i], "--config=", 9) == 0 ? 1
                                                           : read_flag(c, argc - i, argv + i, err);
        if (took < 0)
            return -1;
        i += took;
    }
    return 0;
}

void config_free(struct config *c)
{
    for (int i = 0; i < OPTIONS; i++)
        if (options[i].type == TYPE_STR || options[i].type == TYPE_ENUM) {
            char **s = field(c, &options[i]);
            free(*s);
            *s = NULL;
        }
}

/* ---- help --------------------------------------------------------------------------------- */

static void dashed(char *out, size_t n, const struct option *o)
{
    snprintf(out, n, "--%s-%s", o->section, o->name);
    for (char *p = out; *p; p++)
        if (*p == '_')
            *p = '-';
}

static const char *type_text(const struct option *o, char *out, size_t n)
{
    if (o->type == TYPE_INT)
        snprintf(out, n, "%.0f..%.0f", o->lo, o->hi);
    else if (o->type == TYPE_NUM)
        snprintf(out, n, "%g..%g", o->lo, o->hi);
    else
        snprintf(out, n, "%s",
                 o->type == TYPE_ENUM   ? o->choices
                 : o->type == TYPE_BOOL ? "true|false"
                                        : "text");
    return out;
}

void config_help(FILE *out)
{
    fputs("usage: whet serve|bench|tune|kernels|fleet [options]\n\n"
          "  --config FILE                      INI file: [section] and name = value\n",
          out);
    char flag[96], type[128];
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        const char *of = aliases[i].section;
        dashed(flag, sizeof flag, find(of, strlen(of), aliases[i].name));
        fprintf(out, "  %-34s short for %s\n", aliases[i].flag, flag);
    }
    const char *section = "";
    for (int i = 0; i < OPTIONS; i++) {
        const struct option *o = &options[i];
        if (strcmp(section, o->section) != 0) {
            section = o->section;
            for (size_t s = 0; s < sizeof sections / sizeof *sections; s++)
                if (strcmp(sections[s].name, section) == 0)
                    fprintf(out, "\n%s: %s\n", section, sections[s].help);
        }
        dashed(flag, sizeof flag, o);
        fprintf(out, "  %-34s %s [%s] (%s)\n", flag, o->help, *o->def ? o->def : "none",
                type_text(o, type, sizeof type));
    }
}

void config_markdown(FILE *out)
{
    for (size_t s = 0; s < sizeof sections / sizeof *sections; s++) {
        fprintf(out,
                "\n## %s: %s\n\n| option | default | values | what it is |\n|---|---|---|---|\n",
                sections[s].name, sections[s].help);
        for (int i = 0; i < OPTIONS; i++) {
            const struct option *o = &options[i];
            if (strcmp(o->section, sections[s].name) != 0)
                continue;
            char type[128];
            type_text(o, type, sizeof type);
            fprintf(out, "| `%s.%s` | %s | ", o->section, o->name, *o->def ? o->def : "-");
            for (const char *p = type; *p; p++)
                fprintf(out, *p == '|' ? ", " : "%c", *p);
            fprintf(out, " | %s |\n", o->help);
        }
    }
}
