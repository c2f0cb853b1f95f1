/* SPDX-License-Identifier: Apache-2.0 */
/* trap.c - breaks the CUDA context of the process it was loaded into, for tests/device/broken.py.
 *
 * Loaded with LD_PRELOAD. A thread waits until the file named by WHET_TRAP exists, then launches a
 * kernel that writes to address 4096 in the device's primary context, which is the one that the
 * process's CUDA runtime uses. Such an error stays with a context for good, as that of a device
 * that fell off the bus does. Nothing in whet knows of this.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char text[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                           ".visible .entry trap()\n{\n.reg .b64 %rd<2>;\n.reg .b32 %r<2>;\n"
                           "mov.u64 %rd1, 4096;\nmov.u32 %r1, 1;\n"
                           "st.global.u32 [%rd1], %r1;\nret;\n}\n";

typedef int call();

static call *find(void *library, const char *name)
{
    call *f;
    *(void **)&f = dlsym(library, name);
    return f;
}

/* The driver's status of the first call that failed, or 0. */
static int spring(void *cuda)
{
    void *context, *module, *function;
    int rc = find(cuda, "cuDevicePrimaryCtxRetain")(&context, 0);
    if (!rc)
        rc = find(cuda, "cuCtxSetCurrent")(context);
    if (!rc)
        rc = find(cuda, "cuModuleLoadData")(&module, text);
    if (!rc)
        rc = find(cuda, "cuModuleGetFunction")(&function, module, "trap");
    if (!rc)
        rc = find(cuda, "cuLaunchKernel")(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    return rc;
}

static void *wait_for(void *file)
{
    while (access(file, F_OK) != 0)
        usleep(20000);
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    fprintf(stderr, "trap: sprung, %d\n", cuda ? spring(cuda) : -1);
    return NULL;
}

__attribute__((constructor)) static void load(void)
{
    pthread_t thread;
    char *file = getenv("WHET_TRAP");
    if (file && pthread_create(&thread, NULL, wait_for, file) == 0)
        pthread_detach(thread);
}
