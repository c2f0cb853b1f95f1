/* adviser_replay.c - see adviser_replay.h. Everything is read at start. */
#include "specializer/adviser/adviser_replay.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/store/store.h"

struct record_of {
    char region[40], kind[16];
    char *reply;
    double seconds;
    int32_t tokens_in, tokens_out;
    bool used;
};

struct adviser_replay {
    struct record_of *record;
    int records;
};

static struct record_of *add(struct adviser_replay *r)
{
    r->record = xrealloc(r->record, (size_t)(r->records + 1) * sizeof *r->record);
    struct record_of *last = &r->record[r->records++];
    *last = (struct record_of){{0}};
    return last;
}

/* Region and kind of a question: an adviser's document shows them by its form, others name them. */
static void identify(const char *document, char *region, size_t room, char *kind, size_t kind_room)
{
    cJSON *o = cJSON_Parse(document);
    const cJSON *first = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(o, "regions"), 0);
    const cJSON *named = cJSON_GetObjectItemCaseSensitive(o, "kind");
    const cJSON *name =
        cJSON_GetObjectItemCaseSensitive(cJSON_IsString(named) ? o : first, "region");
    bool moves = cJSON_GetObjectItemCaseSensitive(first, "nodes") != NULL;
    snprintf(region, room, "%s", cJSON_IsString(name) ? name->valuestring : "");
    snprintf(kind, kind_room, "%s",
             cJSON_IsString(named) ? named->valuestring
             : moves               ? "moves"
                                   : "advice");
    cJSON_Delete(o);
}

/* ---- reading ------------------------------------------------------------------------------- */

static void take_row(void *ctx, const struct exchange *x)
{
    if (!x->reply || !x->reply[0])
        return;
    struct record_of *r = add(ctx);
    identify(x->request, r->region, sizeof r->region, r->kind, sizeof r->kind);
    r->reply = xstrdup(x->reply);
    r->seconds = x->seconds;
    r->tokens_in = x->tokens_in;
    r->tokens_out = x->tokens_out;
}

static int read_store(struct adviser_replay *r, const char *path, struct err *err)
{
    struct store *s = store_open(path, err);
    if (!s)
        return -1;
    int result = store_exchanges(s, take_row, r, err);
    store_close(s);
    return result;
}

static int take_line(struct adviser_replay *r, const char *line, int number, struct err *err)
{
    cJSON *o = cJSON_Parse(line);
    const cJSON *region = cJSON_GetObjectItemCaseSensitive(o, "region");
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(o, "kind");
    const cJSON *reply = cJSON_GetObjectItemCaseSensitive(o, "reply");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(o, "seconds");
    const cJSON *in = cJSON_GetObjectItemCaseSensitive(o, "tokens_in");
    const cJSON *out = cJSON_GetObjectItemCaseSensitive(o, "tokens_out");
    int result = 0;
    if (!cJSON_IsString(region) || !cJSON_IsString(reply)) {
        result = err_set(err, "line %d: not an exchange with region and reply", number);
    } else {
        struct record_of *last = add(r);
        snprintf(last->region, sizeof last->region, "%s", region->valuestring);
        snprintf(last->kind, sizeof last->kind, "%s",
                 cJSON_IsString(kind) ? kind->valuestring : "advice");
        last->reply = xstrdup(reply->valuestring);
        last->seconds = cJSON_IsNumber(seconds) ? seconds->valuedouble : 0;
        last->tokens_in = cJSON_IsNumber(in) ? in->valueint : 0;
        last->tokens_out = cJSON_IsNumber(out) ? out->valueint : 0;
    }
    cJSON_Delete(o);
    return result;
}

static int read_lines(struct adviser_replay *r, FILE *in, struct err *err)
{
    char *line = NULL;
    size_t room = 0;
    int result = 0, number = 0;
    while (result == 0 && getline(&line, &room, in) > 0) {
        number++;
        if (line[strspn(line, " \t\r\n")])
            result = take_line(r, line, number, err);
    }
    free(line);
    return result;
}

struct adviser_replay *adviser_replay_open(const char *path, struct err *err)
{
    static const char magic[] = "SQLite format 3";
    char head[sizeof magic] = "";
    FILE *in = fopen(path, "rb");
    if (!in) {
        err_set(err, "adviser.url replay:%s: %s", path, strerror(errno));
        return NULL;
    }
    struct adviser_replay *r = xcalloc(1, sizeof *r);
    size_t n = fread(head, 1, sizeof head, in);
    rewind(in);
    int result = n == sizeof magic && memcmp(head, magic, n) == 0 ? read_store(r, path, err)
                                                                  : read_lines(r, in, err);
    fclose(in);
    if (result == 0)
        return r;
    err_prefix(err, "adviser.url replay:%s", path);
    adviser_replay_close(r);
    return NULL;
}

void adviser_replay_close(struct adviser_replay *r)
{
    for (int i = 0; r && i < r->records; i++)
        free(r->record[i].reply);
    if (r)
        free(r->record);
    free(r);
}

/* ---- answering ----------------------------------------------------------------------------- */

void adviser_replay_next(struct adviser_replay *r, const char *document, struct answer *out)
{
    char region[40], kind[16];
    identify(document, region, sizeof region, kind, sizeof kind);
    *out = (struct answer){0};
    for (int i = 0; i < r->records; i++) {
        struct record_of *record = &r->record[i];
        if (record->used || strcmp(record->kind, kind) != 0 || strcmp(record->region, region) != 0)
            continue;
        record->used = true;
        out->text = xstrdup(record->reply);
        out->calls = 1;
        out->seconds = record->seconds;
        out->tokens_in = record->tokens_in;
        out->tokens_out = record->tokens_out;
        return;
    }
    out->fault = CALL_NO_RECORD;
    snprintf(out->why, sizeof out->why, "nothing more is recorded for %s (%s)", region, kind);
}
