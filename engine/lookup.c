/* SPDX-License-Identifier: Apache-2.0 */
/* lookup.c - see lookup.h.
 *
 * The predicted text and the sequence are searched as one text, one behind the other; a place in it
 * is a number from 0. `chain[i]` is the place before i where the same pair of tokens ends (or
 * another one with the same hash), `head` the last one of each hash. Chains hold places of pairs
 * whose second token is known, so a pair that reaches from one text into the other is left out.
 */
#include "engine/lookup.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"

/* How many earlier places of a pair are looked at; texts that repeat one pair for ever have many.
 */
enum { PLACES = 32, LEAST_HEADS = 256 };

struct lookup {
    int32_t *predicted;
    int32_t predicted_n;
    int32_t *chain; /* [size]; -1: there is none before */
    int32_t *head;  /* [mask + 1] */
    int32_t entered, size;
    int32_t agreed; /* tokens at the predicted text's beginning with which the answer began */
    uint32_t mask;
};

struct lookup *lookup_open(const int32_t *predicted, int32_t predicted_n)
{
    struct lookup *l = xcalloc(1, sizeof *l);
    l->predicted_n = predicted_n;
    l->predicted = xmalloc((size_t)predicted_n * sizeof *l->predicted + 1);
    if (predicted_n > 0)
        memcpy(l->predicted, predicted, (size_t)predicted_n * sizeof *l->predicted);
    return l;
}

void lookup_close(struct lookup *l)
{
    if (!l)
        return;
    free(l->predicted);
    free(l->chain);
    free(l->head);
    free(l);
}

int64_t lookup_bytes(const struct lookup *l)
{
    int64_t numbers = l->predicted_n + l->size + (l->head ? (int64_t)l->mask + 1 : 0);
    return numbers * (int64_t)sizeof(int32_t) + (int64_t)sizeof *l;
}

static int32_t token_at(const struct lookup *l, const int32_t *tokens, int32_t place)
{
    return place < l->predicted_n ? l->predicted[place] : tokens[place - l->predicted_n];
}

/* ---- chains -------------------------------------------------------------------------------- */

static uint32_t hash_of(int32_t a, int32_t b)
{
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32);
}

static void enter(struct lookup *l, const int32_t *tokens, int32_t place)
{
    l->chain[place] = -1;
    if (place == 0 || place == l->predicted_n)
        return;
    uint32_t h = hash_of(token_at(l, tokens, place - 1), token_at(l, tokens, place)) & l->mask;
    l->chain[place] = l->head[h];
    l->head[h] = place;
}

/* Room for `places`; with more heads all are entered anew. */
static void grow(struct lookup *l, int32_t places)
{
    if (places <= l->size)
        return;
    l->size = places + places / 2 + 64;
    l->chain = xrealloc(l->chain, (size_t)l->size * sizeof *l->chain);
    uint32_t heads = LEAST_HEADS;
    while (heads < (uint32_t)l->size)
        heads *= 2;
    if (l->head && heads == l->mask + 1)
        return;
    l->mask = heads - 1;
    l->head = xrealloc(l->head, (size_t)heads * sizeof *l->head);
    memset(l->head, 0xff, (size_t)heads * sizeof *l->head);
    l->entered = 0;
}

/* ---- guesses ------------------------------------------------------------------------------- */

/* How many tokens up to `place` and up to `last` are the same, at most LOOKUP_MATCH. */
static int32_t common(const struct lookup *l, const int32_t *tokens, int32_t place, int32_t last)
{
    int32_t first = place < l->predicted_n ? 0 : l->predicted_n, n = 0;
    while (n < LOOKUP_MATCH && place - n >= first && last - n >= l->predicted_n &&
           token_at(l, tokens, place - n) == token_at(l, tokens, last - n))
        n++;
    return n;
}

/* The place with most in common with the end, the last such; -1: none has enough. */
static int32_t best_place(const struct lookup *l, const int32_t *tokens, int32_t last,
                          int32_t *match)
{
    int32_t best = -1, looked = 0;
    *match = LOOKUP_LEAST - 1;
    for (int32_t p = l->chain[last]; p >= 0 && looked < PLACES; p = l->chain[p], looked++) {
        if (p == l->predicted_n - 1)
            continue; /* nothing follows it */
        int32_t n = common(l, tokens, p, last);
        if (n > *match) {
            *match = n;
            best = p;
        }
        if (n == LOOKUP_MATCH)
            break;
    }
    *match = best < 0 ? 0 : *match;
    return best;
}

int32_t lookup_guess(struct lookup *l, int32_t *tokens, int32_t n, int32_t prompt_n, int32_t most,
                     int32_t *match)
{
    int32_t places = l->predicted_n + n;
    *match = 0;
    if (most <= 0 || n <= 0)
        return 0;
    grow(l, places);
    for (; l->entered < places; l->entered++)
        enter(l, tokens, l->entered);
    /* As long as an answer is as predicted, it is expected to go on so. */
    int32_t output = n - prompt_n, place;
    while (l->agreed < output && l->agreed < l->predicted_n &&
           tokens[prompt_n + l->agreed] == l->predicted[l->agreed])
        l->agreed++;
    if (output >= 0 && l->agreed == output && l->agreed < l->predicted_n) {
        place = l->agreed - 1;
        *match = LOOKUP_MATCH;
    } else if ((place = best_place(l, tokens, places - 1, match)) < 0) {
        return 0;
    }
    /* A guess may reach into itself: what repeats with a short period goes on repeating. */
    int32_t end = place < l->predicted_n ? l->predicted_n : places + most, made = 0;
    for (place++; made < most && place < end; made++, place++)
        tokens[n + made] = token_at(l, tokens, place);
    return made;
}
