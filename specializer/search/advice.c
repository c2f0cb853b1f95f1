/* SPDX-License-Identifier: Apache-2.0 */
/* advice.c - advice as a structure: freeing, copying, filling up what one adviser left unsaid with
 * what another said. */
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "specializer/search/advice.h"

void advice_free(struct advice *a)
{
    if (!a)
        return;
    free(a->priority);
    free(a->hint);
    for (int i = 0; i < a->risks; i++)
        free(a->risk[i].id);
    free(a->risk);
    *a = (struct advice){0};
}

unsigned advice_risk(const struct advice *a, int32_t id)
{
    unsigned bits = 0;
    for (int i = 0; i < a->risks; i++)
        for (int k = 0; k < a->risk[i].ids; k++)
            if (a->risk[i].id[k] == id)
                bits |= a->risk[i].kind;
    return bits;
}

static bool is_heavy(const struct advice *a, int32_t id)
{
    for (int i = 0; i < a->warned; i++)
        for (int k = 0; a->risk[i].kind == RISK_RESOURCE && k < a->risk[i].ids; k++)
            if (a->risk[i].id[k] == id)
                return true;
    return false;
}

void advice_defer(const struct advice *a, int32_t *id, int n)
{
    int light = 0;
    for (int i = 0; i < n; i++) {
        int32_t at = id[i];
        if (is_heavy(a, at))
            continue;
        for (int k = i; k > light; k--)
            id[k] = id[k - 1];
        id[light++] = at;
    }
}

static void *copy_of(const void *from, int n, size_t size)
{
    void *to = xcalloc((size_t)n + 1, size);
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
    return to;
}

void advice_copy(struct advice *out, const struct advice *from)
{
    *out = *from;
    out->priority = copy_of(from->priority, from->priorities, sizeof *out->priority);
    out->hint = copy_of(from->hint, from->hints, sizeof *out->hint);
    out->risk = copy_of(from->risk, from->risks, sizeof *out->risk);
    for (int i = 0; i < out->risks; i++)
        out->risk[i].id = copy_of(from->risk[i].id, from->risk[i].ids, sizeof(int32_t));
}

static void add_ranking(struct advice *out, const struct advice *rest)
{
    unsigned char *named = xcalloc((size_t)rest->priorities + 1, 1);
    for (int i = 0; i < out->priorities; i++)
        if (out->priority[i] < rest->priorities)
            named[out->priority[i]] = 1;
    size_t most = (size_t)out->priorities + (size_t)rest->priorities;
    out->priority = xrealloc(out->priority, (most + 1) * sizeof *out->priority);
    for (int i = 0; i < rest->priorities; i++)
        if (!named[rest->priority[i]])
            out->priority[out->priorities++] = rest->priority[i];
    free(named);
}

/* Whether the advice has a hint for that knob of that template. */
static bool has_hint(const struct advice *a, const struct hint *of)
{
    for (int i = 0; i < a->hints; i++)
        if (strcmp(a->hint[i].knob, of->knob) == 0 &&
            (!a->hint[i].template[0] || strcmp(a->hint[i].template, of->template) == 0))
            return true;
    return false;
}

static bool has_risk(const struct advice *a, enum risk kind)
{
    for (int i = 0; i < a->warned; i++)
        if (a->risk[i].kind == kind)
            return true;
    return false;
}

void advice_add_heuristic(struct advice *out, struct advice *heuristic)
{
    out->advised = out->priorities;
    out->hinted = out->hints;
    out->warned = out->risks;
    size_t hints = (size_t)(out->hints + heuristic->hints);
    size_t risks = (size_t)(out->risks + heuristic->risks);
    add_ranking(out, heuristic); /* a full ranking: it names every id below its length */
    out->hint = xrealloc(out->hint, (hints + 1) * sizeof *out->hint);
    for (int i = 0; i < heuristic->hints; i++)
        if (!has_hint(out, &heuristic->hint[i]))
            out->hint[out->hints++] = heuristic->hint[i];
    out->risk = xrealloc(out->risk, (risks + 1) * sizeof *out->risk);
    for (int i = 0; i < heuristic->risks; i++)
        if (has_risk(out, heuristic->risk[i].kind))
            free(heuristic->risk[i].id);
        else /* its list of ids moves over */
            out->risk[out->risks++] = heuristic->risk[i];
    if (!out->label[0])
        memcpy(out->label, heuristic->label, sizeof out->label);
    heuristic->risks = 0;
    advice_free(heuristic);
}
