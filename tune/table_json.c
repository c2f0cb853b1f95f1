/* SPDX-License-Identifier: Apache-2.0 */
/* table_json.c - measured points as a file.
 *
 * A row is an array, since there are hundreds: the knobs as text, the state, then
 * build, probe and bench seconds, microseconds of a run, gain with its interval, pairs.
 */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/err.h"
#include "config/json_strict.h"
#include "tune/table.h"
#include "tune/table_machine.h"

enum { TABLE_VERSION = 1, NUMBERS = 8 };
static const char *const state_name[] = {"new", "probed", "measured", "refused"};

/* ---- writing ------------------------------------------------------------------------------- */

static double rounded(double v, double unit)
{
    char text[32];
    snprintf(text, sizeof text, "%.5g", v / unit);
    return strtod(text, NULL);
}

static cJSON *row_json(const struct table *t, int32_t id)
{
    char knobs[400];
    struct point p;
    const struct measured *m = &t->row[id];
    const struct template *of = space_template(t->space, id);
    space_point(t->space, id, &p);
    point_text(of, &p, knobs, sizeof knobs);
    const double number[NUMBERS] = {
        (double)m->build_s, (double)m->probe_s, (double)m->bench_s, rounded((double)m->own_s, 1e-6),
        (double)m->gain,    (double)m->low,     (double)m->high,    m->pairs,
    };
    cJSON *row = cJSON_CreateArray();
    cJSON_AddItemToArray(row, cJSON_CreateString(of->id));
    cJSON_AddItemToArray(row, cJSON_CreateString(knobs));
    cJSON_AddItemToArray(row, cJSON_CreateString(state_name[m->state]));
    for (int i = 0; i < NUMBERS; i++)
        cJSON_AddItemToArray(row, cJSON_CreateNumber(rounded(number[i], 1)));
    if (m->reason[0])
        cJSON_AddItemToArray(row, cJSON_CreateString(m->reason));
    return row;
}

static cJSON *facts_json(const struct facts *f)
{
    cJSON *o = cJSON_CreateObject();
#define FACT(name, help) cJSON_AddNumberToObject(o, #name, f->name);
#define SHAPE(name, value, help) cJSON_AddNumberToObject(o, #name, f->name);
#include "kernels/templates.def"
    cJSON_AddNumberToObject(o, "SMS", f->SMS); /* only a GPU has some, and what follows */
#define FACT(name, help) cJSON_AddNumberToObject(o, #name, f->name);
#include "kernels/templates_cuda.def"
    return o;
}

static cJSON *table_json(const struct table *t)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "slot", t->slot);
    cJSON_AddNumberToObject(o, "m", t->m);
    cJSON_AddNumberToObject(o, "numerics", t->numerics);
    cJSON_AddNumberToObject(o, "whole", t->whole);
    cJSON_AddItemToObject(o, "facts", facts_json(&t->facts));
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (int32_t i = 0; i < space_size(t->space); i++)
        cJSON_AddItemToArray(rows, row_json(t, i));
    return o;
}

/* One row a line: a table that can be read and compared. */
static int print_rows(FILE *f, cJSON *rows)
{
    int bad = fputs("\"rows\":[\n", f) < 0;
    for (cJSON *row = rows->child; row; row = row->next) {
        char *text = cJSON_PrintUnformatted(row);
        bad |= fprintf(f, "%s%s\n", text, row->next ? "," : "") < 0;
        free(text);
    }
    return bad | (fputs("]", f) < 0);
}

static int print_table(FILE *f, const struct table *t, bool last)
{
    cJSON *o = table_json(t), *rows = cJSON_DetachItemFromObject(o, "rows");
    char *head = cJSON_PrintUnformatted(o);
    head[strlen(head) - 1] = 0; /* its closing brace comes after the rows */
    int bad = fprintf(f, "%s,", head) < 0;
    bad |= print_rows(f, rows);
    bad |= fprintf(f, "}%s\n", last ? "" : ",") < 0;
    free(head);
    cJSON_Delete(rows);
    cJSON_Delete(o);
    return bad;
}

int tables_write(const struct tables *t, const char *path, struct err *err)
{
    char *temporary = xasprintf("%s.new", path);
    unlink(temporary); /* and "x" follows no link that somebody laid there */
    FILE *f = fopen(temporary, "wxe");
    int bad = !f;
    if (f) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "version", TABLE_VERSION);
        cJSON_AddStringToObject(o, "device", t->machine.device);
        cJSON_AddNumberToObject(o, "threads", t->threads);
        cJSON_AddNumberToObject(o, "read_bandwidth", rounded(t->machine.read_bandwidth, 1));
        cJSON_AddNumberToObject(o, "peak_flops", rounded(t->machine.peak_flops, 1));
        cJSON_AddNumberToObject(o, "boundary_s", rounded(t->machine.boundary_s, 1));
        cJSON_AddNumberToObject(o, "seed", (double)t->seed);
        table_machine_write(t, o);
        char *head = cJSON_PrintUnformatted(o);
        head[strlen(head) - 1] = 0;
        bad = fprintf(f, "%s,\"tables\":[\n", head) < 0;
        for (int i = 0; i < t->n; i++)
            bad |= print_table(f, &t->table[i], i == t->n - 1);
        bad |= fputs("]}\n", f) < 0;
        bad |= fclose(f) != 0;
        free(head);
        cJSON_Delete(o);
    }
    if (!bad)
        bad = rename(temporary, path) != 0;
    if (bad)
        err_set(err, "%s cannot be written: %s", path, strerror(errno));
    free(temporary);
    return bad ? -1 : 0;
}

/* ---- reading ------------------------------------------------------------------------------- */

static double number_of(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsNumber(v) ? v->valuedouble : 0;
}

/* A whole number, 0 for what is none or too large to be one. */
static int32_t int_of(const cJSON *o, const char *name)
{
    double v = number_of(o, name);
    return v > INT32_MIN && v < INT32_MAX ? (int32_t)v : 0;
}

static const char *text_of(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsString(v) ? v->valuestring : "";
}

static const char *text_at(const cJSON *row, int i)
{
    const cJSON *v = cJSON_GetArrayItem(row, i);
    return cJSON_IsString(v) ? v->valuestring : "";
}

/* Copies the knobs that the template still has. False: another one was not 0, so the point is gone
 * with its knob; at 0 it was not used, and the point is what it was. */
static bool without_gone(const struct template *t, const char *text, char *out, size_t n)
{
    size_t at = 0;
    char name[48];
    int value, used;
    for (out[0] = 0; sscanf(text, " %47[A-Z0-9_]=%d%n", name, &value, &used) == 2; text += used)
        if (template_knob(t, name) >= 0 && at < n)
            at += (size_t)snprintf(out + at, n - at, "%s%s=%d", at ? " " : "", name, value);
        else if (value != 0)
            return false;
    return true;
}

/* The knobs of a row; one that was added to the template later is at its default, which is what it
 * was without that knob. */
static void with_defaults(const struct template *t, const char *text, char *out, size_t n)
{
    size_t at = (size_t)snprintf(out, n, "%s", text);
    for (int k = 0; k < t->knobs && at < n; k++) {
        char name[64];
        snprintf(name, sizeof name, "%s=", t->knob[k].name);
        const char *found = strstr(text, name);
        while (found && found > text && found[-1] != ' ')
            found = strstr(found + 1, name);
        if (!found)
            at += (size_t)snprintf(out + at, n - at, " %s%d", name, t->knob[k].fallback);
    }
}

/* What a row says. */
struct row {
    const struct template *template;
    struct point point;
    struct measured measured;
    bool gone; /* the point is no more */
};

static int read_row(const struct facts *f, const cJSON *row, struct row *out, struct err *err)
{
    const struct template *t = out->template = template_find(text_at(row, 0));
    struct measured *m = &out->measured;
    if (!t)
        return err_set(err, "there is no template \"%.40s\"", text_at(row, 0));
    char knobs[600], known[600];
    out->gone = !without_gone(t, text_at(row, 1), known, sizeof known);
    with_defaults(t, known, knobs, sizeof knobs);
    if (out->gone)
        return 0;
    if (point_parse(t, knobs, &out->point, err) != 0)
        return -1;
    *m = (struct measured){.state = POINT_NEW};
    for (int i = 0; i < 4; i++)
        if (strcmp(text_at(row, 2), state_name[i]) == 0)
            m->state = (enum point_state)i;
    double number[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        const cJSON *v = cJSON_GetArrayItem(row, 3 + i);
        if (!cJSON_IsNumber(v))
            return err_set(err, "a row has no number %d", i + 1);
        number[i] = v->valuedouble;
    }
    m->build_s = (float)number[0];
    m->probe_s = (float)number[1];
    m->bench_s = (float)number[2];
    m->own_s = (float)(number[3] * 1e-6);
    m->gain = (float)number[4];
    m->low = (float)number[5];
    m->high = (float)number[6];
    m->pairs = number[7] > 0 && number[7] < INT32_MAX ? (int32_t)number[7] : 0;
    snprintf(m->reason, sizeof m->reason, "%s", text_at(row, 3 + NUMBERS));
    if (template_illegal(t, &out->point, f))
        return err_set(err, "%s %s is not legal there", t->id, text_at(row, 1));
    return 0;
}

/* The space is what the rows name; their order is that of the space. */
static int take_rows(struct table *t, const struct row *row, int n, struct err *err)
{
    const struct template **of = xcalloc((size_t)n + 1, sizeof *of);
    struct point *p = xcalloc((size_t)n + 1, sizeof *p);
    for (int i = 0; i < n; i++) {
        of[i] = row[i].template;
        p[i] = row[i].point;
    }
    struct space *s = space_listed(&t->facts, of, p, n);
    free(of);
    free(p);
    if (!s)
        return err_set(err, "a point is there twice");
    space_close(t->space);
    free(t->row);
    t->space = s;
    t->row = xcalloc((size_t)n + 1, sizeof *t->row);
    for (int i = 0; i < n; i++)
        t->row[space_find(s, row[i].template, &row[i].point)] = row[i].measured;
    return 0;
}

static int read_rows(struct table *t, const cJSON *rows, struct err *err)
{
    int n = 0, rc = 0;
    struct row *all = xcalloc((size_t)cJSON_GetArraySize(rows) + 1, sizeof *all);
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        rc = rc == 0 ? read_row(&t->facts, row, &all[n], err) : rc;
        n += rc == 0 && !all[n].gone;
    }
    rc = rc == 0 ? take_rows(t, all, n, err) : rc;
    free(all);
    return rc;
}

/* Rows of LEGAL divide by these and multiply them as ints: no more than any model has. */
static bool is_shape(const struct facts *f)
{
    enum { TOKENS = 2048, ROWS = 1 << 17, HEADS_MOST = 1 << 12, WORDS = 1 << 22 };
    const struct {
        int32_t n, most;
    } part[] = {{f->M_MAX, TOKENS},        {f->HIDDEN, ROWS},       {f->FFN, ROWS},
                {f->VOCAB, WORDS},         {f->HEADS, HEADS_MOST},  {f->KV_HEADS, HEADS_MOST},
                {f->HEAD_DIM, HEADS_MOST}, {f->SMS + 1, HEADS_MOST}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (part[i].n < 1 || part[i].n > part[i].most)
            return false;
    const int32_t type[] = {f->WTYPE, f->WTYPE_2, f->WTYPE_3};
    for (size_t i = 0; i < sizeof type / sizeof *type; i++)
        if (type[i] < 0 || type[i] >= DTYPE_COUNT)
            return false;
    return f->HEADS * f->HEAD_DIM <= ROWS && f->KV_HEADS * f->HEAD_DIM <= ROWS;
}

static int read_table(struct tables *t, const cJSON *o, struct err *err)
{
    struct facts f = {0};
    const cJSON *facts = cJSON_GetObjectItemCaseSensitive(o, "facts");
#define FACT(name, help) f.name = int_of(facts, #name);
#define SHAPE(name, value, help) f.name = int_of(facts, #name);
#include "kernels/templates.def"
    f.SMS = int_of(facts, "SMS");
#define FACT(name, help) f.name = int_of(facts, #name);
#include "kernels/templates_cuda.def"
    t->machine.kind = facts_kind(&f);
    t->machine.sms = f.SMS;
    if (f.REGION < 0 || f.REGION >= REGION_COUNT)
        return err_set(err, "a slot's region is unknown");
    if (!is_shape(&f))
        return err_set(err, "the facts of a slot are no model's shape");
    const int32_t m = int_of(o, "m"), numerics = int_of(o, "numerics");
    if (m < 0 || numerics < 0 || numerics >= NUMERICS_COUNT)
        return err_set(err, "a slot's m or numerics are unknown");
    struct table *new = tables_add_empty(t, text_of(o, "slot"), (enum region)f.REGION, m, &f,
                                         (enum numerics)numerics);
    new->whole = int_of(o, "whole");
    return read_rows(new, cJSON_GetObjectItemCaseSensitive(o, "rows"), err);
}

static char *read_whole(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t n = 0, got = 1;
    char *text = NULL;
    while (f && got > 0) {
        text = xrealloc(text, n + 65537);
        n += got = fread(text + n, 1, 65536, f);
    }
    if (f)
        fclose(f);
    if (text)
        text[n] = 0;
    return text;
}

int tables_read(struct tables *t, const char *path, struct err *err)
{
    char *text = read_whole(path);
    *t = (struct tables){0};
    if (!text)
        return err_set(err, "%s: %s", path, strerror(errno));
    cJSON *o = json_strict_parse(text);
    free(text);
    const cJSON *tables = cJSON_GetObjectItemCaseSensitive(o, "tables"), *one;
    struct err why = {{0}};
    int r = number_of(o, "version") == TABLE_VERSION && cJSON_IsArray(tables)
                ? 0
                : err_set(&why, "not a table of measured points, version %d", TABLE_VERSION);
    snprintf(t->machine.device, sizeof t->machine.device, "%s", text_of(o, "device"));
    t->machine.read_bandwidth = number_of(o, "read_bandwidth");
    t->machine.peak_flops = number_of(o, "peak_flops");
    t->machine.boundary_s = number_of(o, "boundary_s");
    t->threads = int_of(o, "threads");
    const double seed = number_of(o, "seed");
    t->seed = seed > 0 && seed < 0x1p53 ? (uint64_t)seed : 0;
    table_machine_read(t, o);
    cJSON_ArrayForEach(one, tables) r = r == 0 ? read_table(t, one, &why) : r;
    cJSON_Delete(o);
    if (r == 0)
        return 0;
    tables_free(t);
    return err_set(err, "%s: %s", path, why.msg);
}
