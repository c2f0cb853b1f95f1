/* SPDX-License-Identifier: Apache-2.0 */
/* adviser_replay.c - see adviser_replay.h. Everything is read at start. */
#include "specializer/adviser/adviser_replay.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/json_strict.h"
#include "specializer/candidate/hash.h"
#include "specializer/store/store.h"

struct record_of {
    char region[40], kind[16];
    char state[17]; /* of the question, state_of(); "": not known */
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

/* How late a reply came, whoever wrote that down. */
static double seconds_of(double said)
{
    enum { MOST = 1000000 };
    return said > 0 ? fmin(said, MOST) : 0;
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

/* ---- states -------------------------------------------------------------------------------- */

/* What documents of (nearly) every length show, since how long a list is depends on all words. */
enum { STATE_BEST = 2, STATE_REFUSED = 1, STATE_LESSONS = 4 };

static uint64_t hash_field(uint64_t h, const cJSON *o, const char *name)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, name);
    char text[32] = "";
    if (cJSON_IsNumber(v))
        snprintf(text, sizeof text, "%.4g", v->valuedouble);
    return hash_text(h, cJSON_IsString(v) ? v->valuestring : text);
}

/* Some fields of the first `most` of a list. */
static uint64_t hash_list(uint64_t h, const cJSON *list, int most, const char *const *field, int n)
{
    for (int i = 0; i < most && i < cJSON_GetArraySize(list); i++)
        for (int k = 0; k < n; k++)
            h = hash_field(h, cJSON_GetArrayItem(list, i), field[k]);
    return h;
}

/* Of one node: it, its parent and its grandparent. */
static uint64_t hash_node(uint64_t h, const cJSON *node)
{
    static const char *const of[] = {"node", "parent", "grandparent"};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        h = hash_field(h, cJSON_GetObjectItemCaseSensitive(node, of[i]), "id");
    return h;
}

/* How far a search is: which slot, of how many points, what was measured and refused, what other
 * slots taught, the nodes that moves are wanted from. Neither the machine that asks nor its
 * microseconds, nor the words, the rules and the predictions: with those a recording answered by
 * its states until the next better word, and on one machine. */
static uint64_t hash_region(const cJSON *region)
{
    static const char *const speed[] = {"id", "speed"}, *const lesson[] = {"region", "id", "speed"};
    const cJSON *results = cJSON_GetObjectItemCaseSensitive(region, "results"), *node;
    uint64_t h = hash_field(HASH_START, region, "region");
    h = hash_field(h, cJSON_GetObjectItemCaseSensitive(region, "space"), "points");
    h = hash_field(h, results, "measured");
    h = hash_list(h, cJSON_GetObjectItemCaseSensitive(results, "best"), STATE_BEST, speed, 2);
    h = hash_list(h, cJSON_GetObjectItemCaseSensitive(results, "refused"), STATE_REFUSED, speed, 1);
    h = hash_list(h, cJSON_GetObjectItemCaseSensitive(region, "lessons"), STATE_LESSONS, lesson, 3);
    cJSON_ArrayForEach(node, cJSON_GetObjectItemCaseSensitive(region, "nodes")) h =
        hash_node(h, node);
    return h;
}

/* An adviser's document by what it asks; any other by its text. */
static void state_of(const char *document, char out[17])
{
    cJSON *o = cJSON_Parse(document);
    const cJSON *region = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(o, "regions"), 0);
    hash_hex(region ? hash_region(region) : hash_text(HASH_START, document), out);
    cJSON_Delete(o);
}

/* ---- reading ------------------------------------------------------------------------------- */

static void take_row(void *ctx, const struct llm_call *x)
{
    if (!x->request || !x->reply || !x->reply[0])
        return;
    struct record_of *r = add(ctx);
    identify(x->request, r->region, sizeof r->region, r->kind, sizeof r->kind);
    state_of(x->request, r->state);
    r->reply = xstrdup(x->reply);
    r->seconds = seconds_of(x->seconds);
    r->tokens_in = x->tokens_in;
    r->tokens_out = x->tokens_out;
}

static int read_store(struct adviser_replay *r, const char *path, struct err *err)
{
    struct store *s = store_open_read(path, err);
    if (!s)
        return -1;
    int result = store_llm_calls(s, take_row, r, err);
    store_close(s);
    return result;
}

/* Region, kind and state of a line: from the question, if it is there, or said. */
static void place_line(struct record_of *r, const cJSON *o)
{
    const cJSON *request = cJSON_GetObjectItemCaseSensitive(o, "request");
    const cJSON *region = cJSON_GetObjectItemCaseSensitive(o, "region");
    const cJSON *kind = cJSON_GetObjectItemCaseSensitive(o, "kind");
    const cJSON *state = cJSON_GetObjectItemCaseSensitive(o, "state");
    if (cJSON_IsString(request)) {
        identify(request->valuestring, r->region, sizeof r->region, r->kind, sizeof r->kind);
        state_of(request->valuestring, r->state);
        return;
    }
    snprintf(r->region, sizeof r->region, "%s", cJSON_IsString(region) ? region->valuestring : "");
    snprintf(r->kind, sizeof r->kind, "%s", cJSON_IsString(kind) ? kind->valuestring : "advice");
    snprintf(r->state, sizeof r->state, "%s", cJSON_IsString(state) ? state->valuestring : "");
}

static int take_line(struct adviser_replay *r, const char *line, int number, struct err *err)
{
    cJSON *o = json_strict_parse(line);
    const cJSON *request = cJSON_GetObjectItemCaseSensitive(o, "request");
    const cJSON *region = cJSON_GetObjectItemCaseSensitive(o, "region");
    const cJSON *reply = cJSON_GetObjectItemCaseSensitive(o, "reply");
    const cJSON *seconds = cJSON_GetObjectItemCaseSensitive(o, "seconds");
    const cJSON *in = cJSON_GetObjectItemCaseSensitive(o, "tokens_in");
    const cJSON *out = cJSON_GetObjectItemCaseSensitive(o, "tokens_out");
    int result = 0;
    if (!(cJSON_IsString(region) || cJSON_IsString(request)) || !cJSON_IsString(reply)) {
        result = err_set(err, "line %d: not an exchange with region and reply", number);
    } else if (reply->valuestring[0]) { /* else it was never answered */
        struct record_of *last = add(r);
        place_line(last, o);
        last->reply = xstrdup(reply->valuestring);
        last->seconds = cJSON_IsNumber(seconds) ? seconds_of(seconds->valuedouble) : 0;
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

static bool is_of(const struct record_of *r, const char *region, const char *kind)
{
    return strcmp(r->kind, kind) == 0 && strcmp(r->region, region) == 0;
}

/* The first record of this state, an unused one before others; NULL: there is none. */
static struct record_of *of_state(struct adviser_replay *r, const char *region, const char *kind,
                                  const char *state)
{
    struct record_of *found = NULL;
    for (int i = 0; i < r->records; i++) {
        struct record_of *record = &r->record[i];
        if (!is_of(record, region, kind) || strcmp(record->state, state) != 0)
            continue;
        if (!record->used)
            return record;
        found = found ? found : record;
    }
    return found;
}

/* The first that was not used yet; NULL: there is none. */
static struct record_of *next_of(struct adviser_replay *r, const char *region, const char *kind)
{
    for (int i = 0; i < r->records; i++)
        if (!r->record[i].used && is_of(&r->record[i], region, kind))
            return &r->record[i];
    return NULL;
}

static void give(struct record_of *record, struct answer *out)
{
    record->used = true;
    *out = (struct answer){.text = xstrdup(record->reply),
                           .calls = 1,
                           .seconds = record->seconds,
                           .tokens_in = record->tokens_in,
                           .tokens_out = record->tokens_out};
}

bool adviser_replay_find(struct adviser_replay *r, const char *document, struct answer *out)
{
    char region[40], kind[16], state[17];
    identify(document, region, sizeof region, kind, sizeof kind);
    state_of(document, state);
    struct record_of *record = of_state(r, region, kind, state);
    if (record)
        give(record, out);
    return record != NULL;
}

void adviser_replay_next(struct adviser_replay *r, const char *document, struct answer *out)
{
    char region[40], kind[16];
    if (adviser_replay_find(r, document, out))
        return;
    identify(document, region, sizeof region, kind, sizeof kind);
    struct record_of *record = next_of(r, region, kind);
    *out = (struct answer){0};
    if (record) {
        give(record, out);
        return;
    }
    out->fault = CALL_NO_RECORD;
    snprintf(out->why, sizeof out->why, "nothing more is recorded for %s (%s)", region, kind);
}

/* ---- recording ----------------------------------------------------------------------------- */

struct adviser_replay *adviser_replay_new(void)
{
    return xcalloc(1, sizeof(struct adviser_replay));
}

char *adviser_replay_keep(struct adviser_replay *r, const char *document, const struct answer *a,
                          const char *model)
{
    struct record_of *record = add(r);
    identify(document, record->region, sizeof record->region, record->kind, sizeof record->kind);
    state_of(document, record->state);
    record->reply = xstrdup(a->text);
    record->seconds = a->seconds;
    record->tokens_in = a->tokens_in;
    record->tokens_out = a->tokens_out;
    record->used = true;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "region", record->region);
    cJSON_AddStringToObject(o, "kind", record->kind);
    cJSON_AddStringToObject(o, "state", record->state);
    if (model && *model)
        cJSON_AddStringToObject(o, "model", model);
    cJSON_AddStringToObject(o, "reply", record->reply);
    cJSON_AddNumberToObject(o, "seconds", record->seconds);
    cJSON_AddNumberToObject(o, "tokens_in", record->tokens_in);
    cJSON_AddNumberToObject(o, "tokens_out", record->tokens_out);
    char *line = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return line;
}
