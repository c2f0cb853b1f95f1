/* SPDX-License-Identifier: Apache-2.0 */
/* probe_main.c - the process that runs a kernel for the first time.
 *
 * `whet probe REQUEST` answers one request with a line on stdout: the CPU's way, and what a person
 * types to see a refusal again. It opens the model without its vocabulary, then checks the kernel
 * alone (check.c; on a GPU check_device.c) or, for a promoted candidate, the whole model's logits
 * with it (endcheck.c). It holds no socket and no file of the server, computes alone, and leaves
 * foreign code to children of its own, so a crash or a hang there becomes a reason here.
 *
 * `whet probe --serve` answers request after request on the socket that is its stdin, and works on
 * the device only in the slices that it is given there (prober.c has the messages). It keeps what
 * is the same for every kernel: the context, the open model, a drawn one. After a kernel that did
 * more than compute wrong numbers it answers once more and ends.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "config/clock.h"
#include "config/cores.h"
#include "specializer/admission/capture_file.h"
#include "specializer/admission/check.h"
#include "specializer/admission/check_device.h"
#include "specializer/admission/endcheck.h"
#include "specializer/admission/probe_request.h"
#include "specializer/admission/prober.h"

static const double error_factor = 2; /* times eager's own distance to the oracle (comparator.h) */

/* What one process keeps between requests. */
struct examiner {
    struct model *model;
    char *path;                   /* of `model`, */
    int32_t ranks;                /* which is a part if so many compute it */
    struct format_class *formats; /* of the layers that the kernel is for; NULL: all */
    struct drawn_model drawn[2];  /* the second for heads */
    const struct backend_ops *ops;
    struct device_session *session;
    struct device_slices slices;
    bool spent;
};

static int load_captures(const struct probe_request *q,
                         struct capture *captured[PROBE_CAPTURES_MAX], struct err *err)
{
    for (int32_t i = 0; i < q->captures; i++) {
        captured[i] = capture_load(q->capture[i], &q->shape, err);
        if (!captured[i])
            return -1;
    }
    return 0;
}

/* The device's module, loaded in this process only, and a context; tried again until it is there.
 */
static int device_there(struct examiner *x, struct err *err)
{
    const char *all = getenv("WHET_RANK_GPUS"); /* engine/launch.c: this rank's own comes first */
    if (!x->ops && all && *all)
        setenv("CUDA_VISIBLE_DEVICES", all, 1);
    if (!x->ops)
        x->ops = backend_cuda_load(err);
    if (!x->ops)
        return -1;
    if (!x->ops->probe)
        return err_set(err, "the backend %s has no probe", x->ops->name);
    if (!x->session)
        x->session = x->ops->probe->start(&x->slices, err);
    return x->session ? 0 : -1;
}

/* A kernel of a device of its own. */
static int check_on_device(struct examiner *x, const struct probe_request *q,
                           const struct check_request *check, struct check_result *r,
                           struct err *err)
{
    if (device_there(x, err) != 0)
        return 1;
    struct check_device_request d = {.check = *check,
                                     .shape = q->shape,
                                     .type = q->drawn,
                                     .own_formats = q->own_formats,
                                     .device = x->ops->probe,
                                     .session = x->session,
                                     .drawn = &x->drawn[q->region == REGION_HEAD]};
    return check_device(&d, r, &x->spent, err);
}

static int64_t pack_most(const struct probe_request *q)
{
    return (int64_t)q->pack_mib << 20;
}

static const char *kept_in(const struct probe_request *q)
{
    return q->references && *q->references ? q->references : NULL;
}

/* 0 passed, -1 refused, 1 nothing was learnt. */
static int run_check(struct examiner *x, const struct probe_request *q, const struct model *model,
                     struct capture *const *captured, struct probe_answer *a, struct err *err)
{
    struct check_request check = {
        .model = model,
        .object = q->object,
        .range = {q->region, q->m_from, q->m_to, q->context, x->formats},
        .threads = q->threads,
        .ranks = q->ranks,
        .full = q->depth == PROBE_FULL || q->depth == PROBE_WHOLE,
        .must_seal = q->text,
        .pack_most = pack_most(q),
        .rule = {.factor = error_factor,
                 .precision = q->precision,
                 .bit_equal = q->numerics == NUMERICS_BIT_EQUAL},
        .risk = (unsigned)q->risk,
        .captured = (const struct capture *const *)captured,
        .captures = q->captures,
        .seed = q->seed,
        .references = kept_in(q),
    };
    struct check_result r = {.cases = 0};
    int rc = target_of(q->machine)->prober ? check_on_device(x, q, &check, &r, err)
                                           : check_kernel(&check, &r, err);
    struct evidence *e = &a->evidence;
    e->probe_cases = r.cases;
    e->own_max = r.comparison.own_max;
    e->own_rms = r.comparison.own_rms;
    e->eager_max = r.comparison.eager_max;
    e->eager_rms = r.comparison.eager_rms;
    e->bit_equal = r.comparison.bit_equal;
    memcpy(e->worst, r.worst, sizeof e->worst);
    a->sealed = r.sealed;
    e->refusal = (struct refusal){CAUSE_NONE, STAGE_PROBE, r.comparison.times, ""};
    if (rc < 0)
        e->refusal.cause = r.comparison.times > 0 ? CAUSE_ERROR : CAUSE_OTHER;
    memcpy(e->refusal.in_case, r.wrong, sizeof r.wrong);
    return rc;
}

static void error(struct probe_answer *a, const struct err *err)
{
    a->verdict = PROBE_ERROR;
    a->killed = err->killed;
    snprintf(a->reason, sizeof a->reason, "%.239s", err->msg);
}

/* A kernel is not to blame for memory that was gone, nor for who kills its process. */
static void refuse(struct probe_answer *a, const char *stage, const struct err *err)
{
    error(a, err);
    if (err->outside)
        return;
    a->verdict = PROBE_REFUSE;
    snprintf(a->stage, sizeof a->stage, "%s", stage);
}

/* Random weights have no file. */
static bool drawn(const struct probe_request *q)
{
    return target_of(q->machine)->weights_drawn_again &&
           (!*q->model || strncmp(q->model, "random:", strlen("random:")) == 0);
}

/* Nothing is known of the layers where weights are drawn: all of them are then. */
static int find_layers(struct examiner *x, const struct probe_request *q, const struct model *model,
                       struct err *err)
{
    free(x->formats);
    x->formats = NULL;
    if (!model)
        return 0;
    if (q->layer >= model->shape.layers)
        return err_set(err, "the request names layer %d of %d", q->layer, model->shape.layers);
    x->formats = class_of_layer(model, q->machine, q->region, q->layer, q->m_to);
    return 0;
}

static void examine(struct examiner *x, const struct probe_request *q, const struct model *model,
                    struct capture *const *captured, struct probe_answer *a)
{
    struct err err = {""};
    struct end_result end = {.top1 = 1};
    int rc = q->depth != PROBE_END ? run_check(x, q, model, captured, a, &err) : 0;
    if (rc < 0)
        refuse(a, "check", &err);
    if (rc > 0)
        error(a, &err);
    bool local = q->region != REGION_REDUCE; /* else a rank's logits say nothing of it */
    if (local && (q->depth == PROBE_END || (q->depth == PROBE_WHOLE && rc == 0)) &&
        end_check(model, q->object, x->formats, q->m_to, q->text, pack_most(q), q->numerics,
                  kept_in(q), &end, &err) != 0)
        refuse(a, "end", &err);
    a->kl = isfinite(end.kl) ? end.kl : 1e9;
    a->top1 = end.top1;
}

/* Uploads and drawn weights use as many threads as there are cores; with a GPU the server's own
 * threads need little time but need it at once, so half of the cores are enough here. */
static void leave_cores(void)
{
    struct cores_set all, few = {{0}};
    if (!cores_affinity(&all))
        return;
    int left = cores_count(&all) / 2;
    left = left < 1 ? 1 : left;
    for (int i = CORES_SET_MOST - 1; i >= 0 && left > 0; i--)
        if (cores_has(&all, i)) {
            cores_add(&few, i);
            left--;
        }
    cores_keep_to(&few);
}

/* What no file says, but the server decided. */
static void of_server(struct model *m, const struct probe_request *q)
{
    m->own_formats = q->own_formats;
    m->shape.kv_bf16 = q->shape.kv_bf16;
}

/* NULL without a message: weights are drawn. */
static const struct model *model_for(struct examiner *x, const struct probe_request *q,
                                     struct err *err)
{
    if (drawn(q))
        return NULL;
    if (x->path && strcmp(x->path, q->model) == 0 && x->ranks == q->ranks) {
        of_server(x->model, q);
        return x->model;
    }
    model_close(x->model);
    free(x->path);
    x->path = NULL;
    x->model = model_open_part(q->model, q->ranks, 0, false, NULL, NULL, NULL, err);
    x->ranks = q->ranks;
    x->path = x->model ? xstrdup(q->model) : NULL;
    if (x->model)
        of_server(x->model, q);
    return x->model;
}

static void answer(struct examiner *x, const struct probe_request *q, struct probe_answer *a)
{
    struct capture *captured[PROBE_CAPTURES_MAX] = {0};
    struct err err = {""};
    const struct model *model = model_for(x, q, &err);
    if ((!model && !drawn(q)) || find_layers(x, q, model, &err) != 0 ||
        load_captures(q, captured, &err) != 0)
        error(a, &err);
    else
        examine(x, q, model, captured, a);
    for (int i = 0; i < PROBE_CAPTURES_MAX; i++) {
        if (captured[i])
            capture_free(captured[i]);
        free(captured[i]);
    }
}

static void once(struct examiner *x, const char *path, struct probe_answer *a, bool *device)
{
    struct probe_request q;
    struct err err = {""};
    *a = (struct probe_answer){.verdict = PROBE_PASS, .top1 = 1};
    if (probe_request_read(&q, path, &err) != 0) {
        error(a, &err);
        return;
    }
    *device = target_of(q.machine)->prober;
    if (*device)
        leave_cores();
    answer(x, &q, a);
    probe_request_free(&q);
}

/* ---- serving -------------------------------------------------------------------------------- */

struct line {
    int fd;
    bool held;
    int64_t until_ns;
    char text[PROBER_MESSAGE_MAX];
};

/* The next message; the process ends with the server. */
static void hear(struct line *l)
{
    ssize_t n;
    do
        n = recv(l->fd, l->text, sizeof l->text - 1, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        _exit(0);
    l->text[n] = 0;
}

static void say(const struct line *l, const char *text)
{
    if (send(l->fd, text, strlen(text), MSG_NOSIGNAL) < 0)
        _exit(0);
}

static void line_end(void *ctx)
{
    struct line *l = ctx;
    if (l->held)
        say(l, "rest");
    l->held = false;
}

static bool line_over(void *ctx)
{
    const struct line *l = ctx;
    return clock_ns() >= l->until_ns;
}

/* A slice that came so late that it is over goes back at once. */
static void line_begin(void *ctx)
{
    struct line *l = ctx;
    long long until;
    while (!l->held || line_over(l)) {
        line_end(l);
        say(l, "want");
        do
            hear(l);
        while (sscanf(l->text, "slice %lld", &until) != 1);
        l->until_ns = until;
        l->held = true;
    }
}

static int serve(struct examiner *x)
{
    struct line l = {.fd = 0};
    struct err err = {""};
    x->slices = (struct device_slices){line_begin, line_over, line_end, &l};
    leave_cores();
    if (device_there(x, &err) != 0)
        fprintf(stderr, "%s\n", err.msg); /* each request will say so, too */
    while (!x->spent) {
        struct probe_answer a;
        bool device;
        hear(&l);
        if (strncmp(l.text, "examine ", 8) != 0)
            continue;
        char *path = xstrdup(l.text + 8);
        once(x, path, &a, &device);
        line_end(&l);
        char *text = probe_answer_text(&a),
             *message = xasprintf("%s %s", x->spent ? "last" : "answer", text);
        say(&l, message);
        free(message);
        free(text);
        free(path);
    }
    _exit(0); /* the device may not answer any more: nothing waits for it */
}

int probe_main(int argc, char **argv)
{
    struct examiner x = {0};
    struct probe_answer a;
    bool device = false;
    if (argc != 2) {
        fprintf(stderr, "usage: whet probe REQUEST.json (started by the specializer)\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[1], "--serve") == 0)
        return serve(&x);
    once(&x, argv[1], &a, &device);
    char *text = probe_answer_text(&a);
    int rc = puts(text) >= 0 && fflush(stdout) == 0 && a.verdict != PROBE_ERROR ? 0 : 1;
    free(text);
    if (device)
        _exit(rc); /* as above */
    model_close(x.model);
    free(x.formats);
    free(x.path);
    return rc;
}
