/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_points.c - see cuda_points.h. */
#include "tests/kernels/cuda_points.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bricks.h"

struct facts cuda_facts(const struct model_shape *s, enum region region, int m_max, int sms)
{
    return (struct facts){.REGION = (int32_t)region,
                          .M_MAX = m_max,
                          .HIDDEN = s->hidden,
                          .HEADS = s->heads,
                          .KV_HEADS = s->kv_heads,
                          .HEAD_DIM = s->head_dim,
                          .FFN = s->ffn,
                          .VOCAB = s->vocab,
                          .HAS_BIAS = arch_traits(s->arch)->qkv_bias,
                          .HAS_QK_NORM = arch_traits(s->arch)->qk_norm,
                          .WTYPE = DTYPE_BF16,
                          .WTYPE_2 = DTYPE_BF16,
                          .WTYPE_3 = DTYPE_BF16,
                          .SMS = sms,
                          .HAS_CLUSTERS = 1,
                          .HAS_WGMMA = 1};
}

struct facts cuda_facts_in(const struct model_shape *s, enum region region, int m_max, int sms,
                           enum dtype type)
{
    struct facts f = cuda_facts(s, region, m_max, sms);
    f.WTYPE = f.WTYPE_2 = f.WTYPE_3 = (int32_t)type;
    return f;
}

bool cuda_reads_bricks(const struct template *t)
{
    return strncmp(t->file, "brick", strlen("brick")) == 0;
}

enum dtype cuda_type(const struct template *t, int m, int n)
{
    if (!cuda_reads_bricks(t))
        return DTYPE_BF16;
    if (strcmp(t->file, "brick") != 0 && m == 1)
        return DTYPE_F8;
    enum dtype type = (enum dtype)brick_type(n % BRICK_KINDS);
    return strcmp(t->file, "brick") == 0 && m > 1 && type == DTYPE_F8 ? DTYPE_Q8_0 : type;
}

struct point cuda_start(const struct template *t, const struct facts *f)
{
    struct point p;
    return template_start(t, f, &p) ? p : template_defaults(t);
}

bool cuda_point_random(const struct template *t, const struct facts *f, uint32_t *z,
                       struct point *p)
{
    *p = (struct point){{0}};
    for (int tries = 0; tries < 1000000; tries++) {
        for (int i = 0; i < t->knobs; i++) {
            *z = *z * 1664525u + 1013904223u;
            p->value[i] = t->knob[i].value[(*z >> 16) % (uint32_t)t->knob[i].values];
        }
        if (!template_illegal(t, p, f))
            return true;
    }
    return false;
}

void cuda_point_text(const struct template *t, const struct point *p, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "%s", "");
    for (int i = 0; i < t->knobs && at < size; i++)
        if (p->value[i] != t->knob[i].fallback)
            at += (size_t)snprintf(out + at, size - at, "%s%s=%d", at ? " " : "", t->knob[i].name,
                                   p->value[i]);
    if (at == 0)
        snprintf(out, size, "defaults");
}

char *cuda_point_build(const char *root, const char *arch, const struct template *t,
                       const struct facts *f, const struct point *p, size_t *size, char *why)
{
    char path[4200], **flag = point_flags(t, p, f);
    int n = 0;
    while (flag[n])
        n++;
    snprintf(path, sizeof path, "%s/kernels/cuda/%s.cu", root, t->file);
    char *cubin = cuda_build(root, path, arch, (const char *const *)flag, n, size, why);
    while (n > 0)
        free(flag[--n]);
    free(flag);
    return cubin;
}
