/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_config.c - any bytes as the config.json of a folder that is right otherwise. What follows a
 * zero byte is the generation_config.json beside it. */
#include <string.h>

#include "tests/fuzz/folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = memchr(data, 0, size);
    size_t n = zero ? (size_t)(zero - data) : size;

    folder_make();
    folder_put("config.json", data, n);
    if (zero)
        folder_put("generation_config.json", zero + 1, size - n - 1);
    folder_load(zero != NULL, data, n);
    return 0;
}
