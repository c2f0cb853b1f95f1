/* SPDX-License-Identifier: Apache-2.0 */
/* shop.c - see shop.h. */
#include "tests/kernels/shop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_text.h"
#include "specializer/build/build.h"
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/sources.h"

static const struct model_shape shape = {.arch = ARCH_LLAMA,
                                         .layers = 2,
                                         .hidden = 576,
                                         .heads = 9,
                                         .kv_heads = 3,
                                         .head_dim = 64,
                                         .ffn = 1536,
                                         .vocab = 1999,
                                         .max_context = 2048,
                                         .eps = 1e-5f,
                                         .rope_base = 1e4f,
                                         .rope_interleaved = true};

static const struct machine h200 = {.device = "NVIDIA H200, compute capability 9.0",
                                    .kind = MACHINE_CUDA,
                                    .sms = 132,
                                    .target = "sm_90a"};

static int open_common(struct shop *s, const char *program, struct err *err)
{
    strcpy(s->dir, "/tmp/whet-shop-XXXXXX");
    if (!mkdtemp(s->dir))
        return err_set(err, "no folder %s", s->dir);
    s->kernels = xasprintf("%s/kernels", s->dir);
    s->keys.object_dir = s->dir;
    s->keys.kernel_dir = s->kernels;
    s->model = model_random(&shape, DTYPE_Q4_1, 5);
    s->env = (struct stage_env){.config = &s->config,
                                .compiler = &s->compiler,
                                .model = s->model,
                                .program = program,
                                .kernel_dir = s->kernels,
                                .alone = true};
    if (kernel_sources_write(s->kernels, err) == 0)
        return 0;
    shop_close(s);
    return -1;
}

int shop_open(struct shop *s, struct err *err)
{
    char *none[] = {(char *)"shop"};
    *s = (struct shop){.right = 0};
    if (config_parse(&s->config, 1, none, err) != 0 ||
        compiler_find(&s->config, &s->compiler, err) != 0)
        return -1;
    return open_common(s, NULL, err);
}

int shop_open_cuda(struct shop *s, const char *program, struct err *err)
{
    char *none[] = {(char *)"shop"};
    *s = (struct shop){.machine = h200};
    if (config_parse(&s->config, 1, none, err) != 0 ||
        nvrtc_find(&s->config, program, h200.target, &s->compiler, err) != 0)
        return -1;
    return open_common(s, program, err);
}

void shop_model(struct shop *s, enum dtype type)
{
    struct model_shape of = shape;
    if (SUPER_TYPE(type)) {
        of.hidden = 512;
        of.heads = 8;
        of.kv_heads = 2;
    }
    model_close(s->model);
    s->env.model = s->model = model_random(&of, type, 5);
}

void shop_close(struct shop *s)
{
    char command[80];
    model_close(s->model);
    config_free(&s->config);
    free(s->kernels);
    snprintf(command, sizeof command, "rm -rf %s", s->dir);
    if (system(command) != 0)
        printf("%s is left\n", s->dir);
}

bool shop_build(struct shop *s, struct candidate *c)
{
    struct err err = {""};
    struct build *b = build_start(&s->env, c, &err);
    enum stage_result r = b ? STAGE_RUNNING : STAGE_RETRY;
    if (!b)
        snprintf(c->reason, sizeof c->reason, "%.200s", err.msg);
    while (b && (r = build_poll(b)) == STAGE_RUNNING)
        usleep(1000);
    build_end(b);
    return r == STAGE_PASS;
}

struct candidate *shop_build_point(struct shop *s, const struct template *t, const struct point *p,
                                   const struct facts *f, bool *built)
{
    struct candidate *c = xcalloc(1, sizeof *c);
    c->template = t;
    c->origin = ORIGIN_TEMPLATE;
    c->source = xasprintf("%s/cpu/%s.c", s->kernels, t->file);
    c->object = xasprintf("%s/point.so", s->dir);
    c->define = point_flags(t, p, f);
    *built = shop_build(s, c);
    return c;
}

void shop_drop(struct candidate *c)
{
    unlink(c->object);
    candidate_free(c);
}

const char *shop_build_unread(struct shop *s, enum region region, int m, const char *text,
                              struct candidate **out, struct err *err)
{
    static struct slot slot;
    struct facts f;
    struct point p;
    char hash[17];
    const enum machine_kind machine = s->machine.kind;
    const struct template *t = agent_template(machine, region);
    *out = NULL;
    facts_fill(&f, s->model, region, m, NUMERICS_TOLERANCE);
    facts_machine(&f, &s->machine);
    agent_body_hash(text, hash);
    if (!agent_point(t, &f, &p) || agent_body_write(s->kernels, machine, hash, text, err) != 0)
        return "point";
    slot = (struct slot){.region = region, .m = m};
    snprintf(slot.name, sizeof slot.name, "test/m%d", m);
    struct candidate *c = candidate_new_agent(&s->keys, t, &p, &f, &slot, hash);
    if (shop_build(s, c)) {
        *out = c;
        return NULL;
    }
    err_set(err, "%s %.300s", c->reason, candidate_words(c) ? candidate_words(c) : "");
    candidate_free(c);
    return "build";
}

const char *shop_build_text(struct shop *s, enum region region, int m, const char *text,
                            struct candidate **out, struct err *err)
{
    *out = NULL;
    if (agent_text_check(text, strlen(text), agent_language(s->machine.kind), err) != 0)
        return "text";
    return shop_build_unread(s, region, m, text, out, err);
}

void shop_report(struct shop *s, bool right, const char *name, int m, const char *caught,
                 const char *words)
{
    printf("%-5s %-24s m=%-4d %s %s\n", right ? "ok" : "WRONG", name, m, caught ? caught : "passed",
           words);
    fflush(stdout);
    s->right += right;
    s->wrong += !right;
}

int shop_verdict(const struct shop *s)
{
    printf("%d passed, %d failed\n", s->right, s->wrong);
    return s->wrong > 0 || s->right == 0;
}
