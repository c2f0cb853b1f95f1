/* SPDX-License-Identifier: Apache-2.0 */
/* render.c - statements, scopes, and a rendering as a whole.
 *
 * Scopes are Jinja's: what a for loop, a macro, a `with` or a block of set, call, filter or
 * generation sets is gone behind it; `if` has no scope of its own.
 */
#include <stdlib.h>
#include <string.h>

#include "server/jinja/run.h"

/* ---- scopes -------------------------------------------------------------------------------- */

struct jinja_scope *jinja_scope_new(struct jinja_run *r, struct jinja_scope *up)
{
    struct jinja_scope *s = jinja_alloc(&r->m, sizeof *s);
    *s = (struct jinja_scope){.up = up};
    return s;
}

struct jinja_value *jinja_find(struct jinja_run *r, struct jinja_scope *s, const char *name)
{
    for (; s; s = s->up) {
        for (size_t i = 0; i < s->n; i++)
            if (s->binding[i].name == name)
                return &s->binding[i].v;
        jinja_step(r, s->n * 4);
    }
    return NULL;
}

void jinja_bind(struct jinja_run *r, struct jinja_scope *s, const char *name, struct jinja_value v)
{
    jinja_step(r, s->n * 4);
    for (size_t i = 0; i < s->n; i++)
        if (s->binding[i].name == name) {
            s->binding[i].v = v;
            return;
        }
    s->binding = jinja_grow(&r->m, s->binding, s->n, &s->room, sizeof *s->binding);
    s->binding[s->n++] = (struct jinja_binding){name, v};
}

static void assign_attribute(struct jinja_run *r, struct jinja_scope *s,
                             const struct jinja_node *target, struct jinja_value v)
{
    struct jinja_value *object = jinja_find(r, s, target->name);
    if (!object)
        jinja_fail(&r->m, "'%s' is undefined", target->name);
    if (object->type != JINJA_NAMESPACE)
        jinja_fail(&r->m, "'%s' is no namespace: its attributes cannot be set", target->name);
    jinja_dict_set(r, *object, jinja_text(target->attribute), v);
}

void jinja_assign(struct jinja_run *r, struct jinja_scope *s, const struct jinja_node *target,
                  struct jinja_value v)
{
    r->m.line = target->line;
    if (target->kind == NODE_ATTRIBUTE) {
        assign_attribute(r, s, target, v);
    } else if (target->kind == NODE_NAME) {
        jinja_bind(r, s, target->name, v);
    } else {
        struct jinja_list *items = jinja_items(r, v);
        if (items->n != (size_t)target->kids)
            jinja_fail(&r->m, "%zu values cannot be unpacked into %d names", items->n,
                       target->kids);
        for (int i = 0; i < target->kids; i++)
            jinja_assign(r, s, target->kid[i], items->v[i]);
    }
}

/* ---- statements ---------------------------------------------------------------------------- */

struct jinja_value jinja_capture(struct jinja_run *r, const struct jinja_node *body,
                                 struct jinja_scope *scope, enum jinja_flow *flow)
{
    struct jinja_out out = {0}, *before = r->out;
    struct jinja_scope *around = r->scope;
    r->out = &out;
    r->scope = scope;
    enum jinja_flow left = jinja_execute(r, body);
    if (flow)
        *flow = left;
    r->out = before;
    r->scope = around;
    return jinja_taken(&out);
}

static void write_text(struct jinja_run *r, struct jinja_value text)
{
    jinja_step(r, text.u.s.n);
    if (text.u.s.n > r->limits.output - r->out->n)
        jinja_leave(&r->m, JINJA_LIMIT, "the chat template took more than %zu bytes of output",
                    r->limits.output);
    jinja_add(&r->m, r->out, text.u.s.p, text.u.s.n);
}

static enum jinja_flow execute_if(struct jinja_run *r, const struct jinja_node *n)
{
    for (int i = 0; i + 1 < n->kids; i += 2)
        if (jinja_truth(r, jinja_eval(r, n->kid[i])))
            return jinja_execute(r, n->kid[i + 1]);
    const struct jinja_node *otherwise = n->kid[n->kids - 1];
    return otherwise ? jinja_execute(r, otherwise) : FLOW_ON;
}

/* The filters of a block, from the inside out: the innermost one gets `v`. */
static struct jinja_value filtered(struct jinja_run *r, const struct jinja_node *filter,
                                   struct jinja_value v)
{
    if (!filter)
        return v;
    v = filtered(r, filter->kid[0], v);
    struct jinja_args a = jinja_arguments(r, filter->args);
    r->m.line = filter->line;
    return jinja_filter(r, filter->name, v, &a);
}

/* A `break` or `continue` within the block leaves it before anything is set. */
static enum jinja_flow set_block(struct jinja_run *r, const struct jinja_node *n)
{
    enum jinja_flow flow;
    struct jinja_value v = jinja_capture(r, n->kid[2], jinja_scope_new(r, r->scope), &flow);
    if (flow == FLOW_ON)
        jinja_assign(r, r->scope, n->kid[0], filtered(r, n->kid[1], v));
    return flow;
}

/* The same: what was written until then is lost. */
static enum jinja_flow filter_block(struct jinja_run *r, const struct jinja_node *n)
{
    enum jinja_flow flow;
    struct jinja_value v = jinja_capture(r, n->kid[1], jinja_scope_new(r, r->scope), &flow);
    if (flow == FLOW_ON)
        write_text(r, jinja_str(r, filtered(r, n->kid[0], v)));
    return flow;
}

static struct jinja_value macro_value(struct jinja_run *r, const struct jinja_node *n,
                                      const struct jinja_node *body)
{
    struct jinja_macro *macro = jinja_alloc(&r->m, sizeof *macro);
    *macro = (struct jinja_macro){n->macro, body, r->scope};
    for (struct jinja_scope *s = r->scope; s; s = s->up)
        s->kept = true;
    return (struct jinja_value){.type = JINJA_MACRO, .u.macro = macro};
}

static void call_block(struct jinja_run *r, const struct jinja_node *n)
{
    const struct jinja_node *call = n->kid[0];
    struct jinja_value f = jinja_eval(r, call->kid[0]);
    struct jinja_args given = jinja_arguments(r, call->args), a = given;
    a.named = jinja_alloc_items(&r->m, given.names + 1, sizeof *a.named);
    for (size_t i = 0; i < given.names; i++)
        a.named[i] = given.named[i];
    a.named[a.names++] = (struct jinja_binding){"caller", macro_value(r, n, n->kid[1])};
    r->m.line = n->line;
    write_text(r, jinja_str(r, jinja_call(r, f, &a)));
}

static enum jinja_flow with(struct jinja_run *r, const struct jinja_node *n)
{
    struct jinja_scope *around = r->scope, *inner = jinja_scope_new(r, around);
    for (int i = 0; i + 1 < n->kids; i += 2)
        jinja_assign(r, inner, n->kid[i], jinja_eval(r, n->kid[i + 1]));
    r->scope = inner;
    enum jinja_flow flow = jinja_execute(r, n->kid[n->kids - 1]);
    r->scope = around;
    return flow;
}

static enum jinja_flow execute_block(struct jinja_run *r, const struct jinja_node *n)
{
    enum jinja_flow flow = FLOW_ON;
    for (int i = 0; i < n->kids && flow == FLOW_ON; i++)
        flow = jinja_execute(r, n->kid[i]);
    return flow;
}

static void output(struct jinja_run *r, const struct jinja_node *n)
{
    for (int i = 0; i < n->kids; i++)
        write_text(r, jinja_str(r, jinja_eval(r, n->kid[i])));
}

static enum jinja_flow execute_kind(struct jinja_run *r, const struct jinja_node *n)
{
    switch (n->kind) {
    case NODE_TEXT:
        write_text(r, n->value);
        break;
    case NODE_OUTPUT:
        output(r, n);
        break;
    case NODE_BLOCK:
        return execute_block(r, n);
    case NODE_IF:
        return execute_if(r, n);
    case NODE_FOR:
        return jinja_for(r, n);
    case NODE_SET:
        jinja_assign(r, r->scope, n->kid[0], jinja_eval(r, n->kid[1]));
        break;
    case NODE_SET_BLOCK:
        return set_block(r, n);
    case NODE_MACRO:
        jinja_bind(r, r->scope, n->name, macro_value(r, n, n->kid[0]));
        break;
    case NODE_CALL_BLOCK:
        call_block(r, n);
        break;
    case NODE_FILTER_BLOCK:
        return filter_block(r, n);
    case NODE_WITH:
        return with(r, n);
    case NODE_SCOPE:
        write_text(r, jinja_capture(r, n->kid[0], jinja_scope_new(r, r->scope), NULL));
        break;
    case NODE_BREAK:
        return FLOW_BREAK;
    default:
        return FLOW_CONTINUE;
    }
    return FLOW_ON;
}

enum jinja_flow jinja_execute(struct jinja_run *r, const struct jinja_node *n)
{
    r->m.line = n->line;
    jinja_deeper(r);
    enum jinja_flow flow = execute_kind(r, n);
    r->depth--;
    return flow;
}

/* ---- a rendering --------------------------------------------------------------------------- */

struct jinja_run *jinja_run_new(const struct jinja *program)
{
    struct jinja_run *r = xcalloc(1, sizeof *r);
    r->program = program;
    r->m.most = SIZE_MAX / 4; /* what is given is no concern of the limits */
    r->limits.steps = UINT64_MAX;
    r->globals = jinja_scope_new(r, NULL);
    jinja_globals(r);
    r->scope = jinja_scope_new(r, r->globals);
    return r;
}

void jinja_run_free(struct jinja_run *r)
{
    if (!r)
        return;
    jinja_memory_free(&r->m);
    free(r);
}

uint64_t jinja_steps(const struct jinja_run *r)
{
    return r->steps;
}

void jinja_variable(struct jinja_run *r, const char *name, struct jinja_value v)
{
    const char *known = jinja_interned(r->program, name);
    if (known) /* what the program does not name, it cannot read */
        jinja_bind(r, r->scope, known, v);
}

enum jinja_end jinja_render(struct jinja_run *r, const struct jinja_limits *limits, char **text,
                            size_t *n, struct err *err)
{
    struct jinja_out out = {0};
    r->limits = *limits;
    r->steps = 0;
    r->m.most = limits->memory < SIZE_MAX / 4 ? r->m.taken + limits->memory : SIZE_MAX / 4;
    r->m.err = err;
    r->out = &out;
    if (setjmp(r->m.leave))
        return r->m.reason;
    r->scope = jinja_scope_new(r, r->scope);
    jinja_execute(r, r->program->root);
    *n = r->out->n;
    *text = xmalloc(*n + 1);
    if (*n)
        memcpy(*text, r->out->p, *n);
    (*text)[*n] = 0;
    return JINJA_DONE;
}
