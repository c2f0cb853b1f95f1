/* sandbox.h - the system-call filter around an untrusted kernel. */
#ifndef WHET_SPECIALIZER_SANDBOX_H
#define WHET_SPECIALIZER_SANDBOX_H

#include <stdbool.h>

/* Allows the calling process, all threads included, no more than to read and write `fd`, wait on
 * futexes, set a timer and exit; anything else raises SIGSYS. For good. False where the machine or
 * the build (sanitizers) has no such filter. */
bool sandbox_enter(int fd);
/* "openat" for what kernels try most, else "number 123"; in a static buffer per thread. */
const char *sandbox_call_name(int number);

#endif
