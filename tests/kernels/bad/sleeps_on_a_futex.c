/* SPDX-License-Identifier: Apache-2.0 */
/* Sleeps with the one system call that could let it: a wait that nobody ends. */
#include "kernel.h"
static void run(const void *args, const struct team *t)
{
    static int32_t word;
    good_out(args, t);
    register long no_timeout __asm__("r10") = 0; /* fourth argument */
    __asm__ volatile("" : : "r"(no_timeout));
    system_call(202, (long)&word, 0, 0);
}
KERNEL(REGION_MLP_OUT, 16, run, no_scratch);
