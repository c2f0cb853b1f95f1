/* SPDX-License-Identifier: Apache-2.0 */
/* find.c - finds the cuda backend at run time.
 *
 * The cuda backend is a shared object of its own, so that the same whet binary starts on a machine
 * without a driver, without the CUDA libraries, or built without them. It is looked for beside the
 * executable and then on the library path, and exports its vtable as `whet_backend_cuda`, which is
 * used only where it is of this program's build (module.h). The driver is asked for first, because
 * "no NVIDIA driver" is what most machines should say.
 *
 * The module stays loaded until the process ends: kernels and captured graphs live in it.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "config/log.h"
#include "engine/backend.h"
#include "engine/cuda/module.h"

static const char module_name[] = "libwhet-cuda.so";

/* Directory of the running executable, with its slash; empty if it is not known. */
static void executable_dir(char *dir, size_t n)
{
    ssize_t len = readlink("/proc/self/exe", dir, n - 1);
    dir[len > 0 ? len : 0] = 0;
    char *slash = strrchr(dir, '/');
    dir[slash ? slash + 1 - dir : 0] = 0;
}

int module_check(const struct module_build *its, const char *path, struct err *err)
{
    static const struct module_build ours = MODULE_BUILD(WHET_VERSION);
    if (its && memcmp(its, &ours, sizeof ours) == 0)
        return 0;
    return err_set(err,
                   "%s is of another build (%.31s) than this program (%s): install both files of "
                   "one build",
                   path, its ? its->version : "older", ours.version);
}

const struct backend_ops *backend_cuda_load(struct err *err)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        err_set(err, "no NVIDIA driver (%s)", dlerror());
        return NULL;
    }
    char dir[3072], path[4096];
    executable_dir(dir, sizeof dir);
    snprintf(path, sizeof path, "%s%s", dir, module_name);
    const char *file = access(path, R_OK) == 0 ? path : module_name;
    void *module = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        err_set(err, "the cuda backend was not built or does not load (%s)", dlerror());
        dlclose(driver);
        return NULL;
    }
    const struct backend_ops *ops = dlsym(module, "whet_backend_cuda");
    if (!ops)
        err_set(err, "%s does not export whet_backend_cuda", file);
    else if (module_check(dlsym(module, "whet_cuda_build"), file, err))
        ops = NULL;
    void *set_level = dlsym(module, "log_set_level");
    if (set_level) /* the module logs through a copy of its own */
        ((void (*)(enum log_level))(uintptr_t)set_level)(log_level());
    return ops;
}
