/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json.c - reads a Hugging Face tokenizer.json and the small files beside it.
 *
 *   tokenizer.json          added_tokens, normalizer, pre_tokenizer, model (BPE), post_processor
 *   tokenizer_config.json   names of bos_token and eos_token, if the file is there
 *   generation_config.json  further end-of-generation ids; where there is no such file, those of
 *                           config.json
 *
 * The file is turned into a struct vocab_source and built by tokenizer_build(), so a model has the
 * same tokenizer whichever kind of file it came from. cJSON's members are a linked list: loops go
 * over it once; only a handful of names are looked up.
 */
#include "engine/tokenizer_json.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/filemap.h"
#include "engine/json_file.h"

/* An integer from 0 to `max`; -1 for anything else. */
static int32_t whole_number(const cJSON *item, int32_t max)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= max))
        return -1;
    int32_t value = (int32_t)item->valuedouble;
    return value == item->valuedouble ? value : -1;
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

static const cJSON *vocab_of(const struct tokenizer_json *j)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(j->root, "model");
    return cJSON_GetObjectItemCaseSensitive(model, "vocab");
}

static const cJSON *added_of(const struct tokenizer_json *j)
{
    return cJSON_GetObjectItemCaseSensitive(j->root, "added_tokens");
}

int32_t tokenizer_json_find(const struct tokenizer_json *j, const char *text)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, added_of(j))
    {
        if (strcmp(json_text(item, "content", ""), text) == 0)
            return whole_number(cJSON_GetObjectItemCaseSensitive(item, "id"), TOKENS_MAX);
    }
    return whole_number(cJSON_GetObjectItemCaseSensitive(vocab_of(j), text), TOKENS_MAX);
}

/* Checks every id and counts: the vocabulary is as long as its highest id asks for. A few ids may
 * be left out; a small file that asks for millions is after our memory. */
static int count_tokens(struct tokenizer_json *j, struct err *err)
{
    const cJSON *item;
    int32_t highest = -1, entries = 0;
    const char *left_out = NULL;
    cJSON_ArrayForEach(item, vocab_of(j))
    {
        int32_t id = whole_number(item, TOKENS_MAX);
        if (id < 0)
            return err_set(err, "model.vocab: the id of token '%.80s' is no id", item->string);
        highest = id > highest ? id : highest;
        entries++;
    }
    cJSON_ArrayForEach(item, added_of(j))
    {
        int32_t id = whole_number(cJSON_GetObjectItemCaseSensitive(item, "id"), TOKENS_MAX);
        const char *content = json_text(item, "content", NULL);
        if (id < 0 || !content)
            return err_set(err, "added_tokens: '%.80s' has no valid id and content",
                           content ? content : "?");
        if (id >= j->rows) {
            left_out = left_out ? left_out : content;
            continue;
        }
        highest = id > highest ? id : highest;
        entries++;
    }
    if (left_out)
        log_warn("engine", "added tokens are left out from '%.80s' on: the model has %d tokens",
                 left_out, j->rows);
    if (highest / 4 > entries + 256)
        return err_set(err, "vocabulary: ids go up to %d, but there are %d tokens", highest,
                       entries);
    j->src.tokens = highest + 1;
    return 0;
}

static int put_token(struct tokenizer_json *j, int32_t id, const char *text, struct err *err)
{
    if (j->text[id] && strcmp(j->text[id], text) != 0)
        return err_set(err, "vocabulary: id %d is both '%.80s' and '%.80s'", id, j->text[id], text);
    j->text[id] = text;
    j->length[id] = (int32_t)strlen(text);
    return 0;
}

static int put_added(struct tokenizer_json *j, const cJSON *item, struct err *err)
{
    static const struct {
        const char *name;
        uint8_t flag;
    } flags[] = {{"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"single_word", ADDED_SINGLE_WORD},
                 {"normalized", ADDED_NORMALIZED}};
    int32_t id = whole_number(cJSON_GetObjectItemCaseSensitive(item, "id"), TOKENS_MAX);
    if (id >= j->rows)
        return 0;
    if (!j->text[id])
        j->added[id] |= ADDED_OUTSIDE;
    if (put_token(j, id, json_text(item, "content", ""), err))
        return -1;
    j->kind[id] = json_flag(item, "special", false) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (json_flag(item, flags[i].name, false))
            j->added[id] |= flags[i].flag;
    return 0;
}

static int read_vocab(struct tokenizer_json *j, struct err *err)
{
    if (!cJSON_IsObject(vocab_of(j)))
        return err_set(err, "model.vocab is not an object");
    if (count_tokens(j, err))
        return -1;
    size_t n = (size_t)j->src.tokens;
    j->text = xcalloc(n, sizeof *j->text);
    j->length = xcalloc(n, sizeof *j->length);
    j->kind = xcalloc(n, 1); /* TOKEN_NORMAL */
    j->added = xcalloc(n, 1);
    const cJSON *item;
    cJSON_ArrayForEach(item, vocab_of(j))
    {
        if (put_token(j, whole_number(item, TOKENS_MAX), item->string, err))
            return -1;
    }
    cJSON_ArrayForEach(item, added_of(j))
    {
        if (put_added(j, item, err))
            return -1;
    }
    for (size_t i = 0; i < n; i++)
        if (!j->text[i]) { /* a hole in the numbering */
            j->text[i] = "";
            j->kind[i] = TOKEN_UNUSED;
        }
    j->src.text = j->text;
    j->src.length = j->length;
    j->src.kind = j->kind;
    j->src.added = j->added;
    return 0;
}

/* ---- merges and the other members of the model --------------------------------------------- */

/* A merge as "left right" or as a pair; returns its bytes when written to `to` (if not NULL). */
static int64_t join_merge(const cJSON *item, char *to, struct err *err)
{
    const cJSON *left = item, *right = NULL;
    if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
        left = item->child;
        right = left->next;
    }
    if (!cJSON_IsString(left) || (right && !cJSON_IsString(right)))
        return err_set(err, "model.merges: an entry is neither a string nor a pair of strings");
    size_t n = strlen(left->valuestring), m = right ? strlen(right->valuestring) + 1 : 0;
    if (to) {
        memcpy(to, left->valuestring, n);
        if (right) {
            to[n] = ' ';
            memcpy(to + n + 1, right->valuestring, m - 1);
        }
    }
    return (int64_t)(n + m);
}

static int read_merges(struct tokenizer_json *j, const cJSON *model, struct err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(model, "merges"), *item;
    if (!cJSON_IsArray(list))
        return err_set(err, "model.merges is not a list");
    size_t count = 0, bytes = 0;
    cJSON_ArrayForEach(item, list)
    {
        int64_t n = join_merge(item, NULL, err);
        if (n < 0)
            return -1;
        bytes += (size_t)n;
        count++;
    }
    j->merge = xcalloc(count, sizeof *j->merge);
    j->merge_length = xcalloc(count, sizeof *j->merge_length);
    char *at = j->joined = xmalloc(bytes + 1);
    cJSON_ArrayForEach(item, list)
    {
        int64_t n = join_merge(item, at, err);
        j->merge[j->src.merges] = at;
        j->merge_length[j->src.merges++] = (int32_t)n;
        at += n;
    }
    j->src.merge = j->merge;
    j->src.merge_length = j->merge_length;
    return 0;
}

static int read_model(struct tokenizer_json *j, struct err *err)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix",
                                          "end_of_word_suffix"};
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(j->root, "model");
    const char *type = json_text(model, "type", "BPE"); /* old files do not say */
    if (!cJSON_IsObject(model) || strcmp(type, "BPE") != 0)
        return err_set(err, "model '%.80s' is not supported (BPE is)", model ? type : "null");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(model, refused[i]);
        bool empty = !item || cJSON_IsNull(item) || cJSON_IsFalse(item) ||
                     (cJSON_IsString(item) && !*item->valuestring);
        if (!empty)
            return err_set(err, "model.%s is not supported", refused[i]);
    }
    j->src.ignore_merges = json_flag(model, "ignore_merges", false);
    return read_vocab(j, err) || read_merges(j, model, err) ? -1 : 0;
}

/* ---- the files beside it ------------------------------------------------------------------- */

/* A JSON file in the folder of `path`: 0 with *json NULL if there is none. */
static int read_beside(const char *path, const char *name, const struct json_limits *limits,
                       cJSON **json, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? xasprintf("%.*s", (int)(slash + 1 - path), path) : xstrdup(".");
    char *other = xasprintf("%.*s%s", slash ? (int)(slash + 1 - path) : 0, path, name);
    int rc = 0;
    *json = NULL;
    if (access(other, F_OK) == 0) {
        if (file_check_within(folder, name, err) == 0)
            *json = json_file_parse(other, limits, err);
        rc = *json ? 0 : -1;
    }
    free(folder);
    free(other);
    return rc;
}

/* tokenizer_config.json names a token by its text, or by an object that has it. */
static int named_token(const struct tokenizer_json *j, const cJSON *config, const char *name,
                       int32_t *id, struct err *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    const char *text = cJSON_IsString(item) ? item->valuestring : json_text(item, "content", NULL);
    if (!text)
        return 0;
    *id = tokenizer_json_find(j, text);
    if (*id >= j->src.tokens)
        return err_set(err,
                       "tokenizer_config.json: %s '%.80s' has the id %d, but the model has %d "
                       "tokens",
                       name, text, *id, j->rows);
    return *id < 0 ? err_set(err, "tokenizer_config.json: %s '%.80s' is not in the vocabulary",
                             name, text)
                   : 0;
}

/* eos_token_id is a number or a list of them. One behind the vocabulary's last is a row of the
 * model that stands for no text: no tokenizer makes it. */
static int read_stops(struct tokenizer_json *j, const cJSON *config, const char *file,
                      struct err *err)
{
    const cJSON *eos = cJSON_GetObjectItemCaseSensitive(config, "eos_token_id");
    const cJSON *item = cJSON_IsArray(eos) ? eos->child : eos;
    if (!eos || cJSON_IsNull(eos))
        return 0;
    j->stop = xcalloc((size_t)cJSON_GetArraySize(eos) + 1, sizeof *j->stop);
    for (; item; item = cJSON_IsArray(eos) ? item->next : NULL) {
        int32_t id = whole_number(item, TOKENS_MAX);
        if (id < 0)
            return err_set(err, "%s: eos_token_id is no id of the vocabulary", file);
        if (id < j->src.tokens)
            j->stop[j->src.stops++] = id;
        else
            log_warn("engine", "%s: eos_token_id %d is ignored, the vocabulary has %d tokens", file,
                     id, j->src.tokens);
    }
    j->src.stop = j->stop;
    return 0;
}

/* As transformers does it: config.json is asked only where there is no generation_config.json. */
static int find_stops(struct tokenizer_json *j, const char *path, struct err *err)
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    cJSON *config = NULL;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0 && !config; i++) {
        rc = read_beside(path, files[i], &json_config, &config, err);
        rc = rc == 0 ? read_stops(j, config, files[i], err) : rc;
    }
    cJSON_Delete(config);
    return rc;
}

static int read_specials(struct tokenizer_json *j, const char *path, struct err *err)
{
    cJSON *config = NULL;
    int rc = read_beside(path, "tokenizer_config.json", &json_added, &config, err) ||
                     named_token(j, config, "bos_token", &j->src.bos, err) ||
                     named_token(j, config, "eos_token", &j->src.eos, err) ||
                     find_stops(j, path, err)
                 ? -1
                 : 0;
    cJSON_Delete(config);
    if (rc)
        return -1;
    if (j->prefix >= 0)
        j->src.bos = j->prefix;
    if (j->src.eos < 0)
        j->src.eos = j->suffix >= 0 ? j->suffix : j->src.stops ? j->stop[0] : -1;
    if (j->suffix >= 0 && j->suffix != j->src.eos)
        return err_set(err, "post_processor: the token behind the text is not the eos_token");
    j->src.add_bos = j->prefix >= 0;
    j->src.add_eos = j->suffix >= 0;
    return 0;
}

struct tokenizer *tokenizer_from_json(const char *path, int32_t rows, struct err *err)
{
    struct tokenizer_json j = {
        .src = {.bos = -1, .eos = -1}, .rows = rows, .prefix = -1, .suffix = -1};
    struct tokenizer *t = NULL;
    cJSON *root = json_file_parse(path, &json_vocabulary, err);
    if (!root)
        return NULL;
    j.root = root;
    if (read_model(&j, err) == 0 && tokenizer_json_stages(&j, err) == 0 &&
        read_specials(&j, path, err) == 0)
        t = tokenizer_build(&j.src, err);
    if (!t)
        err_prefix(err, "%s", path);
    free((void *)j.text);
    free((void *)j.merge);
    free(j.length);
    free(j.merge_length);
    free(j.stop);
    free(j.kind);
    free(j.added);
    free(j.joined);
    for (int i = 0; i < JSON_STEPS_MAX; i++)
        free(j.literal[i]);
    cJSON_Delete(root);
    return t;
}
