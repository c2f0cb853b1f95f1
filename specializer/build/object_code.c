/* SPDX-License-Identifier: Apache-2.0 */
/* object_code.c - see object_code.h. */
#include "specializer/build/object_code.h"

#include <stdbool.h>

/* syscall, sysenter and int 0x80, at any byte. On ARM svc, at every fourth byte: elsewhere nothing
 * is executed. */
static bool is_call(const unsigned char *p, size_t room, uint64_t address)
{
#if defined(__aarch64__)
    return address % 4 == 0 && room > 3 && p[3] == 0xd4 && (p[0] & 0x1f) == 1;
#else
    (void)address;
    return room > 1 &&
           ((p[0] == 0x0f && (p[1] == 0x05 || p[1] == 0x34)) || (p[0] == 0xcd && p[1] == 0x80));
#endif
}

int object_code_check(const unsigned char *code, size_t n, uint64_t address, struct err *err)
{
    for (size_t i = 0; i < n; i++)
        if (is_call(code + i, n - i, address + i))
            return err_set(err,
                           "has a system-call instruction (bytes %02x %02x; if they are part of a "
                           "constant or an address by accident, any change of the code moves them)",
                           code[i], code[i + 1]);
    return 0;
}
