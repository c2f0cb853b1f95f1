/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_main.h - `whet kernels`. */
#ifndef WHET_SPECIALIZER_TRANSFER_KERNELS_MAIN_H
#define WHET_SPECIALIZER_TRANSFER_KERNELS_MAIN_H

#include "config/config.h"

/* `whet kernels list|show KEY|export FILE|import FILE`: the store from the command line. The
 * process's exit status. */
int kernels_main(const struct config *c, int argc, char **argv);
extern const char kernels_usage[];

#endif
