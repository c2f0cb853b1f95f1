/* SPDX-License-Identifier: Apache-2.0 */
/* key_file.c - see key_file.h.
 *
 * A warning and no refusal: on a machine with one user, or in a container that mounts secrets
 * readable, nothing is wrong, and a server that does not start is worse than a key that is old.
 */
#include "config/key_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"

bool key_file_warn(const char *option, const char *path)
{
    struct stat st;
    if (!path || !*path || stat(path, &st) != 0)
        return false;
    mode_t readers = S_IROTH | (st.st_uid == geteuid() ? S_IRGRP : 0);
    if (!(st.st_mode & readers))
        return false;
    log_warn("config", "%s: other users may read the key in %s (mode %04o): chmod 600 it", option,
             path, (unsigned)(st.st_mode & 07777));
    return true;
}
