/* SPDX-License-Identifier: Apache-2.0 */
/* device_probe.h - the device half of `whet probe`: a kernel's first runs, on a device of its own.
 *
 * One process probes kernel after kernel (a context takes a quarter of a second to make, and steps
 * of the server beside it notice), so everything that a kernel could have touched is made anew for
 * each: memory is poisoned and filled again, its code is unloaded, and what judges it shows that it
 * still does. The device is worked on in slices, as few and as full as possible: what delays a step
 * of the server is each change from its context to this one, hardly how short the work is.
 *
 * For backends whose kernels cannot be run by a sealed process of the CPU
 * (specializer/admission/runner.h). A kernel of the device can reach device memory only, so answers
 * are safe in this process, and it cannot call the system; what it can do is crash the device's
 * context, hang, or write where it should not, and then this process ends with a reason. Used by
 * the probe process only; one thread.
 */
#ifndef WHET_ENGINE_DEVICE_PROBE_H
#define WHET_ENGINE_DEVICE_PROBE_H

#include "engine/backend.h"
#include "engine/case_shape.h"

struct device_probe;
struct device_session;

/* When the device may be worked on. All NULL: always. */
struct device_slices {
    void (*begin)(void *ctx); /* returns when a slice is under way that is not over */
    bool (*over)(void *ctx);  /* it has lasted long enough */
    void (*end)(void *ctx);   /* nothing of ours is on the device; nothing if none is under way */
    void *ctx;
};

struct device_probe_options {
    /* Reduced to what the region reads: its layers, and a vocabulary only for the head. */
    const struct model *model;
    const struct model_shape
        *whole; /* the model's own shape: memory is sized for all its regions */
    const char *object;
    enum region region;
    int32_t m, context; /* of the slot */
    int32_t positions;  /* one more than the highest position of any case */
};

/* One case. Inputs have two contents, 0 and 1, unless they were captured. */
struct device_case {
    struct case_shape shape; /* layer: of the reduced model */
    enum fill fill;
    bool random_params; /* weights and gains are drawn, too */
    const struct capture *capture;
    uint64_t seed;
};

/* What the kernel, the eager kernel and the oracle made of both contents. Rows are tokens; q and k
 * come in the device's order of RoPE pairs. malloc'ed, NULL where there is nothing. */
struct device_outcome {
    int32_t outputs, contents, runs;
    struct {
        int32_t rows, cols;
        float *own[2], *eager[2];
        double *truth[2];
        double *scores[2]; /* [rows], of attention: how large what scores are summed up from is, in
                              nats: the mean over positions, by their weight, of the head where it
                              is most */
    } output[3];
};

/* A kernel of reduce, which the ranks of a slot's model run together. */
struct device_reduce {
    const char *object;
    int32_t world, hidden;
    int32_t m_from, m_to; /* of the slot */
    bool full;            /* false: the few rounds that a restored winner must pass again */
    uint64_t seed;
};

/* Whose fault it was that something did not work. */
enum device_verdict { DEVICE_OK, DEVICE_FAULT, DEVICE_ERROR };

struct device_probe_ops {
    /* Once a process: a context, and what is the same for every kernel. Never ended but with the
     * process. */
    struct device_session *(*start)(const struct device_slices *slices, struct err *err);
    /* Loads the kernel; one at a time. NULL: *verdict and err say why. */
    struct device_probe *(*open)(struct device_session *s, const struct device_probe_options *o,
                                 enum device_verdict *verdict, struct err *err);
    /* As many of n cases as fit into a slice, at least one. *done: outcomes that are there, of the
     * first cases; with another verdict than DEVICE_OK the case *failed is the reason. After
     * DEVICE_FAULT or DEVICE_ERROR the probe is good for nothing but close(). */
    enum device_verdict (*run)(struct device_probe *p, const struct device_case *c, int n,
                               struct device_outcome *out, int *done, int *failed, struct err *err);
    /* After the last case: whether all that belongs to nobody is as it was. */
    enum device_verdict (*finish)(struct device_probe *p, struct err *err);
    /* Waits for nothing. `sound`: the process will be used again, so the kernel is unloaded. */
    void (*close)(struct device_probe *p, bool sound);
    /* Optional: all of a probe of a kernel of reduce, on as many devices as there are ranks.
     * *calls: that were judged; *spent: the process must not probe another kernel. */
    enum device_verdict (*reduce)(struct device_session *s, const struct device_reduce *q,
                                  int32_t *calls, bool *spent, struct err *err);
};

#endif
