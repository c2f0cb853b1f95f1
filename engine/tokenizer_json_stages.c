/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json_stages.c - the pipeline of a tokenizer.json around its BPE model.
 *
 * The format describes any pipeline of many building blocks. Those of byte-level BPE models are
 * read here, those of SentencePiece in tokenizer_json_pieces.c; everything else is refused by its
 * type name, because a stage that is left out gives other tokens without any error. The words are
 * those of the file: "ByteLevel", "Split", ...
 */
#include <stdlib.h>
#include <string.h>

#include "engine/bpe.h"
#include "engine/pretokenize.h"
#include "engine/tokenizer_json.h"

const char *json_text(const cJSON *object, const char *name, const char *fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : fallback;
}

bool json_flag(const cJSON *object, const char *name, bool fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsBool(item) ? cJSON_IsTrue(item) : fallback;
}

/* The list inside a "Sequence", or NULL with a message. */
static const cJSON *sequence(const cJSON *stage, const char *list, struct err *err)
{
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(stage, list);
    if (cJSON_IsArray(items))
        return items;
    err_set(err, "'%s' of a Sequence is not a list", list);
    return NULL;
}

/* ---- normalizer and decoder ---------------------------------------------------------------- */

static int read_normalizer(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    if (!stage || cJSON_IsNull(stage))
        return 0;
    const char *type = json_text(stage, "type", "");
    if (strcmp(type, "NFC") == 0) {
        j->src.nfc = true;
        return 0;
    }
    if (strcmp(type, "Prepend") == 0)
        return tokenizer_json_prepend(j, stage, err);
    if (strcmp(type, "Replace") == 0)
        return tokenizer_json_replace(j, stage, err);
    if (strcmp(type, "Sequence") != 0)
        return err_set(err, "normalizer '%.80s' is not supported (NFC, Prepend and Replace are)",
                       type);
    const cJSON *items = sequence(stage, "normalizers", err), *item;
    if (!items)
        return -1;
    cJSON_ArrayForEach(item, items)
    {
        if (read_normalizer(j, item, err))
            return -1;
    }
    return 0;
}

static int check_decoder(const cJSON *stage, struct err *err)
{
    const char *type = json_text(stage, "type", "null");
    if (strcmp(type, "ByteLevel") == 0)
        return 0;
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(stage, "decoders");
    if (strcmp(type, "Sequence") == 0 && cJSON_GetArraySize(items) == 1)
        return check_decoder(items->child, err);
    return err_set(err, "decoder '%.80s' is not supported (ByteLevel is)", type);
}

/* ---- pre-tokenizer ------------------------------------------------------------------------- */

/* A literal text as a pattern. */
static char *escape_literal(const char *text)
{
    char *out = xmalloc(2 * strlen(text) + 1), *to = out;
    for (; *text; text++) {
        if (strchr("\\^$.[]|()?*+{}-#&", *text))
            *to++ = '\\';
        *to++ = *text;
    }
    *to = 0;
    return out;
}

static int add_step(struct tokenizer_json *j, struct pre_step step, struct err *err)
{
    if (j->src.steps == JSON_STEPS_MAX)
        return err_set(err, "pre_tokenizer: more than %d steps", JSON_STEPS_MAX);
    j->step[j->src.steps++] = step;
    return 0;
}

static int read_split(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(stage, "pattern");
    const char *regex = json_text(pattern, "Regex", NULL);
    const char *literal = json_text(pattern, "String", NULL);
    const char *behavior = json_text(stage, "behavior", "");
    bool isolated = strcmp(behavior, "Isolated") == 0;
    bool kept = strcmp(behavior, "Removed") == 0 && json_flag(stage, "invert", false);
    if (!isolated && !kept)
        return err_set(err, "pre_tokenizer: Split with behavior '%.40s' is not supported",
                       behavior);
    if (!regex && literal && *literal) {
        if (j->src.steps < JSON_STEPS_MAX)
            regex = j->literal[j->src.steps] = escape_literal(literal);
        else
            regex = "";
    }
    if (!regex)
        return err_set(err, "pre_tokenizer: Split has neither a Regex nor a String");
    return add_step(j, (struct pre_step){.pattern = regex, .drop_gaps = kept}, err);
}

static int read_pre_tokenizer(struct tokenizer_json *j, const cJSON *stage, bool *bytes,
                              struct err *err)
{
    const char *type = json_text(stage, "type", "null");
    if (*bytes)
        return err_set(err, "pre_tokenizer: '%.80s' behind ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0)
        return read_split(j, stage, err);
    if (strcmp(type, "Digits") == 0) {
        bool single = json_flag(stage, "individual_digits", false);
        const char *pattern = single ? pre_digit_pattern : pre_digits_pattern;
        return add_step(j, (struct pre_step){.pattern = pattern}, err);
    }
    if (strcmp(type, "Metaspace") == 0)
        return tokenizer_json_metaspace(j, stage, err);
    if (strcmp(type, "ByteLevel") == 0) {
        bool regex = json_flag(stage, "use_regex", true);
        *bytes = true;
        return add_step(
            j,
            (struct pre_step){.pattern = regex ? pre_gpt2_pattern : NULL,
                              .prefix_space = json_flag(stage, "add_prefix_space", true)},
            err);
    }
    if (strcmp(type, "Sequence") != 0)
        return err_set(err,
                       "pre_tokenizer '%.80s' is not supported (ByteLevel, Split, Digits and "
                       "Metaspace are)",
                       type);
    const cJSON *items = sequence(stage, "pretokenizers", err), *item;
    if (!items)
        return -1;
    cJSON_ArrayForEach(item, items)
    {
        if (read_pre_tokenizer(j, item, bytes, err))
            return -1;
    }
    return 0;
}

/* ---- post-processor ------------------------------------------------------------------------ */

/* One piece of a template; `behind` tells whether the text has come already. */
static int read_piece(struct tokenizer_json *j, const cJSON *piece, bool *behind, struct err *err)
{
    if (cJSON_GetObjectItemCaseSensitive(piece, "Sequence")) {
        if (*behind)
            return err_set(err, "post_processor: the template has the text twice");
        *behind = true;
        return 0;
    }
    const cJSON *special = cJSON_GetObjectItemCaseSensitive(piece, "SpecialToken");
    const char *text = json_text(special, "id", "");
    int32_t *id = *behind ? &j->suffix : &j->prefix;
    if (*id >= 0)
        return err_set(err, "post_processor: more than one token on a side of the text");
    *id = tokenizer_json_find(j, text);
    if (*id < 0)
        return err_set(err, "post_processor: token '%.80s' is not in the vocabulary", text);
    return 0;
}

static int read_post_processor(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    if (!stage || cJSON_IsNull(stage))
        return 0;
    const char *type = json_text(stage, "type", "");
    const cJSON *item, *items;
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* only about offsets */
    if (strcmp(type, "TemplateProcessing") == 0) {
        bool behind = false;
        items = cJSON_GetObjectItemCaseSensitive(stage, "single");
        cJSON_ArrayForEach(item, items)
        {
            if (read_piece(j, item, &behind, err))
                return -1;
        }
        return behind ? 0 : err_set(err, "post_processor: the template has no text");
    }
    if (strcmp(type, "Sequence") != 0)
        return err_set(err, "post_processor '%.80s' is not supported (TemplateProcessing is)",
                       type);
    items = sequence(stage, "processors", err);
    if (!items)
        return -1;
    cJSON_ArrayForEach(item, items)
    {
        if (read_post_processor(j, item, err))
            return -1;
    }
    return 0;
}

/* Bytes without a token would become the unknown token; we have none, so all must be there.
 * UTF-8 never has the bytes C0, C1 and F5 to FF. */
static int check_alphabet(const struct tokenizer_json *j, struct err *err)
{
    bool present[256] = {false};
    for (int32_t i = 0; i < j->src.tokens; i++) {
        char byte[2];
        if (j->length[i] <= 2 && byte_level_decode(j->text[i], (size_t)j->length[i], byte) == 1)
            present[(unsigned char)byte[0]] = true;
    }
    for (int b = 0; b < 0xF5; b++)
        if (!present[b] && b != 0xC0 && b != 0xC1)
            return err_set(err, "model.unk_token is set, and byte 0x%02X has no token", b);
    return 0;
}

/* What the model says that only goes with one kind of vocabulary. */
static int check_byte_level(const struct tokenizer_json *j, bool bytes, struct err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(j->root, "model");
    if (json_flag(model, "byte_fallback", false))
        return err_set(err, "model.byte_fallback is only supported beside U+2581 for spaces "
                            "(normalizer Replace or pre_tokenizer Metaspace)");
    if (!bytes)
        return err_set(err, "pre_tokenizer: neither ByteLevel nor Metaspace, so neither a "
                            "byte-level BPE nor SentencePiece's");
    return json_text(model, "unk_token", NULL) ? check_alphabet(j, err) : 0;
}

/* Whether a stage has come that is one of SentencePiece. */
static bool writes_spaces(const struct tokenizer_json *j)
{
    return j->marks_spaces || j->pieces.prefix != PREFIX_NONE;
}

int tokenizer_json_stages(struct tokenizer_json *j, struct err *err)
{
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(j->root, "decoder");
    const cJSON *pre = cJSON_GetObjectItemCaseSensitive(j->root, "pre_tokenizer");
    bool bytes = false;
    j->src.step = j->step;
    if (read_normalizer(j, cJSON_GetObjectItemCaseSensitive(j->root, "normalizer"), err))
        return -1;
    bool needless = (!pre || cJSON_IsNull(pre)) && writes_spaces(j);
    if (!needless && read_pre_tokenizer(j, pre, &bytes, err))
        return -1;
    if (read_post_processor(j, cJSON_GetObjectItemCaseSensitive(j->root, "post_processor"), err))
        return -1;
    if (writes_spaces(j))
        return tokenizer_json_pieces(j, err) || tokenizer_json_pieces_decoder(j, decoder, err) ? -1
                                                                                               : 0;
    return check_byte_level(j, bytes, err) || check_decoder(decoder, err) ? -1 : 0;
}
