/* SPDX-License-Identifier: Apache-2.0 */
/* header_work.c - see header_work.h. */
#include "specializer/build/header_work.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/err.h"
#include "config/safe_path.h"
#include "specializer/build/build_private.h"
#include "specializer/build/header.h"

struct header_work {
    struct header header;
    struct process *process;
    char *temporary, *folder; /* what it writes, and the compiler's own files */
};

bool header_work_wanted(const struct stage_env *env, char *const *define)
{
    return !target_of(env->compiler->machine)->compiler_library &&
           header_look(env->compiler, env->kernel_dir, define).state == HEADER_MISSING;
}

struct header_work *header_work_start(const struct stage_env *env, char *const *define,
                                      struct err *err)
{
    const char *argv[COMPILER_ARGUMENTS];
    struct header_work *w = xcalloc(1, sizeof *w);
    w->header = header_look(env->compiler, env->kernel_dir, define);
    w->temporary = xasprintf("%s.%ld.work", w->header.path, (long)getpid());
    w->folder = xasprintf("%s.d", w->temporary);
    header_command(&w->header, env->compiler, define, w->temporary, argv, COMPILER_ARGUMENTS);
    w->process = compiler_process(env, argv, w->folder, err);
    if (w->process)
        return w;
    header_work_end(w);
    return NULL;
}

enum stage_result header_work_poll(struct header_work *w)
{
    if (!process_poll(w->process))
        return STAGE_RUNNING;
    const struct process_result *r = process_result(w->process);
    if (compiler_succeeded(r)) {
        header_put(&w->header, w->temporary);
        return w->header.state == HEADER_READY ? STAGE_PASS : STAGE_RETRY;
    }
    if (!compiler_refused(r, w->temporary))
        return STAGE_RETRY;
    header_give_up(&w->header);
    return STAGE_REFUSE;
}

void header_work_end(struct header_work *w)
{
    if (!w)
        return;
    process_end(w->process);
    unlink(w->temporary);
    safe_folder_remove(w->folder);
    free(w->temporary);
    free(w->folder);
    free(w);
}
