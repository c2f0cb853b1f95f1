/* SPDX-License-Identifier: Apache-2.0 */
/* tune.h - `whet tune`: the specializer offline. */
#ifndef WHET_TUNE_TUNE_H
#define WHET_TUNE_TUNE_H

/* argv[0] is "tune". The process's exit status: 0, 1 failure, 2 usage. */
int tune_main(int argc, char **argv);
extern const char tune_usage[];

#endif
