/* SPDX-License-Identifier: Apache-2.0 */
/* bench_points.c - `whet bench decode|prefill --points FILE`: points of templates in whole steps.
 *
 *   SLOT TEMPLATE NAME=value ... [; SLOT TEMPLATE ...]      # and what follows is a comment
 *   SLOT start NAME=value ...        the point that a search starts from, but for these knobs
 *
 * A kernel alone says little of a step: kernels start before their predecessors have ended, share
 * multiprocessors with them, and on several ranks meet in sums. So each line's kernels are put into
 * their slots, and steps with them, or prompts, are timed in turns with those without. What is
 * clearly faster stays there for the lines that follow; of what is not, nothing does.
 *
 * Both tables hold the same kernels between lines. A line's go into that of SET_SPECIALIZED, and if
 * they stay into the other one, too. Nothing is probed: what is fast here may be wrong.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench_private.h"
#include "specializer/winners.h"

#define KEPT_FROM 1.004

enum { PARTS_MAX = 8 };

struct line {
    int number, parts;
    char *text;
    struct named_kernel part[PARTS_MAX];
    struct err why; /* it is skipped; "": it is not */
};

/* All of a file, and what they are built with. */
struct points {
    struct bench *b;
    const struct work *work;
    struct starts *starts;
    struct line *line;
    int lines;
};

/* ---- the file ------------------------------------------------------------------------------- */

int bench_points_check(const struct bench *b, struct err *e)
{
    FILE *f = b->points ? fopen(b->points, "r") : NULL;
    if (b->points && !f)
        return err_set(e, "--points %s: cannot be read: %s", b->points, strerror(errno));
    return f ? fclose(f) : 0;
}

/* Why the line's last part cannot be measured, if there is anything. */
static void check_part(const struct points *p, struct line *l)
{
    const struct named_kernel *k = &l->part[l->parts - 1];
    struct dispatch *d = p->b->table[SET_SPECIALIZED];
    if (k->why.msg[0]) {
        err_set(&l->why, "%s", k->why.msg);
        return;
    }
    const struct work *w = p->work; /* a prompt's slots are those of its whole chunks */
    int32_t m = !w->chunk ? w->sequences : w->context < w->chunk ? w->context : w->chunk;
    if (dispatch_slot(d, k->slot->region, slot_layer(k->slot), m, w->context) != k->slot)
        err_set(&l->why, "%s is no slot of such steps", k->slot->name);
    for (int i = 0; i < l->parts - 1; i++)
        if (l->part[i].slot == k->slot)
            err_set(&l->why, "%s is named twice", k->slot->name);
}

static void forget(struct line *l)
{
    for (int i = 0; i < l->parts; i++)
        starts_forget(&l->part[i]);
}

/* `text` is left with its parts cut off from each other. */
static void read_parts(const struct points *p, struct line *l, char *text)
{
    char *rest = text;
    while (rest && !l->why.msg[0]) {
        char *one = strsep(&rest, ";");
        if (l->parts == PARTS_MAX) {
            err_set(&l->why, "more than %d kernels", (int)PARTS_MAX);
            break;
        }
        starts_named(p->starts, one, &l->part[l->parts++]);
        check_part(p, l);
    }
    if (l->why.msg[0])
        forget(l);
}

static void add_line(struct points *p, int number, char *text)
{
    text[strcspn(text, "#\r\n")] = 0;
    char *from = text + strspn(text, " \t");
    for (size_t n = strlen(from); n > 0 && strchr(" \t", from[n - 1]); n--)
        from[n - 1] = 0;
    if (!*from)
        return;
    p->line = xrealloc(p->line, (size_t)(p->lines + 1) * sizeof *p->line);
    struct line *l = &p->line[p->lines++];
    *l = (struct line){.number = number, .text = xasprintf("%s", from)};
    read_parts(p, l, from);
}

static int read_lines(struct points *p, struct err *e)
{
    char *text = NULL;
    size_t room = 0;
    FILE *f = fopen(p->b->points, "r");
    if (!f)
        return err_set(e, "--points %s: cannot be read: %s", p->b->points, strerror(errno));
    for (int number = 1; getline(&text, &room, f) >= 0; number++)
        add_line(p, number, text);
    free(text);
    fclose(f);
    return 0;
}

/* Of all lines at once: a compiler takes seconds, and nothing is timed yet. */
static void build_lines(struct points *p)
{
    struct named_kernel **all =
        xcalloc((size_t)p->lines * PARTS_MAX + 1, sizeof(struct named_kernel *));
    int n = 0;
    for (int i = 0; i < p->lines; i++)
        for (int k = 0; k < p->line[i].parts && !p->line[i].why.msg[0]; k++)
            all[n++] = &p->line[i].part[k];
    starts_build(p->starts, all, n);
    free(all);
}

/* ---- a line --------------------------------------------------------------------------------- */

static struct slot *slot_in(const struct points *p, enum set set, const struct named_kernel *k)
{
    return dispatch_find(p->b->table[set], k->slot->name);
}

static void put(const struct points *p, enum set set, const struct named_kernel *k,
                const struct kernel *kernel)
{
    dispatch_publish(p->b->table[set], slot_in(p, set, k), kernel);
}

/* False, with nothing loaded: the line is skipped. */
static bool load_line(const struct points *p, struct line *l)
{
    for (int i = 0; i < l->parts && !l->why.msg[0]; i++)
        if (starts_load_named(p->starts, &l->part[i]))
            err_set(&l->why, "%s", l->part[i].why.msg);
    if (!l->why.msg[0])
        return true;
    forget(l);
    for (int i = 0; i < l->parts; i++)
        if (l->part[i].kernel)
            p->b->ops->unload(p->b->backend, l->part[i].kernel);
    return false;
}

/* A kernel that broke was not what ran. */
static void look_for_broken(const struct points *p, struct line *l)
{
    for (int i = 0; p->b->ops->broken && i < l->parts; i++) {
        const char *why = p->b->ops->broken(p->b->backend, l->part[i].kernel);
        if (why)
            err_set(&l->why, "%s broke: %s", l->part[i].slot->name, why);
    }
}

/* Both tables get the line's kernels, or those that were there before it; the others are unloaded,
 * once a step has told all ranks that they are in no slot any more. */
static int settle(const struct points *p, struct line *l, bool kept, struct err *e)
{
    const struct kernel *gone[PARTS_MAX];
    struct bench *b = p->b;
    for (int i = 0; i < l->parts; i++) {
        const struct slot *slot = slot_in(p, SET_EAGER, &l->part[i]);
        const struct kernel *before = slot->kernel;
        gone[i] = !kept ? l->part[i].kernel : before != slot->eager ? before : NULL;
        if (kept)
            put(p, SET_EAGER, &l->part[i], l->part[i].kernel);
        else
            put(p, SET_SPECIALIZED, &l->part[i], before);
    }
    int failed = bench_once(b, p->work, SET_SPECIALIZED, e);
    for (int i = 0; i < l->parts; i++)
        if (gone[i])
            b->ops->unload(b->backend, (struct kernel *)gone[i]);
    return failed;
}

static void print_line(const struct line *l, const struct result *r, bool kept)
{
    if (l->why.msg[0])
        printf("line %-4d skipped: %s: %s\n", l->number, l->text, l->why.msg);
    else
        printf("line %-4d %10.1f us %10.1f us %+7.2f %% [%+.2f, %+.2f]  %-6s %s\n", l->number,
               r->s[SET_EAGER] * 1e6, r->s[SET_SPECIALIZED] * 1e6, 100 * (r->gain - 1),
               100 * (r->gain_low - 1), 100 * (r->gain_high - 1), kept ? "kept" : "-", l->text);
    fflush(stdout); /* somebody may be waiting, or end this before its last line */
}

/* 1: the line's kernels are those of both tables now; 0: they are not; -1: a step failed. */
static int measure_line(const struct points *p, struct line *l, struct err *e)
{
    struct result r = {.gain = 1};
    struct err step = {""};
    if (l->why.msg[0] || !load_line(p, l)) {
        print_line(l, &r, false);
        return 0;
    }
    for (int i = 0; i < l->parts; i++)
        put(p, SET_SPECIALIZED, &l->part[i], l->part[i].kernel);
    if (bench_measure(p->b, p->work, &r, &step))
        return err_set(e, "line %d: %s: %s", l->number, l->text, step.msg);
    look_for_broken(p, l);
    bool kept = r.gain > KEPT_FROM && !l->why.msg[0];
    print_line(l, &r, kept);
    return settle(p, l, kept, e) ? -1 : kept;
}

/* ---- all ------------------------------------------------------------------------------------ */

static int measure_lines(struct points *p, struct err *e)
{
    int kept = 0, one = 0;
    build_lines(p);
    if (!p->work->chunk && bench_fill(p->b, p->work->sequences, p->work->context, e))
        return -1;
    printf("\n%-9s %13s %13s %9s [10th, 90th percentile of %d pairs]\n", "", "before", "with it",
           "gain", p->b->pairs);
    for (int i = 0; i < p->lines && one >= 0; i++) {
        one = measure_line(p, &p->line[i], e);
        kept += one > 0;
    }
    if (one >= 0)
        printf("%d of %d lines kept\n", kept, p->lines);
    return one < 0 ? -1 : 0;
}

int bench_points(struct bench *b, struct err *e)
{
    bool prompt = strcmp(b->mode, "prefill") == 0;
    struct work w = prompt ? (struct work){1, b->prompt.value[0], b->chunk}
                           : (struct work){b->batch.value[0], b->context.value[0], 0};
    struct points p = {.b = b, .work = &w};
    p.starts = starts_open(&b->config, b->model, b->backend, b->ops, b->table[SET_SPECIALIZED], e);
    int failed = !p.starts || read_lines(&p, e) || measure_lines(&p, e) ? -1 : 0;
    for (int i = 0; i < p.lines; i++) {
        forget(&p.line[i]);
        free(p.line[i].text);
    }
    free(p.line);
    starts_close(p.starts);
    return failed;
}
