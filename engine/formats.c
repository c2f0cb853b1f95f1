/* SPDX-License-Identifier: Apache-2.0 */
/* formats.c - see formats.h.
 *
 * A table has a part for each zone of a step's tokens, because a GPU may read copies in bf16 in
 * some of them (plan.h). Zones end where M buckets do: a slot lies in one of them.
 */
#include "engine/formats.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/err.h"
#include "engine/quant.h"

/* Of a region, in the steps of a zone. */
struct region_classes {
    int32_t classes; /* that have slots */
    struct format_class *class[FORMAT_CLASSES];
    int8_t *of; /* [layers] which it is, FORMAT_CLASSES: none; NULL: the layers are all alike */
    int32_t beyond;
};

struct formats {
    struct region_classes region[REGION_NODES][ZONES];
};

/* ---- one layer ------------------------------------------------------------------------------ */

int region_formats(const struct model *m, enum region r, int32_t layer, enum dtype out[3])
{
    const struct layer *l = &m->layer[layer];
    const struct weight *const read[REGION_NODES][3] = {
        [REGION_EMBED] = {&m->embed},
        [REGION_ATTN_IN] = {&l->wq, &l->wk, &l->wv},
        [REGION_ATTN_OUT] = {&l->wo},
        [REGION_MLP_IN] = {&l->gate, &l->up},
        [REGION_MLP_OUT] = {&l->down},
        [REGION_HEAD] = {&m->head},
        [REGION_MLP] = {&l->gate, &l->up, &l->down},
    };
    int n = 0;
    for (; n < 3 && read[r][n]; n++)
        out[n] = (enum dtype)read[r][n]->type;
    return n;
}

/* As the machine has them. */
static int formats_there(const struct model *m, enum machine_kind kind, enum region r,
                         int32_t layer, int tokens, enum dtype out[3])
{
    const struct region_info *info = region_info(r);
    int n = region_formats(m, r, layer, out);
    if (kind == MACHINE_CPU || n == 0)
        return n;
    if (info->parts == 0) {
        out[0] = device_type(m, r, layer, tokens);
        return 1;
    }
    for (int i = 0; i < info->parts; i++)
        out[i] = device_type(m, info->part[i], layer, tokens);
    return info->parts;
}

static bool alike(const struct model *m, enum machine_kind kind, enum region r, int32_t a,
                  int32_t b, int tokens)
{
    enum dtype of_a[3], of_b[3];
    int n = formats_there(m, kind, r, a, tokens, of_a);
    formats_there(m, kind, r, b, tokens, of_b);
    for (int i = 0; i < n; i++)
        if (of_a[i] != of_b[i])
            return false;
    return true;
}

/* ---- one class ------------------------------------------------------------------------------ */

static size_t add_text(char *out, size_t at, const char *text)
{
    for (; *text && at < FORMAT_NAME - 1; text++)
        out[at++] = (char)tolower((unsigned char)*text);
    out[at] = 0;
    return at;
}

static void name_class(const enum dtype *format, int n, char out[FORMAT_NAME])
{
    bool one = true;
    for (int i = 1; i < n; i++)
        one &= format[i] == format[0];
    size_t at = add_text(out, 0, dtype_name(format[0]));
    for (int i = 1; i < n && !one; i++) {
        at = add_text(out, at, "-");
        at = add_text(out, at, dtype_name(format[i]));
    }
}

/* By the first n letters of a name. */
static int format_parse(const char *name, size_t n)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strlen(dtype_name((enum dtype)t)) == n &&
            strncasecmp(dtype_name((enum dtype)t), name, n) == 0)
            return t;
    return -1;
}

/* Those that a class can be named after; the head has none. */
static const int matrices[REGION_NODES] = {
    [REGION_ATTN_IN] = 3, [REGION_ATTN_OUT] = 1, [REGION_MLP_IN] = 2, [REGION_MLP_OUT] = 1};

/* A name is one format, or one for each matrix. */
int formats_parse(enum region r, const char *name, enum dtype out[3])
{
    char again[FORMAT_NAME];
    int n = 0, all = matrices[r];
    for (const char *at = name; n < all; at++) {
        size_t length = strcspn(at, "-");
        int t = format_parse(at, length);
        if (t < 0)
            return 0;
        out[n++] = (enum dtype)t;
        at += length;
        if (!*at)
            break;
    }
    if (n == 1)
        for (; n < all; n++)
            out[n] = out[0];
    if (n != all || n == 0)
        return 0;
    name_class(out, n, again);
    return strcmp(name, again) == 0 ? n : 0;
}

/* Those from `layer` on that are like it. */
static struct format_class *class_from(const struct model *m, enum machine_kind kind, enum region r,
                                       int32_t layer, int tokens)
{
    int32_t layers = m->shape.layers;
    struct format_class *c = xcalloc(1, sizeof *c + (size_t)layers * sizeof c->layer[0]);
    enum dtype format[3];
    int n = formats_there(m, kind, r, layer, tokens, format);
    name_class(format, n, c->name);
    for (int32_t l = 0; l < layers; l++)
        if (alike(m, kind, r, l, layer, tokens))
            c->layer[c->layers++] = l;
    return c;
}

static bool has_classes(enum region r)
{
    return !region_info(r)->once && !region_info(r)->twice && r != REGION_ATTN;
}

struct format_class *class_of_layer(const struct model *m, enum machine_kind kind, enum region r,
                                    int32_t layer, int tokens)
{
    if (!has_classes(r))
        return NULL;
    struct format_class *c = class_from(m, kind, r, layer, tokens);
    if (c->layers < m->shape.layers)
        return c;
    free(c);
    return NULL;
}

bool class_has(const struct format_class *c, int32_t layer)
{
    return !c || class_index(c, layer) >= 0;
}

int32_t class_index(const struct format_class *c, int32_t layer)
{
    for (int32_t i = 0; c && i < c->layers; i++)
        if (c->layer[i] == layer)
            return i;
    return c ? -1 : layer;
}

/* ---- all of them ---------------------------------------------------------------------------- */

static double class_bytes(const struct model *m, enum region r, const struct format_class *c)
{
    struct region_cost cost = plan_cost(m, r, c->layer[0], 1, 1, 1, 1);
    return (double)cost.weight_bytes * c->layers;
}

/* Behind those with more bytes, as long as there is room; what has none is dropped. */
static void keep(const struct model *m, enum region r, struct region_classes *of,
                 struct format_class *c)
{
    double bytes = class_bytes(m, r, c);
    int at = of->classes;
    while (at > 0 && class_bytes(m, r, of->class[at - 1]) < bytes)
        at--;
    if (of->classes == FORMAT_CLASSES) {
        struct format_class *least = at < FORMAT_CLASSES ? of->class[FORMAT_CLASSES - 1] : c;
        of->beyond += least->layers;
        free(least);
        if (at == FORMAT_CLASSES)
            return;
        of->classes--;
    }
    memmove(of->class + at + 1, of->class + at, (size_t)(of->classes - at) * sizeof *of->class);
    of->class[at] = c;
    of->classes++;
}

static void find_classes(const struct model *m, enum machine_kind kind, enum region r, int tokens,
                         struct region_classes *of)
{
    struct format_class *first = class_of_layer(m, kind, r, 0, tokens);
    if (!first) {
        of->classes = 1;
        return;
    }
    of->of = xmalloc((size_t)m->shape.layers);
    memset(of->of, FORMAT_CLASSES, (size_t)m->shape.layers);
    keep(m, r, of, first);
    for (int32_t l = 1; l < m->shape.layers; l++) {
        struct format_class *c = class_from(m, kind, r, l, tokens);
        if (c->layer[0] == l) /* the others were met before */
            keep(m, r, of, c);
        else
            free(c);
    }
    for (int i = 0; i < of->classes; i++)
        for (int32_t k = 0; k < of->class[i] -> layers; k++)
            of->of[of->class[i] -> layer[k]] = (int8_t)i;
}

struct formats *formats_open(const struct model *m, enum machine_kind kind)
{
    struct formats *f = xcalloc(1, sizeof *f);
    for (int r = 0; r < REGION_NODES; r++)
        for (int zone = 0; zone < ZONES; zone++)
            find_classes(m, kind, (enum region)r, device_zone_from(zone), &f->region[r][zone]);
    return f;
}

void formats_close(struct formats *f)
{
    for (int i = 0; f && i < ZONES * REGION_NODES; i++) {
        struct region_classes *of = &f->region[i / ZONES][i % ZONES];
        for (int c = 0; c < of->classes; c++)
            free(of->class[c]);
        free(of->of);
    }
    free(f);
}

static const struct region_classes *classes_of(const struct formats *f, enum region r, int tokens)
{
    return &f->region[r][device_zone(tokens)];
}

int formats_classes(const struct formats *f, enum region r, int tokens)
{
    if (!f)
        return 1;
    int n = classes_of(f, r, tokens)->classes;
    return region_info(r)->parts && n > 1 ? 0 : n;
}

const struct format_class *formats_class(const struct formats *f, enum region r, int tokens, int i)
{
    return f ? classes_of(f, r, tokens)->class[i] : NULL;
}

const struct format_class *formats_find(const struct formats *f, enum region r, int32_t layer,
                                        int32_t layers)
{
    for (int i = 0; f && i < 2 * FORMAT_CLASSES; i++) {
        const struct format_class *c = f->region[r][i / FORMAT_CLASSES].class[i % FORMAT_CLASSES];
        if (c && c->layers == layers && c->layer[0] == layer)
            return c;
    }
    return NULL;
}

int32_t formats_beyond(const struct formats *f, enum region r, int tokens)
{
    return f ? classes_of(f, r, tokens)->beyond : 0;
}

int formats_place(const struct formats *f, enum region r, int32_t layer, int tokens)
{
    if (!f || (int)r >= REGION_NODES || !classes_of(f, r, tokens)->of)
        return (int)r;
    return (int)r + REGION_NODES * classes_of(f, r, tokens)->of[layer];
}

int32_t formats_middle(const struct formats *f, enum region r, int32_t layer, int tokens,
                       int32_t layers)
{
    const int8_t *of = f ? classes_of(f, r, tokens)->of : NULL;
    int32_t alike = 0;
    if (!of)
        return layers / 2;
    for (int32_t l = 0; l < layers; l++)
        alike += of[l] == of[layer];
    for (int32_t l = 0, n = 0; l < layers; l++)
        if (of[l] == of[layer] && n++ == alike / 2)
            return l;
    return layer;
}
