/* SPDX-License-Identifier: Apache-2.0 */
/* roles.h - what knobs are for (kernels/roles.def), and how far apart their values are.
 *
 * A role is what the rest of the program knows of a knob: its name is the table's own business.
 */
#ifndef WHET_SPECIALIZER_CANDIDATE_ROLES_H
#define WHET_SPECIALIZER_CANDIDATE_ROLES_H

#include <stdint.h>

enum knob_role {
#define ROLE(id, scale, neutral, help) ROLE_##id,
#include "kernels/roles.def"
    ROLE_COUNT
};

enum knob_scale { SCALE_CATEGORY, SCALE_AMOUNT, SCALE_SWITCH, SCALE_COUNT };

struct role {
    const char *name, *help;
    enum knob_scale scale;
    int32_t neutral; /* what a template without a knob of this role is taken to have */
};

const struct role *role_of(enum knob_role r);

/* Where a value lies on its role's axis, in octaves: two values are as far apart as their places
 * are. Values that have nothing to do with each other are more than ROLE_APART / 2 apart. */
enum { ROLE_APART = 1000 };
double role_place(enum knob_role r, int32_t value);

/* Roles that divide a space into families, in their order. */
struct role_family {
    enum knob_role role;
    int32_t kinds;
    const char *word; /* what a family of its second kind is called; "" if its value says it */
};
const struct role_family *role_families(int *n);
/* Which of its kinds a value makes: 0 .. kinds-1. */
int role_kind(const struct role_family *f, int32_t value);

#endif
