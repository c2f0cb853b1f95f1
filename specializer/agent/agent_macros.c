/* SPDX-License-Identifier: Apache-2.0 */
/* agent_macros.c - see agent_macros.h. */
#include "specializer/agent/agent_macros.h"

#include "specializer/agent/agent_names.h"
#include "specializer/agent/agent_words.h"

/* What an expansion is counted as where it is beyond every bound. */
static const double countless = 1e18;

struct count {
    double base, slope;
};

/* ---- definitions --------------------------------------------------------------------------- */

static bool in_capitals(const struct token *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->at[i] >= 'a' && t->at[i] <= 'z')
            return false;
    return t->at[0] != '_';
}

static int check_macro_name(const struct tokens *t, const struct token *name)
{
    size_t n = (size_t)name->n;
    if (name->kind != LEXEME_NAME || name->at[0] == '_')
        return text_refuse(t, name->line, "directive", "a reserved name cannot be defined");
    if (word_forbidden(name->at, n, t->language))
        return token_refuse(t, name, word_forbidden(name->at, n, t->language), "");
    if (!in_capitals(name))
        return token_refuse(t, name, "macro", "is not in capitals, as names of macros are");
    if (name_frame(name->at, n, t->language))
        return token_refuse(t, name, "frame", "is a name of the frame");
    return 0;
}

/* A parameter stands for something else in the body, so it may look like nothing that the rules
 * know: a function, an attribute, a word of the language. */
static int check_param(const struct tokens *t, const struct token *p)
{
    size_t n = (size_t)p->n;
    if (p->kind != LEXEME_NAME || p->at[0] == '_' || name_keyword(p->at, n) ||
        name_type(p->at, n, t->language) || name_callable(p->at, n, t->language) ||
        name_frame(p->at, n, t->language) || word_attribute(p->at, n) ||
        word_forbidden(p->at, n, t->language))
        return token_refuse(t, p, "macro", "cannot be a parameter");
    return 0;
}

/* Behind the name and its parenthesis: how many tokens the list has, with the closing one; or -1.
 */
static int read_params(const struct tokens *t, struct macro *m, const struct token *line, int n)
{
    int i = 0;
    m->takes = true;
    m->param = line;
    if (i < n && token_is(&line[i], ")"))
        return 1;
    for (; i < n; i += 2) {
        if (check_param(t, &line[i]) != 0)
            return -1;
        m->params = i + 1;
        if (i + 1 < n && token_is(&line[i + 1], ")"))
            return i + 2;
        if (i + 1 >= n || !token_is(&line[i + 1], ","))
            break;
    }
    return text_refuse(t, m->name->line, "macro", "parameters are names with commas between them");
}

static int check_body(const struct tokens *t, const struct macro *m)
{
    const struct token *body = m->body;
    const bool told = name_told(m->name->at, (size_t)m->name->n, t->language);
    if (told && (m->takes || (m->tokens > 0) != (t->language == AGENT_CUDA)))
        return token_refuse(t, m->name, "frame",
                            m->takes        ? "takes no arguments"
                            : m->tokens > 0 ? "is defined as nothing"
                                            : "has a value");
    if (m->tokens == 0)
        return told ? 0 : token_refuse(t, m->name, "macro", "is empty");
    if (token_is(body, "[") || token_is(body, ":") || token_is(&body[m->tokens - 1], ":"))
        return token_refuse(t, m->name, "macro", "begins or ends inside something");
    for (int i = 0; i < m->tokens; i++) {
        if (token_is(&body[i], "#"))
            return text_refuse(t, body[i].line, "directive", "# inside a line");
        if (token_same(&body[i], m->name))
            return token_refuse(t, m->name, "macro", "mentions itself");
    }
    return tokens_pair(t, m->body, m->tokens);
}

int macros_define(struct macros *m, const struct tokens *t, struct token *line, int n)
{
    if (m->n == MACROS_MOST)
        return text_refuse(t, line->line, "size", "more than %d macros", MACROS_MOST);
    struct macro *d = &m->macro[m->n];
    int used = 1;
    *d = (struct macro){.name = line, .base = -1};
    if (check_macro_name(t, line) != 0)
        return -1;
    if (n > 1 && token_is(&line[1], "(") && !line[1].apart) {
        int list = read_params(t, d, line + 2, n - 2);
        if (list < 0)
            return -1;
        used += 1 + list;
    }
    d->body = line + used;
    d->tokens = n - used;
    const struct macro *before = macro_find(m, line);
    if (before && before->takes != d->takes)
        return token_refuse(t, line, "macro", "takes arguments in one place and not in another");
    if (before && name_told(line->at, (size_t)line->n, t->language))
        return token_refuse(t, line, "frame", "is defined twice");
    if (check_body(t, d) != 0)
        return -1;
    m->n++;
    return 0;
}

int macros_undef(struct macros *m, const struct tokens *t, const struct token *name)
{
    if (check_macro_name(t, name) != 0)
        return -1;
    if (name_told(name->at, (size_t)name->n, t->language))
        return token_refuse(t, name, "frame", "cannot be taken back");
    if (!macro_find(m, name))
        return token_refuse(t, name, "macro", "was not defined here");
    for (int i = 0; i < m->n; i++)
        m->macro[i].gone |= token_same(m->macro[i].name, name);
    return 0;
}

/* ---- what they become ---------------------------------------------------------------------- */

const struct macro *macro_find(const struct macros *m, const struct token *name)
{
    for (int i = 0; i < m->n; i++)
        if (token_same(m->macro[i].name, name))
            return &m->macro[i];
    return NULL;
}

bool macro_gone(const struct macros *m, const struct token *name)
{
    bool found = false;
    for (int i = 0; i < m->n; i++)
        if (token_same(m->macro[i].name, name)) {
            if (!m->macro[i].gone)
                return false;
            found = true;
        }
    return found;
}

bool macro_has_param(const struct macro *m, const struct token *name)
{
    for (int i = 0; m && i < m->params; i += 2)
        if (token_same(&m->param[i], name))
            return true;
    return false;
}

bool macro_opens(const struct macros *m, const struct macro *in, const struct token *t)
{
    if (t->kind != LEXEME_NAME)
        return token_is(t, "(");
    if (macro_has_param(in, t))
        return true;
    for (int i = 0; i < m->n; i++)
        if (token_same(m->macro[i].name, t) && m->macro[i].opens)
            return true;
    return false;
}

bool macro_is_type(const struct macros *m, const struct token *name,
                   bool (*type)(const void *ctx, const struct token *t), const void *ctx)
{
    bool found = false;
    for (int i = 0; i < m->n; i++) {
        const struct macro *d = &m->macro[i];
        if (!token_same(d->name, name))
            continue;
        found = true;
        for (int k = 0; k < d->tokens; k++)
            if (d->takes || (!type(ctx, &d->body[k]) && !token_is(&d->body[k], "*")))
                return false;
    }
    return found;
}

static int count_tokens(struct macros *m, const struct tokens *t, const struct macro *in,
                        const struct token *code, int n, struct count *out);

/* The largest expansion among the definitions of a name. */
static int count_macro(struct macros *m, const struct tokens *t, const struct token *name,
                       struct count *out)
{
    *out = (struct count){1, 0};
    for (int i = 0; i < m->n; i++) {
        struct macro *d = &m->macro[i];
        struct count c = {d->base, d->slope};
        if (!token_same(d->name, name))
            continue;
        if (d->pending)
            return token_refuse(t, d->name, "macro", "leads back to itself");
        d->pending = true;
        if (d->base < 0 && count_tokens(m, t, d, d->body, d->tokens, &c) != 0)
            return -1;
        d->pending = false;
        if (d->base < 0) /* what it begins with is known by now */
            d->opens = d->tokens > 0 && macro_opens(m, d, d->body);
        d->base = c.base;
        d->slope = c.slope;
        out->base = c.base > out->base ? c.base : out->base;
        out->slope = c.slope > out->slope ? c.slope : out->slope;
    }
    return 0;
}

/* A macro stands at code[*i]: what it and its arguments become. Leaves *i at its last token. */
static int count_use(struct macros *m, const struct tokens *t, const struct macro *in,
                     const struct token *code, int n, int *i, struct count *out)
{
    struct count c, args = {0, 0};
    const struct macro *d = macro_find(m, &code[*i]);
    if (count_macro(m, t, &code[*i], &c) != 0)
        return -1;
    if (d->takes && *i + 1 < n && token_is(&code[*i + 1], "(")) {
        int inside = code[*i + 1].pair - 1;
        if (count_tokens(m, t, in, &code[*i + 2], inside, &args) != 0)
            return -1;
        *i += inside + 2;
    }
    out->base += c.base + c.slope * args.base;
    out->slope += c.slope * args.slope;
    return 0;
}

static int count_tokens(struct macros *m, const struct tokens *t, const struct macro *in,
                        const struct token *code, int n, struct count *out)
{
    *out = (struct count){0, 0};
    for (int i = 0; i < n; i++) {
        if (code[i].kind == LEXEME_NAME && macro_has_param(in, &code[i]))
            out->slope += 1;
        else if (code[i].kind != LEXEME_NAME || !macro_find(m, &code[i]))
            out->base += 1;
        else if (count_use(m, t, in, code, n, &i, out) != 0)
            return -1;
        out->base = out->base < countless ? out->base : countless;
        out->slope = out->slope < countless ? out->slope : countless;
    }
    return 0;
}

int macros_expand(struct macros *m, const struct tokens *t, const struct token *code, int n)
{
    struct count c;
    for (int i = 0; i < m->n; i++)
        if (count_macro(m, t, m->macro[i].name, &c) != 0)
            return -1;
    if (count_tokens(m, t, NULL, code, n, &c) != 0)
        return -1;
    return c.base <= EXPANSION_MOST
               ? 0
               : text_refuse(t, 1, "macro", "the text expands to %.3g tokens, at most %d", c.base,
                             EXPANSION_MOST);
}
