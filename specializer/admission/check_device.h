/* SPDX-License-Identifier: Apache-2.0 */
/* check_device.h - the admission of kernels that run on a device of their own.
 *
 * The same plan of cases and the same comparator as check.h; what runs them is the backend's half
 * of the probe (engine/device_probe.h), which judges kernels of reduce by itself. In the probe
 * process.
 */
#ifndef WHET_SPECIALIZER_ADMISSION_CHECK_DEVICE_H
#define WHET_SPECIALIZER_ADMISSION_CHECK_DEVICE_H

#include "engine/device_probe.h"
#include "specializer/admission/check.h"

/* A model drawn for a region, kept from one request to the next: drawing takes longer than probing.
 */
struct drawn_model {
    struct model *model;
    struct model_shape shape;
    uint64_t seed;
    enum dtype type;
};

/* What check_kernel() is told, and how the whole model is shaped. */
struct check_device_request {
    struct check_request check; /* model, NULL: the file is not there, weights are drawn */
    struct model_shape shape;
    enum dtype type;  /* of drawn weights; 0: bf16 */
    bool own_formats; /* which the device keeps */
    const struct device_probe_ops *device;
    struct device_session *session;
    struct drawn_model *drawn;
};

/* 0 passed, -1 refused, 1 nothing was learnt about the kernel; err->msg says why. *spent: the
 * process must not probe another kernel: this one did more than compute wrong numbers. */
int check_device(const struct check_device_request *q, struct check_result *result, bool *spent,
                 struct err *err);

#endif
