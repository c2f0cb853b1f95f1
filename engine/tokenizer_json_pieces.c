/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_json_pieces.c - the stages of a tokenizer.json whose vocabulary is of SentencePiece.
 *
 *   Llama 2, Phi-3       normalizer Prepend U+2581, Replace " " by U+2581; no pre-tokenizer
 *   Mistral 7B v0.3      no normalizer; pre-tokenizer Metaspace
 *   both                 decoder Replace, ByteFallback, Fuse, Strip
 *
 * Other replacements and other orders are refused: they would be other tokens, or another text.
 */
#include <string.h>

#include "engine/tokenizer_json.h"

static bool is_text(const cJSON *stage, const char *name, const char *text)
{
    return strcmp(json_text(stage, name, ""), text) == 0;
}

/* A Replace of one text by another. */
static bool replaces(const cJSON *stage, const char *from, const char *to)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(stage, "pattern");
    return is_text(pattern, "String", from) && is_text(stage, "content", to);
}

int tokenizer_json_prepend(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    if (!is_text(stage, "prepend", PIECE_SPACE))
        return err_set(err, "normalizer: Prepend of anything but U+2581 is not supported");
    if (j->pieces.prefix != PREFIX_NONE)
        return err_set(err, "normalizer: Prepend twice is not supported");
    j->pieces.prefix = PREFIX_EACH;
    return 0;
}

int tokenizer_json_replace(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    if (!replaces(stage, " ", PIECE_SPACE))
        return err_set(err, "normalizer: Replace of anything but ' ' by U+2581 is not supported");
    j->pieces.normalizes = true;
    j->marks_spaces = true;
    return 0;
}

int tokenizer_json_metaspace(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    static const struct {
        const char *name;
        enum space_prefix prefix;
    } schemes[] = {{"always", PREFIX_EACH}, {"first", PREFIX_FIRST}, {"never", PREFIX_NONE}};
    bool prefix = json_flag(stage, "add_prefix_space", true); /* how older files say "never" */
    const char *scheme = json_text(stage, "prepend_scheme", prefix ? "always" : "never");
    if (!is_text(stage, "replacement", PIECE_SPACE))
        return err_set(err, "pre_tokenizer: Metaspace with a replacement other than U+2581 is not "
                            "supported");
    if (j->marks_spaces || j->pieces.prefix != PREFIX_NONE)
        return err_set(err,
                       "pre_tokenizer: Metaspace behind a Prepend or Replace, or twice, is not "
                       "supported");
    j->marks_spaces = true;
    j->pieces.splits = json_flag(stage, "split", true);
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (strcmp(schemes[i].name, scheme) == 0) {
            j->pieces.prefix = schemes[i].prefix;
            return 0;
        }
    return err_set(err, "pre_tokenizer: Metaspace with prepend_scheme '%.40s' is not supported",
                   scheme);
}

/* Strip of at most one space, and that in front. */
static bool strips(const cJSON *stage, bool *one)
{
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(stage, "start");
    const cJSON *stop = cJSON_GetObjectItemCaseSensitive(stage, "stop");
    if (!is_text(stage, "type", "Strip") || !is_text(stage, "content", " ") ||
        !cJSON_IsNumber(start) || !cJSON_IsNumber(stop) || stop->valuedouble != 0)
        return false;
    *one = start->valuedouble == 1;
    return *one || start->valuedouble == 0;
}

int tokenizer_json_pieces_decoder(struct tokenizer_json *j, const cJSON *stage, struct err *err)
{
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(stage, "decoders");
    const cJSON *item = cJSON_IsArray(items) ? items->child : NULL;
    const char *type = json_text(stage, "type", "null");
    if (strcmp(type, "Sequence") != 0)
        return err_set(err,
                       "decoder '%.80s' is not supported beside U+2581 for spaces (a Sequence "
                       "of Replace, ByteFallback, Fuse and Strip is)",
                       type);
    bool right = is_text(item, "type", "Replace") && replaces(item, PIECE_SPACE, " ");
    item = item ? item->next : NULL;
    right = right && is_text(item, "type", "ByteFallback");
    item = item ? item->next : NULL;
    right = right && is_text(item, "type", "Fuse");
    item = item ? item->next : NULL;
    right = right && (!item || (strips(item, &j->pieces.strips) && !item->next));
    return right
               ? 0
               : err_set(err, "decoder: a Sequence other than Replace of U+2581 by ' ', "
                              "ByteFallback, Fuse and Strip of one ' ' in front is not supported");
}

int tokenizer_json_pieces(struct tokenizer_json *j, struct err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(j->root, "model");
    const char *unknown = json_text(model, "unk_token", NULL);
    if (j->src.steps > 0 || j->src.nfc)
        return err_set(err, "%s beside U+2581 for spaces is not supported",
                       j->src.nfc ? "normalizer: NFC" : "pre_tokenizer: another step");
    if (!j->marks_spaces)
        return err_set(err, "normalizer: Prepend without Replace is not supported");
    j->pieces.byte_fallback = json_flag(model, "byte_fallback", false);
    j->pieces.fuse_unknown = json_flag(model, "fuse_unk", false);
    j->pieces.unknown = unknown ? tokenizer_json_find(j, unknown) : -1;
    if (unknown && j->pieces.unknown < 0)
        return err_set(err, "model.unk_token '%.80s' is not in the vocabulary", unknown);
    j->src.pieces = &j->pieces;
    j->src.step = NULL;
    return 0;
}
