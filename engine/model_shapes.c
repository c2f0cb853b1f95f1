/* SPDX-License-Identifier: Apache-2.0 */
/* model_shapes.c - models by name, with random weights: `random:NAME`, `random:NAME/RANKS` or
 * either with `:FORMAT` behind it, where a path is expected.
 *
 * What a machine does with a shape when the model's files are not there. Speed does not depend on
 * the values of weights, so such a model is served and measured like a real one; its text means
 * nothing. Weights are bf16, or in the format that the name ends with (q4_k, q8_0, ...), or in two:
 * q4_k+q6_k is q4_k but for attn_v and ffn_down of about half of the layers, which are q6_k, as in
 * the files that people download. They are drawn
 * from one seed, so every process that opens the name (a probe, a bench beside a server) has the
 * same model. Its tokenizer is made up too: bytes, three control tokens for ChatML, and a made-up
 * word for every other id, so that each token has text and whole answers can be watched and
 * compared.
 *
 * `random:NAME/RANKS` is what rank 0 of so many has of the shape (shard.h), as a model by itself: a
 * search on one device is then of the very matrices that a rank has. Its vocabulary is the rank's
 * rows of the head. What it lacks are the other ranks' sums, so its text means even less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/model_load.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "engine/utf8.h"

enum { SEED = 1, BYTES = 256, WORD = 8 };

#define LLAMA3(factor) true, factor, 1, 4, 8192

static const struct {
    const char *name;
    struct model_shape shape;
} shapes[] = {
    {"tiny", {ARCH_QWEN3, 2, 128, 4, 2, 64, 256, 512, 4096, 1e-6f, 1e4f, 0, 1, {0}}},
    {"smollm2-135m", {ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e-5f, 1e5f, 0, 1, {0}}},
    {"llama-3.2-1b",
     {ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, 131072, 1e-5f, 5e5f, 0, 1, {LLAMA3(32)}}},
    {"llama-3.2-3b",
     {ARCH_LLAMA, 28, 3072, 24, 8, 128, 8192, 128256, 131072, 1e-5f, 5e5f, 0, 1, {LLAMA3(32)}}},
    {"llama-3.1-8b",
     {ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 128256, 131072, 1e-5f, 5e5f, 0, 0, {LLAMA3(8)}}},
    {"mistral-7b", {ARCH_LLAMA, 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e-5f, 1e6f, 0, 0, {0}}},
    {"qwen3-0.6b", {ARCH_QWEN3, 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3-1.7b", {ARCH_QWEN3, 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e-6f, 1e6f, 0, 1, {0}}},
    {"qwen3-4b", {ARCH_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e-6f, 1e6f, 0, 1, {0}}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const char prefix[] = "random:";
static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
enum { CONTROLS = 3, FIRST_WORD = BYTES + CONTROLS };

static const char chatml[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}";

const struct model_shape *model_shape_at(int index, const char **name)
{
    if (index < 0 || index >= SHAPES)
        return NULL;
    *name = shapes[index].name;
    return &shapes[index].shape;
}

/* The whole shape that "NAME[/RANKS][:FORMAT]" names, or NULL. */
static const struct model_shape *model_shape_named(const char *name)
{
    size_t n = strcspn(name, "/:");
    for (int i = 0; i < SHAPES; i++)
        if (strlen(shapes[i].name) == n && strncmp(shapes[i].name, name, n) == 0)
            return &shapes[i].shape;
    return NULL;
}

static enum dtype type_named(const char *name, size_t n)
{
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (strlen(dtype_name((enum dtype)t)) == n &&
            strncasecmp(dtype_name((enum dtype)t), name, n) == 0)
            return (enum dtype)t;
    return DTYPE_COUNT;
}

enum dtype model_random_type(const char *path, enum dtype *more)
{
    const char *format = strchr(path + sizeof prefix - 1, ':');
    *more = DTYPE_BF16;
    if (!format)
        return DTYPE_BF16;
    format++;
    const char *plus = strchr(format, '+');
    enum dtype t = type_named(format, plus ? (size_t)(plus - format) : strlen(format));
    *more = plus ? type_named(plus + 1, strlen(plus + 1)) : t;
    return *more == DTYPE_COUNT ? DTYPE_COUNT : t;
}

bool model_is_random(const char *path)
{
    return strncmp(path, prefix, sizeof prefix - 1) == 0;
}

/* ---- the tokenizer -------------------------------------------------------------------------- */

/* A byte in the byte-level alphabet: printable Latin-1 stands for itself, the others for U+0100 on,
 * in order. */
static int32_t spell_byte(int byte, char *out)
{
    int other = 0;
    for (int b = 0; b <= byte; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xff && b != 0xad);
        if (b == byte && printable)
            other = byte - 0x100;
        else
            other += b < byte && !printable;
    }
    return utf8_encode((uint32_t)(0x100 + other), out);
}

/* A word of the id's own: a space (as the alphabet writes it) and syllables that count the id. */
static int32_t spell_word(int32_t id, char *out)
{
    static const char consonant[] = "bdfgklmnprstvz", vowel[] = "aeiou";
    int32_t n = spell_byte(' ', out);
    for (int32_t v = id; v > 0 && n + 2 <= WORD; v /= 70) {
        out[n++] = consonant[v % 14];
        out[n++] = vowel[v / 14 % 5];
    }
    return n;
}

/* Encodes any text, as bytes: without merges no word is ever put together. In the smallest
 * vocabulary the control tokens stand where the last bytes would, which no UTF-8 text has. */
static struct tokenizer *made_up_tokenizer(int32_t vocab, struct err *err)
{
    if (vocab < BYTES) {
        err_set(err, "%d tokens are too few for a tokenizer, which needs %d", vocab, (int)BYTES);
        return NULL;
    }
    int32_t first = vocab < FIRST_WORD ? vocab - CONTROLS : BYTES; /* control token */
    char(*spelled)[WORD] = xcalloc((size_t)vocab, sizeof *spelled);
    const char **text = xcalloc((size_t)vocab, sizeof *text);
    int32_t *length = xcalloc((size_t)vocab, sizeof *length);
    uint8_t *kind = xcalloc((size_t)vocab, sizeof *kind); /* TOKEN_NORMAL */
    for (int32_t i = 0; i < vocab; i++) {
        bool is_control = i >= first && i < first + CONTROLS;
        text[i] = is_control ? control[i - first] : spelled[i];
        length[i] = is_control  ? (int32_t)strlen(text[i])
                    : i < BYTES ? spell_byte(i, spelled[i])
                                : spell_word(i, spelled[i]);
        kind[i] = is_control ? TOKEN_CONTROL : TOKEN_NORMAL;
    }
    struct vocab_source src = {.tokens = vocab,
                               .text = text,
                               .length = length,
                               .kind = kind,
                               .pre = "gpt-2",
                               .bos = -1,
                               .eos = first + 2};
    struct tokenizer *t = tokenizer_build(&src, err);
    free(spelled);
    free((void *)text);
    free(length);
    free(kind);
    return t;
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Adds to a list of names; those that it has no room for are left out. */
static void add_name(char *list, size_t size, const char *name)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", name);
}

static int unknown(const char *name, struct err *err)
{
    char known[sizeof err->msg] = "";
    for (int i = 0; i < SHAPES; i++)
        add_name(known, sizeof known, shapes[i].name);
    return err_set(err, "random:%s is not known; there are %s", name, known);
}

static int unknown_format(const char *name, struct err *err)
{
    char known[sizeof err->msg] = "";
    for (int t = 0; t < DTYPE_COUNT; t++)
        add_name(known, sizeof known, dtype_name((enum dtype)t));
    return err_set(err, "random:%s: the format after the name is not known; there are %s", name,
                   known);
}

/* What a name says. */
struct named {
    const struct model_shape *whole;
    struct model_shape shape; /* the whole one's, or a rank's own */
    struct shard cut;         /* all zero: of nothing */
    enum dtype type, more;    /* model_random_mixed() */
};

/* The rank's shape, whose vocabulary is the rows that it has of the head. */
static int read_ranks(const char *name, struct named *n, struct err *err)
{
    const char *at = name + strcspn(name, "/:");
    char *end = NULL;
    n->shape = *n->whole;
    if (*at != '/')
        return 0;
    long world = at[1] >= '1' && at[1] <= '9' ? strtol(at + 1, &end, 10) : 0;
    if (world < 1 || world > SHARD_WORLD_MAX || (*end && *end != ':'))
        return err_set(err, "random:%s: a number of ranks from 1 to %d belongs behind the /", name,
                       SHARD_WORLD_MAX);
    if (world == 1)
        return 0;
    if (shard_plan(n->whole, (int32_t)world, 0, &n->cut, err))
        return err_prefix(err, "random:%s", name);
    n->shape = shard_shape(&n->cut, n->whole);
    n->shape.vocab = n->cut.vocab.count;
    return 0;
}

static int read_name(const char *path, struct named *n, struct err *err)
{
    const char *name = path + sizeof prefix - 1;
    *n = (struct named){.whole = model_shape_named(name)};
    n->type = model_random_type(path, &n->more);
    if (!n->whole)
        return unknown(name, err);
    if (read_ranks(name, n, err))
        return -1;
    return n->type == DTYPE_COUNT ? unknown_format(name, err) : 0;
}

int model_named_shape(const char *path, struct model_shape *shape, struct shard *cut,
                      struct err *err)
{
    struct named n;
    if (read_name(path, &n, err))
        return -1;
    *shape = n.shape;
    *cut = n.cut;
    return 0;
}

struct model *model_open_named(const char *path, bool with_tokenizer, struct err *err)
{
    const char *name = path + sizeof prefix - 1;
    struct named n;
    if (read_name(path, &n, err))
        return NULL;
    struct model *m = model_random_mixed(&n.shape, n.type, n.more, SEED);
    if (!m) {
        err_set(err, "random:%s: rows of this shape are not whole blocks of %s%s%s", name,
                dtype_name(n.type), n.more == n.type ? "" : " or ",
                n.more == n.type ? "" : dtype_name(n.more));
        return NULL;
    }
    free(m->path);
    free(m->name);
    m->path = xasprintf("%s%s", prefix, name);
    m->name = xasprintf("random-%s", name);
    m->shard = n.cut;
    m->alone = n.cut.world > 1;
    char *title = xasprintf("%s with random weights", name);
    free(m->description);
    model_describe(m, title);
    free(title);
    if (!with_tokenizer)
        return m;
    m->chat_template = xstrdup(chatml);
    m->tokenizer = made_up_tokenizer(n.shape.vocab, err);
    if (!m->tokenizer) {
        err_prefix(err, "random:%s", name);
        model_close(m);
        return NULL;
    }
    return m;
}
