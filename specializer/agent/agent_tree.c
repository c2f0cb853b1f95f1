/* SPDX-License-Identifier: Apache-2.0 */
/* agent_tree.c - see agent_tree.h. Trees are small (a few dozen nodes), so everything is a walk. */
#include "specializer/agent/agent_tree.h"

#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "config/table.h"
#include "specializer/candidate/hash.h"

static const char *const names[] = {"planned", "ready", "measured", "broken", "failed"};
EVERY_ROW(names, AGENT_STATES);

const char *agent_state_name(enum agent_state s)
{
    return (unsigned)s < AGENT_STATES ? names[s] : "?";
}

int agent_state_parse(const char *name)
{
    for (int i = 0; i < AGENT_STATES; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

int32_t tree_add(struct agent_tree *t, int32_t parent)
{
    t->node = xrealloc(t->node, (size_t)(t->nodes + 1) * sizeof *t->node);
    t->node[t->nodes] = (struct agent_node){.id = t->nodes, .parent = parent};
    return t->nodes++;
}

void tree_node_free(struct agent_node *n)
{
    free(n->label);
    free(n->plan);
    free(n->text);
    free(n->reason);
    free(n->log);
    *n = (struct agent_node){0};
}

void tree_free(struct agent_tree *t)
{
    for (int i = 0; i < t->nodes; i++)
        tree_node_free(&t->node[i]);
    free(t->node);
    *t = (struct agent_tree){0};
}

int tree_attempts(const struct agent_tree *t)
{
    int n = 0;
    for (int i = 0; i < t->nodes; i++)
        n += t->node[i].attempts;
    return n;
}

void tree_progress(const struct agent_tree *t, int *measured, int *dry)
{
    double best = 0;
    *measured = *dry = 0;
    for (int i = 0; i < t->nodes; i++)
        if (t->node[i].state == AGENT_MEASURED) {
            ++*measured;
            *dry = t->node[i].speed > best ? 0 : *dry + 1;
            best = t->node[i].speed > best ? t->node[i].speed : best;
        }
}

bool tree_closed(const struct agent_tree *t, int32_t node)
{
    int children = 0, failing = 0;
    for (int i = 0; i < t->nodes; i++)
        if (t->node[i].parent == node) {
            children++;
            failing += t->node[i].state == AGENT_FAILED;
        }
    return (failing >= FAILING_CHILDREN_MOST && failing == children) ||
           (t->node[node].parent < 0 && children >= ROOT_CHILDREN_MOST);
}

int tree_leaders(const struct agent_tree *t, int32_t *id, int n)
{
    int found = 0;
    for (int i = 0; i < t->nodes; i++) {
        const struct agent_node *c = &t->node[i];
        if (c->state != AGENT_MEASURED)
            continue;
        int at = found < n ? found++ : n;
        while (at > 0 && t->node[id[at - 1]].speed < c->speed) {
            if (at < n)
                id[at] = id[at - 1];
            at--;
        }
        if (at < n)
            id[at] = i;
    }
    return found;
}

int32_t tree_same(const struct agent_tree *t, const char *source, int32_t but)
{
    for (int i = 0; i < t->nodes; i++)
        if (i != but && source[0] && strcmp(t->node[i].source, source) == 0)
            return i;
    return -1;
}

void tree_refuse(struct agent_tree *t, int32_t node, bool repairable)
{
    struct agent_node *n = &t->node[node];
    n->speed = 0;
    n->state = repairable && n->debugs < DEBUGS_MOST ? AGENT_BROKEN : AGENT_FAILED;
}

static int32_t find_state(const struct agent_tree *t, enum agent_state s)
{
    for (int i = 0; i < t->nodes; i++)
        if (t->node[i].state == s)
            return i;
    return -1;
}

static bool is_living(const struct agent_tree *t, int32_t node)
{
    return t->node[node].state == AGENT_MEASURED && !tree_closed(t, node);
}

/* The node that grows next: the fastest, or with odds epsilon any; -1 when none lives. The seed, a
 * text of ours that is there to be right, is not drawn once a model's text is faster. */
static int32_t choose(struct agent_tree *t)
{
    int living = 0, at = -1;
    int32_t best = -1;
    for (int i = 0; i < t->nodes; i++)
        if (is_living(t, i)) {
            living++;
            if (best < 0 || t->node[i].speed > t->node[best].speed)
                best = i;
        }
    const bool beaten = best > 0 && is_living(t, 0);
    if (living <= beaten || random_below(&t->random, 1000) >= (int)(1000 * AGENT_EPSILON))
        return best;
    at = beaten ? 0 : -1;
    for (int left = random_below(&t->random, living - beaten); left >= 0; left--)
        do
            at++;
        while (!is_living(t, at));
    return at;
}

enum agent_move tree_next(struct agent_tree *t, int32_t *node)
{
    static const struct {
        enum agent_state state;
        enum agent_move move;
    } first[] = {
        {AGENT_READY, AGENT_TRY}, {AGENT_BROKEN, AGENT_DEBUG}, {AGENT_PLANNED, AGENT_CODE}};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        if ((*node = find_state(t, first[i].state)) >= 0)
            return first[i].move;
    *node = choose(t);
    return *node >= 0 ? AGENT_PLAN : AGENT_NOTHING;
}
