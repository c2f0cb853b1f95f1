/* SPDX-License-Identifier: Apache-2.0 */
/* sources.h - the embedded kernel sources as files, where compilers read them.
 *
 * Beside a store there is one folder for each set of texts, named by their hash: two versions of
 * the program may have one store open (a server that runs, and `whet bench --starts` of the next
 * version), and a kernel must be compiled from the texts that its key was made from. Any thread.
 */
#ifndef WHET_SPECIALIZER_BUILD_SOURCES_H
#define WHET_SPECIALIZER_BUILD_SOURCES_H

#include <stdbool.h>

#include "config/err.h"

/* Where this program's sources lie beside the store: "STORE.kernels/<16 hex digits>". Caller
 * frees. */
char *kernel_sources_folder(const char *store);
/* Writes them below `dir`, each whole or not at all, and notes the time: whoever uses a folder
 * calls this first. Several processes may do so at once. -1 with a message. */
int kernel_sources_write(const char *dir, struct err *err);
/* Whether all of them still are there, by their sizes: somebody may clear folders while we run. */
bool kernel_sources_there(const char *dir);
/* Removes what lies beside the folder `dir` and was not written for a day: what other versions left
 * behind. For the process that has the store to itself. */
void kernel_sources_prune(const char *dir);

#endif
