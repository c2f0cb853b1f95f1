/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.c - log-probabilities as JSON.
 *
 * A token need not be whole characters. The legacy shape, whose alternatives are keys of an
 * object, shows such a token as OpenAI did, `bytes:\xe2\x80`, which keeps the keys apart; the chat
 * shape shows replacement characters and gives the bytes beside them.
 *
 * A log-probability of minus infinity (a banned token) is written as -9999, as vLLM does, because
 * JSON has no infinity.
 */
#include "server/logprobs.h"

#include <math.h>
#include <string.h>

static const char *token_bytes(const struct choice *c, int32_t id, size_t *n)
{
    const struct tokenizer *t = c->g->info->tokenizer;
    *n = 0;
    return id >= 0 && id < tokenizer_vocab(t) ? tokenizer_bytes(t, id, true, n) : "";
}

static bool is_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len = utf8_sequence(s + i, n - i);
        if (!len)
            return false;
        i += (size_t)len;
    }
    return true;
}

static int64_t characters(const char *s, size_t n)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

static void put_logprob(struct buf *out, float v)
{
    json_put_number(out, v < -9999 ? -9999 : v, "-9999");
}

static void comma(struct buf *b)
{
    if (b->n)
        buf_char(b, ',');
}

/* ---- completions --------------------------------------------------------------------------- */

static void put_token(struct buf *out, const char *s, size_t n)
{
    if (is_text(s, n)) {
        json_put_string(out, s, n);
        return;
    }
    buf_str(out, "\"bytes:");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "\\\\x%02x", (unsigned char)s[i]);
    buf_char(out, '"');
}

static void put_alternative(const struct choice *c, struct buf *out, int32_t id, float logprob)
{
    size_t n;
    const char *s = token_bytes(c, id, &n);
    put_token(out, s, n);
    buf_char(out, ':');
    put_logprob(out, logprob);
}

/* One token in the four lists; `length` in characters of the returned text. */
static void add_legacy(struct choice *c, const struct sampled *s, int64_t length)
{
    struct logprobs *l = &c->logprobs;
    size_t n;
    const char *bytes = token_bytes(c, s->token, &n);
    comma(&l->tokens);
    put_token(&l->tokens, bytes, n);
    comma(&l->offsets);
    buf_printf(&l->offsets, "%lld", (long long)l->at);
    l->at += length;
    comma(&l->values);
    comma(&l->tops);
    if (isnan(s->logprob)) { /* the first token of a prompt: nothing comes before it */
        buf_str(&l->values, "null");
        buf_str(&l->tops, "null");
        return;
    }
    put_logprob(&l->values, s->logprob);
    buf_char(&l->tops, '{');
    bool chosen = false;
    for (int32_t i = 0; i < s->tops; i++) {
        chosen = chosen || s->top_id[i] == s->token;
        if (i)
            buf_char(&l->tops, ',');
        put_alternative(c, &l->tops, s->top_id[i], s->top_logprob[i]);
    }
    if (!chosen) { /* the token itself is always among them */
        if (s->tops)
            buf_char(&l->tops, ',');
        put_alternative(c, &l->tops, s->token, s->logprob);
    }
    buf_char(&l->tops, '}');
}

static bool begins_at(const struct prompt *p, size_t at, const char *bytes, size_t n)
{
    return at + n <= p->text_n && memcmp(p->text + at, bytes, n) == 0;
}

void logprobs_prompt(struct choice *c, const struct sampled *s)
{
    const struct prompt *p = &c->g->prompt[c->prompt];
    size_t n, at = c->logprobs.echo_at;
    const char *bytes = token_bytes(c, s->token, &n);
    /* A token that the tokenizer put in (BOS) is not part of the text. Any other that differs was
     * normalized: an e and its accent are two characters here and one in the token, so from there
     * on prompt tokens may be placed some characters too early. */
    bool in_text = begins_at(p, at, bytes, n);
    bool spaced = tokenizer_adds_spaces(c->g->info->tokenizer) && n > 0 && bytes[0] == ' ';
    if (!in_text && spaced && begins_at(p, at, bytes + 1, n - 1)) {
        bytes++; /* that space is not in the text */
        n--;
        in_text = true;
    }
    bool put_in =
        !in_text && !c->logprobs.tokens.n && tokenizer_is_special(c->g->info->tokenizer, s->token);
    if (in_text)
        c->logprobs.echo_at += n;
    add_legacy(c, s, put_in ? 0 : characters(bytes, n));
}

/* ---- chat ---------------------------------------------------------------------------------- */

static void put_entry(const struct choice *c, struct buf *out, int32_t id, float logprob)
{
    size_t n;
    const char *s = token_bytes(c, id, &n);
    buf_str(out, "{\"token\":");
    json_put_string(out, s, n);
    buf_str(out, ",\"logprob\":");
    put_logprob(out, logprob);
    buf_str(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned char)s[i]);
    buf_char(out, ']');
}

static void add_chat(struct choice *c, const struct sampled *s)
{
    struct buf *out = &c->logprobs.content;
    comma(out);
    put_entry(c, out, s->token, s->logprob);
    buf_str(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < s->tops; i++) {
        if (i)
            buf_char(out, ',');
        put_entry(c, out, s->top_id[i], s->top_logprob[i]);
        buf_char(out, '}');
    }
    buf_str(out, "]}");
}

/* Characters that a generated token adds to the text, as the engine gives it out. */
static int64_t added_characters(struct choice *c, int32_t id)
{
    const struct tokenizer *t = c->g->info->tokenizer;
    const struct prompt *p = &c->g->prompt[c->prompt];
    bool special = c->g->params.keep_special;
    size_t n = 0;
    for (int64_t i = 0; c->tokens == 1 && i < p->n && !c->logprobs.begun; i++)
        tokenizer_next_bytes(t, p->ids[i], special, &c->logprobs.begun, &n);
    if (id < 0 || id >= tokenizer_vocab(t))
        return 0;
    const char *bytes = tokenizer_next_bytes(t, id, special, &c->logprobs.begun, &n);
    return characters(bytes, n);
}

/* ---- both ---------------------------------------------------------------------------------- */

void logprobs_token(struct choice *c, const struct sampled *s)
{
    if (c->g->params.chat) {
        add_chat(c, s);
        return;
    }
    const struct prompt *p = &c->g->prompt[c->prompt];
    if (c->tokens == 1 && p->text) /* behind the echoed prompt, whatever its tokens spell */
        c->logprobs.at = characters(p->text, p->text_n) + p->unfinished;
    add_legacy(c, s, added_characters(c, s->token));
}

bool logprobs_pending(const struct choice *c)
{
    return c->logprobs.tokens.n || c->logprobs.content.n;
}

static void put_list(struct buf *out, const char *name, const struct buf *items)
{
    buf_printf(out, "\"%s\":[", name);
    buf_add(out, items->p, items->n);
    buf_char(out, ']');
}

void logprobs_put(const struct choice *c, struct buf *out)
{
    const struct logprobs *l = &c->logprobs;
    bool last_of_stream = c->g->params.stream && c->ended && !logprobs_pending(c);
    if (!c->g->params.logprobs || last_of_stream) {
        buf_str(out, "null");
    } else if (c->g->params.chat) {
        buf_char(out, '{');
        put_list(out, "content", &l->content);
        buf_str(out, ",\"refusal\":null}"); /* as OpenAI's schema demands */
    } else {
        buf_char(out, '{');
        put_list(out, "tokens", &l->tokens);
        buf_char(out, ',');
        put_list(out, "token_logprobs", &l->values);
        buf_char(out, ',');
        put_list(out, "top_logprobs", &l->tops);
        buf_char(out, ',');
        put_list(out, "text_offset", &l->offsets);
        buf_char(out, '}');
    }
}

void logprobs_clear(struct choice *c)
{
    struct logprobs *l = &c->logprobs;
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
    buf_clear(&l->content);
}
