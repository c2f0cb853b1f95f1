/* SPDX-License-Identifier: Apache-2.0 */
/* agent_sass.c - see agent_sass.h.
 *
 * NVIDIA does not document these encodings. What is used of them was found by compiling one-line
 * kernels with NVRTC 13 for sm_80, sm_89, sm_90a, sm_100a and sm_120, and looking at the bytes
 * beside what nvdisasm 13.5 calls them (2026-11-22); all five agree:
 *
 *   an instruction is 16 bytes, little-endian; its lowest 9 bits are the operation, the next 3 the
 *   form of its operands (4: no register where a register could be)
 *   S2R 0x119, S2UR 0x1c3 and CS2R 0x005 read the special register whose number is byte 9
 *
 * Special registers are a list of what is allowed, everything else is a list of what is not: new
 * instructions for arithmetic must not refuse a kernel. test_cuda_agent.c compiles each of these
 * anew, so a compiler that encodes them otherwise is found out there.
 */
#include "specializer/agent/agent_sass.h"

#include <stdbool.h>
#include <stdint.h>

enum { INSTRUCTION = 16, OPERATION_BITS = 9, FORM_NO_REGISTER = 4 };
enum { S2R = 0x119, CS2R = 0x005, S2UR = 0x1c3, CALL = 0x144 };

static const struct {
    uint16_t operation;
    const char *what;
} refused[] = {{0x15d, "sleeps"},
               {0x15c, "traps"},
               {0x001, "triggers a performance counter"},
               {0x166, "reads a texture"},
               {0x161, "reads a texture"},
               {0x199, "reads a surface"},
               {0x19d, "writes a surface"},
               {0x14e, "asks for the address of its code"}};

/* Lane, thread, block, masks of lanes, rank in a cluster, bytes of shared memory, and where shared
 * memory lies among addresses (the same for every block; `mapa`, the frame's peer_of(), reads it);
 * none at all. */
static bool is_input(unsigned special)
{
    return special == 0x00 || (special >= 0x21 && special <= 0x23) ||
           (special >= 0x25 && special <= 0x27) || special == 0x2f || special == 0x32 ||
           (special >= 0x38 && special <= 0x3c) || special == 0x88 || special == 0xff;
}

static const char *special_name(unsigned special)
{
    return special >= 0x50 && special <= 0x55   ? "a clock"
           : special == 0x43                    ? "its multiprocessor"
           : special >= 0x60 && special <= 0x6f ? "a performance counter"
                                                : "a special register";
}

int agent_sass_inspect(const void *code, size_t n, struct err *err)
{
    const unsigned char *at = code;
    if (n == 0 || n % INSTRUCTION != 0)
        return err_set(err, "damaged: code of %zu bytes", n);
    for (size_t i = 0; i < n; i += INSTRUCTION) {
        const unsigned word = at[i] | (unsigned)at[i + 1] << 8;
        const unsigned operation = word & ((1u << OPERATION_BITS) - 1), special = at[i + 9];
        const unsigned form = word >> OPERATION_BITS & 7;
        if ((operation == S2R || operation == S2UR || operation == CS2R) && !is_input(special))
            return err_set(err, "reads %s (register 0x%02x, instruction %zu)",
                           special_name(special), special, i / INSTRUCTION);
        if (operation == CALL && form != FORM_NO_REGISTER)
            return err_set(err, "calls through a register (instruction %zu)", i / INSTRUCTION);
        for (size_t k = 0; k < sizeof refused / sizeof *refused; k++)
            if (operation == refused[k].operation)
                return err_set(err, "%s (instruction %zu)", refused[k].what, i / INSTRUCTION);
    }
    return 0;
}
