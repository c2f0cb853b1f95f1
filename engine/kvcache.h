/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache.h - which page of the KV cache belongs to whom.
 *
 * Book-keeping only: the pages themselves live in the backend. A page holds KV_PAGE positions of
 * one sequence, all layers. A full page may be sealed: registered under its owner, its tokens and
 * the page before it, so that another sequence of that owner with the same beginning can share it.
 * A sealed page is never written again; who would have to write one takes a fresh page and computes
 * it anew. Owners are numbers that the caller gives; no page is ever found for another owner.
 *
 * Pages that nobody holds but that are sealed stay until they are needed (least recently used
 * first), or until their contents are in doubt (kvcache_forget()). Engine thread only.
 */
#ifndef WHET_ENGINE_KVCACHE_H
#define WHET_ENGINE_KVCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/args.h"

struct kvcache;

struct kvcache *kvcache_open(int32_t pages);
void kvcache_close(struct kvcache *kv);

int32_t kvcache_pages(const struct kvcache *kv);
/* Pages that kvcache_take() could hand out now: never used, released, or only cached. */
int32_t kvcache_available(const struct kvcache *kv);
/* Pages held by at least one sequence. available + used == pages. */
int32_t kvcache_used(const struct kvcache *kv);

/* A page for its holder to write; -1 when every page is held. Forgets the oldest cached page if
 * no other is left. */
int32_t kvcache_take(struct kvcache *kv);
/* One holder less. Drop a sequence's pages last page first, so that the beginning of a prefix
 * outlives its continuation. */
void kvcache_drop(struct kvcache *kv, int32_t page);
/* A number that changes whenever the page is handed out for new contents; never 0. */
uint64_t kvcache_use(const struct kvcache *kv, int32_t page);
/* True while exactly one sequence holds the page and nobody else can find it. */
bool kvcache_writable(const struct kvcache *kv, int32_t page);

/* Longest run of `owner`'s sealed pages that holds the first tokens of `tokens`, at most `max`
 * pages. Holds each, writes their numbers to `pages` and returns how many. */
int32_t kvcache_match(struct kvcache *kv, uint64_t owner, const int32_t *tokens, int32_t max,
                      int32_t *pages);

/* `owner`'s page with the contents `tokens` [KV_PAGE] after its sealed page `before` (-1: none),
 * which it holds from now on; -1 if there is none. */
int32_t kvcache_find(struct kvcache *kv, uint64_t owner, int32_t before, const int32_t *tokens);

/* Seals `page` for `owner`; it holds `tokens` [KV_PAGE] after the sealed page `before` (-1: none).
 * If a page of this owner with the same contents is known, the caller's hold moves to that one.
 * Returns the page to use from now on. A page after an unsealed one, or after one of another
 * owner, cannot be sealed and is returned as it is. */
int32_t kvcache_seal(struct kvcache *kv, uint64_t owner, int32_t page, int32_t before,
                     const int32_t *tokens);

/* What is in the pages is in doubt: none that is sealed now is ever found again. Those that are
 * held stay their holders', and nothing can be sealed behind them. Returns how many were sealed. */
int32_t kvcache_forget(struct kvcache *kv);

#endif
