/* SPDX-License-Identifier: Apache-2.0 */
/* template.h - kernel templates, their knobs, and single points of them.
 *
 * kernels/templates.def and templates_cuda.def list the templates, and each one's knob table
 * (kernels/cpu/<file>.def, kernels/cuda/<file>.def) says its knobs, their values and what is legal.
 * Everything here is generated from those tables at compile time: a knob or a rule added there
 * needs no code here. Nothing here changes; any thread.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_TEMPLATE_H
#define WHET_SPECIALIZER_CANDIDATE_TEMPLATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dispatch.h"
#include "engine/model.h"
#include "engine/plan.h"
#include "specializer/candidate/numerics.h"
#include "specializer/candidate/roles.h"
#include "specializer/candidate/target.h"

enum { KNOBS_MAX = 20, KNOB_VALUES = 16 };

/* One value per knob of the template, in the order of its .def. */
struct point {
    int32_t value[KNOBS_MAX];
};

struct knob {
    const char *name, *help;
    enum knob_role role;
    int32_t fallback; /* the template's own default */
    int32_t values;
    int32_t value[KNOB_VALUES];
};

/* What a point is judged against: a slot's region in this model on this machine. The members are
 * the names that LEGAL rows use; the SHAPE ones also reach the kernel as -D. */
struct facts {
#define FACT(name, help) int32_t name;
#define SHAPE(name, value, help) int32_t name;
#include "kernels/templates.def"
    int32_t SMS;         /* multiprocessors; 0: the facts are a CPU's */
    int32_t device_type; /* what WTYPE is on a GPU; 0: it is no fact of a model */
#define FACT(name, help) int32_t name;
#include "kernels/templates_cuda.def"
};

struct template
{
    const char *id, *file, *help;
    enum machine_kind machine;
    bool library; /* has no source: the backend makes the object (backend_ops.choose) */
    enum region region;
    int32_t m_min, m_max;
    const struct knob *knob;
    int knobs;
    const int8_t *by_role; /* [ROLE_COUNT] template_role() + 1 */
    /* NULL, or why the point is not legal. */
    const char *(*legal)(const struct point *p, const struct facts *f);
    /* The point gives the bits of the eager kernel. */
    bool (*bit_equal)(const struct point *p, const struct facts *f);
    /* What it declares to make of activations: enum precision (numerics.h). */
    int (*precision)(const struct point *p, const struct facts *f);
    /* Where a search may begin: "NAME=value ...", other knobs at their defaults, of START row `n`
     * among those that hold; NULL: fewer do. */
    const char *(*start)(const struct facts *f, int n);
    const char *const *rule; /* what is legal, in words; NULL-terminated */
};

int template_count(void);
const struct template *template_at(int i);
/* Its place among those; -1: a template of a language model's kernels (agent_template()), which no
 * search has points of. */
int template_index(const struct template *t);
const struct template *template_find(const char *id);          /* NULL: none */
int template_knob(const struct template *t, const char *name); /* index, or -1 */
/* The knob that has a role: index, or -1. */
int template_role(const struct template *t, enum knob_role role);
/* The value of that knob, or the role's neutral one. */
int32_t role_value(const struct template *t, const struct point *p, enum knob_role role);
/* The template's defaults. */
struct point template_defaults(const struct template *t);
/* The point of START row `n` among those that hold for these facts; false if fewer do, or the row
 * names a knob that is not there. It may be illegal. */
bool template_start_row(const struct template *t, const struct facts *f, int n, struct point *p);
/* Where a search begins: the first of them that is legal, or the first if none is; false if no row
 * holds. */
bool template_start(const struct template *t, const struct facts *f, struct point *p);
/* True if the template may fill slots of `region` with `m` tokens on such a machine. */
bool template_fits(const struct template *t, enum machine_kind machine, enum region region, int m);
/* False: weights are in a format that no point of it reads there; asked before all of them are. */
bool template_reads(const struct template *t, const struct facts *f);
/* NULL, or why the point may not run there: a knob value outside its list, or a LEGAL row. */
const char *template_illegal(const struct template *t, const struct point *p,
                             const struct facts *f);

/* Facts of a region of `model` at up to `m` tokens on this machine. A weight whose type differs
 * between layers has type DTYPE_COUNT, which no template takes; facts_slot() are those of the
 * layers that the slot is for, which have one. */
void facts_fill(struct facts *f, const struct model *model, enum region region, int m,
                enum numerics numerics);
void facts_slot(struct facts *f, const struct model *model, const struct slot *slot,
                enum numerics numerics);
/* Makes them facts of `machine` instead of this CPU; nothing if it is a CPU. */
void facts_machine(struct facts *f, const struct machine *machine);
enum machine_kind facts_kind(const struct facts *f);
/* Gives `each` the SHAPE rows of the templates for a kind of machine, in the order of their table;
 * KV_BF16 only where it is 1, so that builds and prompts of before it was there are the same. */
void facts_shapes(const struct facts *f, enum machine_kind kind,
                  void (*each)(void *ctx, const char *name, int32_t value), void *ctx);

/* "ISA=2 ROWS=4"; and back: -1 with a message for unknown knobs, missing ones or bad values. */
void point_text(const struct template *t, const struct point *p, char *out, size_t n);
int point_parse(const struct template *t, const char *text, struct point *p, struct err *err);

/* What the compiler is given for a point: the flags of its instruction set, then -D of every knob
 * and SHAPE of its table. NULL-terminated; free each string and the array. */
char **point_flags(const struct template *t, const struct point *p, const struct facts *f);

/* The template's source file below kernels/: "cpu/out.c", "cuda/gemv.cu"; of a library
 * "cuda/lt.def". */
void template_path(const struct template *t, char *out, size_t n);
/* The text of that file, embedded in the program. */
const char *template_source(const struct template *t);
/* The text of any embedded kernel source ("args.h", "cpu/lib/qkv.h"); "" if there is none. */
const char *kernel_source_text(const char *name);
/* Hash of that file and, recursively, of the headers it includes. */
void template_source_hash(const struct template *t, char out[17]);

#endif
