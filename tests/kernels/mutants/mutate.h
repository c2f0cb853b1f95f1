/* SPDX-License-Identifier: Apache-2.0 */
/* mutate.h - small wrong changes to C text: what a careless hand or a careless model would do.
 *
 * A mutation is an edit of one place of one file. mutations_of() lists every edit that the
 * operators allow there, in the order of the text, so that (file, index) names a mutant for ever
 * and a seed picks the same ones on every machine. Nothing here knows what a kernel is or how it is
 * checked. One thread; the list borrows `text`.
 */
#ifndef WHET_TESTS_KERNELS_MUTANTS_MUTATE_H
#define WHET_TESTS_KERNELS_MUTANTS_MUTATE_H

#include <stdbool.h>
#include <stddef.h>

/* Operators by the kind of mistake. */
enum mutation_kind {
    MUTATE_BOUND,      /* < and <=, one less or one more in a loop's bound */
    MUTATE_START,      /* a loop begins one late */
    MUTATE_STEP,       /* a loop's step is twice as large, or one larger */
    MUTATE_TAIL,       /* the loop over what is left after whole tiles is dropped */
    MUTATE_LOOP,       /* another loop is dropped */
    MUTATE_BRANCH,     /* a condition becomes constant; the arms of ?: change places */
    MUTATE_COMPARE,    /* == and !=, && and || */
    MUTATE_INDEX,      /* an index is one off; two indices change places */
    MUTATE_STRIDE,     /* a * b + c becomes c * b + a */
    MUTATE_ARGUMENTS,  /* neighbouring arguments of a call change places */
    MUTATE_SIGN,       /* + and -, += and -= */
    MUTATE_ARITHMETIC, /* * and +, / and *, shifts and masks the other way */
    MUTATE_TERM,       /* a factor or a summand is left out: a scale, a minimum, an offset */
    MUTATE_CONSTANT,   /* a number is one off, doubled, or 1 % off */
    MUTATE_NAME,      /* the wrong one of two things alike: gate and up, k and v, rows and tokens */
    MUTATE_BARRIER,   /* a barrier is dropped */
    MUTATE_STATEMENT, /* another statement is dropped */
    MUTATE_NARROW,    /* a result rounded to bf16 or to half; a smaller integer type */
    MUTATION_KINDS
};
const char *mutation_kind_name(enum mutation_kind k);

struct mutation {
    enum mutation_kind kind;
    size_t at, n; /* the bytes that are replaced */
    int line;
    char *with;
};

struct mutations {
    struct mutation *item;
    int n;
};

/* Every edit of `text` on lines for which `wanted` (indexed from 1; NULL: all) is true. */
void mutations_of(const char *text, const bool *wanted, struct mutations *out);
void mutations_free(struct mutations *m);

/* `text` with the edit made; malloc'ed. What edits need is defined at its head, on line 0. */
char *mutation_apply(const char *text, const struct mutation *m);
/* "tail line 41: `i < n` -> `0`", cut to fit. */
void mutation_describe(const char *text, const struct mutation *m, char *out, size_t n);

#endif
