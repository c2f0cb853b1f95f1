/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.c - what happens to a request's tokens once they are known.
 *
 * A generated token becomes bytes, bytes become whole characters (utf8_stream), characters pass
 * the stop strings (stop.h), and what is certain goes out with the token's event. The text of all
 * events of a request, put together, is its output: nothing is ever taken back, and streaming and
 * plain answers read the same events. A prompt of ids may end within a character, which the first
 * tokens complete: the output then begins with it. The space that SentencePiece puts in front of a
 * text is left out where the answer begins it, behind a prompt of nothing but hidden tokens.
 *
 * A token that ends the request (end of generation, or one of its stop ids) is counted and gets
 * its event, but adds no text unless special tokens were asked for. min_tokens holds off every
 * kind of stop: the ids are banned from the draw and the stop strings see nothing until then.
 */
#include "engine/sequence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/lookup.h"
#include "engine/utf8.h"

static void *copy_of(const void *from, int32_t count, size_t size)
{
    if (count <= 0)
        return NULL;
    void *to = xmalloc((size_t)count * size);
    memcpy(to, from, (size_t)count * size);
    return to;
}

/* All ids that end this request, the model's own first. */
static void copy_stops(struct sequence *s, const struct engine_request *r,
                       const struct sequence_model *m)
{
    int32_t own = r->ignore_eos ? 0 : m->stops;
    s->stop_token = xmalloc((size_t)(own + r->stop_tokens + 1) * sizeof *s->stop_token);
    for (int32_t i = 0; i < own; i++)
        s->stop_token[s->stop_tokens++] = m->stop[i];
    for (int32_t i = 0; i < r->stop_tokens; i++)
        s->stop_token[s->stop_tokens++] = r->stop_token[i];
}

static bool has_text(const struct sequence *s, int32_t token)
{
    return s->tokenizer && token < tokenizer_vocab(s->tokenizer); /* padding has none */
}

static const char *bytes_of(const struct sequence *s, int32_t token, bool special, size_t *n)
{
    *n = 0;
    return has_text(s, token) ? tokenizer_bytes(s->tokenizer, token, special, n) : "";
}

/* Whole characters that became certain with these bytes; *n of them in s->text. */
static void characters(struct sequence *s, const char *bytes, size_t bytes_n, bool flush, size_t *n)
{
    if (s->text_size < 3 * bytes_n + 16) {
        s->text_size = 3 * bytes_n + 64;
        s->text = xrealloc(s->text, s->text_size);
    }
    *n = utf8_stream_push(&s->utf8, bytes, bytes_n, flush, s->text);
}

/* Whether the text has begun with the prompt; if not, the first bytes of the answer begin it. */
static bool text_begun(const struct sequence *s)
{
    size_t n = 0;
    for (int32_t i = 0; i < s->prompt_n && n == 0; i++)
        bytes_of(s, s->tokens[i], s->keep_special, &n);
    return n > 0;
}

/* Leaves in the stream what the prompt's last tokens begin of a character: three bytes at most. */
static void begin_text(struct sequence *s, bool echo)
{
    int32_t from = s->prompt_n;
    for (size_t seen = 0, n; from > 0 && seen < 3; seen += n)
        bytes_of(s, s->tokens[--from], true, &n);
    for (size_t n, whole; from < s->prompt_n; from++) {
        const char *bytes = bytes_of(s, s->tokens[from], true, &n);
        characters(s, bytes, n, false, &whole);
    }
    s->unfinished = echo ? 0 : s->utf8.n;
    s->begun = text_begun(s);
}

struct sequence *sequence_new(const struct engine_request *r, const struct sequence_model *m)
{
    struct sequence *s = xcalloc(1, sizeof *s);
    s->client = r->client;
    s->max_running = r->limits ? r->limits->running : 0;
    s->n = s->prompt_n = r->prompt_n;
    s->tokens_size = r->prompt_n + (r->max_tokens < 256 ? r->max_tokens : 256);
    s->tokens = xmalloc((size_t)s->tokens_size * sizeof *s->tokens);
    memcpy(s->tokens, r->prompt, (size_t)r->prompt_n * sizeof *s->tokens);
    s->max_tokens = r->max_tokens;
    s->min_tokens = r->min_tokens;
    s->ignore_eos = r->ignore_eos;
    s->prompt_logprobs = r->prompt_logprobs;
    s->keep_special = r->keep_special;
    s->speculates = r->speculates;
    s->undraftable = r->undrafted;
    s->bit_equal = r->bit_equal;
    s->predicted = copy_of(r->predicted, r->predicted_n, sizeof *r->predicted);
    s->predicted_n = r->predicted_n;
    copy_stops(s, r, m);
    s->sampling = r->sampling;
    s->sampling.bias = copy_of(r->sampling.bias, r->sampling.biases, sizeof *r->sampling.bias);
    s->sampling.banned = s->stop_token;
    sequence_aim(s, 0);
    if (r->stops > 0)
        s->stop = stop_open(r->stop, r->stops, r->include_stop);
    s->tokenizer = m->tokenizer;
    s->on_event = r->on_event;
    s->user = r->user;
    s->stop_token_hit = -1;
    begin_text(s, r->echo);
    return s;
}

void sequence_free(struct sequence *s)
{
    if (!s)
        return;
    free(s->tokens);
    free(s->predicted);
    lookup_close(s->lookup);
    free(s->stop_token);
    free((void *)s->sampling.bias);
    free(s->page);
    stop_close(s->stop);
    free(s->text);
    free(s);
}

int32_t sequence_output(const struct sequence *s)
{
    return s->n - s->prompt_n;
}

int32_t sequence_length(const struct sequence *s)
{
    return s->n + s->ahead;
}

int32_t sequence_pending(const struct sequence *s)
{
    return sequence_length(s) - s->computed;
}

void sequence_room(struct sequence *s, int32_t more)
{
    if (s->n + more <= s->tokens_size)
        return;
    s->tokens_size = s->n + s->n / 2 + 64 + more;
    s->tokens = xrealloc(s->tokens, (size_t)s->tokens_size * sizeof *s->tokens);
}

void sequence_aim(struct sequence *s, int32_t index)
{
    s->sampling.banneds = index < s->min_tokens ? s->stop_tokens : 0;
}

int32_t sequence_longest(const struct sequence *s)
{
    return s->prompt_n + s->max_tokens;
}

static void emit(struct sequence *s, struct engine_event *event)
{
    if (!event->text)
        event->text = "";
    s->on_event(s->user, event);
}

void sequence_scored(struct sequence *s, int32_t index, const struct sampled *sampled)
{
    struct sampled first = {.token = s->tokens[0], .logprob = NAN};
    struct engine_event event = {.kind = EVENT_PROMPT, .index = index, .sampled = sampled};
    if (index == 0)
        event.sampled = &first;
    s->scored = index + 1;
    emit(s, &event);
}

/* ---- text ---------------------------------------------------------------------------------- */

/* What the prompt left unfinished is the answer's only if its first byte goes on with it. */
static void settle_unfinished(struct sequence *s, const char *bytes, size_t bytes_n, bool flush)
{
    char first[4];
    uint32_t cp;
    if (s->unfinished == 0 || (bytes_n == 0 && !flush))
        return;
    memcpy(first, s->utf8.held, (size_t)s->unfinished);
    first[s->unfinished] = bytes_n > 0 ? bytes[0] : '\0';
    if (utf8_decode(first, (size_t)s->unfinished + 1, &cp) < 0)
        s->utf8.n = 0;
    s->unfinished = 0;
}

static bool ends_with(const struct sequence *s, int32_t token)
{
    for (int32_t i = 0; i < s->stop_tokens; i++)
        if (s->stop_token[i] == token)
            return true;
    return false;
}

/* The text of `token` into event; a completed stop string decides the end. */
static void add_text(struct sequence *s, int32_t token, struct engine_event *event)
{
    size_t bytes_n = 0;
    const char *bytes = "";
    if (has_text(s, token))
        bytes = tokenizer_next_bytes(s->tokenizer, token, s->keep_special, &s->begun, &bytes_n);
    settle_unfinished(s, bytes, bytes_n, false);
    characters(s, bytes, bytes_n, false, &event->text_n);
    event->text = s->text;
    if (!s->stop || sequence_output(s) < s->min_tokens)
        return;
    int32_t match = stop_push(s->stop, event->text, event->text_n, &event->text, &event->text_n);
    if (match >= 0) {
        s->finish = FINISH_STOP;
        s->stop_string = stop_string(s->stop, match);
    }
}

void sequence_token(struct sequence *s, const struct sampled *sampled)
{
    struct engine_event event = {.kind = EVENT_TOKEN, .sampled = sampled};
    /* Ids banned until min_tokens cannot be drawn, so this is the end whenever it is seen. */
    bool last = ends_with(s, sampled->token);
    sequence_room(s, 1);
    s->tokens[s->n++] = sampled->token;
    if (last) {
        s->finish = FINISH_STOP;
        s->stop_token_hit = sampled->token;
    }
    event.is_end = last && !s->keep_special;
    if (!event.is_end)
        add_text(s, sampled->token, &event);
    if (s->finish == FINISH_NONE && sequence_output(s) >= s->max_tokens)
        s->finish = FINISH_LENGTH;
    emit(s, &event);
}

void sequence_end(struct sequence *s, enum finish finish, const char *error)
{
    if (s->ended)
        return;
    s->ended = true;
    if (s->finish == FINISH_NONE)
        s->finish = finish;
    struct engine_event event = {.kind = EVENT_END,
                                 .finish = s->finish,
                                 .stop_string = s->stop_string,
                                 .stop_token = s->stop_token_hit,
                                 .prompt_tokens = s->prompt_n,
                                 .output_tokens = sequence_output(s),
                                 .cached_tokens = s->cached_tokens,
                                 .guessed_tokens = s->guessed,
                                 .accepted_tokens = s->accepted,
                                 .other_bits = s->other_bits,
                                 .error = s->finish == FINISH_ERROR ? error : NULL};
    /* After a stop string nothing follows; otherwise the held text and half a character do. */
    if (!s->stop_string) {
        const char *held = "";
        size_t held_n = 0, tail_n;
        if (s->stop)
            held = stop_held(s->stop, &held_n);
        settle_unfinished(s, "", 0, true);
        characters(s, "", 0, true, &tail_n);
        char *text = xmalloc(held_n + tail_n + 1);
        memcpy(text, held, held_n);
        memcpy(text + held_n, s->text, tail_n);
        event.text = text;
        event.text_n = held_n + tail_n;
        emit(s, &event);
        free(text);
        return;
    }
    emit(s, &event);
}
