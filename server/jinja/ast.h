/* SPDX-License-Identifier: Apache-2.0 */
/* ast.h - tokens of a template, and the tree that is made of them (jinja.h).
 *
 * lex.c cuts the text into tokens; parse.c (statements), parse_operator.c and
 * parse_expression.c make nodes of them. Everything is in the program's arena, and names are
 * interned: two equal ones have the same address.
 */
#ifndef WHET_SERVER_JINJA_AST_H
#define WHET_SERVER_JINJA_AST_H

#include "server/jinja/memory.h"

enum jinja_token_type {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INT,
    TOKEN_FLOAT,
    TOKEN_OPERATOR,
};

struct jinja_token {
    enum jinja_token_type type;
    int line;
    struct jinja_value v; /* data, names and operators as strings; literals as they are */
};

struct jinja_tokens {
    struct jinja_token *token; /* the last one is TOKEN_END */
    size_t n, room;
};

/* Cuts text[0..n) into tokens; `text` stays in use. Leaves with an error. */
void jinja_lex(struct jinja_memory *m, const char *text, size_t n, struct jinja_tokens *out);

enum jinja_kind {
    /* Expressions. kid[] is what they are made of. */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name */
    NODE_TUPLE,   /* items */
    NODE_LIST,    /* items */
    NODE_DICT,    /* key, value, key, value, ... */
    NODE_GETATTR, /* object; name */
    NODE_GETITEM, /* object, index */
    NODE_SLICE,   /* start, stop, step; NULL where left out */
    NODE_CALL,    /* function; args */
    NODE_FILTER,  /* value, NULL in a filter block; name, args */
    NODE_TEST,    /* value; name, args */
    NODE_NOT,
    NODE_NEGATE,
    NODE_PLUS,
    NODE_BINARY, /* left, right; op */
    NODE_CONCAT, /* pieces */
    NODE_AND,
    NODE_OR,
    NODE_COMPARE,   /* first, second, ...; ops: one for each behind the first */
    NODE_CONDITION, /* test, then, else (may be NULL) */
    NODE_ATTRIBUTE, /* a target: attribute `attribute` of the namespace `name` */
    /* Statements. */
    NODE_TEXT,         /* value */
    NODE_OUTPUT,       /* expressions */
    NODE_BLOCK,        /* statements */
    NODE_IF,           /* test, block, test, block, ...; block of else or NULL */
    NODE_FOR,          /* target, iterable, filter or NULL, body, else or NULL; op: recursive */
    NODE_SET,          /* target, value */
    NODE_SET_BLOCK,    /* target, filter or NULL, body */
    NODE_MACRO,        /* body; macro */
    NODE_CALL_BLOCK,   /* call, body; macro: the caller */
    NODE_FILTER_BLOCK, /* filter, body */
    NODE_WITH,         /* target, value, ..., body */
    NODE_SCOPE,        /* body */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum jinja_operator {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct jinja_node {
    uint8_t kind, op;
    int line;
    int depth; /* of the tree below, itself included */
    int kids;
    struct jinja_node **kid;
    const char *name; /* interned */
    const char *attribute;
    struct jinja_value value;
    uint8_t *ops;
    struct jinja_args_node *args;
    struct jinja_signature *macro;
};

/* Arguments of a call as they are written. */
struct jinja_args_node {
    int n, named;
    struct jinja_node **v;        /* [n] */
    const char **name;            /* [named] */
    struct jinja_node **value;    /* [named] */
    struct jinja_node *star;      /* *expression, or NULL */
    struct jinja_node *two_stars; /* **expression, or NULL */
};

/* What a macro takes. */
struct jinja_signature {
    const char *name;
    int n;
    const char **param;
    struct jinja_node **fallback; /* [n] defaults; NULL: none */
    bool varargs, kwargs, caller; /* its body asks for them */
};

struct jinja_names {
    const char **slot; /* a hash table */
    size_t n, room;    /* room is a power of two */
};

struct jinja {
    struct jinja_memory memory;
    char *source; /* NUL-terminated, newlines normalized */
    size_t source_n;
    struct jinja_names names;
    struct jinja_node *root;
};

/* The parser's state. */
struct jinja_parser {
    struct jinja_memory *m;
    struct jinja *program;
    const struct jinja_token *at;
    int nodes, nesting;
    int loops;                     /* for loops around, within the same macro */
    struct jinja_signature *macro; /* around, or NULL */
};

const char *jinja_intern(struct jinja *program, const char *s, size_t n);
/* The interned name, or NULL if the program does not have it. */
const char *jinja_interned(const struct jinja *program, const char *s);

/* What the files of the parser share. */
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind, int line);
void jinja_node_add(struct jinja_parser *p, struct jinja_node *parent, struct jinja_node *kid);
void jinja_nest(struct jinja_parser *p, int by);
bool jinja_at_name(const struct jinja_parser *p, const char *name);
bool jinja_at_operator(const struct jinja_parser *p, const char *op);
bool jinja_skip_name(struct jinja_parser *p, const char *name);
bool jinja_skip_operator(struct jinja_parser *p, const char *op);
void jinja_expect_operator(struct jinja_parser *p, const char *op);
const char *jinja_expect_name(struct jinja_parser *p, const char *what);
_Noreturn void jinja_unexpected(struct jinja_parser *p, const char *expected);

struct jinja_node *jinja_expression(struct jinja_parser *p, bool condition);
struct jinja_node *jinja_primary(struct jinja_parser *p);
/* A value with its signs and what stands behind it; `filters`: with filters and tests. */
struct jinja_node *jinja_unary(struct jinja_parser *p, bool filters);
/* Expressions with commas between them, a tuple if there is a comma. `stop`: a name that ends it,
 * or NULL. */
struct jinja_node *jinja_tuple(struct jinja_parser *p, bool condition, const char *stop);
/* `|filter` of `node` (NULL: of what a block will say); without the bar if `started`. */
struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *node, bool started);

#endif
