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
#include "tune/table.h"

enum { TABLE_VERSION = 1, NUMBERS = 8 };
static const char *const state_name[] = {"new", "probed", "measured", "refused"};

/* ---- writing ----------------------------------------------------------------------------------
 */

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
    if (facts_kind(f) == MACHINE_CUDA) /* what only a GPU's table has */
        cJSON_AddNumberToObject(o, "SMS", f->SMS);
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
    FILE *f = fopen(temporary, "w");
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

/* ---- reading ----------------------------------------------------------------------------------
 */

static double number_of(const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    return cJSON_IsNumber(v) ? v->valuedouble : 0;
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

/* The row's point in the space, or -1 with a message. */
static int32_t read_row(const struct space *s, const cJSON *row, struct measured *m,
                        struct err *err)
{
    struct point p;
    const struct template *t = template_find(text_at(row, 0));
    if (!t)
        return err_set(err, "there is no template \"%.40s\"", text_at(row, 0));
    char knobs[600];
    with_defaults(t, text_at(row, 1), knobs, sizeof knobs);
    if (point_parse(t, knobs, &p, err) != 0)
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
    m->pairs = (int32_t)number[7];
    snprintf(m->reason, sizeof m->reason, "%s", text_at(row, 3 + NUMBERS));
    int32_t id = space_find(s, t, &p);
    return id >= 0 ? id : err_set(err, "%s %s is not legal there", t->id, text_at(row, 1));
}

/* The space is what the rows name; their order is that of the space. */
static int read_rows(struct table *t, const cJSON *rows, struct err *err)
{
    int size = space_size(t->space), n = 0;
    unsigned char *keep = xcalloc((size_t)size + 1, 1);
    struct measured *at = xcalloc((size_t)size + 1, sizeof *at);
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        struct measured m;
        int32_t id = read_row(t->space, row, &m, err);
        if (id < 0 || keep[id]) {
            free(keep);
            free(at);
            return id < 0 ? -1 : err_set(err, "a point is there twice");
        }
        keep[id] = 1;
        at[id] = m;
    }
    for (int i = 0; i < size; i++)
        if (keep[i])
            t->row[n++] = at[i];
    space_keep(t->space, keep);
    free(keep);
    free(at);
    return 0;
}

static int read_table(struct tables *t, const cJSON *o, struct err *err)
{
    struct facts f = {0};
    const cJSON *facts = cJSON_GetObjectItemCaseSensitive(o, "facts");
#define FACT(name, help) f.name = (int32_t)number_of(facts, #name);
#define SHAPE(name, value, help) f.name = (int32_t)number_of(facts, #name);
#include "kernels/templates.def"
    f.SMS = (int32_t)number_of(facts, "SMS");
    t->machine.kind = facts_kind(&f);
    t->machine.sms = f.SMS;
    if (f.REGION < 0 || f.REGION >= REGION_COUNT)
        return err_set(err, "a slot's region is unknown");
    struct table *new =
        tables_add(t, text_of(o, "slot"), (enum region)f.REGION, (int)number_of(o, "m"), &f,
                   (enum numerics)number_of(o, "numerics"), 0);
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
    cJSON *o = cJSON_Parse(text);
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
    t->threads = (int32_t)number_of(o, "threads");
    t->seed = (uint64_t)number_of(o, "seed");
    cJSON_ArrayForEach(one, tables) r = r == 0 ? read_table(t, one, &why) : r;
    cJSON_Delete(o);
    if (r == 0)
        return 0;
    tables_free(t);
    return err_set(err, "%s: %s", path, why.msg);
}
