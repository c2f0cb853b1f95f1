/* SPDX-License-Identifier: Apache-2.0 */
/* agent_context.c - see agent_context.h. Prompts are bounded: lists are short, and a text longer
 * than TEXT_MOST is left out rather than cut, since half a kernel teaches nothing. */
#include "specializer/agent/agent_context.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_span.h"

enum { LEADERS = 3, DEADS = 6, CHILDREN = 8, KINS = 8, TEXT_MOST = 14 * 1024, WORDS_MOST = 400 };

int whole_characters(const char *text, int most)
{
    size_t n = strlen(text);
    if (n <= (size_t)most)
        return (int)n;
    for (n = (size_t)most; n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80;)
        n--;
    return (int)n;
}

static const char *label_of(const struct agent_node *n)
{
    return n->label ? n->label : n->parent < 0 ? "the seed" : "a plan";
}

/* "- 1.250 (12.1 us, 46 GB/s): the label" and what was measured besides. */
static void put_result(FILE *f, const struct agent_node *n)
{
    fprintf(f, "- %.3f: %s", n->speed, label_of(n));
    if (n->reason)
        fprintf(f, " (%s)", n->reason);
}

static bool is_measured(const struct agent_node *n)
{
    return n->state == AGENT_MEASURED;
}

static int32_t best_of(const struct agent_tree *t)
{
    int32_t id = -1;
    return tree_leaders(t, &id, 1) > 0 ? id : -1;
}

static void put_text(FILE *f, const struct agent_node *n, const char *whose)
{
    char *body = span_strip(n->text ? n->text : "");
    if (strlen(body) <= TEXT_MOST)
        fprintf(f, "\n%s, %.3f times eager: %s\n```c\n%s```\n", whose, n->speed, label_of(n), body);
    free(body);
}

char *context_leaders(const struct agent_tree *t)
{
    int32_t id[LEADERS];
    int n = tree_leaders(t, id, LEADERS);
    char *out = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    for (int i = 0; i < n; i++) {
        const struct agent_node *l = &t->node[id[i]];
        put_result(f, l);
        if (l->plan)
            fprintf(f, ": %s", l->plan);
        fputc('\n', f);
    }
    fputs(n == 0 ? "- nothing is measured yet\n" : "", f);
    fclose(f);
    return out;
}

char *context_dead(const struct agent_tree *t)
{
    char *out = NULL;
    size_t size = 0;
    int n = 0;
    FILE *f = xmemstream(&out, &size);
    for (int i = t->nodes - 1; i >= 0 && n < DEADS; i--) {
        const struct agent_node *d = &t->node[i];
        if (d->state != AGENT_FAILED)
            continue;
        fprintf(f, "- %s: %s\n", label_of(d), d->reason ? d->reason : "");
        n++;
    }
    fputs(n == 0 ? "- none yet\n" : "", f);
    fclose(f);
    return out;
}

char *context_children(const struct agent_tree *t, int32_t parent)
{
    char *out = NULL;
    size_t size = 0;
    int n = 0;
    const double was = t->node[parent].speed;
    FILE *f = xmemstream(&out, &size);
    for (int i = t->nodes - 1; i >= 0 && n < CHILDREN; i--) {
        const struct agent_node *c = &t->node[i];
        if (c->parent != parent)
            continue;
        n++;
        if (is_measured(c) && was > 0)
            fprintf(f, "- %s: %.1f %% %s than it (%.3f)", label_of(c),
                    fabs(c->speed / was - 1) * 100, c->speed < was ? "slower" : "faster", c->speed);
        else
            fprintf(f, "- %s: %s, %s", label_of(c), agent_state_name(c->state),
                    c->reason ? c->reason : "not tried yet");
        if (c->plan)
            fprintf(f, ": %.*s", whole_characters(c->plan, WORDS_MOST), c->plan);
        fputc('\n', f);
    }
    fputs(n == 0 ? "- nothing yet\n" : "", f);
    fclose(f);
    return out;
}

/* The change that made a text most slower than its parent; -1: none did. */
static int32_t worst_change(const struct agent_tree *t)
{
    int32_t worst = -1;
    double least = 1;
    for (int i = 0; i < t->nodes; i++) {
        const struct agent_node *n = &t->node[i];
        if (!is_measured(n) || n->parent < 0 || !is_measured(&t->node[n->parent]))
            continue;
        double ratio = n->speed / t->node[n->parent].speed;
        if (ratio < least) {
            least = ratio;
            worst = i;
        }
    }
    return worst;
}

static void put_kin(FILE *f, const struct agent_kin *k)
{
    int32_t best = best_of(k->tree), worst = worst_change(k->tree);
    if (best > 0) {
        const struct agent_node *n = &k->tree->node[best];
        fprintf(f, "- `%s`: %.3f: %s: %.*s\n", k->slot, n->speed, label_of(n),
                n->plan ? whole_characters(n->plan, WORDS_MOST) : 0, n->plan ? n->plan : "");
    }
    if (worst > 0) {
        const struct agent_node *n = &k->tree->node[worst];
        fprintf(f, "- `%s`: %.3f, from %.3f (slower): %s: %.*s\n", k->slot, n->speed,
                k->tree->node[n->parent].speed, label_of(n),
                n->plan ? whole_characters(n->plan, WORDS_MOST) : 0, n->plan ? n->plan : "");
    }
}

/* How much of another slot's text serves here: 3, the same region over the same format of weights;
 * 2, another region over it; 1, the same region; 0, nothing but what was learned. */
static int nearness(const struct agent_view *v, const struct agent_kin *k)
{
    const bool region = strncmp(v->slot, k->slot, strcspn(v->slot, "/") + 1) == 0;
    if (v->facts->REGION == REGION_ATTN)
        return region ? 3 : 0;
    const bool format = k->format == v->facts->WTYPE;
    return format ? 2 + region : region;
}

char *context_kin(const struct agent_view *v)
{
    char *out = NULL;
    size_t size = 0;
    FILE *f = xmemstream(&out, &size);
    for (int near = 3, n = 0; near >= 0; near--)
        for (int i = 0; i < v->kins && n < KINS; i++)
            if (nearness(v, &v->kin[i]) == near) {
                const long before = ftell(f);
                put_kin(f, &v->kin[i]);
                n += ftell(f) > before;
            }
    if (ftell(f) == 0)
        fputs("- nothing yet\n", f);
    fclose(f);
    return out;
}

/* The text that a model wrote for another slot and that serves best here, the fastest of the
 * nearest; NULL: none. */
static const struct agent_kin *best_kin(const struct agent_view *v, int32_t *node)
{
    const struct agent_kin *best = NULL;
    double most = 0;
    int nearest = 1;
    for (int i = 0; i < v->kins; i++) {
        const int32_t id = best_of(v->kin[i].tree);
        const int near = nearness(v, &v->kin[i]);
        if (id > 0 &&
            (near > nearest || (near == nearest && v->kin[i].tree->node[id].speed > most))) {
            best = &v->kin[i];
            nearest = near;
            most = best->tree->node[id].speed;
            *node = id;
        }
    }
    return best;
}

char *context_reference(const struct agent_view *v, const struct agent_tree *t, int32_t parent)
{
    char *out = NULL, whose[80];
    size_t size = 0;
    int32_t best = best_of(t), node = -1;
    FILE *f = xmemstream(&out, &size);
    const struct agent_kin *kin = best <= 0 ? best_kin(v, &node) : NULL;
    if (best > 0 && best != parent) {
        put_text(f, &t->node[best], "The best text of this slot so far");
    } else if (kin) {
        snprintf(whose, sizeof whose, "The best text of another slot, `%s`", kin->slot);
        put_text(f, &kin->tree->node[node], whose);
    }
    fclose(f);
    return out;
}

/* The fastest measured sibling other than `but`; `repaired`: among those that were. -1: none. */
static int32_t best_sibling(const struct agent_tree *t, int32_t node, int32_t but, bool repaired)
{
    int32_t best = -1;
    for (int i = 0; i < t->nodes; i++) {
        const struct agent_node *n = &t->node[i];
        if (i == node || i == but || n->parent < 0 || n->parent != t->node[node].parent ||
            !is_measured(n) || (repaired && n->debugs == 0))
            continue;
        if (best < 0 || n->speed > t->node[best].speed)
            best = i;
    }
    return best;
}

char *context_code(const struct agent_tree *t, int32_t node)
{
    char *out = NULL;
    size_t size = 0;
    const int32_t parent = t->node[node].parent, leader = best_of(t);
    const int32_t sibling = best_sibling(t, node, leader, false);
    FILE *f = xmemstream(&out, &size);
    if (leader > 0 && leader != parent)
        put_text(f, &t->node[leader], "For comparison, the fastest text so far");
    if (sibling >= 0)
        put_text(f, &t->node[sibling], "For comparison, what another plan made of the same text");
    fclose(f);
    return out;
}

char *context_debug(const struct agent_tree *t, int32_t node)
{
    char *out = NULL;
    size_t size = 0;
    int32_t sibling = best_sibling(t, node, -1, true);
    FILE *f = xmemstream(&out, &size);
    if (sibling >= 0)
        put_text(f, &t->node[sibling],
                 "A text of the same parent that was refused, repaired and "
                 "is right now");
    else if ((sibling = best_sibling(t, node, -1, false)) >= 0)
        put_text(f, &t->node[sibling], "A text of the same parent that is right");
    fclose(f);
    return out;
}
