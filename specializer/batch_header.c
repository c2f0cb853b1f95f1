/* SPDX-License-Identifier: Apache-2.0 */
/* batch_header.c - see batch_header.h. */
#include "specializer/batch_header.h"

#include "config/log.h"
#include "specializer/build/header_work.h"
#include "specializer/specializer_private.h"

/* A candidate to be built or being built for which a header could be made, or NULL. This looks at
 * files, and is asked all the time: no more once there is none. */
static const struct candidate *wants(struct specializer *s)
{
    if (s->header || s->batch.headers_made)
        return NULL;
    for (int i = 0; i < s->batch.n && s->has_compiler; i++) {
        const struct trial *t = &s->batch.trial[i];
        if (t->c && t->at == STAGE_BUILD && !t->c->template->library &&
            header_work_wanted(&s->env, t->c->define))
            return t->c;
    }
    s->batch.headers_made = true;
    return NULL;
}

/* The batch's builds do without if it could not be made for a reason of no compiler. */
void batch_header_poll(struct specializer *s)
{
    enum stage_result r = s->header ? header_work_poll(s->header) : STAGE_RUNNING;
    if (r == STAGE_RUNNING)
        return;
    header_work_end(s->header);
    s->header = NULL;
    s->batch.headers_made = r == STAGE_RETRY;
}

/* Makes the precompiled header (header.h) beside the first build, which goes without. Where there
 * is no room for both it comes after that, before the second (room()). */
void batch_header_start(struct specializer *s)
{
    struct err err = {""};
    const struct candidate *c = wants(s);
    if (!c)
        return;
    s->header = header_work_start(&s->env, c->define, &err);
    s->batch.headers_made = !s->header;
    if (!s->header)
        log_warn("specializer", "kernels are built without a precompiled header: %s", err.msg);
}

bool batch_header_wanted(struct specializer *s)
{
    return wants(s) != NULL;
}
