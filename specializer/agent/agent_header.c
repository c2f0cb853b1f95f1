/* SPDX-License-Identifier: Apache-2.0 */
/* agent_header.c - see agent_header.h. */
#include "specializer/agent/agent_header.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "config/err.h"
#include "specializer/candidate/template_tables.h"

enum { DEPTH = 8 };

/* ---- conditions ---------------------------------------------------------------------------- */

enum truth { NO, YES, NOT_KNOWN };

/* The instruction set whose name, in capitals, is the next n characters; -1: none. */
static int32_t isa_named(const char *at, size_t n)
{
    for (int32_t isa = 0; strcmp(isa_name(isa), "?") != 0; isa++)
        if (strlen(isa_name(isa)) == n && strncasecmp(at, isa_name(isa), n) == 0)
            return isa;
    return -1;
}

/* "ISA >= ISA_NAME", or with ==, != or <, at *at, which is moved behind it and the spaces there. */
static enum truth comparison(const char **at, int32_t isa)
{
    static const char *const how[] = {"ISA >= ISA_", "ISA == ISA_", "ISA != ISA_", "ISA < ISA_"};
    for (int i = 0; i < 4; i++) {
        if (strncmp(*at, how[i], strlen(how[i])) != 0)
            continue;
        const char *name = *at + strlen(how[i]);
        const size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        const int32_t other = isa_named(name, n);
        *at = name + n + strspn(name + n, " ");
        if (other < 0 || isa < 0)
            return NOT_KNOWN;
        const bool is[] = {isa >= other, isa == other, isa != other, isa < other};
        return is[i] ? YES : NO;
    }
    return NOT_KNOWN;
}

/* Comparisons joined by one kind of operator up to the line's end or a comment. */
static enum truth condition(const char *at, int32_t isa)
{
    enum truth so_far = comparison(&at, isa);
    while (so_far != NOT_KNOWN && *at != '\n' && strncmp(at, "/*", 2) != 0) {
        const bool both = strncmp(at, "&& ", 3) == 0;
        if (!both && strncmp(at, "|| ", 3) != 0)
            return NOT_KNOWN;
        at += 3;
        const enum truth next = comparison(&at, isa);
        if (next == NOT_KNOWN)
            return NOT_KNOWN;
        so_far = both ? so_far && next : so_far || next;
    }
    return so_far;
}

/* ---- branches ------------------------------------------------------------------------------ */

struct branch {
    bool known;    /* it can be told which branch is compiled; else all stay */
    bool on, over; /* in the branch that is; which was seen already */
};

struct reading {
    struct branch at[DEPTH]; /* [depth] */
    int depth;
    int32_t isa;
};

static bool is_compiled(const struct reading *r)
{
    for (int i = 0; i < r->depth; i++)
        if (r->at[i].known && !r->at[i].on)
            return false;
    return true;
}

static bool starts(const char *line, const char *with)
{
    return strncmp(line, with, strlen(with)) == 0;
}

/* Follows the conditions. True: the line is one that was settled, and is not shown. */
static bool settle(struct reading *r, const char *line)
{
    struct branch *b = r->depth > 0 ? &r->at[r->depth - 1] : NULL;
    if (starts(line, "#if") && r->depth < DEPTH) {
        const enum truth is = starts(line, "#if ") ? condition(line + 4, r->isa) : NOT_KNOWN;
        r->at[r->depth++] = (struct branch){is != NOT_KNOWN, is == YES, is == YES};
        return is != NOT_KNOWN;
    }
    if (!b || line[0] != '#')
        return false;
    if (starts(line, "#endif")) {
        r->depth--;
        return b->known;
    }
    if (!b->known || !(starts(line, "#elif") || starts(line, "#else")))
        return false;
    b->on = !b->over && (starts(line, "#else") || condition(line + 6, r->isa) == YES);
    b->over |= b->on;
    return true;
}

/* ---- texts --------------------------------------------------------------------------------- */

char *agent_header(const char *text, int32_t isa)
{
    struct reading r = {.isa = isa};
    char *out = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    for (const char *at = text; *at;) {
        const size_t n = strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n');
        const bool guard = starts(at, "#ifndef WHET_") || starts(at, "#define WHET_") ||
                           (starts(at, "#endif") && at[n] == 0);
        const bool noise = guard || starts(at, "#include") || starts(at, "/* SPDX");
        const bool was = is_compiled(&r);
        if (!guard && settle(&r, at))
            ; /* a condition on ISA */
        else if (!noise && was)
            fwrite(at, 1, n, f);
        at += n;
    }
    fclose(f);
    return out;
}

bool agent_header_is_of_others(const char *name, int32_t isa)
{
    return isa >= 0 && ((strstr(name, "/amx") && isa != isa_named("amx", 3)) ||
                        (strstr(name, "/neon") && isa < isa_named("neon", 4)));
}
