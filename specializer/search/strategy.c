/* SPDX-License-Identifier: Apache-2.0 */
/* strategy.c - the state of a search, and the list of strategies. */
#include "specializer/search/strategy.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/candidate/hash.h"

void search_open(struct search *s, const struct space *space)
{
    size_t n = (size_t)space_size(space);
    *s = (struct search){.space = space};
    s->trial = xcalloc(n + 1, sizeof *s->trial);
    s->speed = xcalloc(n + 1, sizeof *s->speed);
}

void search_close(struct search *s)
{
    free(s->trial);
    free(s->speed);
    free(s->first);
    *s = (struct search){0};
}

void search_pending(struct search *s, const int32_t *id, int n)
{
    for (int i = 0; i < n; i++)
        if (s->trial[id[i]] == TRIAL_NONE) {
            s->trial[id[i]] = TRIAL_PENDING;
            s->tried++;
        }
}

void search_learn(struct search *s, int32_t id, double speed)
{
    if (s->trial[id] == TRIAL_NONE)
        s->tried++;
    if (speed > 0 && s->trial[id] != TRIAL_MEASURED)
        s->measured++;
    if (speed <= 0 && s->trial[id] == TRIAL_MEASURED)
        s->measured--;
    s->trial[id] = speed > 0 ? TRIAL_MEASURED : TRIAL_REFUSED;
    s->speed[id] = speed > 0 ? (float)speed : 0;
}

void search_forget(struct search *s, int32_t id)
{
    if (s->trial[id] != TRIAL_PENDING)
        return;
    s->trial[id] = TRIAL_NONE;
    s->tried--;
}

void search_again(struct search *s, int32_t id)
{
    s->tried -= s->trial[id] != TRIAL_NONE;
    s->measured -= s->trial[id] == TRIAL_MEASURED;
    s->trial[id] = TRIAL_NONE;
}

int search_best(const struct search *s, int32_t *id, int n)
{
    int found = 0;
    for (int32_t i = 0; i < space_size(s->space); i++) {
        if (s->trial[i] != TRIAL_MEASURED || (found == n && s->speed[i] <= s->speed[id[n - 1]]))
            continue;
        int at = found < n ? found++ : n - 1;
        while (at > 0 && s->speed[id[at - 1]] < s->speed[i]) {
            id[at] = id[at - 1];
            at--;
        }
        id[at] = i;
    }
    return found;
}

int32_t search_draw(const struct search *s, uint64_t *random)
{
    int32_t from;
    struct point p;
    if (search_best(s, &from, 1) == 0)
        return -1;
    const struct template *t = space_template(s->space, from);
    space_point(s->space, from, &p);
    for (int i = 0; i < s->advice->hints; i++) {
        const struct hint *h = &s->advice->hint[i];
        int knob = template_knob(t, h->knob), at = 0;
        if (knob < 0 || (h->template[0] && strcmp(h->template, t->id) != 0) ||
            random_below(random, 2) == 0)
            continue;
        while (at < h->values - 1 && random_below(random, 2))
            at++;
        p.value[knob] = h->value[at];
    }
    return space_find(s->space, t, &p);
}

static const struct strategy *const strategies[] = {
    &strategy_template,   &strategy_mcts, &strategy_agentic, &strategy_random,
    &strategy_exhaustive, &strategy_cost, &strategy_evolve,  &strategy_mcts4};

const struct strategy *strategy_find(const char *name)
{
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++)
        if (strcmp(strategies[i]->name, name) == 0)
            return strategies[i];
    return NULL;
}
