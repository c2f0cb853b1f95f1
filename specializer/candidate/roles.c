/* SPDX-License-Identifier: Apache-2.0 */
/* roles.c - kernels/roles.def as data. */
#include "specializer/candidate/roles.h"

#include <math.h>

static const struct role roles[] = {
#define ROLE(id, scale, neutral, help) {#id, help, SCALE_##scale, neutral},
#include "kernels/roles.def"
};

static const struct role_family families[] = {
#define FAMILY(role, kinds, word) {ROLE_##role, kinds, word},
#include "kernels/roles.def"
};

const struct role *role_of(enum knob_role r)
{
    return &roles[r];
}

double role_place(enum knob_role r, int32_t value)
{
    switch (roles[r].scale) {
    case SCALE_CATEGORY:
        return (double)ROLE_APART * value;
    case SCALE_COUNT:
        return log2(1.0 + value);
    case SCALE_SWITCH:
        return value > 0 ? log2(value) : -ROLE_APART;
    case SCALE_AMOUNT:
        break;
    }
    return log2(value > 0 ? value : 1);
}

const struct role_family *role_families(int *n)
{
    *n = (int)(sizeof families / sizeof *families);
    return families;
}

int role_kind(const struct role_family *f, int32_t value)
{
    int most = f->kinds - 1;
    return value < 0 ? 0 : value > most ? most : value;
}
