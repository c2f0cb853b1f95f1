/* SPDX-License-Identifier: Apache-2.0 */
/* template_table.h - one knob table turned into data and four functions. Included once per .def by
 * template_tables.c, with TABLE (a name), TABLE_DEF (the file) and TABLE_FACTS (the table of the
 * names that its rows may use) set; no include guard on purpose. */

#define TABLE_JOIN_(a, b) a##b
#define TABLE_JOIN(a, b) TABLE_JOIN_(a, b)
#define TABLE_AT_(table, id) at_##table##_##id
#define TABLE_AT(table, id) TABLE_AT_(table, id)
#define V(...)      \
    {               \
        __VA_ARGS__ \
    }

static const struct knob TABLE_JOIN(knobs_, TABLE)[] = {
#define KNOB(id, role, first, list, help) \
    {#id, help, ROLE_##role, first, (int32_t)(sizeof((int32_t[])list) / sizeof(int32_t)), list},
#include TABLE_DEF
};

enum { TABLE_JOIN(knobs_n_, TABLE) = sizeof TABLE_JOIN(knobs_, TABLE) / sizeof(struct knob) };
_Static_assert((int)TABLE_JOIN(knobs_n_, TABLE) <= (int)KNOBS_MAX, "more knobs than a point holds");

enum {
#define KNOB(id, role, first, list, help) TABLE_AT(TABLE, id),
#include TABLE_DEF
};

/* One more than the place of the knob that has a role; 0: none has. The compiler complains about
 * two knobs with one role, and about a role that is not there. */
static const int8_t TABLE_JOIN(roles_, TABLE)[ROLE_COUNT] = {
#define KNOB(id, role, first, list, help) [ROLE_##role] = TABLE_AT(TABLE, id) + 1,
#include TABLE_DEF
};

/* What its LEGAL rows say, for those who cannot run them. */
static const char *const TABLE_JOIN(rules_, TABLE)[] = {
#define LEGAL(expression, why) why,
#include TABLE_DEF
    NULL,
};

/* The names that LEGAL, BITEQ and PRECISION rows use, as local constants. */
#define TABLE_NAMES \
    int at = 0;     \
    (void)at;       \
    (void)p;        \
    (void)f;

#define FACT(name, help) __attribute__((unused)) const int32_t name = f->name;
#define POLICY(name, help) __attribute__((unused)) const int32_t name = f->name;
#define SHAPE(name, value, help) __attribute__((unused)) const int32_t name = f->name;

static const char *TABLE_JOIN(legal_, TABLE)(const struct point *p, const struct facts *f)
{
    TABLE_NAMES
#include TABLE_FACTS
#define KNOB(id, role, first, list, help) __attribute__((unused)) const int32_t id = p->value[at++];
#define LEGAL(expression, why) \
    if (!(expression))         \
        return why;
#include TABLE_DEF
    return NULL;
}

#define FACT(name, help) __attribute__((unused)) const int32_t name = f->name;
#define POLICY(name, help) __attribute__((unused)) const int32_t name = f->name;
#define SHAPE(name, value, help) __attribute__((unused)) const int32_t name = f->name;

static bool TABLE_JOIN(biteq_, TABLE)(const struct point *p, const struct facts *f)
{
    TABLE_NAMES
    bool equal = false;
#include TABLE_FACTS
#define KNOB(id, role, first, list, help) __attribute__((unused)) const int32_t id = p->value[at++];
#define BITEQ(expression) equal = (expression);
#include TABLE_DEF
    return equal;
}

#define FACT(name, help) __attribute__((unused)) const int32_t name = f->name;
#define POLICY(name, help) __attribute__((unused)) const int32_t name = f->name;
#define SHAPE(name, value, help) __attribute__((unused)) const int32_t name = f->name;

static int TABLE_JOIN(precision_, TABLE)(const struct point *p, const struct facts *f)
{
    TABLE_NAMES
    int precision = 0;
#include TABLE_FACTS
#define KNOB(id, role, first, list, help) __attribute__((unused)) const int32_t id = p->value[at++];
#define PRECISION(expression) precision = (expression);
#include TABLE_DEF
    return precision;
}

#define FACT(name, help) __attribute__((unused)) const int32_t name = f->name;
#define POLICY(name, help) __attribute__((unused)) const int32_t name = f->name;
#define SHAPE(name, value, help) __attribute__((unused)) const int32_t name = f->name;

/* Row `n` of the START rows that hold; NULL: fewer do. */
static const char *TABLE_JOIN(start_, TABLE)(const struct facts *f, int n)
{
    (void)f;
    (void)n;
#include TABLE_FACTS
#define NO_START(when) \
    if (when)          \
        return NULL;
#define START(when, knobs)  \
    if ((when) && n-- == 0) \
        return knobs;
#include TABLE_DEF
    return NULL;
}

#undef FACT
#undef POLICY
#undef NO_START
#undef START
#undef BITEQ
#undef PRECISION
#undef TABLE_NAMES
#undef TABLE_AT
#undef TABLE_AT_
#undef TABLE_JOIN
#undef TABLE_JOIN_
#undef V
#undef TABLE
#undef TABLE_DEF
