/* SPDX-License-Identifier: Apache-2.0 */
/* template_tables.c - the templates of kernels/templates.def and kernels/templates_cuda.def with
 * their knob tables.
 *
 * A new file of templates needs its three lines here; the compiler complains about a TEMPLATE row
 * whose table is missing.
 */
#include "specializer/candidate/template_tables.h"
#include "specializer/candidate/template.h"

#define TABLE_FACTS "kernels/templates.def"

#define TABLE attn_in
#define TABLE_DEF "kernels/cpu/attn_in.def"
#include "specializer/candidate/template_table.h"

#define TABLE mlp_in
#define TABLE_DEF "kernels/cpu/mlp_in.def"
#include "specializer/candidate/template_table.h"

#define TABLE mlp
#define TABLE_DEF "kernels/cpu/mlp.def"
#include "specializer/candidate/template_table.h"

#define TABLE head
#define TABLE_DEF "kernels/cpu/head.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn_in_wide
#define TABLE_DEF "kernels/cpu/attn_in_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE mlp_in_wide
#define TABLE_DEF "kernels/cpu/mlp_in_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE head_wide
#define TABLE_DEF "kernels/cpu/head_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE out_wide
#define TABLE_DEF "kernels/cpu/out_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn
#define TABLE_DEF "kernels/cpu/attn.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn_wide
#define TABLE_DEF "kernels/cpu/attn_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE out
#define TABLE_DEF "kernels/cpu/out.def"
#include "specializer/candidate/template_table.h"

#define TABLE reduce_shm
#define TABLE_DEF "kernels/cpu/reduce_shm.def"
#include "specializer/candidate/template_table.h"

#undef TABLE_FACTS
#define TABLE_FACTS "kernels/templates_cuda.def"

#define TABLE gemv
#define TABLE_DEF "kernels/cuda/gemv.def"
#include "specializer/candidate/template_table.h"

#define TABLE ring
#define TABLE_DEF "kernels/cuda/ring.def"
#include "specializer/candidate/template_table.h"

#define TABLE brick
#define TABLE_DEF "kernels/cuda/brick.def"
#include "specializer/candidate/template_table.h"

#define TABLE brick_mma
#define TABLE_DEF "kernels/cuda/brick_mma.def"
#include "specializer/candidate/template_table.h"

#define TABLE skinny
#define TABLE_DEF "kernels/cuda/skinny.def"
#include "specializer/candidate/template_table.h"

#define TABLE mma
#define TABLE_DEF "kernels/cuda/mma.def"
#include "specializer/candidate/template_table.h"

#define TABLE mma_block
#define TABLE_DEF "kernels/cuda/mma_block.def"
#include "specializer/candidate/template_table.h"

#define TABLE wide
#define TABLE_DEF "kernels/cuda/wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE brick_wide
#define TABLE_DEF "kernels/cuda/brick_wide.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn_decode
#define TABLE_DEF "kernels/cuda/attn_decode.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn_mma
#define TABLE_DEF "kernels/cuda/attn_mma.def"
#include "specializer/candidate/template_table.h"

#define TABLE attn_even
#define TABLE_DEF "kernels/cuda/attn_even.def"
#include "specializer/candidate/template_table.h"

#define TABLE reduce_peer
#define TABLE_DEF "kernels/cuda/reduce_peer.def"
#include "specializer/candidate/template_table.h"

#define TABLE lt
#define TABLE_DEF "kernels/cuda/lt.def"
#include "specializer/candidate/template_table.h"

#define ROW(kind, library, id, region, file, m_min, m_max, help) \
    {#id,          #file,                                        \
     help,         kind,                                         \
     library,      region,                                       \
     m_min,        m_max,                                        \
     knobs_##file, knobs_n_##file,                               \
     roles_##file, legal_##file,                                 \
     biteq_##file, precision_##file,                             \
     start_##file, rules_##file},

static const struct template templates[] = {
#define TEMPLATE(...) ROW(MACHINE_CPU, false, __VA_ARGS__)
#include "kernels/templates.def"
#define TEMPLATE(...) ROW(MACHINE_CUDA, false, __VA_ARGS__)
#define LIBRARY(...) ROW(MACHINE_CUDA, true, __VA_ARGS__)
#include "kernels/templates_cuda.def"
};

int template_count(void)
{
    return (int)(sizeof templates / sizeof *templates);
}

const struct template *template_at(int i)
{
    return &templates[i];
}

int template_index(const struct template *t)
{
    const uintptr_t at = ((uintptr_t)t - (uintptr_t)templates) / sizeof *t;
    return at < sizeof templates / sizeof *templates ? (int)at : -1;
}

static const char *const isa_names[] = {
#define ISA_FLAGS(value, name, flags, needs) [value] = name,
#include "kernels/templates.def"
};

static const char *const isa_flag_texts[] = {
#define ISA_FLAGS(value, name, flags, needs) [value] = flags,
#include "kernels/templates.def"
};

enum { ISAS = sizeof isa_names / sizeof *isa_names };

const char *isa_name(int isa)
{
    return isa >= 0 && isa < ISAS && isa_names[isa] ? isa_names[isa] : "?";
}

const char *isa_flags(int isa)
{
    return isa >= 0 && isa < ISAS && isa_flag_texts[isa] ? isa_flag_texts[isa] : "";
}
