/* SPDX-License-Identifier: Apache-2.0 */
/* template.c - templates and single points: legality, text, compiler flags, source identity,
 * and the facts of model and machine that legality is judged by. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/isa.h"
#include "kernels/sources.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/target.h"
#include "specializer/candidate/template.h"
#include "specializer/candidate/template_tables.h"

const struct template *template_find(const char *id)
{
    for (int i = 0; i < template_count(); i++)
        if (strcmp(template_at(i)->id, id) == 0)
            return template_at(i);
    return NULL;
}

int template_knob(const struct template *t, const char *name)
{
    for (int k = 0; k < t->knobs; k++)
        if (strcmp(t->knob[k].name, name) == 0)
            return k;
    return -1;
}

int template_role(const struct template *t, enum knob_role role)
{
    return t->by_role[role] - 1;
}

int32_t role_value(const struct template *t, const struct point *p, enum knob_role role)
{
    int k = template_role(t, role);
    return k < 0 ? role_of(role)->neutral : p->value[k];
}

struct point template_defaults(const struct template *t)
{
    struct point p = {{0}};
    for (int k = 0; k < t->knobs; k++)
        p.value[k] = t->knob[k].fallback;
    return p;
}

bool template_fits(const struct template *t, enum machine_kind machine, enum region region, int m)
{
    return t->machine == machine && t->region == region && m >= t->m_min && m <= t->m_max;
}

static bool knob_has(const struct knob *k, int32_t value)
{
    for (int v = 0; v < k->values; v++)
        if (k->value[v] == value)
            return true;
    return false;
}

const char *template_illegal(const struct template *t, const struct point *p, const struct facts *f)
{
    for (int k = 0; k < t->knobs; k++)
        if (!knob_has(&t->knob[k], p->value[k]))
            return "a knob has a value that is not in its list";
    return t->legal(p, f);
}

bool template_reads(const struct template *t, const struct facts *f)
{
    const struct point p = template_defaults(t);
    const char *why = template_illegal(t, &p, f); /* the rule comes first where there is one */
    return !why || strcmp(why, "weights are in a format that it reads") != 0;
}

bool template_start_row(const struct template *t, const struct facts *f, int n, struct point *p)
{
    const char *text = t->start(f, n);
    *p = template_defaults(t);
    while (text && *text) {
        char name[48];
        int value, used = 0;
        if (sscanf(text, " %47[A-Z0-9_]=%d%n", name, &value, &used) != 2)
            return false;
        int k = template_knob(t, name);
        if (k < 0)
            return false;
        p->value[k] = value;
        text += used;
    }
    return text != NULL;
}

bool template_start(const struct template *t, const struct facts *f, struct point *p)
{
    for (int n = 0; template_start_row(t, f, n, p); n++)
        if (!template_illegal(t, p, f))
            return true;
    return template_start_row(t, f, 0, p);
}

/* ---- facts ---------------------------------------------------------------------------------- */

/* Layers of a region: all of them, or a format class. */
struct layers_of {
    const struct model *model;
    enum region region;
    const struct format_class *formats;
    int32_t n;
};

/* The one format in which a GPU's steps of up to `tokens` read the region's matrix in these layers,
 * or DTYPE_COUNT. */
static int32_t kept_type(const struct layers_of *l, int tokens)
{
    int32_t type = -1;
    for (int32_t i = 0; i < l->n; i++) {
        int32_t layer = class_layer(l->formats, i);
        int32_t t = (int32_t)device_type(l->model, l->region, layer, tokens);
        if (type >= 0 && t != type)
            return DTYPE_COUNT;
        type = t;
    }
    return type;
}

/* The one type that each matrix has in these layers, or DTYPE_COUNT; those that a region has not
 * are called like its first. */
static void fill_types(struct facts *f, const struct layers_of *l)
{
    int32_t type[3] = {DTYPE_F32, DTYPE_F32, DTYPE_F32};
    for (int32_t i = 0; i < l->n; i++) {
        enum dtype t[3];
        int n = region_formats(l->model, l->region, class_layer(l->formats, i), t);
        for (int k = 0; k < 3 && n > 0; k++) {
            int32_t own = (int32_t)(k < n ? t[k] : t[0]);
            type[k] = i == 0 || type[k] == own ? own : DTYPE_COUNT;
        }
    }
    f->WTYPE = type[0];
    f->WTYPE_2 = type[1];
    f->WTYPE_3 = type[2];
}

static void fill(struct facts *f, const struct layers_of *l, int m, enum numerics numerics)
{
    const struct model *model = l->model;
    const struct model_shape *s = &model->shape;
    const struct isa_facts *cpu = isa_facts();
    *f = (struct facts){
        .HAS_AVX2 = cpu->HAS_AVX2,
        .HAS_AVX512 = cpu->HAS_AVX512,
        .HAS_VNNI = cpu->HAS_VNNI,
        .HAS_AMX = cpu->HAS_AMX,
        .HAS_NEON = cpu->HAS_NEON,
        .HAS_DOTPROD = cpu->HAS_DOTPROD,
        .HAS_I8MM = cpu->HAS_I8MM,
        .POLICY_REDUCED = numerics_allows(numerics, PRECISION_INT8),
        .POLICY_FP8 = numerics_allows(numerics, PRECISION_E4M3),
        .REGION = (int32_t)l->region,
        .M_MAX = m,
        .HIDDEN = s->hidden,
        .HEADS = s->heads,
        .KV_HEADS = s->kv_heads,
        .HEAD_DIM = s->head_dim,
        .FFN = s->ffn,
        .VOCAB = model->shard.world > 1 ? model->head.rows : s->vocab, /* a rank's own */
        .HAS_BIAS = model->layer[0].bq != NULL,
        .HAS_QK_NORM = model->layer[0].q_norm != NULL,
        .ROPE_INTERLEAVED = s->rope_interleaved,
        .KV_BF16 = s->kv_bf16,
    };
    fill_types(f, l);
    f->device_type = kept_type(l, m);
}

void facts_fill(struct facts *f, const struct model *model, enum region region, int m,
                enum numerics numerics)
{
    struct layers_of l = {model, region, NULL, class_layers(NULL, region, model->shape.layers)};
    fill(f, &l, m, numerics);
}

void facts_slot(struct facts *f, const struct model *model, const struct slot *slot,
                enum numerics numerics)
{
    struct layers_of l = {model, slot->region, slot->formats,
                          class_layers(slot->formats, slot->region, model->shape.layers)};
    fill(f, &l, slot->m, numerics);
}

void facts_machine(struct facts *f, const struct machine *machine)
{
    int capability = 90;
    if (!target_of(machine->kind)->device_target)
        return;
    f->SMS = machine->sms > 0 ? machine->sms : 1;
    if (f->device_type)
        f->WTYPE = f->WTYPE_2 = f->WTYPE_3 = f->device_type;
    bool known = sscanf(machine->target, "sm_%d", &capability) == 1;
    f->HAS_CLUSTERS = !known || capability >= 90;
    f->HAS_WGMMA = !known || capability == 90;
}

enum machine_kind facts_kind(const struct facts *f)
{
    return f->SMS > 0 ? MACHINE_CUDA : MACHINE_CPU;
}

/* One SHAPE row: its name, and where its value is in struct facts. */
struct shape_row {
    const char *name;
    size_t at;
};

#define SHAPE(name, value, help) {#name, offsetof(struct facts, name)},
static const struct shape_row shapes_cpu[] = {
#include "kernels/templates.def"
    {NULL, 0}};
#define SHAPE(name, value, help) {#name, offsetof(struct facts, name)},
static const struct shape_row shapes_cuda[] = {
#include "kernels/templates_cuda.def"
    {NULL, 0}};

void facts_shapes(const struct facts *f, enum machine_kind kind,
                  void (*each)(void *ctx, const char *name, int32_t value), void *ctx)
{
    static const struct shape_row *const shapes[] = {
        [MACHINE_CPU] = shapes_cpu, [MACHINE_CUDA] = shapes_cuda};
    for (const struct shape_row *row = shapes[kind]; row->name; row++) {
        int32_t value;
        memcpy(&value, (const char *)f + row->at, sizeof value);
        if (value != 0 || row->at != offsetof(struct facts, KV_BF16))
            each(ctx, row->name, value);
    }
}

/* ---- text ----------------------------------------------------------------------------------- */

void point_text(const struct template *t, const struct point *p, char *out, size_t n)
{
    size_t at = 0;
    out[0] = 0;
    for (int k = 0; k < t->knobs && at < n; k++)
        at += (size_t)snprintf(out + at, n - at, "%s%s=%d", k ? " " : "", t->knob[k].name,
                               p->value[k]);
}

int point_parse(const struct template *t, const char *text, struct point *p, struct err *err)
{
    bool given[KNOBS_MAX] = {false};
    *p = (struct point){{0}};
    while (*text) {
        char name[48];
        int value, used = 0;
        if (sscanf(text, " %47[A-Z0-9_]=%d%n", name, &value, &used) != 2)
            return err_set(err, "knobs of %s: cannot read \"%.40s\"", t->id, text);
        int k = template_knob(t, name);
        if (k < 0)
            return err_set(err, "template %s has no knob %s", t->id, name);
        if (!knob_has(&t->knob[k], value))
            return err_set(err, "knob %s of %s cannot be %d", name, t->id, value);
        if (given[k])
            return err_set(err, "knob %s of %s is given twice", name, t->id);
        given[k] = true;
        p->value[k] = value;
        text += used;
        while (*text == ' ')
            text++;
    }
    for (int k = 0; k < t->knobs; k++)
        if (!given[k])
            return err_set(err, "knob %s of %s is missing", t->knob[k].name, t->id);
    return 0;
}

enum { FLAGS_MOST = 64 };

struct flags {
    char **flag; /* [FLAGS_MOST + 1] */
    int n;
};

static void add_flag(struct flags *l, char *flag)
{
    if (l->n < FLAGS_MOST)
        l->flag[l->n++] = flag;
    else
        free(flag);
}

static void add_shape(void *flags, const char *name, int32_t value)
{
    add_flag(flags, xasprintf("-D%s=%d", name, value));
}

char **point_flags(const struct template *t, const struct point *p, const struct facts *f)
{
    struct flags l = {xcalloc(FLAGS_MOST + 1, sizeof *l.flag), 0};
    int isa = template_role(t, ROLE_ISA);
    char *flags = xstrdup(isa_flags(isa < 0 ? 0 : p->value[isa])), *rest = flags;
    for (char *word; (word = strsep(&rest, " "));)
        if (*word)
            add_flag(&l, xstrdup(word));
    free(flags);
    for (int k = 0; k < t->knobs; k++)
        add_flag(&l, xasprintf("-D%s=%d", t->knob[k].name, p->value[k]));
    facts_shapes(f, t->machine, add_shape, &l);
    return l.flag;
}

/* ---- source --------------------------------------------------------------------------------- */

static const struct kernel_source *source_find(const char *name)
{
    for (int i = 0; i < kernel_source_count; i++)
        if (strcmp(kernel_sources[i].name, name) == 0)
            return &kernel_sources[i];
    return NULL;
}

void template_path(const struct template *t, char *out, size_t n)
{
    const struct target *target = target_of(t->machine);
    snprintf(out, n, "%s/%s.%s", target->name, t->file, t->library ? "def" : target->source);
}

const char *kernel_source_text(const char *name)
{
    const struct kernel_source *s = source_find(name);
    return s ? s->text : "";
}

const char *template_source(const struct template *t)
{
    char name[80];
    template_path(t, name, sizeof name);
    return kernel_source_text(name);
}

enum { HEADERS_MOST = 64 };
struct sources {
    const struct kernel_source *seen[HEADERS_MOST];
    int n;
    uint64_t hash;
};

/* Adds one file, then what it includes in quotes, each once. System headers are the compiler's,
 * whose version is part of every key. */
static void add_source(struct sources *s, const struct kernel_source *file)
{
    for (int i = 0; i < s->n; i++)
        if (s->seen[i] == file)
            return;
    if (!file || s->n == HEADERS_MOST)
        return;
    s->seen[s->n++] = file;
    s->hash = hash_text(hash_text(s->hash, file->name), file->text);
    static const char include[] = "#include \"";
    for (const char *line = file->text; line; line = strchr(line, '\n')) {
        char included[200];
        line += *line == '\n';
        /* sscanf() reads all that follows to its end first */
        if (strncmp(line, include, sizeof include - 1) == 0 &&
            sscanf(line + sizeof include - 1, "%199[^\"]\"", included) == 1)
            add_source(s, source_find(included));
    }
}

static uint64_t source_hash(const struct template *t)
{
    struct sources s = {.hash = HASH_START};
    char name[80];
    template_path(t, name, sizeof name);
    add_source(&s, source_find(name));
    return s.hash;
}

/* Where a template is in the table; -1: in none, as those that tests make up. */
static int place_of(const struct template *t)
{
    for (int i = 0; i < template_count(); i++)
        if (template_at(i) == t)
            return i;
    return -1;
}

/* Asked for every candidate and every row of the store, and the same as long as the process runs.
 */
void template_source_hash(const struct template *t, char out[17])
{
    enum { KEPT_MOST = 256 };
    static _Atomic uint64_t kept[KEPT_MOST]; /* 0: not made yet */
    const int i = place_of(t);
    const bool keeps = i >= 0 && i < KEPT_MOST;
    uint64_t hash = keeps ? kept[i] : 0;
    if (hash == 0) {
        hash = source_hash(t);
        if (keeps)
            kept[i] = hash;
    }
    hash_hex(hash, out);
}
