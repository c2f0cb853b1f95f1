/* SPDX-License-Identifier: Apache-2.0 */
/* step_times.c - see step_times.h. */
#include "engine/step_times.h"

#include <math.h>
#include <string.h>

/* Each token beyond the widest known step adds this share of it. */
#define UNSEEN 0.06
/* Weight of a new time among the old ones of its width. */
#define NEW_TIME 0.2

void step_times_learn(struct step_times *t, int32_t width, int64_t ns)
{
    double now = (double)ns;
    if (width < 1 || ns <= 0)
        return;
    if (width > STEP_TIMES_WIDTH) {
        now *= (double)STEP_TIMES_WIDTH / width;
        width = STEP_TIMES_WIDTH;
    }
    double *known = &t->ns[width];
    /* One that was held up by something else says little, of a width's first time, too: if that
     * counted whole, the width might never be tried again. */
    if (*known > 0)
        *known += NEW_TIME * (fmin(now, 2 * *known) - *known);
    else if (step_times_known(t))
        *known = fmin(now, 2 * step_times_ns(t, width));
    else
        *known = now;
}

void step_times_forget(struct step_times *t)
{
    memset(t, 0, sizeof *t);
}

bool step_times_known(const struct step_times *t)
{
    for (int32_t w = 1; w <= STEP_TIMES_WIDTH; w++)
        if (t->ns[w] > 0)
            return true;
    return false;
}

double step_times_ns(const struct step_times *t, int32_t width)
{
    if (width > STEP_TIMES_WIDTH)
        return step_times_ns(t, STEP_TIMES_WIDTH) * width / STEP_TIMES_WIDTH;
    int32_t below = width, above = width;
    while (below > 0 && t->ns[below] == 0)
        below--;
    while (above <= STEP_TIMES_WIDTH && t->ns[above] == 0)
        above++;
    bool more = above <= STEP_TIMES_WIDTH;
    if (below == 0 && !more)
        return 1 + UNSEEN * width;
    if (below == 0)
        return t->ns[above] * (0.5 + 0.5 * width / above);
    if (!more)
        return t->ns[below] * (1 + UNSEEN * (width - below));
    if (above == below)
        return t->ns[width];
    double part = (double)(width - below) / (above - below);
    return t->ns[below] + part * (t->ns[above] - t->ns[below]);
}
