/* SPDX-License-Identifier: Apache-2.0 */
/* fake_stages.h - compiler, probe, bench, shadow and canary that only pretend (fake_engine.h): what
 * becomes of a candidate follows from its knobs, and from what a test has put into `fake`.
 */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_FAKE_STAGES_H
#define WHET_TESTS_UNIT_SPECIALIZER_FAKE_STAGES_H

#include "specializer/admission/inputs.h"
#include "specializer/admission/prober.h"
#include "specializer/build/build.h"
#include "specializer/build/header_work.h"
#include "specializer/pipeline/stages.h"
#include "tests/unit/specializer/fake_engine.h"

const char *const build_flags[] = {"-fake", NULL};

int compiler_find(const struct config *config, struct compiler *out, struct err *err)
{
    (void)config;
    if (!atomic_load(&fake.compiler))
        return err_set(err, "no cc on PATH");
    snprintf(out->version, sizeof out->version, "fakecc 1.0");
    return 0;
}

int object_checksum(const char *path, char out[17])
{
    struct stat st;
    if (stat(path, &st) != 0)
        return -1;
    snprintf(out, 17, "%016llx", (unsigned long long)st.st_size);
    return 0;
}

struct build {
    struct candidate *c;
};
struct build *build_start(const struct stage_env *env, struct candidate *c, struct err *err)
{
    (void)env, (void)err;
    struct build *b = xcalloc(1, sizeof *b);
    b->c = c;
    atomic_fetch_add(&fake.builds, 1);
    return b;
}
/* As the real stages answer when something else killed the child. */
static bool child_killed(atomic_int *left)
{
    return atomic_load(left) > 0 && atomic_fetch_sub(left, 1) > 0;
}
enum stage_result build_poll(struct build *b)
{
    fake_meanwhile();
    if (child_killed(&fake.builds_die))
        return STAGE_RETRY;
    b->c->evidence.build_s = 0.001;
    enum stage_result r = fake_verdict(b->c, STAGE_BUILD);
    if (r == STAGE_PASS) {
        unlink(b->c->object); /* a new file, as a real build puts in place */
        FILE *f = fopen(b->c->object, "w");
        fputs(atomic_load(&fake.other_bytes) ? "other object" : "object", f);
        fclose(f);
        object_checksum(b->c->object, b->c->object_sum);
    }
    return r;
}
void build_end(struct build *b)
{
    free(b);
}

/* A header is wanted until one was made. */
struct header_work {
    char unused;
};
bool header_work_wanted(const struct stage_env *env, char *const *define)
{
    (void)define;
    return env->headers_apart && atomic_load(&fake.header_wanted);
}
struct header_work *header_work_start(const struct stage_env *env, char *const *define,
                                      struct err *err)
{
    (void)env, (void)define, (void)err;
    atomic_fetch_add(&fake.headers, 1);
    return xcalloc(1, sizeof(struct header_work));
}
enum stage_result header_work_poll(struct header_work *w)
{
    (void)w;
    if (child_killed(&fake.headers_die))
        return STAGE_RETRY;
    atomic_store(&fake.header_wanted, false);
    return STAGE_PASS;
}
void header_work_end(struct header_work *w)
{
    free(w);
}

/* A CPU has no prober. Here it can be held all the same: what holds it does so on any device. */
struct prober *prober_open(const struct stage_env *env)
{
    (void)env;
    return NULL;
}
void prober_close(struct prober *p)
{
    (void)p;
}
void prober_hold(struct prober *p, bool hold)
{
    (void)p;
    atomic_store(&fake.prober_held, hold);
}
struct prober_counts prober_counts(const struct prober *p)
{
    (void)p;
    return (struct prober_counts){0};
}

struct probe {
    struct candidate *c;
    bool in_full;
};
struct probe *probe_start(const struct stage_env *env, struct candidate *c, enum probe_depth depth,
                          const struct capture *const *captured, int captures, struct err *err)
{
    (void)env, (void)captured, (void)captures, (void)err;
    struct probe *p = xcalloc(1, sizeof *p);
    p->c = c;
    p->in_full = depth != PROBE_SHORT;
    atomic_fetch_add(&fake.whole_probes, depth == PROBE_WHOLE);
    atomic_fetch_add(depth == PROBE_SHORT ? &fake.short_probes : &fake.probes, 1);
    return p;
}
enum stage_result probe_poll(struct probe *p)
{
    fake_meanwhile();
    if (atomic_load(&fake.prober_held) || (p->in_full && atomic_load(&fake.hold_probes)))
        return STAGE_RUNNING;
    p->c->probe_died = child_killed(&fake.probes_die);
    if (p->c->probe_died) {
        candidate_explain(p->c, STAGE_PROBE, CAUSE_OTHER, 0, "no verdict: killed by SIGKILL");
        return STAGE_RETRY;
    }
    const char *wrong = atomic_load(&fake.probe_fails);
    if (!p->in_full && wrong && strcmp(p->c->key, wrong) == 0) {
        candidate_explain(p->c, STAGE_PROBE, CAUSE_ERROR, 9, "row 0: 9 times eager's error");
        return STAGE_REFUSE;
    }
    p->c->evidence.probe_cases = 10;
    p->c->evidence.bit_equal = p->c->bit_equal;
    return fake_verdict(p->c, STAGE_PROBE);
}
void probe_end(struct probe *p)
{
    free(p);
}

struct capture *capture_seeded(const struct model *model, const struct slot *slot,
                               int32_t decodes_most, uint64_t seed)
{
    (void)model, (void)slot, (void)decodes_most, (void)seed;
    return xcalloc(1, sizeof(struct capture));
}

static double kernel_speed(const struct kernel *k, const struct candidate *like)
{
    if (k->origin == ORIGIN_EAGER)
        return 1;
    /* The name has the knobs; only those that matter are read back. A text's ends with its hash. */
    struct candidate c = *like;
    const bool text = strncmp(k->name, "agent_", 6) == 0;
    snprintf(c.body, sizeof c.body, "%s", text ? strrchr(k->name, ' ') + 1 : "");
    for (int i = 0; i < c.template->knobs; i++) {
        char pattern[64];
        snprintf(pattern, sizeof pattern, " %s=", c.template->knob[i].name);
        const char *at = strstr(k->name, pattern);
        if (at)
            c.point.value[i] = atoi(at + strlen(pattern));
        else if (strcmp(c.template->knob[i].name, "ISA") == 0)
            for (int v = 0; v < 5; v++) {
                static const char *const names[] = {" portable", " avx2", " avx512", " vnni",
                                                    " amx"};
                if (strstr(k->name, names[v]))
                    c.point.value[i] = v;
            }
    }
    return fake_speed(&c);
}

enum stage_result bench_run(const struct stage_env *env, struct candidate *c,
                            const struct kernel *incumbent, const struct capture *inputs,
                            enum bench_kind kind)
{
    (void)inputs;
    fake_meanwhile();
    atomic_fetch_add(kind == BENCH_QUICK ? &fake.short_benches : &fake.benches, 1);
    if (atomic_load(&fake.killer))
        _exit(42); /* the process dies with it on trial */
    bool hold = atomic_load(&fake.hold_bench);
    if (hold || !fake.unheld[0])
        snprintf(hold ? fake.held : fake.unheld, sizeof fake.held, "%s", c->key);
    while (atomic_load(&fake.hold_bench) && !atomic_load(env->stop))
        usleep(1000);
    const char *slowed = atomic_load(&fake.slowed);
    double speed = slowed && strcmp(c->key, slowed) == 0 ? 0.5 : fake_speed(c);
    double gain = speed / kernel_speed(incumbent, c) - 1;
    c->evidence.bench = (struct gain){50, gain, gain - 0.01, gain + 0.01};
    c->evidence.own_s = 400e-6 / fake_speed(c);
    if (atomic_load(env->stop))
        return STAGE_STOPPED;
    c->evidence.impossible = kind == BENCH_QUICK && atomic_load(&fake.too_fast);
    if (c->evidence.impossible) {
        candidate_explain(c, STAGE_BENCH, CAUSE_IMPOSSIBLE, 0, "impossible");
        return STAGE_REFUSE;
    }
    if (gain - 0.01 >= (kind == BENCH_QUICK ? 0 : env->config->specializer_min_gain))
        return STAGE_PASS;
    candidate_explain(c, STAGE_BENCH, CAUSE_OTHER, 0, "too slow");
    return STAGE_REFUSE;
}

/* Only tables of measured points ask for it. */
enum stage_result bench_sample(const struct stage_env *env, struct candidate *c,
                               const struct kernel *incumbent, const struct capture *inputs,
                               int pairs)
{
    (void)env, (void)c, (void)incumbent, (void)inputs, (void)pairs;
    return STAGE_RETRY;
}

/* What a test has operators do, or wait for, in the middle of a canary. False: it was stopped. */
static bool canary_goes_on(const struct stage_env *env, const struct candidate *c)
{
    struct specializer *s =
        specialized(c->slot->name) ? atomic_exchange(&fake.meddler, NULL) : NULL;
    char *text = NULL;
    if (s)
        specializer_rollback(s, c->slot->name, NULL, "meddler", &text);
    free(text);
    snprintf(fake.canary_key, sizeof fake.canary_key, "%s", c->key);
    atomic_store(&fake.in_canary, c->slot->name);
    while (atomic_load(&fake.hold_canary) && !atomic_load(env->stop))
        usleep(1000);
    atomic_store(&fake.in_canary, NULL);
    return !atomic_load(&fake.hold_canary);
}

/* The stages that need live steps wait for them, as the real ones do. */
static enum stage_result live_verdict(const struct stage_env *env, struct candidate *c,
                                      enum stage stage, double timeout_s)
{
    int64_t end = clock_ns() + (int64_t)(timeout_s * 1e9);
    fake_meanwhile();
    if (stage == STAGE_CANARY && !canary_goes_on(env, c))
        return STAGE_STOPPED;
    while (!atomic_load(&fake.live) && !atomic_load(env->stop) && clock_ns() < end)
        usleep(1000);
    if (atomic_load(&fake.live))
        return fake_verdict(c, stage);
    return atomic_load(env->stop) ? STAGE_STOPPED : STAGE_RETRY;
}

enum stage_result shadow_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    atomic_fetch_add(&fake.whole_shadows, c->whole);
    return live_verdict(env, c, STAGE_SHADOW, timeout_s);
}

enum stage_result canary_run(const struct stage_env *env, struct candidate *c, double timeout_s)
{
    const char *shy = atomic_load(&fake.shy), *needs = atomic_load(&fake.needs);
    atomic_fetch_add(&fake.canaries, 1);
    c->steps = STEPS_UNSEEN;
    c->evidence.canary = (struct gain){50, 0.1, 0.05, 0.15};
    if ((shy && strcmp(c->slot->name, shy) == 0 &&
         !(needs && specialized(needs) && c->evidence.lost.n > 0)) ||
        (c->evidence.bench.low >= 0.10 && child_killed(&fake.outrun))) {
        c->evidence.canary = (struct gain){50, -0.01, -0.02, -0.005};
        candidate_explain(c, STAGE_CANARY, CAUSE_GAIN, -0.01,
                          "whole steps -1.00 %% [-2.00, -0.50]");
        c->steps = STEPS_SLOWER;
        return STAGE_REFUSE;
    }
    return live_verdict(env, c, STAGE_CANARY, timeout_s);
}

/* Groups as the real one makes them. One with a member that would be refused does not pass, and
 * does not say who it is. */
void canary_run_set(const struct stage_env *env, struct candidate *const *c, int n,
                    double timeout_s, enum stage_result *r)
{
    atomic_fetch_add(&fake.sets, 1);
    for (int i = 0; i < n; i++) {
        int members = 0;
        bool bad = false;
        for (int k = 0; k < n; k++) {
            bool same = c[k]->slot->m_index == c[i]->slot->m_index;
            members += same;
            const char *shy = atomic_load(&fake.shy);
            bad |= same && (fake_fault(c[k]) == STAGE_CANARY ||
                            (shy && strcmp(c[k]->slot->name, shy) == 0));
        }
        r[i] = live_verdict(env, c[i], STAGE_CANARY, timeout_s);
        if (bad && members > 1)
            r[i] = STAGE_RUNNING;
        c[i]->evidence.canary = (struct gain){50, 0.1, 0.05, 0.15};
        c[i]->evidence.together = members > 1 ? members : 0;
    }
}

bool canary_may_join(struct candidate *const *set, int n, const struct candidate *c)
{
    (void)set, (void)c;
    return n < OVERRIDES_MOST;
}

const char *compare_verdict(const struct stage_env *env, const struct hook *hook,
                            const struct evidence *evidence, char *buf, size_t n)
{
    (void)env, (void)evidence, (void)buf, (void)n;
    return hook->different ? "planted difference" : NULL;
}

#endif
