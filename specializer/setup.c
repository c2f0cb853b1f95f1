/* SPDX-License-Identifier: Apache-2.0 */
/* setup.c - what the loop stands on: store, compiler, keys, folders, a search for every slot. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/cgroup.h"
#include "config/clock.h"
#include "config/cores.h"
#include "config/exec_map.h"
#include "config/log.h"
#include "config/safe_path.h"
#include "engine/sandbox.h"
#include "specializer/admission/prober.h"
#include "specializer/admission/reference_cache.h"
#include "specializer/blame.h"
#include "specializer/build/build.h"
#include "specializer/build/build_nvrtc.h"
#include "specializer/build/header.h"
#include "specializer/build/header_work.h"
#include "specializer/build/sources.h"
#include "specializer/candidate/slot_list.h"
#include "specializer/pipeline/bound.h"
#include "specializer/setup.h"
#include "specializer/specializer_private.h"
#include "specializer/swap.h"
#include "specializer/watch.h"

enum numerics numerics_parse(const char *name)
{
    enum numerics n = NUMERICS_TOLERANCE;
    numerics_find(name, &n);
    return n;
}

bool fp8_forbidden(const struct model *m, const struct machine *machine, enum numerics n)
{
    struct facts f;
    facts_fill(&f, m, REGION_MLP_IN, 1, n);
    facts_machine(&f, machine);
    return m->fp8_activations && facts_kind(&f) == MACHINE_CUDA && f.HAS_WGMMA && !f.POLICY_FP8;
}

const char *program_path(void)
{
    static char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    return program[0] ? program : "whet";
}

bool compiler_known(const struct config *c, struct store *store, const struct machine *machine,
                    struct compiler *out, struct err *err)
{
    const struct target *target = target_of(machine->kind);
    const char *setting = target->compiler_setting;
    if ((target->compiler_library ? nvrtc_find(c, program_path(), machine->target, out, err)
                                  : compiler_find(c, out, err)) == 0) {
        store_set(store, setting, out->version, NULL);
        return true;
    }
    out->path[0] = 0;
    if (!store_value(store, setting, out->version, sizeof out->version))
        snprintf(out->version, sizeof out->version, "none");
    return false;
}

void keys_open(struct key_parts *k, const struct store *store, const struct machine *machine,
               const struct compiler *compiler, const struct model *model, enum numerics numerics)
{
    const char *nvrtc[NVRTC_FLAGS];
    char *shape = model_shape_text(model);
    char *device =
        xasprintf("%s%s%s", machine->device, *machine->driver ? ", driver " : "", machine->driver);
    nvrtc_flags(compiler, nvrtc);
    key_parts_fill(k, device, compiler->version,
                   target_of(machine->kind)->compiler_library ? nvrtc : build_flags, shape,
                   numerics);
    free(device);
    k->object_dir = xasprintf("%s.objects", store_path(store));
    k->kernel_dir = kernel_sources_folder(store_path(store));
    k->reference_dir = xasprintf("%s.references", store_path(store));
    free(shape);
}

void keys_close(struct key_parts *k)
{
    free(k->object_dir);
    free(k->kernel_dir);
    free(k->reference_dir);
}

/* ---- construction -------------------------------------------------------------------------- */

int specializer_check(const struct config *c, struct err *err)
{
    if (fleet_check(c, err) != 0)
        return -1;
    return slot_list_check(c->specializer_slots, err);
}

/* Two processes on one store would blame each other's kernels and delete each other's files. */
static struct store *open_store(const struct config *c, bool may_copy, struct err *err)
{
    bool taken;
    char *path = store_default_path(c->specializer_store);
    struct store *store = store_open_alone(path, &taken, err);
    if (!store && taken && may_copy) {
        log_warn("specializer",
                 "%s: this process works with a copy, and what it learns is gone when "
                 "it ends",
                 err->msg);
        store = store_open_copy(path, err);
    }
    free(path);
    return store;
}

struct specializer *specializer_new(const struct config *c, struct engine *e, bool may_copy,
                                    struct err *err)
{
    const struct strategy *strategy = strategy_find(c->specializer_strategy);
    bool may_write = strcmp(c->specializer_agentic, "on") == 0;
    if (!strategy || (!strategy_proposes(strategy) && !may_write)) {
        log_warn("specializer", "strategy %s %s: using template", c->specializer_strategy,
                 strategy ? "needs specializer.agentic = on" : "is not in this program");
        strategy = &strategy_template;
    }
    if (specializer_check(c, err) != 0)
        return NULL;
    struct store *store = open_store(c, may_copy, err);
    if (!store)
        return NULL;
    struct specializer *s = xcalloc(1, sizeof *s);
    s->config = c;
    s->engine = e;
    s->store = store;
    s->strategy = strategy;
    s->numerics = numerics_parse(c->specializer_numerics);
    s->adviser = adviser_open(c, store);
    s->locked.correlation = -2;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->wake);
    histogram_init(&s->counts.build_seconds, bounds_latency, bounds_latency_n);
    /* An operator's pause or freeze outlives a restart. The option only says how to begin, so a
     * resume holds until the next start with the option set. */
    char mode[16] = "";
    store_value(store, "mode", mode, sizeof mode);
    int initial = SPECIALIZER_RUN;
    if (s->numerics == NUMERICS_FROZEN || strcmp(mode, "freeze") == 0)
        initial = SPECIALIZER_FREEZE;
    else if (c->specializer_paused || strcmp(mode, "pause") == 0)
        initial = SPECIALIZER_PAUSE;
    atomic_store(&s->mode, initial);
    return s;
}

static void read_pin(void *ctx, const char *slot, const char *kernel)
{
    struct slot_search *p = slot_search_find(ctx, slot);
    if (p)
        snprintf(p->locked.pinned, sizeof p->locked.pinned, "%s", kernel);
}

void operators_disable_locked(struct specializer *s, const char *what, const char *reason)
{
    s->locked.disabled =
        xrealloc(s->locked.disabled, (size_t)(s->locked.disables + 1) * sizeof *s->locked.disabled);
    snprintf(s->locked.disabled[s->locked.disables].what, sizeof s->locked.disabled->what, "%s",
             what);
    snprintf(s->locked.disabled[s->locked.disables].reason, sizeof s->locked.disabled->reason, "%s",
             reason);
    s->locked.disables++;
}

static void read_disable(void *ctx, const char *what, const char *reason)
{
    operators_disable_locked(ctx, what, reason);
}

int operators_read(struct specializer *s, struct err *err)
{
    pthread_mutex_lock(&s->lock);
    s->locked.disables = 0;
    for (int i = 0; i < s->slot_searches; i++)
        s->slot_search[i].locked.pinned[0] = 0;
    int rc = store_disables(s->store, read_disable, s, err);
    if (rc == 0)
        rc = store_pins(s->store, read_pin, s, err);
    if (rc == 0)
        atomic_store(&s->ready, 1);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int32_t machine_threads(const struct config *c)
{
    return cores_or(c->engine_threads);
}

static void fill_env(struct specializer *s)
{
    struct stage_env *env = &s->env;
    env->config = s->config;
    env->numerics = s->numerics;
    env->engine = s->engine;
    env->model = engine_model(s->engine);
    env->backend = engine_backend(s->engine);
    env->ops = engine_backend_ops(s->engine);
    env->dispatch = engine_dispatch(s->engine);
    s->machine = *env->ops->machine(env->backend);
    env->machine = &s->machine;
    s->build_jobs = target_compilers(target_of(env->machine->kind),
                                     (int32_t)s->config->specializer_build_jobs, cores_usable());
    if (target_of(env->machine->kind)->shares_cores && adviser_is_remote(s->adviser)) {
        cpu_facts_measure(&s->cpu_facts, env->model);
        s->machine.cpu = &s->cpu_facts;
    }
    env->compiler = &s->compiler;
    env->headers_apart = true;
    env->program = program_path();
    env->kernel_dir = s->keys.kernel_dir;
    env->stop = &s->interrupt;
    if (target_of(env->machine->kind)->prober && s->enabled)
        env->prober = prober_open(env);
    if (!target_of(env->machine->kind)->bandwidth_uncached && s->enabled)
        env->cache_bandwidth = bound_read_bandwidth(BOUND_CACHED_BYTES, machine_threads(s->config));
}

/* What an export says of the rows that are measured here (search/known.h). */
static void note_environment(struct specializer *s)
{
    char *name = xasprintf(STORE_ENVIRONMENT "%s", s->keys.env);
    char *text =
        known_heading(s->env.machine, s->env.model, machine_threads(s->config), s->numerics);
    char had[STORE_ENVIRONMENT_MOST] = "";
    if (!store_value(s->store, name, had, sizeof had) || strcmp(had, text) != 0)
        store_set(s->store, name, text, NULL);
    free(text);
    free(name);
}

static void make_slot_searches(struct specializer *s)
{
    struct slot_search *slot_search = xcalloc((size_t)s->observe.slots, sizeof *slot_search);
    for (int i = 0; i < s->observe.slots; i++) {
        slot_search[i].slot = dispatch_slot_at(s->env.dispatch, i);
        slot_search[i].index = i;
        slot_search[i].unequal = engine_rank_unequal(s->engine, slot_search[i].slot->region);
        slot_search[i].left_out = slot_search[i].unequal ||
                                  !slot_list_has(s->config->specializer_slots, slot_search[i].slot);
    }
    pthread_mutex_lock(&s->lock);
    s->slot_search = slot_search;
    s->slot_searches = s->observe.slots;
    pthread_mutex_unlock(&s->lock);
}

/* Without the folder every probe computes them itself. */
static void keep_references(struct specializer *s)
{
    struct err err = {""};
    if (target_of(s->env.machine->kind)->prober)
        return;
    if (reference_cache_clear(s->keys.reference_dir, &err) == 0)
        s->env.reference_dir = s->keys.reference_dir;
    else
        log_warn("specializer", "%s: probes take longer", err.msg);
}

/* A compiler is up to four processes, a probe a team of threads and two more. */
static void warn_of_few_tasks(const struct specializer *s)
{
    struct cgroup_limit tasks;
    int64_t wanted = 4 * s->build_jobs + 2 * (machine_threads(s->config) + 2);
    if (s->enabled && s->has_compiler && cgroup_tasks("", &tasks) && tasks.room < wanted)
        log_warn("specializer",
                 "%s is %lld and leaves %lld processes and threads: compilers and probes may want "
                 "%lld, and fail without",
                 tasks.file, (long long)tasks.limit, (long long)tasks.room, (long long)wanted);
}

/* Where they can be sealed in, they run so or not at all. */
static bool texts_can_run(const struct specializer *s)
{
    if (engine_ranks(s->engine) > 1) {
        if (strcmp(s->config->specializer_agentic, "on") == 0)
            log_warn("specializer", "specializer.agentic is refused: a kernel that a language "
                                    "model wrote may break in a step, which several ranks cannot "
                                    "take back");
        return false;
    }
    struct err why = {""};
    if (!target_of(s->env.machine->kind)->texts_sealed || sandbox_works(&why))
        return true;
    log_warn("specializer", "%s: kernels of the program's own templates may be probed unsealed",
             why.msg);
    if (strcmp(s->config->specializer_agentic, "on") == 0)
        log_warn("specializer", "specializer.agentic is refused: no kernel that a language model "
                                "wrote runs unsealed");
    return false;
}

void specializer_setup(struct specializer *s)
{
    struct err err = {{0}};
    const struct backend_ops *ops = engine_backend_ops(s->engine);
    const struct machine *machine = ops->machine(engine_backend(s->engine));
    s->enabled = s->config->specializer_enabled &&
                 (engine_ranks(s->engine) == 1 || (ops->ranks && ops->ranks->searched));
    s->compiler.stop = &s->stop;
    s->has_compiler = compiler_known(s->config, s->store, machine, &s->compiler, &err);
    if (!s->has_compiler)
        log_warn("specializer",
                 "no compiler (%s): stored kernels are restored, nothing new is searched for",
                 err.msg);
    keys_open(&s->keys, s->store, machine, &s->compiler, engine_model(s->engine), s->numerics);
    fill_env(s);
    warn_of_few_tasks(s);
    cost_open(&s->cost, s->env.machine, machine_threads(s->config));
    s->known = known_open();
    note_environment(s);
    observe_open(&s->observe, s->env.dispatch, s->env.model, s->env.machine);
    if (texts_can_run(s))
        s->agent = agent_open(s->config, s->store, adviser_llm(s->adviser), s->keys.env,
                              s->env.machine->kind);
    if (safe_folder_make(s->keys.object_dir, &err) != 0 ||
        safe_folder_make(s->keys.kernel_dir, &err) != 0) {
        log_error("specializer", "%s: nothing is searched for", err.msg);
        s->has_compiler = false;
    } else if (target_of(machine->kind)->objects_mapped &&
               exec_map_folder(s->keys.object_dir, &err) != 0) {
        log_error("specializer", "%s: nothing is searched for, and no stored kernel comes back",
                  err.msg);
        s->has_compiler = false;
    } else if (kernel_sources_write(s->keys.kernel_dir, &err) != 0) { /* a full disk, say */
        log_error("specializer", "%s: nothing is built until that can be done", err.msg);
    }
    kernel_sources_prune(s->keys.kernel_dir);
    if (s->has_compiler)
        header_prune(&s->compiler, s->keys.kernel_dir);
    keep_references(s);
    if (s->enabled)
        s->fleet = fleet_open(s->config, s->store, s->keys.env, machine->device, s->env.dispatch,
                              &s->imported);
    make_slot_searches(s); /* operators' threads look at all of this once it is ready */
    if (s->enabled && fp8_forbidden(s->env.model, s->env.machine, s->numerics))
        log_info("specializer",
                 "the checkpoint asks for activations in FP8, which specializer.numerics = %s does "
                 "not allow (fp8 does)",
                 numerics_name(s->numerics));
    log_info("specializer", "%s; %s; store %s", s->env.machine->device,
             s->has_compiler ? s->compiler.version : "no compiler", store_path(s->store));
}

/* ---- destruction --------------------------------------------------------------------------- */

/* Eager everywhere, then wait until no step can still run what was there. */
void slots_empty(struct specializer *s)
{
    int64_t epoch = 0;
    for (int i = 0; i < s->slot_searches; i++)
        epoch = dispatch_publish(s->env.dispatch, s->slot_search[i].slot,
                                 s->slot_search[i].slot->eager);
    int64_t start = clock_ns();
    while (s->slot_searches > 0 && !dispatch_passed(s->env.dispatch, epoch) &&
           clock_ns() - start < INT64_C(5000000000))
        usleep(1000);
}

static void free_slot_searches(struct specializer *s)
{
    for (int i = 0; i < s->slot_searches; i++) {
        struct slot_search *p = &s->slot_search[i];
        candidate_drop(s, p->locked.active);
        candidate_drop(s, p->locked.previous);
        candidate_drop(s, p->promoted.c);
        slot_search_inputs_free(p);
        slot_search_forget(s, p);
    }
    free(s->slot_search);
}

void specializer_free(struct specializer *s)
{
    atomic_store(&s->ready, 0);
    fleet_loop_close(s);
    if (s->slot_searches > 0) {
        watch_stop(s);
        search_batch_abandon(s);
        header_work_end(s->header);
        slots_empty(s);
        free_slot_searches(s);
        retire_poll(s, true);
        if (s->env.reference_dir && reference_cache_clear(s->env.reference_dir, NULL) == 0)
            rmdir(s->env.reference_dir);
        prober_close(s->env.prober);
        observe_close(&s->observe);
        cost_close(&s->cost);
    }
    free(s->locked.retired);
    free(s->locked.disabled);
    keys_close(&s->keys);
    agent_close(s->agent);
    adviser_close(s->adviser);
    known_close(s->known);
    blame_end(s);
    store_close(s->store);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->wake);
    free(s);
}
