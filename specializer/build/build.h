/* SPDX-License-Identifier: Apache-2.0 */
/* build.h - the first stage: compilers as child processes (build_cc.c, build_nvrtc.c),
 * asynchronous: start, then poll. Specializer thread only.
 */
#ifndef WHET_SPECIALIZER_BUILD_BUILD_H
#define WHET_SPECIALIZER_BUILD_BUILD_H

#include "specializer/candidate/stage.h"

/* For CPU kernels: specializer.compiler, or the first of cc, gcc, clang on PATH that compiles a
 * trivial shared object. -1 with a message when there is none, or out->stop was set. Looked for
 * once, at start. For CUDA kernels: nvrtc_find(). */
int compiler_find(const struct config *config, struct compiler *out, struct err *err);

/* Flags every CPU kernel is built with, NULL-terminated; part of the object key. */
extern const char *const build_flags[];

struct build;
/* Compiles c->source with c->define into c->object (written under another name, then renamed): low
 * priority, specializer.build_timeout. NULL with a message when no process could be started. */
struct build *build_start(const struct stage_env *env, struct candidate *c, struct err *err);
/* PASS: c->object is there, c->object_sum and evidence are set. REFUSE: c->log has the compiler's
 * words. */
enum stage_result build_poll(struct build *b);
/* Kills the compiler if it still runs; frees. */
void build_end(struct build *b);

/* Whether the file system of an object has room for one: without, no build says anything. */
bool build_has_room(const char *object);

/* Checksum of a file's contents, 16 hex digits. -1 if it cannot be read. */
int object_checksum(const char *path, char out[17]);

/* `whet nvrtc`: compiles one CUDA source. The process's exit status. */
int nvrtc_main(int argc, char **argv);

#endif
