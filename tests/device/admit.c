/* SPDX-License-Identifier: Apache-2.0 */
/* admit.c - the whole admission of an object on the device, in this process.
 *
 * In the server it has a process of its own, which ends after an object that did more than compute
 * wrong numbers. Here such an object costs its session: the next one opens another.
 */
#include "specializer/admission/check_device.h"
#include "tests/device/device_test.h"

int admit(const struct model *model, const char *object, const struct check_range *range,
          struct check_result *result, struct err *e)
{
    static const struct device_slices always = {0};
    static struct device_session *session;
    static struct drawn_model drawn;
    bool spent;
    if (!session && !(session = whet_backend_cuda.probe->start(&always, e)))
        return -1;
    struct check_device_request q = {.check = {.model = model,
                                               .object = object,
                                               .range = *range,
                                               .threads = 1,
                                               .full = true,
                                               .rule = {.factor = 2},
                                               .seed = 3},
                                     .shape = model->shape,
                                     .device = whet_backend_cuda.probe,
                                     .session = session,
                                     .drawn = &drawn};
    int rc = check_device(&q, result, &spent, e);
    session = spent ? NULL : session;
    return rc;
}
