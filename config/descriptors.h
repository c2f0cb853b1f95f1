/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - descriptors where a system lacks what is usually there.
 *
 * A chroot may have no /dev/null; kernels before 5.9, and filters of system calls that do not know
 * it, have no close_range. Both are asked for where a failure would not be seen: a standard
 * stream that stays somebody else's file, a child that keeps what it should not have.
 */
#ifndef WHET_CONFIG_DESCRIPTORS_H
#define WHET_CONFIG_DESCRIPTORS_H

#include <stdbool.h>

/* /dev/null, opened with `flags`, or a descriptor on which every read and write fails (EBADF); -1
 * only where there is no descriptor left. The caller closes it. Between clone and exec, too. */
int descriptor_nowhere(int flags);

/* Closes `first` and all above it. Between clone and exec, too; other threads must not open any. */
void descriptors_close_from(int first);

/* Whether `n` more could be opened now; those are closed again. */
bool descriptors_free(int n);

#endif
