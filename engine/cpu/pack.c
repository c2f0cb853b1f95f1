/* SPDX-License-Identifier: Apache-2.0 */
/* pack.c - see pack.h. */
#include "engine/cpu/pack.h"

#include <stddef.h>

#include "engine/cpu/sizes.h"

int64_t weights_packed_bytes(const struct cpu_kernel *k, struct weight *const weight[], int n)
{
    int64_t total = 0;
    for (int i = 0; k->packed_bytes && k->pack && i < n; i++)
        total += sizes_lines(k->packed_bytes(weight[i]));
    return total;
}

char *weights_pack(const struct cpu_kernel *k, struct weight *const weight[], int n, char *at,
                   void *packed[3])
{
    for (int i = 0; i < 3; i++) {
        int64_t bytes = i < n ? weights_packed_bytes(k, &weight[i], 1) : 0;
        packed[i] = bytes > 0 ? at : NULL;
        if (bytes > 0)
            k->pack(weight[i], at, 0, weight[i]->rows);
        at += bytes;
    }
    return at;
}
