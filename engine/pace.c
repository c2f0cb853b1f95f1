/* SPDX-License-Identifier: Apache-2.0 */
/* pace.c - see pace.h. */
#include "engine/pace.h"

#include <math.h>
#include <string.h>

/* How much each step leaves of what is known about steps like it: of those the last 50 or so count.
 */
#define KEEP 0.98
/* A step that took longer than this many times what was expected says little about its kind. */
#define OUTLIER 1.5
/* While prompts wait, a step takes this many times what its decodes take alone, even if nobody is
 * in a hurry: whoever waits does not decode, and a step of few sequences takes nearly as long as
 * one of many. If they are late, it does so at the cost of the target between tokens, too. */
#define TIMES_DECODES 2.0
/* First tokens are aimed at earlier than the target: requests do not come evenly. */
#define AIM 0.5

/* Variance of each weight at first, and at most, in square milliseconds. The first step is a prompt
 * as a rule, and most of what it takes is its tokens' rather than any step's. */
static const double UNSURE[PACE_TERMS] = {1e2, 1e6, 1e4, 1e2, 1e2};

/* Terms in units that make their weights milliseconds of a similar size. */
static void terms(const struct step_size *s, double *x)
{
    x[0] = 1;
    x[1] = s->prompt / 256.0;
    x[2] = s->decodes / 64.0;
    x[3] = (double)s->context / 65536;
    x[4] = (double)s->prompt_context / (256 * 1024);
}

void pace_open(struct pace *p, double itl_ms, double ttft_ms)
{
    memset(p, 0, sizeof *p);
    p->itl_ns = itl_ms * 1e6;
    p->ttft_ns = ttft_ms * 1e6;
    for (int i = 0; i < PACE_TERMS; i++)
        p->spread[i][i] = UNSURE[i];
}

void pace_doubt(struct pace *p)
{
    for (int i = 0; i < PACE_TERMS; i++)
        p->spread[i][i] = fmin(p->spread[i][i] + UNSURE[i] / 100, UNSURE[i]);
}

double pace_ns(const struct pace *p, const struct step_size *size)
{
    double x[PACE_TERMS], ms = 0;
    terms(size, x);
    /* No part of a step takes less than nothing, whatever fits some steps best. */
    for (int i = 0; i < PACE_TERMS; i++)
        ms += fmax(p->weight[i], 0) * x[i];
    return ms * 1e6;
}

/* Nothing is ever less known than at first. */
static void bound_spread(struct pace *p)
{
    for (int i = 0; i < PACE_TERMS; i++) {
        double shrink = p->spread[i][i] > UNSURE[i] ? sqrt(UNSURE[i] / p->spread[i][i]) : 1;
        for (int j = 0; j < PACE_TERMS && shrink < 1; j++) {
            p->spread[i][j] *= shrink;
            p->spread[j][i] *= shrink;
        }
    }
}

/* Recursive least squares: the weights that fit all steps best, older ones counting less. A step
 * tells about one direction, the sum of terms that it had, and only of that is anything forgotten
 * (Kulhavy 1987): where hours of steps have as many decodes each, what is a step's and what is a
 * decode's stays as it was learned when they differed. Were it forgotten all round, nothing would
 * hold the two but their sum, and each would follow the noise. */
static void fit(struct pace *p, const double *x, double error)
{
    double gain[PACE_TERMS], doubt = 0; /* variance of what this step was expected to take */
    for (int i = 0; i < PACE_TERMS; i++) {
        gain[i] = 0;
        for (int j = 0; j < PACE_TERMS; j++)
            gain[i] += p->spread[i][j] * x[j];
        doubt += x[i] * gain[i];
    }
    if (!(doubt > 0))
        return; /* rounding has left nothing to be learned from it */
    /* What the step adds to what is known in its direction, less the part that is forgotten there:
     * nothing once the one makes up for the other. */
    double adds = KEEP - (1 - KEEP) / doubt, part = adds / (KEEP * (1 + doubt));
    for (int i = 0; i < PACE_TERMS; i++)
        p->weight[i] += gain[i] / (1 + doubt) * error;
    for (int i = 0; i < PACE_TERMS; i++)
        for (int j = 0; j < PACE_TERMS; j++)
            p->spread[i][j] -= part * gain[i] * gain[j];
    bound_spread(p);
}

/* A step was longer than it may be: whatever the line says, the next ones have less. */
static void hold_back(struct pace *p, const struct step_size *size, int64_t ns)
{
    struct step_size decodes = {.decodes = size->decodes, .context = size->context};
    double allowed = fmax(p->itl_ns, TIMES_DECODES * pace_ns(p, &decodes));
    if (size->prompt == 0 || size->decodes == 0 || p->itl_ns <= 0)
        return;
    if ((double)ns > allowed)
        p->most = fmax(size->prompt * allowed / (double)ns, 1);
    else if (p->most > 0 && size->prompt >= 0.9 * p->most)
        p->most *= 1.25;
}

void pace_learn(struct pace *p, const struct step_size *size, int64_t ns)
{
    double x[PACE_TERMS], expected = pace_ns(p, size), took = (double)ns;
    if (ns <= 0 || size->prompt + size->decodes <= 0)
        return;
    hold_back(p, size, ns);
    if (p->steps > 50 && expected > 0)
        took = fmin(took, OUTLIER * expected);
    double linear = 0; /* without the bounds of pace_ns() */
    terms(size, x);
    for (int i = 0; i < PACE_TERMS; i++)
        linear += p->weight[i] * x[i];
    fit(p, x, took * 1e-6 - linear);
    p->steps++;
}

/* What prompt tokens must be read a nanosecond so that nobody's first token is late. */
static double wanted_rate(const struct pace *p, const struct prompt_load *load, int64_t now_ns)
{
    double aim = AIM * p->ttft_ns;
    double left = aim - (double)(now_ns - load->first_ns);
    double late = left > 0 ? (double)load->first_tokens / left : INFINITY;
    return aim > 0 ? fmax((double)load->tokens / aim, late) : INFINITY;
}

int32_t pace_tokens(const struct pace *p, const struct step_size *size,
                    const struct prompt_load *load, int64_t now_ns, int32_t chunk)
{
    if (p->steps == 0 || load->tokens <= 0 || load->first_ns <= 0)
        return chunk;
    double base = pace_ns(p, size);
    struct step_size one = *size; /* with the average prompt token of those that wait */
    one.prompt = 256;
    one.prompt_context = load->attended * 256 / load->tokens;
    double each = fmax((pace_ns(p, &one) - base) / 256, 1);
    /* n tokens in a step of base + n * each are n / (base + n * each) in a nanosecond. */
    double rate = wanted_rate(p, load, now_ns);
    double needed = rate * each < 1 ? rate * base / (1 - rate * each) : INFINITY;
    double beside = (TIMES_DECODES - 1) * base / each, allowed = INFINITY;
    double lent = (double)load->lent_ns;
    if (p->itl_ns > 0)
        allowed = (p->itl_ns - lent - base) / each;
    if (p->itl_ns > 0 && needed > allowed)
        allowed = fmax(allowed, beside - lent / each);
    double n = fmin(fmax(needed, beside), allowed);
    if (p->most > 0)
        n = fmin(n, p->most);
    return n < 1 ? 1 : n < chunk ? (int32_t)n : chunk;
}
