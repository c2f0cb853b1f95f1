/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_conn.c - any bytes on a connection of a whole server: conn.c, http.c, the router, the routes
 * and their answers, with an engine that echoes.
 *
 * The same bytes are sent in one piece and in pieces whose size the first byte says; both must give
 * the same answers by route and status. Otherwise the end of a request would depend on how packets
 * were cut, and that is request smuggling.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/world.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    const char *bytes = (const char *)data + 1;
    struct fuzz_counts whole = fuzz_send(bytes, size - 1, size);
    struct fuzz_counts cut = fuzz_send(bytes, size - 1, size / 16 + data[0] % 64 + 1);
    if (memcmp(&whole, &cut, sizeof(whole)) != 0) {
        for (int r = 0; r < METRIC_ROUTES; r++)
            for (int c = 0; c < METRIC_CODES; c++)
                if (whole.requests[r][c] != cut.requests[r][c])
                    fprintf(stderr, "route %d status no. %d: %d in one piece, %d in many\n", r, c,
                            (int)whole.requests[r][c], (int)cut.requests[r][c]);
        abort();
    }
    return 0;
}
