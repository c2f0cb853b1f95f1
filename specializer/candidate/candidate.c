/* SPDX-License-Identifier: Apache-2.0 */
/* candidate.c - making candidates and their keys, and the way to and from the store's rows. */
#include "specializer/candidate/candidate.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "specializer/candidate/hash.h"
#include "specializer/candidate/record.h"
#include "specializer/candidate/template_tables.h"

/* ---- keys ----------------------------------------------------------------------------------- */

/* Which layers have which formats, where they differ in a region: what whole steps gain by a kernel
 * depends on how many layers run it. */
static void layers_text(const struct model *m, char *out, size_t n)
{
    uint64_t h = HASH_START;
    bool mixed = false;
    out[0] = 0;
    for (int r = 0; r < REGION_COUNT; r++) {
        for (int32_t l = 0; l < m->shape.layers; l++) {
            enum dtype first[3], own[3];
            int formats = region_formats(m, (enum region)r, 0, first);
            region_formats(m, (enum region)r, l, own);
            for (int i = 0; i < formats; i++) {
                int32_t type = (int32_t)own[i];
                h = hash_bytes(h, &type, sizeof type);
                mixed |= own[i] != first[i];
            }
        }
    }
    if (mixed)
        snprintf(out, n, " formats=%016llx", (unsigned long long)h);
}

char *model_shape_text(const struct model *m)
{
    const struct model_shape *s = &m->shape;
    struct facts f;
    char types[128], ranks[24] = "", layers[32];
    size_t at = 0;
    for (int r = 0; r < REGION_COUNT; r++) {
        facts_fill(&f, m, (enum region)r, 1, NUMERICS_TOLERANCE);
        at += (size_t)snprintf(types + at, sizeof types - at, " %d/%d/%d", f.WTYPE, f.WTYPE_2,
                               f.WTYPE_3);
    }
    if (m->shard.world > 1) /* less was proved, and of sums the number counts (docs/scaling.md) */
        snprintf(ranks, sizeof ranks, " ranks=%d", m->shard.world);
    layers_text(m, layers, sizeof layers);
    const char *kv = s->kv_bf16 ? " kv=bf16" : ""; /* floats are what there was first */
    return xasprintf("arch=%d layers=%d hidden=%d heads=%d/%d dim=%d ffn=%d vocab=%d interleaved=%d"
                     " bias=%d qk_norm=%d types=%s%s%s%s",
                     s->arch, s->layers, s->hidden, s->heads, s->kv_heads, s->head_dim, s->ffn,
                     f.VOCAB, s->rope_interleaved, f.HAS_BIAS, f.HAS_QK_NORM, types, ranks, layers,
                     kv);
}

void key_parts_fill(struct key_parts *k, const char *device, const char *compiler,
                    const char *const *flags, const char *shape, enum numerics numerics)
{
    uint64_t h = hash_text(HASH_START, compiler);
    for (; *flags; flags++)
        h = hash_text(h, *flags);
    hash_hex(h, k->compiler);
    h = hash_text(h, device);
    h = hash_text(h, shape);
    h = hash_text(h, numerics_name(numerics_proofs(numerics)));
    hash_hex(h, k->env);
}

/* ---- candidates ----------------------------------------------------------------------------- */

/* "mlp_out avx512 PACK=0 ROWS=4": knobs at their most readable. */
static void name_point(const struct template *t, const struct point *p, char *out, size_t n)
{
    size_t at = (size_t)snprintf(out, n, "%s", t->id);
    for (int k = 0; k < t->knobs && at < n; k++)
        if (t->knob[k].role == ROLE_ISA)
            at += (size_t)snprintf(out + at, n - at, " %s", isa_name(p->value[k]));
        else
            at += (size_t)snprintf(out + at, n - at, " %s=%d", t->knob[k].name, p->value[k]);
}

void candidate_body_name(enum machine_kind machine, const char *hash, char out[40])
{
    snprintf(out, 40, "agent/%.16s.%s", hash, target_of(machine)->source);
}

/* The text's hash in the name, and in the frame's -D list: the frame includes it. */
static void name_body(struct candidate *c)
{
    char file[40];
    size_t at = strlen(c->name);
    int n = 0;
    candidate_body_name(c->template->machine, c->body, file);
    snprintf(c->name + at, sizeof c->name - at, " %s", c->body);
    while (c->define[n])
        n++;
    c->define = xrealloc(c->define, (size_t)(n + 2) * sizeof *c->define);
    c->define[n] = xasprintf("-DAGENT_BODY=\"%s\"", file);
    c->define[n + 1] = NULL;
}

static void make_keys(struct candidate *c, const struct key_parts *k)
{
    char source[17], knobs[400];
    template_source_hash(c->template, source);
    point_text(c->template, &c->point, knobs, sizeof knobs);
    uint64_t h = hash_text(HASH_START, k->env);
    h = hash_text(h, source);
    if (c->body[0])
        h = hash_text(h, c->body);
    h = hash_text(h, c->template->id);
    h = hash_text(h, knobs);
    hash_hex(hash_text(h, c->slot->name), c->key);
    h = hash_text(hash_text(HASH_START, k->compiler), source);
    for (char **d = c->define; *d; d++)
        h = hash_text(h, *d);
    hash_hex(h, c->object_key);
    snprintf(c->env, sizeof c->env, "%s", k->env);
}

static struct candidate *make(const struct key_parts *k, const struct template *t,
                              const struct point *p, const struct facts *f, struct slot *slot,
                              const char *body)
{
    struct candidate *c = xcalloc(1, sizeof *c);
    snprintf(c->body, sizeof c->body, "%s", body);
    c->template = t;
    c->point = *p;
    c->slot = slot;
    c->origin = body[0] ? ORIGIN_AGENT : ORIGIN_TEMPLATE;
    c->state = LIFE_PROPOSED;
    c->bit_equal = t->bit_equal(p, f);
    name_point(t, p, c->name, sizeof c->name);
    c->define = point_flags(t, p, f);
    if (body[0])
        name_body(c);
    make_keys(c, k);
    char path[80];
    template_path(t, path, sizeof path);
    c->source = xasprintf("%s/%s", k->kernel_dir, path);
    c->object = xasprintf("%s/%s.%s", k->object_dir, c->object_key,
                          t->library ? "lt" : target_of(t->machine)->object);
    return c;
}

struct candidate *candidate_new(const struct key_parts *k, const struct template *t,
                                const struct point *p, const struct facts *f, struct slot *slot)
{
    return make(k, t, p, f, slot, "");
}

struct candidate *candidate_new_agent(const struct key_parts *k, const struct template *t,
                                      const struct point *p, const struct facts *f,
                                      struct slot *slot, const char *body)
{
    return make(k, t, p, f, slot, body);
}

void candidate_free(struct candidate *c)
{
    if (!c)
        return;
    for (char **d = c->define; d && *d; d++)
        free(*d);
    free(c->define);
    free(c->source);
    free(c->object);
    free(c->log);
    free(c);
}

/* ---- why it goes no further ----------------------------------------------------------------- */

/* The words may hold the old sentence. */
static void set_reason(struct candidate *c, const char *stage, const char *fmt, va_list args)
{
    char sentence[sizeof c->reason] = "";
    size_t at = stage ? (size_t)snprintf(sentence, sizeof sentence, "%s: ", stage) : 0;
    vsnprintf(sentence + at, sizeof sentence - at, fmt, args);
    memcpy(c->reason, sentence, sizeof sentence);
}

void candidate_explain(struct candidate *c, enum stage stage, enum cause cause, double value,
                       const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_reason(c, stage_name(stage), fmt, args);
    va_end(args);
    c->evidence.refusal = (struct refusal){.cause = cause, .stage = stage, .value = value};
}

void candidate_withdrawn(struct candidate *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_reason(c, NULL, fmt, args);
    va_end(args);
    c->evidence.refusal = (struct refusal){.cause = CAUSE_WITHDRAWN};
}

void candidate_found_wrong(struct candidate *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    set_reason(c, "audit", fmt, args);
    va_end(args);
    c->evidence.refusal = (struct refusal){.cause = CAUSE_AUDIT};
}

void candidate_unexplain(struct candidate *c)
{
    c->reason[0] = 0;
    c->evidence.refusal = (struct refusal){0};
}

/* ---- the log --------------------------------------------------------------------------------- */

void candidate_log_start(struct candidate *c, const char *const *argv)
{
    size_t n = 0;
    free(c->log);
    FILE *out = xmemstream(&c->log, &n);
    for (int i = 0; argv[i]; i++)
        fprintf(out, "%s%s", i ? " " : "", argv[i]);
    fputs("\n", out);
    fclose(out);
    c->log_words = n;
}

void candidate_log_add(struct candidate *c, const char *words)
{
    if (!words || !*words)
        return;
    if (!c->log)
        c->log_words = 0;
    char *all = xasprintf("%s%s", c->log ? c->log : "", words);
    free(c->log);
    c->log = all;
}

const char *candidate_words(const struct candidate *c)
{
    return c->log && c->log[c->log_words] ? c->log + c->log_words : NULL;
}

void candidate_record(const struct candidate *c, struct record *r)
{
    *r = (struct record){
        .origin = c->body[0] ? ORIGIN_AGENT : c->origin, /* restored or not, a model wrote it */
        .state = c->state,
        .bit_equal = c->bit_equal,
        .predicted_s = c->predicted_s,
        .evidence = c->evidence,
        .rollbacks = c->rollbacks,
        .log = c->log,
    };
    memcpy(r->key, c->key, sizeof r->key);
    memcpy(r->object_key, c->object_key, sizeof r->object_key);
    memcpy(r->object_sum, c->object_sum, sizeof r->object_sum);
    memcpy(r->env, c->env, sizeof r->env);
    if (c->body[0])
        snprintf(r->source, sizeof r->source, "%s", c->body);
    else
        template_source_hash(c->template, r->source);
    snprintf(r->template, sizeof r->template, "%s", c->template->id);
    snprintf(r->slot, sizeof r->slot, "%s", c->slot->name);
    point_text(c->template, &c->point, r->knobs, sizeof r->knobs);
    snprintf(r->name, sizeof r->name, "%s", c->name);
    snprintf(r->reason, sizeof r->reason, "%s", c->reason);
}

void candidate_recall(struct candidate *c, const struct record *r)
{
    c->state = r->state;
    c->origin = r->origin;
    c->evidence = r->evidence;
    c->rollbacks = r->rollbacks;
    memcpy(c->object_sum, r->object_sum, sizeof c->object_sum);
    snprintf(c->reason, sizeof c->reason, "%s", r->reason);
}
