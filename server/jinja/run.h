/* SPDX-License-Identifier: Apache-2.0 */
/* run.h - a rendering while it runs: its values, scopes, and what its parts call each other
 * for (jinja.h).
 *
 * Every function may leave by jinja_fail(). What goes through texts or lists counts steps for
 * them, so that the limit on steps bounds the time that a rendering takes.
 */
#ifndef WHET_SERVER_JINJA_RUN_H
#define WHET_SERVER_JINJA_RUN_H

#include "server/jinja/ast.h"
#include "server/jinja/text.h"

struct jinja_list {
    struct jinja_value *v;
    size_t n, room;
    size_t at; /* of an iterator: how far it was read */
};

struct jinja_dict {
    struct jinja_value *kv; /* key, value, key, value, ... in the order of insertion */
    size_t n, room;         /* pairs */
};

struct jinja_range {
    int64_t start, stop, step;
    size_t n;
};

enum jinja_view { VIEW_ITEMS, VIEW_KEYS, VIEW_VALUES };

/* Why a value is undefined; its name is in u.s. */
enum jinja_lack { LACK_VARIABLE, LACK_ATTRIBUTE, LACK_UNSAFE, LACK_ITEM, LACK_ELSE, LACK_ARGUMENT };

struct jinja_binding {
    const char *name; /* interned */
    struct jinja_value v;
};

/* Names that are set in one body. Lookups go outwards. */
struct jinja_scope {
    struct jinja_scope *up;
    struct jinja_binding *binding;
    size_t n, room;
    bool kept; /* a macro was made in it, which may read it later */
};

struct jinja_macro {
    const struct jinja_signature *signature;
    const struct jinja_node *body;
    struct jinja_scope *scope; /* that it was made in */
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_method_row *row;
};

/* A for loop, and what `loop` tells of it. Its filter is asked when an item is needed. */
struct jinja_loop {
    const struct jinja_node *node;  /* without its filter once that was asked for all items */
    const struct jinja_node *whole; /* as it is written, for loop() */
    struct jinja_scope *around;
    int depth;                /* of a recursive one, from 0 */
    struct jinja_list *items; /* NULL: those of `range` */
    const struct jinja_range *range;
    size_t next;              /* the item behind the one that was looked for last */
    struct jinja_value ahead; /* an item that passed the filter and is not current yet */
    bool looked, ended;       /* `ahead` is there; there is none */
    struct jinja_value previous, current;
    size_t index;               /* of current, from 0 */
    struct jinja_list *changed; /* what changed() was told last, or NULL */
};

struct jinja_run {
    struct jinja_memory m;
    const struct jinja *program;
    struct jinja_limits limits;
    uint64_t steps;
    int depth;
    struct jinja_scope *globals, *scope;
    struct jinja_out *out;
};

/* Counts an operation that goes through `bytes`. */
void jinja_step(struct jinja_run *r, size_t bytes);
/* Before what may come back to itself: a step and a level of r->depth, which the caller takes off
 * again. Values may hold values as deep as a program nests them, and macros call macros. */
void jinja_deeper(struct jinja_run *r);

/* ---- values (value.c, compare.c, print.c) -------------------------------- */

struct jinja_value jinja_undefined(enum jinja_lack why, const char *name, size_t n, uint8_t of);
struct jinja_value jinja_values(struct jinja_run *r, enum jinja_type type, size_t room);
struct jinja_value jinja_pair(struct jinja_run *r, struct jinja_value a, struct jinja_value b);
/* The value of a key, or NULL. */
struct jinja_value *jinja_dict_find(struct jinja_run *r, struct jinja_value dict,
                                    struct jinja_value key);
void jinja_dict_set(struct jinja_run *r, struct jinja_value dict, struct jinja_value key,
                    struct jinja_value v);
/* What Python calls the type. */
const char *jinja_type_name(uint8_t type);
struct span jinja_span(struct jinja_value v);
/* Fails if `v` is undefined. */
void jinja_need(struct jinja_run *r, struct jinja_value v);
bool jinja_truth(struct jinja_run *r, struct jinja_value v);
/* Items or characters; fails where Python has no length. */
size_t jinja_length(struct jinja_run *r, struct jinja_value v);
/* What iterating gives; an iterator is used up. Not to be changed. Fails where Python cannot. */
struct jinja_list *jinja_items(struct jinja_run *r, struct jinja_value v);
bool jinja_iterable(struct jinja_value v);
/* The integer of an int or bool; fails with `what` in the message. */
int64_t jinja_integer(struct jinja_run *r, struct jinja_value v, const char *what);
bool jinja_number(struct jinja_value v, double *d);

bool jinja_equal(struct jinja_run *r, struct jinja_value a, struct jinja_value b);
/* <0, 0, >0; fails where Python has no order. */
int jinja_order(struct jinja_run *r, struct jinja_value a, struct jinja_value b, const char *op);
bool jinja_contains(struct jinja_run *r, struct jinja_value in, struct jinja_value v);

/* As Python prints it, as a string value, and as it quotes it in a list. */
struct jinja_value jinja_str(struct jinja_run *r, struct jinja_value v);
void jinja_repr(struct jinja_run *r, struct jinja_out *out, struct jinja_value v);
void jinja_float_text(double d, char text[40]);
void jinja_json(struct jinja_run *r, struct jinja_out *out, struct jinja_value v,
                const struct jinja_value *options);

/* ---- evaluation ---------------------------------------------------------------------------- */

struct jinja_value jinja_eval(struct jinja_run *r, const struct jinja_node *n);
struct jinja_value jinja_binary(struct jinja_run *r, enum jinja_operator op, struct jinja_value a,
                                struct jinja_value b);
struct jinja_value jinja_getattr(struct jinja_run *r, struct jinja_value v, const char *name);
struct jinja_value jinja_getitem(struct jinja_run *r, struct jinja_value v, struct jinja_value key);
struct jinja_value jinja_slice(struct jinja_run *r, struct jinja_value v,
                               const struct jinja_value *part);
/* `format % argument` of a string, and str.format(). */
struct jinja_value jinja_percent(struct jinja_run *r, struct jinja_value format,
                                 struct jinja_value argument);

struct jinja_value *jinja_find(struct jinja_run *r, struct jinja_scope *s, const char *name);
void jinja_bind(struct jinja_run *r, struct jinja_scope *s, const char *name, struct jinja_value v);
struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *up);
void jinja_assign(struct jinja_run *r, struct jinja_scope *s, const struct jinja_node *target,
                  struct jinja_value v);

enum jinja_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };
enum jinja_flow jinja_execute(struct jinja_run *r, const struct jinja_node *n);
enum jinja_flow jinja_for(struct jinja_run *r, const struct jinja_node *n);
/* Runs a body in a scope and gives what it writes; *flow tells how it was left (NULL: it cannot
 * leave a loop around it). */
struct jinja_value jinja_capture(struct jinja_run *r, const struct jinja_node *body,
                                 struct jinja_scope *scope, enum jinja_flow *flow);

/* ---- calls --------------------------------------------------------------------------------- */

struct jinja_args {
    struct jinja_value *v;
    size_t n;
    struct jinja_binding *named; /* names are NUL-terminated, interned or not */
    size_t names;
};

enum { JINJA_PARAMS = 4 };

/* Arguments as they are written, behind one that comes from elsewhere (JINJA_ABSENT: none). */
struct jinja_args jinja_arguments(struct jinja_run *r, const struct jinja_args_node *a);
/* Puts arguments into places by the names in `params` ("a b c"); what is left out is
 * JINJA_ABSENT. `required`: how many have to be there. */
void jinja_place(struct jinja_run *r, const char *what, const char *params, int required,
                 const struct jinja_args *a, struct jinja_value place[JINJA_PARAMS]);

struct jinja_value jinja_call(struct jinja_run *r, struct jinja_value f, struct jinja_args *a);
struct jinja_value jinja_call_macro(struct jinja_run *r, struct jinja_value macro,
                                    struct jinja_args *a);
struct jinja_value jinja_call_function(struct jinja_run *r, uint8_t which, struct jinja_args *a);
struct jinja_value jinja_range_new(struct jinja_run *r, struct jinja_args *a);
/* range(), dict() and so on as variables. */
void jinja_globals(struct jinja_run *r);
struct jinja_value jinja_loop_attribute(struct jinja_run *r, struct jinja_value loop,
                                        const char *name);
/* loop(items) in a recursive loop: the text of the whole loop over other items. */
struct jinja_value jinja_call_loop(struct jinja_run *r, struct jinja_value loop,
                                   struct jinja_args *a);

/* A method of a value of a type; `p` are its arguments by place, `a` as they were given. */
struct jinja_method_row {
    const char *name, *params;
    int required;
    struct jinja_value (*call)(struct jinja_run *r, struct jinja_value self,
                               const struct jinja_value *p, struct jinja_args *a);
};
/* A method of `v` with the name: bound, undefined if the sandbox forbids it, JINJA_ABSENT if there
 * is none. */
struct jinja_value jinja_method(struct jinja_run *r, struct jinja_value v, const char *name);
extern const struct jinja_method_row jinja_string_methods[], jinja_string_methods2[];
extern const struct jinja_method_row jinja_loop_methods[];
/* str.split() and the like give a list; str.format(). */
struct jinja_value jinja_format_method(struct jinja_run *r, struct jinja_value self,
                                       const struct jinja_value *p, struct jinja_args *a);
/* upper, lower, title, capitalize, swapcase: 'u', 'l', 't', 'c', 's'. */
struct jinja_value jinja_case(struct jinja_run *r, struct jinja_value v, char how);
/* Every place of `from` by `to`, at most `most` of them (-1: all). */
struct jinja_value jinja_replace(struct jinja_run *r, struct span s, struct span from,
                                 struct span to, int64_t most);
struct jinja_value jinja_pad(struct jinja_run *r, struct span s, int64_t width, char how,
                             struct span fill);

struct jinja_filter_row {
    const char *name, *params; /* params NULL: arguments as they are given */
    int required;
    struct jinja_value (*call)(struct jinja_run *r, struct jinja_value v,
                               const struct jinja_value *p, struct jinja_args *a);
};
extern const struct jinja_filter_row jinja_text_filters[], jinja_list_filters[],
    jinja_order_filters[];
struct jinja_value jinja_filter(struct jinja_run *r, const char *name, struct jinja_value v,
                                struct jinja_args *a);
bool jinja_is_filter(const char *name);
bool jinja_test(struct jinja_run *r, const char *name, struct jinja_value v, struct jinja_args *a);
/* The item or attribute that `path` ("a.b") names of each; the path may be a number. */
struct jinja_value jinja_path(struct jinja_run *r, struct jinja_value v, struct jinja_value path);
/* The same, with `otherwise` in the place of what is undefined, at each step of the path; none or
 * JINJA_ABSENT: nothing. */
struct jinja_value jinja_path_or(struct jinja_run *r, struct jinja_value v, struct jinja_value path,
                                 struct jinja_value otherwise);

#endif
