/* SPDX-License-Identifier: Apache-2.0 */
/* ast.c - names, nodes and tokens: what both parts of the parser are made of. */
#include "server/jinja/ast.h"

#include <string.h>

enum { DEPTH_MAX = 400 };

/* ---- names --------------------------------------------------------------------------------- */

static size_t name_slot(const struct jinja_names *names, const char *s, size_t n)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    size_t at = h & (names->room - 1);
    while (names->slot[at] && !(strncmp(names->slot[at], s, n) == 0 && !names->slot[at][n]))
        at = (at + 1) & (names->room - 1);
    return at;
}

static void grow_names(struct jinja *program)
{
    struct jinja_names old = program->names, *names = &program->names;
    names->room = old.room ? old.room * 2 : 128;
    names->slot = jinja_alloc_items(&program->memory, names->room, sizeof *names->slot);
    memset(names->slot, 0, names->room * sizeof *names->slot);
    for (size_t i = 0; i < old.room; i++)
        if (old.slot[i])
            names->slot[name_slot(names, old.slot[i], strlen(old.slot[i]))] = old.slot[i];
}

const char *jinja_intern(struct jinja *program, const char *s, size_t n)
{
    if (program->names.n * 2 >= program->names.room)
        grow_names(program);
    size_t at = name_slot(&program->names, s, n);
    if (!program->names.slot[at]) {
        char *copy = jinja_alloc(&program->memory, n + 1);
        memcpy(copy, s, n);
        copy[n] = 0;
        program->names.slot[at] = copy;
        program->names.n++;
    }
    return program->names.slot[at];
}

const char *jinja_interned(const struct jinja *program, const char *s)
{
    return program->names.room ? program->names.slot[name_slot(&program->names, s, strlen(s))]
                               : NULL;
}

/* ---- nodes and tokens ---------------------------------------------------------------------- */

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind, int line)
{
    if (++p->nodes > JINJA_NODES_MAX)
        jinja_fail(p->m, "the chat template has more than %d parts", JINJA_NODES_MAX);
    struct jinja_node *n = jinja_alloc(p->m, sizeof *n);
    *n = (struct jinja_node){.kind = (uint8_t)kind, .line = line, .depth = 1};
    return n;
}

void jinja_node_add(struct jinja_parser *p, struct jinja_node *parent, struct jinja_node *kid)
{
    if ((parent->kids & (parent->kids - 1)) == 0) { /* full: there is room for a power of two */
        size_t room = parent->kids ? (size_t)parent->kids * 2 : 1;
        struct jinja_node **more = jinja_alloc_items(p->m, room, sizeof(struct jinja_node *));
        for (int i = 0; i < parent->kids; i++)
            more[i] = parent->kid[i];
        parent->kid = more;
    }
    parent->kid[parent->kids++] = kid;
    if (kid && kid->depth >= parent->depth)
        parent->depth = kid->depth + 1;
    if (parent->depth > DEPTH_MAX)
        jinja_fail(p->m, "operators or blocks are nested more than %d deep", DEPTH_MAX);
}

void jinja_nest(struct jinja_parser *p, int by)
{
    p->m->line = p->at->line;
    p->nesting += by;
    if (p->nesting > 3 * JINJA_NESTING_MAX)
        jinja_fail(p->m, "brackets or blocks are nested more than %d deep", JINJA_NESTING_MAX);
}

static bool is_text(const struct jinja_token *t, enum jinja_token_type type, const char *text)
{
    return t->type == type && t->v.u.s.n == strlen(text) &&
           memcmp(t->v.u.s.p, text, t->v.u.s.n) == 0;
}

bool jinja_at_name(const struct jinja_parser *p, const char *name)
{
    return is_text(p->at, TOKEN_NAME, name);
}

bool jinja_at_operator(const struct jinja_parser *p, const char *op)
{
    return is_text(p->at, TOKEN_OPERATOR, op);
}

bool jinja_skip_name(struct jinja_parser *p, const char *name)
{
    bool there = jinja_at_name(p, name);
    p->at += there;
    return there;
}

bool jinja_skip_operator(struct jinja_parser *p, const char *op)
{
    bool there = jinja_at_operator(p, op);
    p->at += there;
    return there;
}

void jinja_unexpected(struct jinja_parser *p, const char *expected)
{
    const struct jinja_token *t = p->at;
    p->m->line = t->line;
    bool text = t->type == TOKEN_NAME || t->type == TOKEN_OPERATOR || t->type == TOKEN_STRING;
    if (text)
        jinja_fail(p->m, "%s was expected before '%.*s'", expected,
                   (int)(t->v.u.s.n < 40 ? t->v.u.s.n : 40), t->v.u.s.p);
    jinja_fail(p->m, "%s was expected before %s", expected,
               t->type == TOKEN_END                                          ? "the end"
               : t->type == TOKEN_VARIABLE_END || t->type == TOKEN_BLOCK_END ? "the end of the tag"
                                                                             : "a number");
}

void jinja_expect_operator(struct jinja_parser *p, const char *op)
{
    char quoted[8] = {'\'', op[0], '\'', 0};
    if (!jinja_skip_operator(p, op))
        jinja_unexpected(p, quoted);
}

const char *jinja_expect_name(struct jinja_parser *p, const char *what)
{
    if (p->at->type != TOKEN_NAME)
        jinja_unexpected(p, what);
    const struct jinja_token *t = p->at++;
    return jinja_intern(p->program, t->v.u.s.p, t->v.u.s.n);
}
