/* SPDX-License-Identifier: Apache-2.0 */
/* executor_main.c - the process that runs a language model's kernel, and nothing else.
 *
 * Order is everything here. What needs the system comes first: the model is opened, the object is
 * loaded (its functions are data until one is called: the build stage has refused constructors and
 * all else that would run by itself), memory is laid out, the team is started, every descriptor is
 * closed. Sizes, which only the object knows, are asked for in a sealed child (sizes.c). Then the
 * process seals itself, for good, and only then calls the object: pack() first, then run() whenever
 * the server says so.
 *
 * Nothing is allocated once it is sealed: a system call is taken for the text's, and ends it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/descriptors.h"
#include "config/process.h"
#include "engine/cpu/executor_private.h"
#include "engine/cpu/sizes.h"
#include "engine/memory.h"
#include "engine/numa.h"
#include "engine/quant.h"
#include "engine/sandbox.h"
#include "kernels/isa.h"

enum { EXIT_REFUSED = 1, EXIT_FAULT = 99 };

struct worker {
    struct executor_setup setup;
    int fd[1 + EXECUTOR_PAGES];
    struct executor_control *control;
    char *at; /* of the area */
    struct area area;
    const char *pages[EXECUTOR_PAGES];
    struct model *model;
    struct format_class *formats; /* of its layers; NULL: it is for all */
    const struct cpu_kernel *kernel;
    struct kernel_sizes sizes;
    struct weight (*weight)[3]; /* [all layers]: where this process has them */
    int weights;
    char *packed;
    int32_t *index; /* [max_tokens]: 0, 1, 2, ... */
    struct pool *pool;
};

/* ---- ends ----------------------------------------------------------------------------------- */

static struct executor_control *shared; /* of the handler */

_Noreturn static void refuse(const char *why)
{
    if (shared) {
        snprintf(shared->problem, sizeof shared->problem, "%s", why);
        atomic_store(&shared->state, EXECUTOR_REFUSED);
        gate_raise(&shared->done, true);
    }
    _exit(EXIT_REFUSED);
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    static _Atomic int faults;
    if (atomic_fetch_add(&faults, 1) == 0) {
        fault_note(&shared->fault, sig, info, context);
        atomic_store(&shared->state, EXECUTOR_FAULT);
        gate_raise(&shared->done, true);
    }
    _exit(EXIT_FAULT);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Leaves the descriptors that came along in w->fd. */
static int receive(int socket, struct worker *w)
{
    char room[CMSG_SPACE(sizeof w->fd)];
    struct iovec text = {&w->setup, sizeof w->setup};
    struct msghdr m = {
        .msg_iov = &text, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &m, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof w->setup ||
        w->setup.bytes != (int32_t)sizeof w->setup)
        return -1;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int want = 1 + w->setup.pages;
    if (!c || c->cmsg_type != SCM_RIGHTS || want > 1 + EXECUTOR_PAGES ||
        c->cmsg_len != CMSG_LEN((size_t)want * sizeof(int)))
        return -1;
    memcpy(w->fd, CMSG_DATA(c), (size_t)want * sizeof(int));
    return 0;
}

/* The control block and the outputs can be written, inputs and pages cannot. */
static int map(struct worker *w)
{
    const struct executor_setup *s = &w->setup;
    char *at = mmap(NULL, (size_t)w->area.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd[0], 0);
    if (at == MAP_FAILED)
        return -1;
    w->at = at;
    w->control = shared = (struct executor_control *)(void *)at;
    if (mprotect(at + w->area.inputs, (size_t)(w->area.bytes - w->area.inputs), PROT_READ) != 0)
        return -1;
    for (int32_t i = 0; i < s->pages; i++) {
        void *p = mmap(NULL, (size_t)s->page_bytes[i], PROT_READ, MAP_SHARED, w->fd[1 + i], 0);
        if (p == MAP_FAILED)
            return -1;
        w->pages[i] = p;
    }
    return 0;
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* Reads the object's table; calls nothing of it. */
static void load(struct worker *w)
{
    isa_facts(); /* asks for AMX tiles, before a kernel may use them */
    void *handle = dlopen(w->setup.object, RTLD_NOW | RTLD_LOCAL);
    const struct cpu_kernel *k = handle ? dlsym(handle, "whet_kernel") : NULL;
    const char *why = handle ? "exports no symbol whet_kernel" : dlerror();
    if (!k)
        refuse(why ? why : "does not load");
    if (k->abi != WHET_CPU_ABI || k->region != w->setup.region)
        refuse("is for another interface or region");
    if (!k->run || !k->scratch_bytes || k->m_max < 1)
        refuse("lacks run, scratch_bytes or a positive m_max");
    if (!k->packed_bytes != !k->pack)
        refuse("has only one of pack and packed_bytes");
    w->kernel = k;
}

static int64_t weight_bytes(const struct weight *w)
{
    return dtype_bytes((enum dtype)w->type, (int64_t)w->rows * w->cols);
}

/* Where each layer's weights and their repacked copies are. Those that are read in the model's own
 * format are copied into huge pages if the server did the same; see filemap.c. */
static void lay_out_weights(struct worker *w)
{
    enum region r = (enum region)w->setup.region;
    int32_t layers = class_layers(w->formats, r, w->model->shape.layers);
    int64_t plain = 0, at = 0;
    w->weight = xcalloc((size_t)region_runs(r, w->model->shape.layers), sizeof *w->weight);
    for (int32_t n = 0; n < layers; n++) {
        int32_t l = class_layer(w->formats, n);
        union region_args args = {0};
        struct weight *own[3];
        bind_layer(w->model, r, l, &args);
        w->weights = bind_weights(&args, r, own);
        for (int i = 0; i < w->weights; i++) {
            w->weight[l][i] = *own[i];
            plain += w->sizes.packed[l][i] > 0 ? 0 : sizes_lines(weight_bytes(own[i]));
        }
    }
    bool settle = w->setup.settle && plain > 0 && plain <= memory_available() / 4;
    char *own = settle ? memory_huge((size_t)plain) : NULL;
    w->packed = w->sizes.packed_total > 0 ? memory_huge((size_t)w->sizes.packed_total) : NULL;
    for (int32_t n = 0; n < layers; n++)
        for (int i = 0; i < w->weights; i++) {
            int32_t l = class_layer(w->formats, n);
            struct weight *x = &w->weight[l][i];
            int64_t bytes = weight_bytes(x);
            if (w->sizes.packed[l][i] > 0) {
                x->packed = w->packed + at;
                at += sizes_lines(w->sizes.packed[l][i]);
            } else if (own) {
                x->data = memcpy(own, x->data, (size_t)bytes);
                own += sizes_lines(bytes);
            }
        }
}

/* Sealed: the first call of the object. */
static void pack(const struct worker *w)
{
    enum region r = (enum region)w->setup.region;
    for (int32_t n = 0; n < class_layers(w->formats, r, w->model->shape.layers); n++)
        for (int i = 0; i < w->weights; i++) {
            int32_t l = class_layer(w->formats, n);
            struct weight x = w->weight[l][i];
            char *to = w->packed + ((const char *)x.packed - w->packed);
            x.packed = NULL;
            if (w->sizes.packed[l][i] > 0)
                w->kernel->pack(&x, to, 0, x.rows);
        }
}

/* ---- calls ---------------------------------------------------------------------------------- */

static void *in_area(const struct worker *w, int64_t at)
{
    return w->at + at;
}

static void aim_attn_in(const struct worker *w, struct attn_in_args *a)
{
    const struct area *at = &w->area;
    a->x = in_area(w, at->x);
    a->rope_cos = in_area(w, at->cosine); /* the tokens' own rows, in their order */
    a->rope_sin = in_area(w, at->sine);
    a->position = a->kv_at = w->index;
    a->q = in_area(w, at->out);
    a->k_pages = in_area(w, at->k);
    a->v_pages = in_area(w, at->v);
}

static void aim_attn(const struct worker *w, struct attn_args *a)
{
    const struct area *at = &w->area;
    const struct executor_control *c = w->control;
    const char *pages = w->pages[c->call.pages == EXECUTOR_BENCH];
    a->spans = c->call.spans;
    a->q = in_area(w, at->in);
    a->k_pages = pages + c->call.k_at;
    a->v_pages = pages + c->call.v_at;
    a->span = in_area(w, at->span);
    a->page_table = in_area(w, at->table);
    a->a = in_area(w, at->out);
}

static void aim(const struct worker *w, union region_args *args)
{
    const struct area *at = &w->area;
    switch ((enum region)w->setup.region) {
    case REGION_ATTN_IN:
        aim_attn_in(w, &args->attn_in);
        break;
    case REGION_ATTN:
        aim_attn(w, &args->attn);
        break;
    case REGION_MLP_IN:
        args->mlp_in.x = in_area(w, at->x);
        args->mlp_in.h = in_area(w, at->out);
        break;
    case REGION_HEAD:
        args->head.row = w->index;
        args->head.x = in_area(w, at->x);
        args->head.logits = in_area(w, at->out);
        break;
    default:
        args->out.in = in_area(w, at->in);
        args->out.x = in_area(w, at->x);
        args->out.y = in_area(w, at->out);
        break;
    }
}

static struct gate_wait idle = {.spin_ns = GATE_SPIN_MAX_NS, .shared = true};

static void obey(const struct worker *w, const struct team *team)
{
    const struct executor_control *c = w->control;
    enum region r = (enum region)w->setup.region;
    union region_args args = {0};
    struct weight *to[3];
    if (team->rank == 0) {
        process_guests_add(c->call.guests - process_guests());
        gate_long_spins(&idle, c->call.alone);
    }
    bind_layer(w->model, r, c->call.layer, &args);
    for (int i = 0, n = bind_weights(&args, r, to); i < n; i++)
        *to[i] = w->weight[region_info(r)->once ? 0 : c->call.layer][i];
    args.embed.m = c->call.m; /* first in every struct */
    aim(w, &args);
    struct team again = *team;
    again.taken = NULL; /* they count from the pool's start, which was many calls ago */
    w->kernel->run(&args, &again);
}

/* Every rank waits for the server's word by itself, and the last one to be done says so: a call
 * costs one hand-over each way. */
static void serve(const void *args, const struct team *team)
{
    static _Atomic int32_t arrived;
    const struct worker *w = args;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&w->control->command, seen, &idle, 0);
        obey(w, team);
        if (atomic_fetch_add(&arrived, 1) + 1 < team->size)
            continue;
        atomic_store(&arrived, 0);
        gate_raise(&w->control->done, true);
    }
}

/* ---- start ---------------------------------------------------------------------------------- */

static void meet(const void *args, const struct team *team)
{
    (void)args;
    team->barrier(team);
}

static void prepare(struct worker *w)
{
    struct err err = {""};
    const struct executor_setup *s = &w->setup;
    numa_open(s->spread);
    w->model = model_open(s->model, false, NULL, NULL, &err);
    if (!w->model)
        refuse(err.msg);
    w->model->shape.kv_bf16 = s->kv_bf16;
    w->area = area_of(&w->model->shape, (enum region)s->region, s->max_tokens, s->positions);
    if (s->layer >= w->model->shape.layers)
        refuse("is for a layer that the model has not");
    if (s->layer >= 0)
        w->formats = class_of_layer(w->model, MACHINE_CPU, (enum region)s->region, s->layer, 1);
    load(w);
    int32_t most = w->kernel->m_max < s->max_tokens ? w->kernel->m_max : s->max_tokens;
    if (sizes_ask(w->kernel, w->model, w->formats, most, s->team, s->pack_bytes, true, &w->sizes,
                  &err) != 0)
        refuse(err.msg);
    lay_out_weights(w);
    w->index = xcalloc((size_t)s->max_tokens, sizeof *w->index);
    for (int32_t i = 0; i < s->max_tokens; i++)
        w->index[i] = i;
    w->pool = pool_open(s->team, w->sizes.scratch);
    if (pool_size(w->pool) != s->team)
        refuse("has no threads for its team");
    pool_run(w->pool, meet, NULL, 0); /* a thread that starts makes system calls */
}

int executor_main(int argc, char **argv)
{
    static struct worker w;
    if (argc == 2 && strcmp(argv[1], "--check") == 0)
        return sandbox_works(NULL) ? 0 : 1;
    if (argc != 1 || receive(0, &w) != 0) {
        fprintf(stderr, "usage: whet executor --check (without it: started by the server)\n");
        return 2;
    }
    /* The area comes first: it takes the reason of everything else that may go wrong. */
    w.area.bytes = w.setup.area_bytes;
    w.area.inputs = w.setup.area_inputs;
    if (map(&w) != 0)
        refuse("cannot map what it shares with the server");
    prepare(&w);
    fault_stack();
    fault_catch(on_fault);
    descriptors_close_from(0);
    if (!sandbox_enter((struct sandbox){.fd = -1}))
        refuse("cannot be sealed in: this machine or build has no seccomp");
    pack(&w);
    w.control->m_max = w.kernel->m_max;
    w.control->packed_bytes = w.sizes.packed_total;
    atomic_store(&w.control->state, EXECUTOR_READY);
    gate_raise(&w.control->done, true);
    pool_run(w.pool, serve, &w, 0);
    return EXIT_REFUSED; /* never */
}
