/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_offer.c - see fleet_offer.h.
 *
 * Each speed has its noise, the winner among many points is the one whose noise was kindest, and
 * speeds of one server are chained: each is relative to the kernel before it. So a server that was
 * lucky would hold a kernel for better than it is and take no better one from others; medians over
 * servers mend that. One that was unlucky with the best point would never look at it again: a point
 * that others serve may be tried again, a bounded number of times. And a median of one or two is
 * none: where hardly anybody else knows what serves here, a point that several found about as fast
 * is tried once, because it is they who are less likely to be wrong.
 */
#include "specializer/fleet/fleet_offer.h"

#include <stdlib.h>

/* A gain below this is not told from noise; nobody promotes for less. */
#define GAIN_LEAST 1.02
enum { TRIALS_MOST = 3, WORDS_MOST = 64, SURE = 3 };
/* About as fast: this much of it, where fewer than SURE say what it is. */
#define DOUBTED 0.97
/* Seconds of a slot's time that waiting may cost, all slots together, and seconds that one waits.
 */
#define LOST_MOST_S 1.5
#define WAIT_MOST_S 8.0

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of what all say of a point, own (0: nothing) among them, who are *n. */
static double consensus(const struct fleet_offer_ask *ask, int32_t id, double own, int *n)
{
    double all[WORDS_MOST];
    *n = 0;
    if (own > 0)
        all[(*n)++] = own;
    for (int i = 0; i < ask->words && *n < WORDS_MOST; i++)
        if (ask->word[i].id == id && ask->word[i].speed > 0)
            all[(*n)++] = ask->word[i].speed;
    qsort(all, (size_t)*n, sizeof *all, by_size);
    return *n == 0 ? 0 : (all[(*n - 1) / 2] + all[*n / 2]) / 2;
}

int32_t fleet_offer_best(const struct fleet_offer_ask *ask, double *gain)
{
    int knows = SURE; /* how many know what serves here; eager everybody does */
    double seen = ask->serving < 0 ? ask->seen : consensus(ask, ask->serving, ask->seen, &knows);
    double least = ask->serving < 0 && ask->enough > 0 ? ask->enough : GAIN_LEAST;
    int32_t best = -1;
    *gain = 0;
    for (int i = 0; i < ask->words; i++) {
        const struct fleet_word *w = &ask->word[i];
        double own = 0;
        int say;
        if (!w->won || w->id == ask->serving)
            continue;
        int trials = ask->trials(ask->ctx, w->id, &own);
        if (trials < 0 || trials >= TRIALS_MOST)
            continue;
        double g = consensus(ask, w->id, trials > 0 ? own : 0, &say) / seen;
        bool doubt = knows < SURE && say >= SURE && trials == 0;
        if (g > (doubt ? DOUBTED : least) && g > *gain) {
            *gain = g;
            best = w->id;
        }
    }
    return best;
}

bool fleet_offers_due(const double *gain, const double *wait_s, int n)
{
    double lost_s = 0, longest_s = 0;
    for (int i = 0; i < n; i++) {
        lost_s += (gain[i] - 1) * wait_s[i];
        longest_s = wait_s[i] > longest_s ? wait_s[i] : longest_s;
    }
    return lost_s >= LOST_MOST_S || longest_s >= WAIT_MOST_S;
}
