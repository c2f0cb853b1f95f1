/* SPDX-License-Identifier: Apache-2.0 */
/* options.c - the flags that are `whet tune`'s own: one table, with the modes that each belongs to.
 *
 * A flag that does nothing in the mode that was asked for is refused. Somebody who gives it expects
 * something of it, and a run of an hour is a long way to find out that it was not heeded.
 */
#include "tune/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/search/advice.h"

static const char *const mode_flags[] = {NULL, "--measure", "--ablate", "--report"};
enum { MODES = sizeof mode_flags / sizeof *mode_flags };

enum { LOOP = 1 << TUNE_LOOP, MEASURE = 1 << TUNE_MEASURE, ABLATE = 1 << TUNE_ABLATE };
enum { REPORT = 1 << TUNE_REPORT };

enum kind { TEXT, SLOT, NUMBER, COUNT, SWITCH };

static const struct flag {
    const char *name;
    unsigned modes;
    enum kind kind;
    size_t at; /* in struct tune_options */
    double least, most;
} flags[] = {
#define AT(member) offsetof(struct tune_options, member)
    {"--table", MEASURE | ABLATE | REPORT, TEXT, AT(table), 0, 0},
    {"--json", ABLATE | REPORT, TEXT, AT(json), 0, 0},
    {"--svg", ABLATE, TEXT, AT(svg), 0, 0},
    {"--record", ABLATE, TEXT, AT(record), 0, 0},
    {"--slot", LOOP | MEASURE, SLOT, 0, 0, 0},
    {"--seconds", LOOP | MEASURE | ABLATE, NUMBER, AT(seconds), 0.1, 1e6},
    {"--drop", ABLATE, NUMBER, AT(drop), 0, 0.9},
    {"--points", MEASURE, COUNT, AT(points), 1, 100000},
    {"--seeds", ABLATE, COUNT, AT(seeds), 1, 100000},
    {"--first-seed", ABLATE, COUNT, AT(first_seed), 1, 100000},
    {"--questions", ABLATE, COUNT, AT(questions), 1, 100000},
    {"--history", ABLATE, COUNT, AT(history), 1, LINEAGE},
    {"--build-only", MEASURE, SWITCH, AT(build_only), 0, 0},
    {"--at-once", ABLATE, SWITCH, AT(at_once), 0, 0},
#undef AT
};
enum { FLAGS = sizeof flags / sizeof *flags };

/* ---- one flag ------------------------------------------------------------------------------- */

static const struct flag *find_flag(const char *name)
{
    for (int i = 0; i < FLAGS; i++)
        if (strcmp(flags[i].name, name) == 0)
            return &flags[i];
    return NULL;
}

static int set_number(struct tune_options *o, const struct flag *f, const char *text,
                      struct err *err)
{
    void *to = (char *)o + f->at;
    char *end;
    errno = 0;
    double v = f->kind == COUNT ? (double)strtol(text, &end, 10) : strtod(text, &end);
    if (end == text || *end || errno || !(v >= f->least && v <= f->most))
        return err_set(err, "%s %s: want a %s from %.7g to %.7g", f->name, text,
                       f->kind == COUNT ? "whole number" : "number", f->least, f->most);
    if (f->kind == COUNT)
        *(int *)to = (int)v;
    else
        *(double *)to = v;
    return 0;
}

static int set(struct tune_options *o, const struct flag *f, char *value, struct err *err)
{
    switch (f->kind) {
    case TEXT:
        *(const char **)((char *)o + f->at) = value;
        return *value ? 0 : err_set(err, "%s wants a file, and has an empty name", f->name);
    case SLOT:
        if (o->slots == SLOTS_MOST)
            return err_set(err, "%s %s: one too many, %d are taken", f->name, value,
                           (int)SLOTS_MOST);
        o->slot[o->slots++] = value;
        return 0;
    case NUMBER:
    case COUNT:
        return set_number(o, f, value, err);
    case SWITCH:
        *(bool *)((char *)o + f->at) = true;
        return 0;
    }
    return -1;
}

/* ---- modes ---------------------------------------------------------------------------------- */

/* 1 if it is the flag of a mode, 0 if not, -1 if another was asked for before. */
static int take_mode(struct tune_options *o, const char *flag, struct err *err)
{
    for (int m = 1; m < MODES; m++) {
        if (strcmp(flag, mode_flags[m]) != 0)
            continue;
        if (o->mode != TUNE_LOOP && (int)o->mode != m)
            return err_set(err, "%s and %s: one of them, please", mode_flags[o->mode], flag);
        o->mode = m;
        return 1;
    }
    return 0;
}

static int check_mode(const struct tune_options *o, const struct flag *f, struct err *err)
{
    char names[100] = "";
    if (f->modes & 1u << o->mode)
        return 0;
    for (int m = 0, n = 0; m < MODES; m++)
        if (f->modes & 1u << m)
            n += snprintf(names + n, sizeof names - (size_t)n, "%s%s", n ? ", " : "",
                          m ? mode_flags[m] : "a search");
    return err_set(err, "%s does nothing %s%s: it is for %s", f->name,
                   o->mode == TUNE_LOOP ? "in a search" : "with ",
                   o->mode == TUNE_LOOP ? "" : mode_flags[o->mode], names);
}

/* The option of `whet serve` that names a store. */
static bool names_store(const char *word)
{
    static const char *const names[] = {"--store", "--specializer-store"};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(word, names[i], n) == 0 && (word[n] == 0 || word[n] == '='))
            return true;
    }
    return false;
}

int tune_own_flags(struct tune_options *o, int *argc, char **argv, struct err *err)
{
    bool given[FLAGS] = {false}, store = false;
    int left = 1;
    for (int i = 1; i < *argc; i++) {
        int is_mode = take_mode(o, argv[i], err);
        const struct flag *f = find_flag(argv[i]);
        if (is_mode < 0)
            return -1;
        if (is_mode)
            continue;
        if (!f) {
            store |= names_store(argv[i]);
            bool strategy = strcmp(argv[i], "--strategy") == 0;
            argv[left++] = strategy ? (char *)"--specializer-strategy" : argv[i];
            continue;
        }
        given[f - flags] = true;
        if (f->kind != SWITCH && ++i == *argc)
            return err_set(err, "%s wants a value", f->name);
        if (set(o, f, argv[i], err) != 0)
            return -1;
    }
    *argc = left;
    for (int i = 0; i < FLAGS; i++)
        if (given[i] && check_mode(o, &flags[i], err) != 0)
            return -1;
    if (store && o->mode == TUNE_REPORT && o->table)
        return err_set(err, "--store does nothing with --report --table: a report is about one of "
                            "them");
    return 0;
}
