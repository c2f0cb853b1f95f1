/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - tables that have a row for each member of an enum.
 *
 * Such a table leaves its length to its rows, and EVERY_ROW() stands below it: a member that is
 * added at the end of the enum, before its count, does not compile until it has a row in each. With
 * the count as its length the table would have a null there, which is seen only when it is used.
 */
#ifndef WHET_CONFIG_TABLE_H
#define WHET_CONFIG_TABLE_H

#define EVERY_ROW(table, count)                                \
    _Static_assert(sizeof(table) / sizeof *(table) == (count), \
                   #table "[] has not one row for each member that " #count " counts")

#endif
