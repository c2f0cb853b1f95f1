/* check_device.h - the admission of kernels that run on a device of their own.
 *
 * The same plan of cases and the same judge as check.h; what runs them is the backend's half of the
 * probe (engine/probe.h). In the probe process.
 */
#ifndef WHET_SPECIALIZER_CHECK_DEVICE_H
#define WHET_SPECIALIZER_CHECK_DEVICE_H

#include "engine/probe.h"
#include "specializer/admission/check.h"

/* What check_kernel() is told, and how the whole model is shaped. */
struct check_device_request {
    struct check_request check; /* model, NULL: the file is not there, weights are drawn */
    struct model_shape shape;
    const struct device_probe_ops *device;
};

/* 0 passed, -1 refused, 1 nothing was learnt about the kernel; err->msg says why. */
int check_device(const struct check_device_request *q, struct check_result *result,
                 struct err *err);

#endif
