/* SPDX-License-Identifier: Apache-2.0 */
// variant_table.hpp - one knob table turned into data and its legality, for variants.hpp. Included
// once a .def with TABLE (a name) and TABLE_DEF (the file) set; no include guard on purpose.

#define TABLE_JOIN_(a, b) a##b
#define TABLE_JOIN(a, b) TABLE_JOIN_(a, b)
#define TABLE_TEXT_(a) #a
#define TABLE_TEXT(a) TABLE_TEXT_(a)

inline const char *TABLE_JOIN(legal_, TABLE)(const shape &s, const point &p)
{
    TABLE_SHAPES
    int at = 0;
#define KNOB(name, role, first, list, help) [[maybe_unused]] const int name = p[at++];
#define LEGAL(expression, why) \
    if (!(expression))         \
        return why;
#include TABLE_DEF
    return nullptr;
}

inline const table TABLE = {TABLE_TEXT(TABLE),
                            {
#define KNOB(name, role, first, list, help) {#name, first, list},
#include TABLE_DEF
                            },
                            TABLE_JOIN(legal_, TABLE),
                            {
#define START(when, text) {[](const shape &s) -> bool { TABLE_SHAPES return (when); }, text},
#include TABLE_DEF
                            }};

#undef TABLE_JOIN_
#undef TABLE_JOIN
#undef TABLE_TEXT_
#undef TABLE_TEXT
#undef TABLE
#undef TABLE_DEF
