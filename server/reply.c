/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c - completions as JSON.
 *
 * The shapes are OpenAI's (the chat reference, and the legacy one for completions),
 * with vLLM's additions `stop_reason` and `token_ids`. One function writes a choice's common tail
 * for all four forms (completions and chat, whole and chunk), because what differs is only where
 * the text sits.
 *
 * text_offset counts characters of the returned text, so text[offset:] starts with the token.
 */
#include "server/reply.h"

#include <math.h>
#include <string.h>

#include "server/logprobs.h"
#include "server/server.h"

/* ---- events -------------------------------------------------------------------------------- */

void reply_event(struct choice *c, const struct inbox_event *in)
{
    const struct engine_event *e = &in->event;
    const struct generation *g = c->g;
    if (e->kind == EVENT_PROMPT) {
        logprobs_prompt(c, e->sampled);
        return;
    }
    buf_add(&c->text, e->text, e->text_n);
    if (e->kind != EVENT_TOKEN)
        return;
    c->tokens++;
    if (g->params.return_token_ids)
        buf_printf(&c->token_ids, "%s%d", c->token_ids.n ? "," : "", e->sampled->token);
    /* The list is of the tokens of `content`, as OpenAI's is; the legacy one has all that count. */
    if (g->params.logprobs && !(g->params.chat && e->is_end))
        logprobs_token(c, e->sampled);
}

/* ---- pieces -------------------------------------------------------------------------------- */

static void put_head(const struct generation *g, const char *object, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", g->id, object,
               (long long)g->created);
    json_put_text(out, g->info->model_name);
    buf_printf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", g->fingerprint);
}

static void put_usage(const struct generation *g, struct buf *out)
{
    int64_t prompt = 0, output = 0, cached = 0, guessed = 0, accepted = 0;
    bool other_bits = false;
    for (int32_t i = 0; i < g->prompts; i++)
        prompt += g->prompt[i].n;
    for (int32_t i = 0; i < g->choices; i++) {
        output += g->choice[i].end.event.output_tokens;
        guessed += g->choice[i].end.event.guessed_tokens;
        accepted += g->choice[i].end.event.accepted_tokens;
        other_bits |= g->choice[i].end.event.other_bits;
        if (i % g->params.n == 0) /* a prompt counts once, however many choices share it */
            cached += g->choice[i].end.event.cached_tokens;
    }
    buf_printf(out,
               "\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
               "\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}",
               (long long)prompt, (long long)output, (long long)(prompt + output),
               (long long)cached);
    if (g->params.speculates)
        buf_printf(out,
                   ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%lld,"
                   "\"rejected_prediction_tokens\":%lld,\"bit_equal\":%s}",
                   (long long)accepted, (long long)(guessed - accepted),
                   other_bits ? "false" : "true");
    buf_char(out, '}');
}

/* stop_reason: the string or id that the request itself named; null for the model's own end. */
static void put_stop_reason(const struct choice *c, struct buf *out)
{
    const struct params *p = &c->g->params;
    if (c->stop_string) {
        json_put_text(out, c->stop_string);
        return;
    }
    for (int32_t i = 0; i < p->stop_tokens; i++)
        if (p->stop_token[i] == c->end.event.stop_token) {
            buf_printf(out, "%d", p->stop_token[i]);
            return;
        }
    buf_str(out, "null");
}

/* Everything of a choice after its text, up to and with the closing brace. */
static void put_tail(const struct choice *c, struct buf *out)
{
    buf_str(out, ",\"logprobs\":");
    logprobs_put(c, out);
    if (c->ended) {
        buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":",
                   c->end.event.finish == FINISH_LENGTH ? "length" : "stop");
        put_stop_reason(c, out);
    } else {
        buf_str(out, ",\"finish_reason\":null,\"stop_reason\":null");
    }
    if (c->g->params.return_token_ids) {
        buf_str(out, ",\"token_ids\":[");
        buf_add(out, c->token_ids.p, c->token_ids.n);
        buf_char(out, ']');
    }
    buf_char(out, '}');
}

/* ---- whole --------------------------------------------------------------------------------- */

void reply_whole(const struct generation *g, struct buf *out)
{
    put_head(g, g->params.chat ? "chat.completion" : "text_completion", out);
    for (int32_t i = 0; i < g->choices; i++) {
        const struct choice *c = &g->choice[i];
        buf_printf(out, "%s{\"index\":%d,", i ? "," : "", c->index);
        buf_str(out,
                g->params.chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
        json_put_string(out, c->text.p, c->text.n);
        if (g->params.chat)
            buf_str(out, ",\"refusal\":null}"); /* OpenAI's schema demands it, null or not */
        put_tail(c, out);
    }
    buf_str(out, "],");
    put_usage(g, out);
    buf_char(out, '}');
}

/* ---- stream -------------------------------------------------------------------------------- */

static void open_chunk(const struct choice *c, struct buf *out)
{
    buf_str(out, "data: ");
    put_head(c->g, c->g->params.chat ? "chat.completion.chunk" : "text_completion", out);
    buf_printf(out, "{\"index\":%d,", c->index);
}

static void close_chunk(const struct generation *g, struct buf *out)
{
    buf_str(out, g->params.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void put_role(struct choice *c, struct buf *out)
{
    if (!c->g->params.chat || c->role_sent)
        return;
    c->role_sent = true;
    open_chunk(c, out);
    buf_str(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                 "\"finish_reason\":null}");
    close_chunk(c->g, out);
}

void reply_chunk(struct choice *c, struct buf *out)
{
    const struct generation *g = c->g;
    if (!c->tokens && !c->ended) /* prompt log-probabilities go out with the first token */
        return;
    put_role(c, out);
    if (!c->ended && !c->text.n && !c->token_ids.n && !logprobs_pending(c))
        return;
    open_chunk(c, out);
    if (g->params.chat && !c->text.n && c->ended) {
        buf_str(out, "\"delta\":{}");
    } else {
        buf_str(out, g->params.chat ? "\"delta\":{\"content\":" : "\"text\":");
        json_put_string(out, c->text.p, c->text.n);
        if (g->params.chat)
            buf_char(out, '}');
    }
    put_tail(c, out);
    close_chunk(g, out);
    buf_clear(&c->text);
    buf_clear(&c->token_ids);
    logprobs_clear(c);
}

void reply_stream_end(const struct generation *g, struct buf *out)
{
    if (g->params.include_usage) {
        buf_str(out, "data: ");
        put_head(g, g->params.chat ? "chat.completion.chunk" : "text_completion", out);
        buf_str(out, "],");
        put_usage(g, out);
        buf_str(out, "}\n\n");
    }
    buf_str(out, "data: [DONE]\n\n");
}
