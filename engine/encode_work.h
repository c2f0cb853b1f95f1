/* SPDX-License-Identifier: Apache-2.0 */
/* encode_work.h - inside the tokenizer: what an encoding has done so far, and whether to go on.
 *
 * Every stage counts its operations into the caller's struct encode_control. That is what the
 * tests hold against the length of the text, and where a caller who has lost interest is noticed:
 * `cancel` is looked at once in some thousand operations.
 */
#ifndef WHET_ENGINE_ENCODE_WORK_H
#define WHET_ENGINE_ENCODE_WORK_H

#include "engine/tokenizer.h"

enum { ENCODE_POLL_EVERY = 4096 };

/* Looks at `cancel`; -1 with a message if the encoding is to end. */
int encode_poll(struct encode_control *c, struct err *err);

/* Counts n operations; -1 as above. */
static inline int encode_work(struct encode_control *c, int64_t n, struct err *err)
{
    c->work += n;
    return c->work - c->polled < ENCODE_POLL_EVERY ? 0 : encode_poll(c, err);
}

#endif
