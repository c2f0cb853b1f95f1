/* agent_cubin.h - what a cubin of a language model's text may contain: the frame's one entry and
 * its description, nothing that is called from outside, no memory of its own. Pure. */
#ifndef WHET_SPECIALIZER_AGENT_CUBIN_H
#define WHET_SPECIALIZER_AGENT_CUBIN_H

#include <stddef.h>

#include "config/err.h"

/* 0; or -1 naming what was found: another entry, an undefined function (printf, malloc, launches),
 * device variables (state between launches), or a damaged file. */
int agent_cubin_inspect(const void *data, size_t n, struct err *err);

#endif
