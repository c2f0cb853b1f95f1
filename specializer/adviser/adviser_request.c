/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_request.c - see adviser_request.h.
 *
 * The document is built from the most telling part to the least, and if it comes out too long it
 * is built again with fewer candidates, results and buckets: a model reads a short list better
 * than a long one anyway. Numbers carry four digits, which is more than any of them means.
 */
#include "specializer/adviser/adviser_request.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/table.h"
#include "specializer/adviser/adviser_points.h"
#include "specializer/adviser/cpu_facts.h"
#include "specializer/candidate/target.h"
#include "specializer/search/strategy.h"

/* How much of each list goes in; the first row whose document fits is taken. */
static const struct room {
    int candidates, best, worst, dead, live, lessons, steps;
    bool help;
} rooms[] = {{32, 8, 6, 12, 16, 18, 3, true},
             {24, 8, 4, 8, 12, 12, 2, true},
             {16, 6, 3, 6, 8, 8, 1, true},
             {8, 4, 2, 3, 4, 4, 0, true},
             {4, 2, 0, 1, 2, 0, 0, false}};

const char adviser_advice_task[] =
    "You advise an autotuner of CPU and GPU kernels of a language model server. The user message "
    "is one JSON document about one region of the model's step: the machine, the tensors, the "
    "measured and the best possible time, the live traffic, the space of kernel variants with its "
    "rules, candidates with the time a simple cost model predicts, the results so far, and what "
    "other regions or batch sizes of the same machine taught. Speeds are measured on this machine, "
    "relative to the region's eager kernel: higher is faster. Times are microseconds: lower is "
    "faster. `incumbent_us` is a live mean, which other load moves; `incumbent_speed` is the same "
    "kernel on the scale of the speeds. Results are right where the cost model is wrong. `blind` "
    "marks a knob that the cost "
    "model cannot see: variants that differ only there are predicted alike, and which is better "
    "has to be known or measured. A candidate with `alike` stands for that many untried variants "
    "with its predicted time, which differ in the knobs of `alike_in`. Say where to look next.\n"
    "Answer with one JSON document and nothing else:\n"
    "{\"version\":1,\"regions\":[{\"region\":\"<as given>\",\"label\":\"<what limits this region, "
    "at most 95 bytes>\",\"priority\":[\"<id>\",...],\"hints\":{\"<template>\":{\"<KNOB>\":"
    "[<values, best "
    "first>],...},...},\"risks\":[{\"kind\":\"numeric|boundary|resource|dynamic_shape\","
    "\"candidates\":[\"<id>\",...],\"note\":\"<at most 200 characters>\"}]}]}\n"
    "All five fields of a region are required; lists and hints may be empty. `priority`: one to 16 "
    "ids, best first, none twice, that were not tried yet. The first few are what is measured "
    "next, so a short list that is meant is better than a long one. An id is <template>:<value of "
    "each of its knobs, in the given order, separated by commas>, a knob with `only` included; use "
    "the ids of `candidates`, or put one knob of an id under `best` to a value of its `steps`, "
    "which are legal there; make another only if you are sure that it obeys every rule. `resource` "
    "risks are measured after the rest of their batch. An id outside the space is left out; a knob "
    "or value outside it, an unknown field or a repeated key voids the whole answer.";

const char adviser_moves_task[] =
    "You guide a tree search over variants of one kernel. The user message is one JSON document: "
    "the machine, the region, the space with its rules, results so far (speed relative to the "
    "eager kernel, higher is faster), and nodes of the tree, each with its parent and grandparent. "
    "A score is the speed relative to the fastest variant known; scores that are not measured come "
    "from a cost model that can be wrong, and is blind to the knobs marked so. `steps` of a node "
    "are the variants one legal change away, with the speed if it was measured, else the predicted "
    "time in microseconds. For each node propose a sequence of one to 8 changes, applied in order, "
    "that should make it faster; the last variant is measured. Every intermediate variant must "
    "obey the rules: a change that does not is left out, and the others are still applied.\n"
    "Answer with one JSON document and nothing else:\n"
    "{\"version\":1,\"nodes\":[{\"node\":\"<id as given>\",\"changes\":[\"KNOB=value\",...]}]}";

/* ---- names of points ----------------------------------------------------------------------- */

void adviser_id_text(const struct space *s, int32_t id, char out[ID_TEXT])
{
    const struct template *t = space_template(s, id);
    struct point p;
    space_point(s, id, &p);
    size_t at = (size_t)snprintf(out, ID_TEXT, "%s", t->id);
    for (int k = 0; k < t->knobs && at < ID_TEXT; k++)
        at += (size_t)snprintf(out + at, ID_TEXT - at, "%c%d", k ? ',' : ':', p.value[k]);
}

int32_t adviser_id_find(const struct space *s, const char *text)
{
    char name[64];
    struct point p = {{0}};
    const char *colon = strchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof name)
        return -1;
    snprintf(name, sizeof name, "%.*s", (int)(colon - text), text);
    const struct template *t = template_find(name);
    const char *at = colon;
    for (int k = 0; t && k < t->knobs; k++) {
        char *end;
        if (*at != (k ? ',' : ':') || ((at[1] < '0' || at[1] > '9') && at[1] != '-'))
            return -1;
        long v = strtol(at + 1, &end, 10);
        if (v < INT32_MIN || v > INT32_MAX)
            return -1;
        p.value[k] = (int32_t)v;
        at = end;
    }
    return t && *at == 0 ? space_find(s, t, &p) : -1;
}

static int32_t terms_find(const void *ctx, const char *id)
{
    return adviser_id_find(ctx, id);
}

/* All values that a knob of this name has in a template of the space, or in any. */
static int terms_values(const void *ctx, const char *template, const char *knob, int32_t *out)
{
    int n = 0;
    for (int i = 0; i < template_count(); i++) {
        const struct template *t = template_at(i);
        bool meant = adviser_has_template(ctx, t) && (!template || strcmp(t->id, template) == 0);
        int k = meant ? template_knob(t, knob) : -1;
        for (int v = 0; k >= 0 && v < t->knob[k].values; v++) {
            int at = 0;
            while (at < n && out[at] != t->knob[k].value[v])
                at++;
            if (at == n && n < KNOB_VALUES)
                out[n++] = t->knob[k].value[v];
        }
    }
    return n;
}

struct reply_terms adviser_terms(const struct advice_request *r)
{
    return (struct reply_terms){
        .region = r->slot, .ctx = r->space, .find = terms_find, .values = terms_values};
}

/* ---- small pieces -------------------------------------------------------------------------- */

void adviser_put_number(cJSON *o, const char *name, double v)
{
    char text[32];
    if (!isfinite(v))
        return;
    snprintf(text, sizeof text, "%.4g", v);
    cJSON_AddRawToObject(o, name, text);
}

void adviser_put_microseconds(cJSON *o, const char *name, double seconds)
{
    if (seconds > 0)
        adviser_put_number(o, name, seconds * 1e6);
}

void adviser_put_id(const struct space *s, cJSON *o, const char *name, int32_t id)
{
    char text[ID_TEXT];
    adviser_id_text(s, id, text);
    cJSON_AddStringToObject(o, name, text);
}

cJSON *adviser_add_object(cJSON *list)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToArray(list, o);
    return o;
}

/* ---- the machine --------------------------------------------------------------------------- */

static void put_gpu(const struct machine *m, const struct facts *f, cJSON *o)
{
    (void)f;
    const struct {
        const char *name;
        double v;
    } fact[] = {{"multiprocessors", m->sms},
                {"clock_mhz", m->clock_mhz},
                {"l2_kib", m->l2_bytes / 1024.0},
                {"registers_a_multiprocessor", m->sm_registers},
                {"shared_kib_a_multiprocessor", m->sm_shared / 1024.0},
                {"shared_kib_a_block_at_most", m->block_shared / 1024.0}};
    cJSON_AddStringToObject(o, "target", m->target);
    for (size_t i = 0; i < sizeof fact / sizeof *fact; i++)
        if (fact[i].v > 0)
            adviser_put_number(o, fact[i].name, fact[i].v);
}

static void put_cpu(const struct machine *m, const struct facts *f, cJSON *o)
{
    if (m->cpu) /* a table may have been measured without them, and elsewhere */
        cpu_facts_put(m->cpu, o);
    cJSON *isa = cJSON_AddArrayToObject(o, "instruction_sets");
    const struct {
        const char *name;
        int32_t has;
    } sets[] = {{"avx2", f->HAS_AVX2}, {"avx512", f->HAS_AVX512}, {"vnni", f->HAS_VNNI},
                {"amx", f->HAS_AMX},   {"neon", f->HAS_NEON},     {"dotprod", f->HAS_DOTPROD},
                {"i8mm", f->HAS_I8MM}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i].has)
            cJSON_AddItemToArray(isa, cJSON_CreateString(sets[i].name));
}

/* Bandwidth, operations and boundary are as measured when the server started. */
void adviser_put_device(const struct machine *m, const struct facts *f, int threads, cJSON *doc)
{
    static void (*const put[])(const struct machine *, const struct facts *,
                               cJSON *) = {[MACHINE_CPU] = put_cpu, [MACHINE_CUDA] = put_gpu};
    const struct target *target = target_of(facts_kind(f));
    cJSON *o = cJSON_AddObjectToObject(doc, "device");
    cJSON_AddStringToObject(o, "name", m->device);
    if (target->shares_cores)
        adviser_put_number(o, "threads", threads);
    adviser_put_number(o, "read_gb_s", m->read_bandwidth * 1e-9);
    adviser_put_number(o, target->peak, m->peak_flops * 1e-9);
    adviser_put_microseconds(o, "boundary_us", m->boundary_s);
    put[facts_kind(f)](m, f, o);
}

/* ---- the region ---------------------------------------------------------------------------- */

static void put_times(const struct advice_request *r, cJSON *region)
{
    if (region_cost_bytes(&r->work) > 0) {
        adviser_put_number(region, "bytes", machine_bytes(r->cost->machine, &r->work));
        adviser_put_number(region, "flops", (double)r->work.flops);
    }
    adviser_put_microseconds(region, "roofline_us", r->roofline_s);
    adviser_put_microseconds(region, "eager_us", r->eager_s);
    adviser_put_microseconds(region, "incumbent_us", r->run_s);
    if (r->incumbent)
        cJSON_AddStringToObject(region, "incumbent", r->incumbent);
    if (r->incumbent_speed > 0)
        adviser_put_number(region, "incumbent_speed", r->incumbent_speed);
    if (r->share > 0)
        adviser_put_number(region, "share_of_step_time", r->share);
}

static void put_live(const struct advice_request *r, const struct room *room, cJSON *region)
{
    cJSON *live = cJSON_AddObjectToObject(region, "live");
    adviser_put_number(live, "mean_m", r->m);
    if (r->context > 0)
        adviser_put_number(live, "mean_context", r->context);
    cJSON *list = cJSON_AddArrayToObject(live, "histogram");
    for (int i = 0; i < r->lives && i < room->live; i++) {
        cJSON *o = adviser_add_object(list);
        adviser_put_number(o, "m_up_to", r->live[i].m);
        if (r->live[i].context > 0)
            adviser_put_number(o, "context_up_to", r->live[i].context);
        adviser_put_number(o, "share", r->live[i].share);
    }
}

/* ---- the space ----------------------------------------------------------------------------- */

static void put_space(const struct advice_request *r, const struct room *room, cJSON *region)
{
    char said[160] = "a formula alone: nothing was measured here yet";
    cJSON *o = cJSON_AddObjectToObject(region, "space");
    adviser_put_number(o, "points", space_size(r->space));
    adviser_put_number(o, "m_most", space_facts(r->space)->M_MAX);
    if (r->cost->samples > 0)
        snprintf(said, sizeof said, "a formula, corrected by %d measurements on this machine",
                 r->cost->samples);
    cJSON_AddStringToObject(o, "predictions", said);
    adviser_put_templates(r->space, room->help, o);
}

/* ---- results so far ------------------------------------------------------------------------ */

/* The `n` measured points with the highest (sign 1) or lowest (sign -1) speed, from the outside
 * in. */
static int extremes(const struct advice_request *r, int sign, int32_t *id, int n)
{
    int found = 0;
    for (int32_t i = 0; r->trial && n > 0 && i < space_size(r->space); i++) {
        if (r->trial[i] != TRIAL_MEASURED)
            continue;
        float speed = r->speed[i] * (float)sign;
        if (found == n && speed <= r->speed[id[n - 1]] * (float)sign)
            continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && r->speed[id[at - 1]] * (float)sign < speed; at--)
            id[at] = id[at - 1];
        id[at] = i;
    }
    return found;
}

/* The first `steps` of them with what is one legal change away. */
static void put_speeds(const struct advice_request *r, int sign, int most, int steps, cJSON *list)
{
    int32_t id[8];
    int n = extremes(r, sign, id, most);
    for (int i = 0; i < n; i++) {
        cJSON *o = adviser_add_object(list);
        adviser_put_id(r->space, o, "id", id[i]);
        adviser_put_number(o, "speed", (double)r->speed[id[i]]);
        adviser_put_microseconds(o, "predicted_us", space_predicted(r->space, id[i]));
        if (i < steps)
            adviser_put_values(r->space, id[i], o);
    }
}

/* A reason without paths: of "/a/b/c.c:3: error" the file name remains. */
static void scrub(const char *reason, char *out, size_t room)
{
    size_t n = 0;
    for (const char *s = reason; *s && n + 1 < room; s++) {
        if (*s == '/' && (s == reason || strchr(" '\"(", s[-1]))) {
            size_t word = strcspn(s, " '\":),");
            const char *name = s + word;
            while (name[-1] != '/')
                name--;
            s = name - 1;
            continue;
        }
        out[n++] = (unsigned char)*s < 0x20 ? ' ' : *s;
    }
    while (n > 0 && ((unsigned char)out[n - 1] & 0xc0) == 0x80) /* no half character at the cut */
        n--;
    if (n > 0 && ((unsigned char)out[n - 1] & 0x80))
        n--;
    out[n] = 0;
}

static void put_results(const struct advice_request *r, const struct room *room, cJSON *region)
{
    int measured = 0;
    for (int32_t i = 0; r->trial && i < space_size(r->space); i++)
        measured += r->trial[i] == TRIAL_MEASURED;
    cJSON *o = cJSON_AddObjectToObject(region, "results");
    cJSON_AddStringToObject(o, "speed", "relative to the eager kernel, measured");
    adviser_put_number(o, "measured", measured);
    put_speeds(r, 1, room->best, room->steps, cJSON_AddArrayToObject(o, "best"));
    put_speeds(r, -1, room->worst, 0, cJSON_AddArrayToObject(o, "worst"));
    cJSON *list = cJSON_AddArrayToObject(o, "refused");
    for (int i = 0; i < r->deads && i < room->dead; i++) {
        char reason[sizeof r->dead[i].reason];
        cJSON *dead = adviser_add_object(list);
        adviser_put_id(r->space, dead, "id", r->dead[i].id);
        scrub(r->dead[i].reason, reason, sizeof reason);
        cJSON_AddStringToObject(dead, "reason", reason);
    }
}

/* ---- documents ----------------------------------------------------------------------------- */

/* What both questions begin with; returns the region's object. */
static cJSON *begin(const struct advice_request *r, const struct room *room, cJSON *doc)
{
    cJSON_AddNumberToObject(doc, "version", REQUEST_VERSION);
    adviser_put_device(r->cost->machine, space_facts(r->space), r->cost->threads, doc);
    cJSON *region = adviser_add_object(cJSON_AddArrayToObject(doc, "regions"));
    cJSON_AddStringToObject(region, "region", r->slot);
    adviser_put_operation(space_facts(r->space), region);
    put_times(r, region);
    put_live(r, room, region);
    put_space(r, room, region);
    return region;
}

static char *finish(cJSON *doc)
{
    char *text = cJSON_PrintUnformatted(doc);
    cJSON_Delete(doc);
    return text;
}

char *adviser_request_text(const struct advice_request *r, const struct advice *ranking)
{
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        cJSON *doc = cJSON_CreateObject();
        cJSON *region = begin(r, &rooms[i], doc);
        adviser_put_candidates(r, ranking, rooms[i].candidates, region);
        put_results(r, &rooms[i], region);
        adviser_put_lessons(r, rooms[i].lessons, region);
        char *text = finish(doc);
        if (text && strlen(text) < REQUEST_BYTES)
            return text;
        free(text);
    }
    return NULL;
}

static void put_lineage(const struct advice_request *r, const struct lineage *l, bool steps,
                        cJSON *o)
{
    static const char *const names[] = {"node", "parent", "grandparent"};
    EVERY_ROW(names, LINEAGE);
    for (int i = 0; i < LINEAGE && l->id[i] >= 0; i++) {
        cJSON *node = cJSON_AddObjectToObject(o, names[i]);
        adviser_put_id(r->space, node, "id", l->id[i]);
        adviser_put_number(node, "score", l->score[i]);
        cJSON_AddBoolToObject(node, "measured", l->measured[i]);
        if (i == 0 && steps)
            adviser_put_steps(r, l->id[i], node);
    }
}

char *adviser_moves_text(const struct advice_request *r, const struct lineage *l, int n)
{
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        cJSON *doc = cJSON_CreateObject();
        cJSON *region = begin(r, &rooms[i], doc);
        cJSON *nodes = cJSON_AddArrayToObject(region, "nodes");
        for (int k = 0; k < n; k++)
            put_lineage(r, &l[k], rooms[i].steps > 0, adviser_add_object(nodes));
        put_results(r, &rooms[i], region);
        adviser_put_lessons(r, rooms[i].lessons, region);
        char *text = finish(doc);
        if (text && strlen(text) < REQUEST_BYTES)
            return text;
        free(text);
    }
    return NULL;
}
