/* SPDX-License-Identifier: Apache-2.0 */
/* template_tables.h - names and compiler flags of the values of the knob ISA (templates.def). */
#ifndef WHET_SPECIALIZER_CANDIDATE_TEMPLATE_TABLES_H
#define WHET_SPECIALIZER_CANDIDATE_TEMPLATE_TABLES_H

const char *isa_name(int isa);  /* "avx512"; "?" for an unknown one */
const char *isa_flags(int isa); /* "-mavx2 -mfma": separated by spaces, may be "" */

#endif
