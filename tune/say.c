/* say.c - see say.h. A line is as wide as a kernel's name makes it; why a slot is on eager is never
 * longer than that (WHY_TEXT). */
#include "tune/say.h"
#include "specializer/why.h"

#include <stdio.h>

/* "mlp_out avx512 PACK=0 ..." or "eager; bench: +0.4 % [-0.2, +1.0]"; lock held. */
static void say_kernel(struct specializer *s, const struct place *p)
{
    char why[WHY_TEXT];
    if (p->active) {
        printf("%s", p->active->name);
        return;
    }
    why_eager(s, p, why);
    printf("eager; %s", p->finalist && !p->pinned[0] ? "a finalist waits for steps" : why);
}

void say_round(struct specializer *s, const struct place *p, double seconds, int candidates,
               bool again)
{
    pthread_mutex_lock(&s->lock);
    printf("%4.0f s  %-14s %2d %s, %3d tried; ", seconds, p->slot->name, candidates,
           again ? "heard again" : "candidates", p->search.tried);
    say_kernel(s, p);
    if (p->active)
        printf(" %+.1f %%", 100 * p->gain_eager);
    printf("\n");
    pthread_mutex_unlock(&s->lock);
    fflush(stdout);
}

static void interval(const struct gain *g, char out[40])
{
    out[0] = 0;
    if (g->pairs)
        snprintf(out, 40, "[%+.1f, %+.1f] %%", 100 * g->low, 100 * g->high);
}

void say_summary(struct specializer *s, struct place *const *place, int n, double seconds)
{
    printf("\n%-16s %6s %8s %-20s %-20s  %s\n", "slot", "tried", "speed", "bench, 95 %",
           "whole step, 95 %", "kernel");
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const struct place *p = place[i];
        static const struct evidence none;
        const struct evidence *e = p->active ? &p->active->evidence : &none;
        char bench[40], step[40];
        interval(&e->bench, bench);
        interval(&e->canary, step);
        printf("%-16s %6d %7.2fx %-20s %-20s  ", p->slot->name, p->search.tried, 1 + p->gain_eager,
               bench, step);
        say_kernel(s, p);
        printf("\n");
    }
    pthread_mutex_unlock(&s->lock);
    printf("%.0f s; winners are in %s\n", seconds, store_path(s->store));
}
