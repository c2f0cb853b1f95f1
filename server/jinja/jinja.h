/* SPDX-License-Identifier: Apache-2.0 */
/* jinja.h - runs the Jinja programs that chat templates are, as transformers would.
 *
 * The environment is that of transformers: immutable and sandboxed, trim_blocks, lstrip_blocks,
 * loop controls, `{% generation %}`, tojson without escapes for HTML, raise_exception() and
 * strftime_now(). What this interpreter does not know is an error that names it and its line; it
 * is never skipped or guessed (docs/models.md lists what there is).
 *
 * A template is a stranger's file. It sees the values that it is given and nothing else, and every
 * rendering has limits: steps, memory, bytes of output, depth. All memory of a rendering is freed
 * with it.
 *
 * A parsed template never changes: any number of threads may render it at once. A rendering
 * belongs to one thread. Strings are UTF-8 (or C0 80 for a NUL character, as server/json.h has it).
 */
#ifndef WHET_SERVER_JINJA_JINJA_H
#define WHET_SERVER_JINJA_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "config/err.h"

enum {
    JINJA_TEMPLATE_MAX = 1 << 20, /* bytes of a template */
    JINJA_NODES_MAX = 1 << 18,    /* parts of its program */
    JINJA_NESTING_MAX = 100,      /* brackets, blocks and operators inside each other */
    JINJA_CALLS_MAX = 1500,       /* the same while it runs, with macros that call macros */
    JINJA_RANGE_MAX = 100000,     /* numbers of a range(), as in Jinja's sandbox */
};

struct jinja;

/* The program of a template of `n` bytes. NULL with a message that names the line. */
struct jinja *jinja_parse(const char *text, size_t n, struct err *err);
void jinja_free(struct jinja *program);
/* Whether a text occurs in the template's source. */
bool jinja_mentions(const struct jinja *program, const char *text);

/* ---- values -------------------------------------------------------------------------------- */

enum jinja_type {
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STR,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_RANGE,
    JINJA_VIEW,     /* items(), keys() and values() of a dict */
    JINJA_ITERATOR, /* what map, select and the like give: is used up by being read */
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_FUNCTION,
    JINJA_METHOD,
    JINJA_ABSENT, /* an argument that was not given; never a value of a program */
};

struct jinja_value {
    uint8_t type;  /* enum jinja_type */
    uint8_t which; /* kind of a view, an undefined value or a function; 1: a tuple of groupby */
    uint8_t of;    /* of an undefined attribute: the type that lacks it */
    bool safe;     /* a string that went through |safe or |escape */
    union {
        bool b;
        int64_t i;
        double d;
        struct {
            const char *p;
            size_t n;            /* bytes */
        } s;                     /* also the name of what is undefined */
        struct jinja_list *list; /* also tuples and iterators */
        struct jinja_dict *dict; /* also views and namespaces */
        struct jinja_range *range;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        struct jinja_method *method;
    } u;
};

/* ---- one rendering ------------------------------------------------------------------------- */

struct jinja_run;

struct jinja_limits {
    uint64_t steps; /* a step is an operation, or 64 bytes that one goes through; about 20 ns */
    size_t memory;  /* bytes, above what the given variables take */
    size_t output;  /* bytes */
    const _Atomic bool *cancel; /* becomes true when nobody waits any more; may be NULL */
    time_t now;                 /* what strftime_now() tells; 0: the clock */
};

/* How a rendering ended. */
enum jinja_end { JINJA_DONE, JINJA_FAILED, JINJA_RAISED, JINJA_LIMIT, JINJA_CANCELLED };

struct jinja_run *jinja_run_new(const struct jinja *program);
void jinja_run_free(struct jinja_run *r);

/* Values for variables. Strings are not copied: they live as long as the rendering. */
struct jinja_value jinja_string(const char *s, size_t n);
struct jinja_value jinja_text(const char *s);
struct jinja_value jinja_bool(bool b);
struct jinja_value jinja_int(int64_t i);
struct jinja_value jinja_float(double d);
struct jinja_value jinja_none(void);
struct jinja_value jinja_list_new(struct jinja_run *r);
void jinja_list_add(struct jinja_run *r, struct jinja_value list, struct jinja_value item);
struct jinja_value jinja_dict_new(struct jinja_run *r);
void jinja_dict_put(struct jinja_run *r, struct jinja_value dict, const char *key,
                    struct jinja_value v);
/* A variable of the template; the last one of a name counts. */
void jinja_variable(struct jinja_run *r, const char *name, struct jinja_value v);

/* Runs the program, once for each jinja_run_new(). JINJA_DONE: *text is malloc'ed and
 * NUL-terminated. Else a message in `err`: of JINJA_RAISED the template's own, from
 * raise_exception(); of the others ours. */
enum jinja_end jinja_render(struct jinja_run *r, const struct jinja_limits *limits, char **text,
                            size_t *n, struct err *err);
/* Steps that it took. */
uint64_t jinja_steps(const struct jinja_run *r);

#endif
