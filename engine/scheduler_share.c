/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_share.c - beginnings that running sequences have in common.
 *
 * A sequence looks for its beginning in the prefix cache when it is admitted. Of those that come
 * together, the choices of one request or a burst with one system prompt, none finds anything
 * then. So whoever is about to get a piece of a step looks again, at the page that it has got to;
 * and where another one computes just that page, in the step under way or in the one that is being
 * planned, it leaves this step out, and has the page for nothing once that has landed.
 *
 * Why that cannot last: one is waited for only while it is in a step, and steps land.
 */
#include <string.h>

#include "engine/scheduler_private.h"

/* Of what a sequence has left, the part that it waits for if somebody computes it: less would not
 * be worth a step. Any two chats have the first words of their template in common. */
enum { WORTH = 4 };

/* Pages in front of its last token, which is always computed. */
static int32_t whole_pages(const struct sequence *seq)
{
    return (seq->n - 1) / KV_PAGE;
}

/* Whether the page that it is at may come out of the cache instead. */
static bool may_share(const struct scheduler *s, const struct sequence *seq)
{
    bool scores = seq->prompt_logprobs && seq->scored < seq->prompt_n;
    return s->limits.prefix_cache && !scores && !seq->doubted && seq->in_flight == 0 &&
           seq->computed / KV_PAGE == seq->sealed && seq->sealed < whole_pages(seq);
}

void scheduler_count_cached(struct scheduler *s, struct sequence *seq)
{
    int32_t from = seq->charged > seq->counted ? seq->charged : seq->counted;
    if (sequence_length(seq) != seq->prompt_n || seq->computed <= from)
        return;
    seq->cached_tokens += seq->computed - from;
    s->cached += (uint64_t)(seq->computed - from);
    seq->counted = seq->computed;
}

void scheduler_catch_up(struct scheduler *s, struct sequence *seq)
{
    int32_t from = seq->sealed;
    if (!may_share(s, seq))
        return;
    while (seq->sealed < whole_pages(seq)) {
        int32_t i = seq->sealed;
        int32_t page = kvcache_find(s->kv, scheduler_owner(s, seq), i > 0 ? seq->page[i - 1] : -1,
                                    seq->tokens + (int64_t)i * KV_PAGE);
        if (page < 0)
            break;
        kvcache_drop(s->kv, seq->page[i]);
        seq->page[i] = page;
        seq->sealed++;
    }
    if (seq->sealed == from)
        return;
    seq->computed = seq->sealed * KV_PAGE;
    if (seq->drafted > from * KV_PAGE) /* what the draft model knew of the pages that went */
        seq->drafted = from * KV_PAGE;
    scheduler_count_cached(s, seq);
}

/* Tokens of `seq`, from where it is on, that `other` computes in steps under way or planned: whole
 * pages, and none if the two have not come to the same place. */
static int32_t computed_by(const struct scheduler *s, const struct sequence *other,
                           const struct sequence *seq)
{
    int32_t at = seq->sealed, end = (other->computed + other->planned) / KV_PAGE, n = at;
    bool moves = other->in_flight > 0 || other->planned > 0;
    if (other == seq || other->doubted || !moves || other->sealed != at || end <= at ||
        scheduler_owner(s, other) != scheduler_owner(s, seq) ||
        (at > 0 && other->page[at - 1] != seq->page[at - 1]))
        return 0;
    while (n < end && n < whole_pages(seq) &&
           memcmp(other->tokens + (int64_t)n * KV_PAGE, seq->tokens + (int64_t)n * KV_PAGE,
                  KV_PAGE * sizeof *seq->tokens) == 0)
        n++;
    return (n - at) * KV_PAGE;
}

bool scheduler_follows(const struct scheduler *s, const struct sequence *seq)
{
    if (!may_share(s, seq))
        return false;
    int32_t worth = (sequence_pending(seq) + WORTH - 1) / WORTH;
    for (const struct sequence *other = s->running.oldest; other; other = other->newer)
        if (computed_by(s, other, seq) >= worth)
            return true;
    return false;
}
