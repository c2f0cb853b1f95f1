/* SPDX-License-Identifier: Apache-2.0 */
/* model_rope.c - rotary frequencies and what scales them, as transformers' modeling_rope_utils has
 * it.
 *
 * All scalings here are fixed when a model is loaded: they are in the tables of cosines and sines
 * that every kernel reads, and nothing else knows of them.
 */
#include <math.h>

#include "engine/model_load.h"

/* Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended by
 * how many turns they make in the original context. */
static double stretch(const struct rope_scaling *s, double frequency)
{
    double turns = s->original_context * frequency / (2 * M_PI);
    double keep = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);

    keep = keep < 0 ? 0 : keep > 1 ? 1 : keep;
    return keep * frequency + (1 - keep) * frequency / s->factor;
}

/* YaRN blends by the number of a frequency instead: those up to `low` are kept, those from `high`
 * on divided. */
struct ramp {
    double low, high;
};

/* The number of the frequency that makes so many turns in the original context; no whole one. */
static double place_of(const struct model_shape *s, double turns)
{
    return s->head_dim * log(s->scaling.original_context / (turns * 2 * M_PI)) /
           (2 * log((double)s->rope_base));
}

/* Bounded by the head's size, not by half of it, as everybody does it. */
static struct ramp ramp_of(const struct model_shape *s)
{
    struct ramp r = {place_of(s, (double)s->scaling.high_freq_factor),
                     place_of(s, (double)s->scaling.low_freq_factor)};

    if (!s->scaling.whole_ramp)
        r = (struct ramp){floor(r.low), ceil(r.high)};
    return (struct ramp){fmax(r.low, 0), fmin(r.high, s->head_dim - 1)};
}

static double blend(const struct model_shape *s, struct ramp r, int number, double frequency)
{
    double end = r.low == r.high ? r.high + 0.001 : r.high;
    double by = (number - r.low) / (end - r.low);

    by = by < 0 ? 0 : by > 1 ? 1 : by;
    return frequency / s->scaling.factor * by + frequency * (1 - by);
}

void model_rope_frequencies(const struct model_shape *shape, double *frequency)
{
    const struct rope_scaling *scaling = &shape->scaling;
    struct ramp ramp = {0, 0};

    if (scaling->type == ROPE_YARN)
        ramp = ramp_of(shape);
    for (int i = 0; i < shape->head_dim / 2; i++) {
        double f = pow(shape->rope_base, -2.0 * i / shape->head_dim);
        if (scaling->type == ROPE_LLAMA3)
            f = stretch(scaling, f);
        else if (scaling->type == ROPE_LINEAR)
            f /= scaling->factor;
        else if (scaling->type == ROPE_YARN)
            f = blend(shape, ramp, i, f);
        frequency[i] = f;
    }
}

double model_rope_length(const struct model_shape *shape)
{
    return shape->scaling.type == ROPE_YARN ? (double)shape->scaling.attention_factor : 1;
}

double model_yarn_attention(double factor, double scale)
{
    return factor > 1 ? 0.1 * scale * log(factor) + 1 : 1;
}

/* At most what the context's bound allows; more is refused there. */
void model_yarn_context(struct model_shape *s)
{
    double reach = floor((double)s->scaling.original_context * (double)s->scaling.factor);
    if (reach > s->max_context)
        s->max_context = reach < INT32_MAX ? (int32_t)reach : INT32_MAX;
}

/* ---- what makes sense ------------------------------------------------------------------------ */

static int check_llama3(const struct rope_scaling *r, const char *file, struct err *err)
{
    if (r->factor >= 1 && r->factor <= MODEL_ROPE_MOST && r->low_freq_factor > 0 &&
        r->high_freq_factor > r->low_freq_factor && r->high_freq_factor < MODEL_ROPE_MOST &&
        r->original_context > 0)
        return 0;
    return err_set(err,
                   "%s: rope scaling: factor %g, low_freq_factor %g, high_freq_factor %g, "
                   "original context %d make no sense",
                   file, (double)r->factor, (double)r->low_freq_factor, (double)r->high_freq_factor,
                   r->original_context);
}

/* Where the ramp would end before it begins (an original context of a few tokens, or one in which
 * the lowest frequency turns often) programs do different things. */
static int check_yarn(const struct model_shape *s, const char *file, struct err *err)
{
    const struct rope_scaling *r = &s->scaling;

    if (!(r->low_freq_factor > 0 && r->high_freq_factor >= r->low_freq_factor &&
          r->high_freq_factor <= MODEL_ROPE_MOST))
        return err_set(err,
                       "%s: rope scaling: beta_fast %g and beta_slow %g: expected 0 < slow <= fast",
                       file, (double)r->high_freq_factor, (double)r->low_freq_factor);
    if (!(r->attention_factor > 0 && r->attention_factor <= MODEL_ROPE_MOST))
        return err_set(err, "%s: rope scaling: attention_factor %g makes no sense", file,
                       (double)r->attention_factor);
    if (r->original_context > 0 && s->rope_base > 1) {
        struct ramp ramp = ramp_of(s);
        if (ramp.low <= ramp.high)
            return 0;
    }
    return err_set(err,
                   "%s: rope scaling: original context %d, beta_fast %g and beta_slow %g make no "
                   "sense with a rope base of %g",
                   file, r->original_context, (double)r->high_freq_factor,
                   (double)r->low_freq_factor, (double)s->rope_base);
}

int model_check_rope(const struct model_shape *s, const char *file, struct err *err)
{
    const struct rope_scaling *r = &s->scaling;

    if (!(s->rope_base >= 1 && s->rope_base <= 1e12f))
        return err_set(err, "%s: rope base %g is out of range", file, (double)s->rope_base);
    if (r->type == ROPE_PLAIN)
        return 0;
    if (r->type == ROPE_LLAMA3)
        return check_llama3(r, file, err);
    if (r->type != ROPE_LINEAR && r->type != ROPE_YARN)
        return err_set(err, "%s: rope scaling: no type has the number %d", file, (int)r->type);
    if (!(r->factor >= 1 && r->factor <= MODEL_ROPE_MOST))
        return err_set(err, "%s: rope scaling: factor %g, expected 1 to %d", file,
                       (double)r->factor, MODEL_ROPE_MOST);
    return r->type == ROPE_YARN ? check_yarn(s, file, err) : 0;
}
