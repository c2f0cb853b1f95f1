/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_plain.c - untrusted words made fit for a log line. */
#include <string.h>

#include "specializer/fleet/fleet_db.h"

void fleet_plain(const char *text, char out[FLEET_WORD])
{
    size_t n = 0;
    for (; *text && n < FLEET_WORD - 1; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '\n' && !strpbrk(text + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
            break;
        out[n++] = c == '\n' || c == '\t' ? ' ' : c < 0x20 || c > 0x7e ? '?' : (char)c;
    }
    out[n] = 0;
}
