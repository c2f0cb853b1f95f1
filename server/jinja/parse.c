/* SPDX-License-Identifier: Apache-2.0 */
/* parse.c - statements, and the program as a whole. */
#include <stdlib.h>
#include <string.h>

#include "server/jinja/ast.h"

enum { PROGRAM_BYTES_MAX = 128 << 20 };

/* ---- statements ---------------------------------------------------------------------------- */

static struct jinja_node *statement(struct jinja_parser *p);

static bool at_any(const struct jinja_parser *p, const char *const *names)
{
    for (; names && *names; names++)
        if (jinja_at_name(p, *names))
            return true;
    return false;
}

/* Text and statements up to a tag of one of `ends` (NULL: up to the end), whose name comes next. */
static struct jinja_node *statements(struct jinja_parser *p, const char *const *ends)
{
    struct jinja_node *all = jinja_node_new(p, NODE_BLOCK, p->at->line), *n;
    jinja_nest(p, 3);
    for (;; p->at++) {
        p->m->line = p->at->line;
        if (p->at->type == TOKEN_END) {
            if (ends)
                jinja_fail(p->m, "the template ends before '%s'", ends[0]);
            break;
        } else if (p->at->type == TOKEN_DATA) {
            n = jinja_node_new(p, NODE_TEXT, p->at->line);
            n->value = p->at->v;
        } else if (p->at->type == TOKEN_VARIABLE_BEGIN) {
            n = jinja_node_new(p, NODE_OUTPUT, p->at->line);
            p->at++;
            jinja_node_add(p, n, jinja_tuple(p, true, NULL));
            if (p->at->type != TOKEN_VARIABLE_END)
                jinja_unexpected(p, "'}}'");
        } else {
            p->at++;
            if (at_any(p, ends))
                break;
            n = statement(p);
            if (p->at->type != TOKEN_BLOCK_END)
                jinja_unexpected(p, "'%}'");
        }
        jinja_node_add(p, all, n);
    }
    jinja_nest(p, -3);
    return all;
}

/* The body of a block statement, and the name of the tag that ends it, which comes next. */
static struct jinja_node *body(struct jinja_parser *p, const char *end, const char *or_else,
                               const char *or_elif)
{
    const char *const ends[] = {end, or_else, or_elif, NULL};
    jinja_skip_operator(p, ":");
    if (p->at->type != TOKEN_BLOCK_END)
        jinja_unexpected(p, "'%}'");
    p->at++;
    return statements(p, ends);
}

static struct jinja_node *whole_body(struct jinja_parser *p, const char *end)
{
    struct jinja_node *n = body(p, end, NULL, NULL);
    p->at++;
    return n;
}

static struct jinja_node *target_item(struct jinja_parser *p, bool namespaces)
{
    if (jinja_skip_operator(p, "(")) {
        struct jinja_node *tuple = jinja_node_new(p, NODE_TUPLE, p->at->line);
        bool comma = false;
        jinja_nest(p, 1);
        while (!jinja_at_operator(p, ")")) {
            jinja_node_add(p, tuple, target_item(p, namespaces));
            comma = !jinja_at_operator(p, ")");
            if (comma)
                jinja_expect_operator(p, ",");
        }
        jinja_nest(p, -1);
        bool one = tuple->kids == 1 && !comma;
        p->at++;
        return one ? tuple->kid[0] : tuple;
    }
    if (p->at->type == TOKEN_NAME && p->at[1].type == TOKEN_OPERATOR && namespaces &&
        *p->at[1].v.u.s.p == '.') {
        struct jinja_node *n = jinja_node_new(p, NODE_ATTRIBUTE, p->at->line);
        n->name = jinja_expect_name(p, "a name");
        p->at++;
        n->attribute = jinja_expect_name(p, "the name of an attribute");
        return n;
    }
    struct jinja_node *n = jinja_primary(p);
    if (n->kind != NODE_NAME)
        jinja_fail(p->m, "only names can be assigned to");
    if (strcmp(n->name, "loop") == 0 && p->loops)
        jinja_fail(p->m, "'loop' cannot be assigned to in a loop");
    return n;
}

static struct jinja_node *target(struct jinja_parser *p, bool namespaces)
{
    struct jinja_node *first = target_item(p, namespaces), *tuple;
    if (!jinja_at_operator(p, ","))
        return first;
    tuple = jinja_node_new(p, NODE_TUPLE, first->line);
    jinja_node_add(p, tuple, first);
    while (jinja_skip_operator(p, ",") && !jinja_at_name(p, "in") && !jinja_at_operator(p, "=") &&
           p->at->type != TOKEN_BLOCK_END)
        jinja_node_add(p, tuple, target_item(p, namespaces));
    return tuple;
}

static struct jinja_node *parse_if(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_IF, p->at->line);
    do {
        p->at++;
        jinja_node_add(p, n, jinja_tuple(p, false, NULL));
        jinja_node_add(p, n, body(p, "endif", "else", "elif"));
    } while (jinja_at_name(p, "elif"));
    bool otherwise = jinja_skip_name(p, "else");
    jinja_node_add(p, n, otherwise ? body(p, "endif", NULL, NULL) : NULL);
    p->at++;
    return n;
}

/* Whether an else follows. */
static bool loop_body(struct jinja_parser *p, struct jinja_node *n)
{
    p->loops++;
    jinja_node_add(p, n, body(p, "endfor", "else", NULL));
    p->loops--;
    return jinja_skip_name(p, "else");
}

static struct jinja_node *parse_for(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_FOR, p->at->line);
    p->at++;
    jinja_node_add(p, n, target(p, false));
    if (!jinja_skip_name(p, "in"))
        jinja_unexpected(p, "'in'");
    jinja_node_add(p, n, jinja_tuple(p, false, "recursive"));
    jinja_node_add(p, n, jinja_skip_name(p, "if") ? jinja_expression(p, true) : NULL);
    n->op = jinja_skip_name(p, "recursive");
    int before = p->loops;
    p->loops = n->op ? 0 : before; /* a recursive loop is a function: none around can be left */
    bool otherwise = loop_body(p, n);
    jinja_node_add(p, n, otherwise ? body(p, "endfor", NULL, NULL) : NULL);
    p->loops = before;
    p->at++;
    return n;
}

static struct jinja_node *parse_set(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_SET, p->at->line);
    p->at++;
    jinja_node_add(p, n, target(p, true));
    if (jinja_skip_operator(p, "=")) {
        jinja_node_add(p, n, jinja_tuple(p, true, NULL));
        return n;
    }
    n->kind = NODE_SET_BLOCK;
    jinja_node_add(p, n, jinja_filters(p, NULL, false));
    jinja_node_add(p, n, whole_body(p, "endset"));
    return n;
}

static struct jinja_signature *signature(struct jinja_parser *p, const char *name)
{
    enum { PARAMS_MAX = 64 };
    const char *param[PARAMS_MAX];
    struct jinja_node *fallback[PARAMS_MAX];
    struct jinja_signature *s = jinja_alloc(p->m, sizeof *s);
    *s = (struct jinja_signature){.name = name};
    jinja_expect_operator(p, "(");
    while (!jinja_at_operator(p, ")")) {
        if (s->n)
            jinja_expect_operator(p, ",");
        if (s->n == PARAMS_MAX)
            jinja_fail(p->m, "more than %d parameters", PARAMS_MAX);
        param[s->n] = jinja_expect_name(p, "the name of a parameter");
        fallback[s->n] = jinja_skip_operator(p, "=") ? jinja_expression(p, true) : NULL;
        if (s->n && fallback[s->n - 1] && !fallback[s->n])
            jinja_fail(p->m, "a parameter without a default stands behind one that has one");
        s->n++;
    }
    p->at++;
    s->param = jinja_alloc_items(p->m, (size_t)s->n, sizeof *s->param);
    s->fallback = jinja_alloc_items(p->m, (size_t)s->n, sizeof *s->fallback);
    memcpy(s->param, param, (size_t)s->n * sizeof *param);
    memcpy(s->fallback, fallback, (size_t)s->n * sizeof *fallback);
    return s;
}

/* The body of a macro, from whose inside no loop around can be left. */
static void macro_body(struct jinja_parser *p, struct jinja_node *n, struct jinja_signature *s,
                       const char *end)
{
    struct jinja_signature *around = p->macro;
    int loops = p->loops;
    n->macro = s;
    p->macro = s;
    p->loops = 0;
    jinja_node_add(p, n, whole_body(p, end));
    p->macro = around;
    p->loops = loops;
    if (around && strcmp(end, "endmacro") != 0) { /* what a caller asks for, its macro is asked */
        around->varargs = around->varargs || s->varargs;
        around->kwargs = around->kwargs || s->kwargs;
        around->caller = around->caller || s->caller;
    }
}

static struct jinja_node *parse_macro(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_MACRO, p->at->line);
    p->at++;
    n->name = jinja_expect_name(p, "the name of a macro");
    macro_body(p, n, signature(p, n->name), "endmacro");
    return n;
}

static struct jinja_node *parse_call(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_CALL_BLOCK, p->at->line);
    struct jinja_signature *s = NULL;
    p->at++;
    if (jinja_at_operator(p, "(")) {
        s = signature(p, "caller");
    } else {
        s = jinja_alloc(p->m, sizeof *s);
        *s = (struct jinja_signature){.name = "caller"};
    }
    jinja_node_add(p, n, jinja_expression(p, true));
    if (n->kid[0]->kind != NODE_CALL)
        jinja_fail(p->m, "a call block needs a call");
    macro_body(p, n, s, "endcall");
    return n;
}

static struct jinja_node *parse_filter(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_FILTER_BLOCK, p->at->line);
    p->at++;
    jinja_node_add(p, n, jinja_filters(p, NULL, true));
    jinja_node_add(p, n, whole_body(p, "endfilter"));
    return n;
}

static struct jinja_node *parse_with(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_WITH, p->at->line);
    p->at++;
    while (p->at->type != TOKEN_BLOCK_END && !jinja_at_operator(p, ":")) {
        if (n->kids)
            jinja_expect_operator(p, ",");
        jinja_node_add(p, n, target_item(p, false));
        jinja_expect_operator(p, "=");
        jinja_node_add(p, n, jinja_expression(p, true));
    }
    jinja_node_add(p, n, whole_body(p, "endwith"));
    return n;
}

static struct jinja_node *parse_print(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_OUTPUT, p->at->line);
    p->at++;
    while (p->at->type != TOKEN_BLOCK_END) {
        if (n->kids)
            jinja_expect_operator(p, ",");
        jinja_node_add(p, n, jinja_expression(p, true));
    }
    return n;
}

static struct jinja_node *parse_leave(struct jinja_parser *p)
{
    bool breaks = jinja_at_name(p, "break");
    if (!p->loops)
        jinja_fail(p->m, "'%s' stands in no loop", breaks ? "break" : "continue");
    struct jinja_node *n = jinja_node_new(p, breaks ? NODE_BREAK : NODE_CONTINUE, p->at->line);
    p->at++;
    return n;
}

/* A block whose end tag is "end" and its name; what is set in it stays in it. */
static struct jinja_node *parse_generation(struct jinja_parser *p)
{
    struct jinja_node *n = jinja_node_new(p, NODE_SCOPE, p->at->line);
    struct jinja_signature *s = jinja_alloc(p->m, sizeof *s);
    *s = (struct jinja_signature){.name = "generation"};
    p->at++;
    macro_body(p, n, s, "endgeneration");
    return n;
}

static struct jinja_node *statement(struct jinja_parser *p)
{
    static const struct {
        const char *name;
        struct jinja_node *(*parse)(struct jinja_parser *p);
    } tags[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call},
        {"filter", parse_filter},
        {"with", parse_with},
        {"print", parse_print},
        {"break", parse_leave},
        {"continue", parse_leave},
        {"generation", parse_generation},
    };
    p->m->line = p->at->line;
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (jinja_at_name(p, tags[i].name))
            return tags[i].parse(p);
    if (p->at->type != TOKEN_NAME)
        jinja_unexpected(p, "the name of a tag");
    jinja_fail(p->m, "the tag '%.*s' is not known here",
               (int)(p->at->v.u.s.n < 40 ? p->at->v.u.s.n : 40), p->at->v.u.s.p);
}

/* ---- the program --------------------------------------------------------------------------- */

/* '\n' for every newline, and none for the one at the end. */
static size_t normalize(char *to, const char *text, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        to[k++] = text[i] == '\r' ? '\n' : text[i];
    }
    k -= k && to[k - 1] == '\n';
    to[k] = 0;
    return k;
}

struct jinja *jinja_parse(const char *text, size_t n, struct err *err)
{
    if (n > JINJA_TEMPLATE_MAX) {
        err_set(err, "it has more than %d bytes", JINJA_TEMPLATE_MAX);
        return NULL;
    }
    struct jinja *program = xcalloc(1, sizeof *program);
    program->memory.most = PROGRAM_BYTES_MAX;
    program->memory.err = err;
    program->source = xmalloc(n + 1);
    program->source_n = normalize(program->source, text, n);
    if (setjmp(program->memory.leave)) {
        jinja_free(program);
        return NULL;
    }
    struct jinja_tokens tokens = {NULL, 0, 0};
    jinja_lex(&program->memory, program->source, program->source_n, &tokens);
    struct jinja_parser p = {.m = &program->memory, .program = program, .at = tokens.token};
    program->root = statements(&p, NULL);
    program->memory.err = NULL;
    return program;
}

void jinja_free(struct jinja *program)
{
    if (!program)
        return;
    jinja_memory_free(&program->memory);
    free(program->source);
    free(program);
}

bool jinja_mentions(const struct jinja *program, const char *text)
{
    return strstr(program->source, text) != NULL;
}
