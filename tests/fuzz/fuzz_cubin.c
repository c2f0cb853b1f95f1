/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_cubin.c - any bytes as a cubin, to both of its readers. What is accepted has facts within
 * their bounds. */
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_cubin.h"
#include "specializer/build/cubin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cubin_facts f;
    struct err err;
    char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    if (cubin_inspect_bytes(copy, size, &f, &err) == 0 &&
        (f.registers < 1 || f.registers > 255 || f.stack > 0 || f.info.launches < 1 ||
         f.info.launch[0].threads < 1))
        abort();
    agent_cubin_inspect(copy, size, &err);
    free(copy);
    return 0;
}
