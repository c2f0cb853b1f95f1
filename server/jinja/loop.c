/* SPDX-License-Identifier: Apache-2.0 */
/* loop.c - for loops, and what `loop` tells inside of them.
 *
 * The filter of a loop (`for x in y if ...`) is asked when an item is needed, not before: the body
 * may have changed a namespace that it looks at. `loop.last` needs one item more, `loop.length`
 * all of them.
 *
 * A recursive loop (`for x in y recursive`) is a function that writes a text: `loop(other)` in its
 * body is what the same loop makes of other items. It sees what stands around the loop, and nothing
 * of the round that it is called from.
 */
#include <string.h>

#include "server/jinja/run.h"

static bool passes(struct jinja_run *r, struct jinja_loop *loop, struct jinja_value item)
{
    const struct jinja_node *filter = loop->node->kid[2];
    if (!filter)
        return true;
    struct jinja_scope *before = r->scope;
    r->scope = jinja_scope_new(r, loop->around);
    jinja_assign(r, r->scope, loop->node->kid[0], item);
    bool pass = jinja_truth(r, jinja_eval(r, filter));
    r->scope = before;
    return pass;
}

static size_t item_count(const struct jinja_loop *loop)
{
    return loop->items ? loop->items->n : loop->range->n;
}

/* Looks for the next item, if that is not done yet; false at the end. */
static bool look(struct jinja_run *r, struct jinja_loop *loop)
{
    while (!loop->looked && !loop->ended) {
        loop->ended = loop->next == item_count(loop);
        if (loop->ended)
            break;
        size_t i = loop->next++;
        struct jinja_value item =
            loop->items ? loop->items->v[i]
                        : jinja_int(loop->range->start + (int64_t)i * loop->range->step);
        if (passes(r, loop, item)) {
            loop->ahead = item;
            loop->looked = true;
        }
    }
    return loop->looked;
}

static bool advance(struct jinja_run *r, struct jinja_loop *loop, bool first)
{
    if (!look(r, loop))
        return false;
    loop->looked = false;
    loop->previous = loop->current;
    loop->current = loop->ahead;
    loop->index = first ? 0 : loop->index + 1;
    return true;
}

/* All items that are still to come, filtered once. */
static size_t count_rest(struct jinja_run *r, struct jinja_loop *loop)
{
    if (!loop->node->kid[2])
        return item_count(loop) - loop->next + (loop->looked ? 1 : 0);
    struct jinja_value rest = jinja_list_new(r);
    while (look(r, loop)) {
        jinja_list_add(r, rest, loop->ahead);
        loop->looked = false;
    }
    size_t n = rest.u.list->n;
    struct jinja_node *unfiltered = jinja_alloc(&r->m, sizeof *unfiltered);
    struct jinja_node **kid = jinja_alloc_items(&r->m, 5, sizeof(struct jinja_node *));
    *unfiltered = *loop->node;
    memcpy(kid, loop->node->kid, 5 * sizeof *kid);
    kid[2] = NULL;
    unfiltered->kid = kid;
    loop->node = unfiltered;
    loop->items = rest.u.list;
    loop->next = 0;
    loop->ended = false;
    return n;
}

/* In the scope around the loop. */
static enum jinja_flow run_loop(struct jinja_run *r, const struct jinja_node *n,
                                struct jinja_value from, int depth)
{
    struct jinja_scope *around = r->scope, *scope = jinja_scope_new(r, around);
    const char *name = jinja_interned(r->program, "loop");
    struct jinja_loop *loop = jinja_alloc(&r->m, sizeof *loop);
    *loop = (struct jinja_loop){.node = n, .whole = n, .around = around, .depth = depth};
    if (from.type == JINJA_RANGE) /* is not written down */
        loop->range = from.u.range;
    else
        loop->items = jinja_items(r, from);
    loop->current = jinja_undefined(LACK_VARIABLE, "previtem", 8, 0);
    bool first = true, whole = false;
    enum jinja_flow flow = FLOW_ON;
    for (; flow != FLOW_BREAK && advance(r, loop, first); first = false) {
        if (scope->kept)
            scope = jinja_scope_new(r, around);
        scope->n = 0;
        r->scope = scope;
        jinja_assign(r, scope, n->kid[0], loop->current);
        if (name)
            jinja_bind(r, scope, name, (struct jinja_value){.type = JINJA_LOOP, .u.loop = loop});
        flow = jinja_execute(r, n->kid[3]);
        whole = whole || flow == FLOW_ON;
        r->scope = around;
    }
    /* As in Jinja, a loop in which every round was left early has its else, too. */
    if (whole || !n->kid[4])
        return FLOW_ON;
    r->scope = jinja_scope_new(r, around);
    flow = jinja_execute(r, n->kid[4]);
    r->scope = around;
    return flow;
}

enum jinja_flow jinja_for(struct jinja_run *r, const struct jinja_node *n)
{
    return run_loop(r, n, jinja_eval(r, n->kid[1]), 0);
}

struct jinja_value jinja_call_loop(struct jinja_run *r, struct jinja_value self,
                                   struct jinja_args *a)
{
    const struct jinja_loop *loop = self.u.loop;
    struct jinja_value p[JINJA_PARAMS];
    struct jinja_out out = {0}, *before = r->out;
    struct jinja_scope *scope = r->scope;
    if (!loop->whole->op)
        jinja_fail(&r->m, "loop() needs a loop that is marked 'recursive'");
    jinja_place(r, "loop", "iterable", 1, a, p);
    jinja_deeper(r);
    r->out = &out;
    r->scope = loop->around;
    run_loop(r, loop->whole, p[0], loop->depth + 1);
    r->out = before;
    r->scope = scope;
    r->depth--;
    return jinja_taken(&out);
}

/* ---- loop.* -------------------------------------------------------------------------------- */

static struct jinja_value cycle(struct jinja_run *r, struct jinja_value self,
                                const struct jinja_value *p, struct jinja_args *a)
{
    (void)p;
    if (!a->n || a->names)
        jinja_fail(&r->m, "loop.cycle() needs values");
    return a->v[self.u.loop->index % a->n];
}

static struct jinja_value changed(struct jinja_run *r, struct jinja_value self,
                                  const struct jinja_value *p, struct jinja_args *a)
{
    struct jinja_value now = jinja_values(r, JINJA_TUPLE, a->n), before = now;
    struct jinja_loop *loop = self.u.loop;
    (void)p;
    for (size_t i = 0; i < a->n; i++)
        jinja_list_add(r, now, a->v[i]);
    before.u.list = loop->changed;
    bool same = loop->changed && jinja_equal(r, before, now);
    loop->changed = now.u.list;
    return jinja_bool(!same);
}

const struct jinja_method_row jinja_loop_methods[] = {
    {"cycle", NULL, 0, cycle}, {"changed", NULL, 0, changed}, {NULL, NULL, 0, NULL}};

struct jinja_value jinja_loop_attribute(struct jinja_run *r, struct jinja_value v, const char *name)
{
    struct jinja_loop *loop = v.u.loop;
    int64_t index = (int64_t)loop->index;
    if (strcmp(name, "index") == 0)
        return jinja_int(index + 1);
    if (strcmp(name, "index0") == 0)
        return jinja_int(index);
    if (strcmp(name, "first") == 0)
        return jinja_bool(index == 0);
    if (strcmp(name, "last") == 0)
        return jinja_bool(!look(r, loop));
    if (strcmp(name, "length") == 0)
        return jinja_int(index + 1 + (int64_t)count_rest(r, loop));
    if (strcmp(name, "revindex") == 0)
        return jinja_int(1 + (int64_t)count_rest(r, loop));
    if (strcmp(name, "revindex0") == 0)
        return jinja_int((int64_t)count_rest(r, loop));
    if (strcmp(name, "previtem") == 0)
        return index ? loop->previous : jinja_undefined(LACK_ITEM, "", 0, JINJA_LOOP);
    if (strcmp(name, "nextitem") == 0)
        return look(r, loop) ? loop->ahead : jinja_undefined(LACK_ITEM, "", 0, JINJA_LOOP);
    if (strcmp(name, "depth") == 0)
        return jinja_int(loop->depth + 1);
    if (strcmp(name, "depth0") == 0)
        return jinja_int(loop->depth);
    return jinja_method(r, v, name);
}
