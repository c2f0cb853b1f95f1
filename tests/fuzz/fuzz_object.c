/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_object.c - any bytes as a shared object, a template's and a text's. What is accepted as a
 * text's says of itself what its frame would. */
#include <stdlib.h>
#include <string.h>

#include "specializer/build/object.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct object_frame frame = {5, 4, "agent/0123456789abcdef.c"};
    struct err err;
    char *copy = malloc(size + 1); /* aligned, as a mapping is */
    memcpy(copy, data, size);
    int template = object_inspect_bytes(copy, size, NULL, &err);
    if (object_inspect_bytes(copy, size, &frame, &err) == 0 && template != 0)
        abort();
    free(copy);
    return 0;
}
