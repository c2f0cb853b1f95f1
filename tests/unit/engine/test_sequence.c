/* SPDX-License-Identifier: Apache-2.0 */
/* test_sequence.c - from tokens to events: text, stops, ends. */
#include "tests/unit/unit.h"

#include <math.h>
#include <string.h>

#include "engine/sequence.h"
#include "tests/unit/engine/golden.h"
#include "tests/unit/engine/toy.h"

static struct tokenizer *tokenizer;
static const int32_t model_stop[] = {TOY_END, TOY_TURN};

/* What a request's owner has seen. */
struct seen {
    char text[512];
    char pieces[512]; /* texts of the events, each followed by '|' */
    int tokens, prompts, ends;
    struct engine_event end;
    float first_logprob;
};

static void on_event(void *user, const struct engine_event *event)
{
    struct seen *s = user;
    assert_int_equal(s->ends, 0); /* nothing comes after the end */
    if (event->kind == EVENT_PROMPT) {
        assert_int_equal(event->index, s->prompts);
        if (s->prompts++ == 0)
            s->first_logprob = event->sampled->logprob;
        return;
    }
    strncat(s->text, event->text, event->text_n);
    strncat(s->pieces, event->text, event->text_n);
    strcat(s->pieces, "|");
    s->tokens += event->kind == EVENT_TOKEN;
    if (event->kind == EVENT_END) {
        s->ends++;
        s->end = *event;
    }
}

static struct sequence *open_with(struct engine_request r, struct seen *seen)
{
    static const int32_t prompt[] = {'h', 'i'};
    memset(seen, 0, sizeof *seen);
    if (!r.prompt) {
        r.prompt = prompt;
        r.prompt_n = 2;
    }
    if (!r.max_tokens)
        r.max_tokens = 100;
    r.on_event = on_event;
    r.user = seen;
    struct sequence_model m = {.tokenizer = tokenizer, .stop = model_stop, .stops = 2};
    return sequence_new(&r, &m);
}

/* Feeds the bytes as tokens until the end is decided; returns how many were taken. */
static int feed(struct sequence *s, const char *bytes)
{
    int n = 0;
    for (; bytes[n] && s->finish == FINISH_NONE; n++)
        sequence_token(s, &(struct sampled){.token = (unsigned char)bytes[n]});
    return n;
}

static void token(struct sequence *s, int32_t id)
{
    sequence_token(s, &(struct sampled){.token = id});
}

static void sequence_sends_whole_characters_only(void **state)
{
    (void)state;
    struct seen seen;
    struct sequence *s = open_with((struct engine_request){0}, &seen);
    feed(s, "a\xf0\x9f\x98\x80z"); /* a, an emoji of four bytes, z */
    assert_string_equal(seen.pieces, "a||||\xf0\x9f\x98\x80|z|");
    sequence_free(s);
}

static void sequence_replaces_half_a_character_at_the_end(void **state)
{
    (void)state;
    struct seen seen;
    struct sequence *s = open_with((struct engine_request){.max_tokens = 2}, &seen);
    feed(s, "a\xc3");
    assert_int_equal(s->finish, FINISH_LENGTH);
    sequence_end(s, s->finish, NULL);
    assert_string_equal(seen.pieces, "a||\xef\xbf\xbd|");
    assert_int_equal(seen.end.finish, FINISH_LENGTH);
    assert_int_equal(seen.end.output_tokens, 2);
    assert_int_equal(seen.end.prompt_tokens, 2);
    sequence_free(s);
}

/* The text of an answer that is `text` in tokens of SentencePiece, behind a prompt of these ids. */
static const char *answer_in_pieces(const int32_t *prompt, int32_t n, bool keep_special,
                                    const char *text)
{
    static struct seen seen;
    struct tokenizer *bytes = tokenizer;
    char *path = golden_path("tokenizer/pieces.json");
    int32_t *ids;
    tokenizer = tokenizer_from_json(path, TOKENS_MAX, NULL);
    assert_non_null(tokenizer);
    struct engine_request r = {
        .prompt = prompt, .prompt_n = n, .max_tokens = 64, .keep_special = keep_special};
    struct sequence *s = open_with(r, &seen);
    int64_t count = tokenizer_encode(tokenizer, text, strlen(text), false, &ids, NULL);
    for (int64_t i = 0; i < count; i++)
        token(s, ids[i]);
    sequence_end(s, FINISH_LENGTH, NULL);
    sequence_free(s);
    tokenizer_free(tokenizer);
    tokenizer = bytes;
    free(path);
    free(ids);
    return seen.pieces;
}

static void the_space_of_sentencepiece_is_left_out_where_the_answer_begins_the_text(void **state)
{
    (void)state;
    /* <s> is 1, <0x61> is `a` behind <unk>, <s>, </s>, three more added tokens and 0x61 bytes. */
    const int32_t hidden[] = {1}, text[] = {1, 6 + 0x61};
    const char *dog = "the \xf0\x9f\x90\x95"; /* bytes, one a token */
    assert_string_equal(answer_in_pieces(hidden, 1, false, dog), "the| ||||\xf0\x9f\x90\x95||");
    assert_string_equal(answer_in_pieces(text, 2, false, dog), " the| ||||\xf0\x9f\x90\x95||");
    assert_string_equal(answer_in_pieces(hidden, 1, true, dog), " the| ||||\xf0\x9f\x90\x95||");
    assert_string_equal(answer_in_pieces(hidden, 1, false, ""), "|");
}

/* The text that follows a prompt of `n` bytes, one a token. */
static const char *text_after(const char *prompt, int32_t n, bool echo, const char *output)
{
    static struct seen seen;
    int32_t ids[8];
    for (int32_t i = 0; i < n; i++)
        ids[i] = (unsigned char)prompt[i];
    struct engine_request r = {.prompt = ids, .prompt_n = n, .max_tokens = 8, .echo = echo};
    struct sequence *s = open_with(r, &seen);
    feed(s, output);
    sequence_end(s, FINISH_LENGTH, NULL);
    sequence_free(s);
    return seen.text;
}

static void sequence_goes_on_with_the_character_that_the_prompt_began(void **state)
{
    (void)state;
    for (int echo = 0; echo < 2; echo++) {
        assert_string_equal(text_after("a\xe8", 2, echo, "\xb5\x84z"), "\xe8\xb5\x84z");
        assert_string_equal(text_after("\xf0\x9f\x98", 3, echo, "\x80"), "\xf0\x9f\x98\x80");
        assert_string_equal(text_after("\xc3\xa9", 2, echo, "z"), "z"); /* it was whole */
        assert_string_equal(text_after("\xa9\xa9", 2, echo, "z"), "z"); /* and is none */
        assert_string_equal(text_after("a\xe8", 2, echo, "\xb5z"), "\xef\xbf\xbdz");
        /* What nothing goes on with is the prompt's, and shown where the prompt is. */
        assert_string_equal(text_after("a\xe8", 2, echo, "z"), echo ? "\xef\xbf\xbdz" : "z");
        assert_string_equal(text_after("a\xe8", 2, echo, ""), echo ? "\xef\xbf\xbd" : "");
    }
}

static void sequence_ends_at_a_stop_string_across_tokens(void **state)
{
    (void)state;
    struct seen seen;
    const char *const stop[] = {"###", "\nEnd"};
    struct engine_request r = {.stop = stop, .stops = 2};
    struct sequence *s = open_with(r, &seen);
    assert_int_equal(feed(s, "one #two\nEnding"), 12);
    sequence_end(s, s->finish, NULL);
    assert_string_equal(seen.text, "one #two");
    assert_int_equal(seen.tokens, 12);
    assert_int_equal(seen.end.finish, FINISH_STOP);
    assert_string_equal(seen.end.stop_string, "\nEnd");
    assert_int_equal(seen.end.stop_token, -1);
    sequence_free(s);
}

static void sequence_gives_held_text_back_when_it_ends_otherwise(void **state)
{
    (void)state;
    struct seen seen;
    const char *const stop[] = {"###"};
    struct engine_request r = {.stop = stop, .stops = 1};
    struct sequence *s = open_with(r, &seen);
    feed(s, "ab##\xe2\x82");
    assert_string_equal(seen.text, "ab");
    token(s, TOY_END);
    sequence_end(s, FINISH_CANCELLED, NULL); /* the token decided first */
    assert_string_equal(seen.text, "ab##\xef\xbf\xbd");
    assert_int_equal(seen.end.finish, FINISH_STOP);
    assert_int_equal(seen.end.stop_token, TOY_END);
    sequence_free(s);
}

static void sequence_counts_the_ending_token_and_hides_its_text(void **state)
{
    (void)state;
    struct seen seen;
    struct sequence *s = open_with((struct engine_request){0}, &seen);
    feed(s, "ok");
    token(s, TOY_TAG); /* special, but not an end */
    token(s, TOY_TURN);
    sequence_end(s, s->finish, NULL);
    assert_string_equal(seen.text, "ok");
    assert_int_equal(seen.end.output_tokens, 4);
    assert_int_equal(seen.end.stop_token, TOY_TURN);
    sequence_free(s);
    s = open_with((struct engine_request){.keep_special = true}, &seen);
    feed(s, "ok");
    token(s, TOY_TAG);
    token(s, TOY_TURN);
    assert_string_equal(seen.text, "ok<|tag|><|turn|>");
    sequence_free(s);
}

static void sequence_ends_at_stop_ids_of_its_own(void **state)
{
    (void)state;
    struct seen seen;
    const int32_t ids[] = {'q'};
    struct engine_request r = {.stop_token = ids, .stop_tokens = 1, .ignore_eos = true};
    struct sequence *s = open_with(r, &seen);
    token(s, TOY_END); /* ignored */
    assert_int_equal(s->finish, FINISH_NONE);
    assert_int_equal(feed(s, "abqd"), 3);
    assert_string_equal(seen.text, "ab");
    assert_int_equal(s->stop_token_hit, 'q');
    sequence_free(s);
}

static void sequence_holds_off_every_stop_until_min_tokens(void **state)
{
    (void)state;
    struct seen seen;
    const char *const stop[] = {"xx"};
    struct engine_request r = {.stop = stop, .stops = 1, .min_tokens = 4};
    struct sequence *s = open_with(r, &seen);
    assert_int_equal(s->sampling.banneds, 2); /* the model's ends cannot be drawn */
    feed(s, "xxx");
    assert_int_equal(s->finish, FINISH_NONE);
    sequence_aim(s, sequence_output(s));
    assert_int_equal(s->sampling.banneds, 2);
    feed(s, "x");
    assert_int_equal(s->finish, FINISH_NONE); /* matching starts here, with one x */
    sequence_aim(s, sequence_output(s));
    assert_int_equal(s->sampling.banneds, 0);
    assert_int_equal(feed(s, "xy"), 1);
    assert_string_equal(seen.text, "xxx");
    sequence_free(s);
}

static void sequence_ends_once_whatever_happens(void **state)
{
    (void)state;
    struct seen seen;
    struct sequence *s = open_with((struct engine_request){0}, &seen);
    feed(s, "abc");
    sequence_end(s, FINISH_ERROR, "the device is gone");
    assert_int_equal(seen.end.finish, FINISH_ERROR);
    assert_string_equal(seen.end.error, "the device is gone");
    sequence_end(s, FINISH_CANCELLED, NULL);
    assert_int_equal(seen.ends, 1);
    sequence_free(s);
}

static void sequence_reports_prompt_positions_in_order(void **state)
{
    (void)state;
    struct seen seen;
    struct sequence *s = open_with((struct engine_request){.prompt_logprobs = true}, &seen);
    sequence_scored(s, 0, NULL);
    sequence_scored(s, 1, &(struct sampled){.token = 'i', .logprob = -1});
    assert_int_equal(seen.prompts, 2);
    assert_true(isnan(seen.first_logprob));
    assert_int_equal(s->scored, 2);
    sequence_free(s);
}

static void sequence_keeps_its_own_copy_of_the_request(void **state)
{
    (void)state;
    struct seen seen;
    int32_t prompt[] = {'a', 'b'}, ids[] = {'q'};
    char stop_text[] = "zz";
    const char *const stop[] = {stop_text};
    struct logit_bias bias[] = {{1, 2}};
    struct engine_request r = {.prompt = prompt,
                               .prompt_n = 2,
                               .stop = stop,
                               .stops = 1,
                               .stop_token = ids,
                               .stop_tokens = 1,
                               .sampling = {.bias = bias, .biases = 1}};
    struct sequence *s = open_with(r, &seen);
    prompt[0] = ids[0] = bias[0].id = 'w';
    stop_text[0] = 'w';
    assert_int_equal(s->tokens[0], 'a');
    assert_int_equal(s->sampling.bias[0].id, 1);
    assert_int_equal(feed(s, "wzz"), 3);
    assert_int_equal(s->finish, FINISH_STOP);
    sequence_free(s);
}

static int open_tokenizer(void **state)
{
    (void)state;
    tokenizer = toy_tokenizer();
    return tokenizer ? 0 : -1;
}

static int close_tokenizer(void **state)
{
    (void)state;
    tokenizer_free(tokenizer);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequence_sends_whole_characters_only),
        cmocka_unit_test(the_space_of_sentencepiece_is_left_out_where_the_answer_begins_the_text),
        cmocka_unit_test(sequence_replaces_half_a_character_at_the_end),
        cmocka_unit_test(sequence_goes_on_with_the_character_that_the_prompt_began),
        cmocka_unit_test(sequence_ends_at_a_stop_string_across_tokens),
        cmocka_unit_test(sequence_gives_held_text_back_when_it_ends_otherwise),
        cmocka_unit_test(sequence_counts_the_ending_token_and_hides_its_text),
        cmocka_unit_test(sequence_ends_at_stop_ids_of_its_own),
        cmocka_unit_test(sequence_holds_off_every_stop_until_min_tokens),
        cmocka_unit_test(sequence_ends_once_whatever_happens),
        cmocka_unit_test(sequence_reports_prompt_positions_in_order),
        cmocka_unit_test(sequence_keeps_its_own_copy_of_the_request),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
