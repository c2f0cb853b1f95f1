/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - the frame of a kernel whose body a language model wrote.
 *
 * The body is a file of its own, named by -DAGENT_BODY, that includes nothing: all it needs is
 * included here, and what the engine sees of it is exported here. So a body can neither bring in
 * headers nor describe itself as something that it is not. It defines run() and scratch_bytes();
 * with PACKED also packed_bytes() and pack() for weights repacked once. Its packed copies are
 * shared with nobody: the layout's name holds the hash of the text.
 */
#include <math.h>
#include <string.h>

#include "cpu/lib/shape.h"

/* Whatever a body calls is declared here or by the body: compilers before GCC 14 would only warn,
 * and take anything else to return an int. */
#pragma GCC diagnostic error "-Wimplicit-function-declaration"

#define KNOB(name, role, value, values, help) _Static_assert((name) == (name), "has a value");
#define LEGAL(expression, why) _Static_assert(expression, why);
#include "cpu/agent.def"

#define PARTS 1
#include "cpu/lib/norm.h"
#include "cpu/lib/rows.h"
#include "cpu/lib/share.h"
#include "cpu/lib/vexp.h"
#if REGION == 1
#include "cpu/lib/qkv.h"
#elif REGION == 2
#include "cpu/lib/paged.h"
#endif

/* Columns of the matrix of attn_out and mlp_out. */
enum { K = REGION == REGION_ATTN_OUT ? HEADS * HEAD_DIM : FFN };

_Static_assert((int)REGION_ATTN_IN == 1 && (int)REGION_ATTN == 2, "as above");

#include AGENT_BODY

const struct cpu_kernel whet_kernel = {
    .abi = WHET_CPU_ABI,
    .region = REGION,
    .m_max = M_MAX,
    .run = run,
    .scratch_bytes = scratch_bytes,
#ifdef PACKED
    .layout = AGENT_BODY,
    .packed_bytes = packed_bytes,
    .pack = pack,
#endif
};
