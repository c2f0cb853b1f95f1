/* SPDX-License-Identifier: Apache-2.0 */
/* room.c - see room.h.
 *
 * A probe that takes more than there is is killed, and its cgroup may be the server's. Who is
 * killed has no answer to give, so what a kernel asks for is held against what is left before
 * anything of it is taken. Templates ask for what their layout needs, so when there is no room for
 * that, the machine is short of memory and may be less so later; a text asks for what it likes.
 */
#include "specializer/admission/room.h"

#include <unistd.h>

#include "config/cgroup.h"
#include "engine/memory.h"

static const int64_t fair_bytes = 256 << 20; /* as much as the cases of a group (check.c) */

static int64_t machine_bytes(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

int room_for(const char *root, int64_t bytes, bool text, struct err *err)
{
    char why[CGROUP_FILE + 64];
    int64_t left = memory_available_in(root, why, sizeof why);
    if (left == 0 || bytes <= left)
        return 0;
    bool own_fault = bytes > machine_bytes() || (text && bytes > fair_bytes);
    return (own_fault ? err_set : err_outside)(
        err, "asks for %.1f MiB of packed weights and scratch where %.1f MiB are left (%.200s)",
        (double)bytes / 1048576, (double)left / 1048576, why);
}
