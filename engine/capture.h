/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h - copies of what a region read, as far as every backend makes them alike: positions and
 * page tables of a step, with the pages renumbered so that only those in use need be copied.
 *
 * `number` [KV pages of the pool] is 0 for a page not yet seen, else 1 + its number in the capture;
 * the caller brings it zeroed, uses it for one capture, and copies the pages themselves. Engine
 * thread.
 */
#ifndef WHET_ENGINE_CAPTURE_H
#define WHET_ENGINE_CAPTURE_H

#include "engine/backend.h"

/* `count` items of `size` bytes, malloc'ed. */
void *capture_copy(const void *from, int64_t count, size_t size);
/* The step's sequences in a capture of `m` rows. The head's rows are those that need logits, of
 * which a step may have fewer than sequences, as where prompts are read beside decodes. */
int32_t capture_spans(const struct step *s, int32_t m);
/* c->position and c->kv_at of the step's tokens. */
void capture_kv_at(struct capture *c, const struct step *s, int32_t *number);
/* c->span and c->page_table of the step's sequences. */
void capture_table(struct capture *c, const struct step *s, int32_t *number);
/* Makes do with `most` pages: sequences that have more together share some, but no page into which
 * the step itself writes, because a kernel may read all others before the one that writes these has
 * ended. Renumbers c->page_table and c->pages; returns each page's new number by its old one
 * (malloc'ed). `most` is larger than the number of pages that the step writes into. */
int32_t *capture_fold(struct capture *c, int32_t most);

#endif
