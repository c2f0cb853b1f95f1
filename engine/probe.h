/* probe.h - the device half of `whet probe`: a kernel's first runs, on a device of its own.
 *
 * For backends whose kernels cannot be run by a sealed process of the CPU
 * (specializer/admission/runner.h). A kernel of the device can reach device memory only, so answers
 * are safe in this process, and it cannot call the system; what it can do is crash the device's
 * context, hang, or write where it should not, and then this process ends with a reason. Used by
 * the probe process only; one thread.
 */
#ifndef WHET_ENGINE_PROBE_H
#define WHET_ENGINE_PROBE_H

#include "engine/backend.h"
#include "engine/cpu/case.h"

struct device_probe;

struct device_probe_options {
    /* Reduced to what the region reads: its layers, and a vocabulary only for the head. */
    const struct model *model;
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
    } output[3];
};

/* Whose fault it was that something did not work. */
enum device_verdict { DEVICE_OK, DEVICE_FAULT, DEVICE_ERROR };

struct device_probe_ops {
    /* Loads the kernel. NULL: *verdict and err say why. */
    struct device_probe *(*open)(const struct device_probe_options *o, enum device_verdict *verdict,
                                 struct err *err);
    /* After DEVICE_FAULT or DEVICE_ERROR the probe is good for nothing but close(). */
    enum device_verdict (*run)(struct device_probe *p, const struct device_case *c,
                               struct device_outcome *out, struct err *err);
    /* Waits for nothing: a hanging kernel ends with the process. */
    void (*close)(struct device_probe *p);
};

#endif
