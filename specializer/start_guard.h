/* SPDX-License-Identifier: Apache-2.0 */
/* start_guard.h - a specializer whose beginning ends the process must not do so at every start.
 *
 * From its first look at the machine until the store's winners are back in their slots it does the
 * same at each start, from the same rows and files. If that ends the process (a fault in a row that
 * nothing foresaw, memory that runs out), a supervisor starts the next one, and that one ends as
 * well. So a file beside the store counts beginnings in a row that did not come to their end, and
 * after START_ENDS of them the next is put off: the server serves with eager kernels meanwhile, an
 * operator may say go on, and after some minutes, more each time, it tries by itself.
 *
 * Kernels that ended a process while they served or were on trial are another matter: blame.h, and
 * the store's marks of those on trial (store_deaths()). Specializer thread.
 */
#ifndef WHET_SPECIALIZER_START_GUARD_H
#define WHET_SPECIALIZER_START_GUARD_H

/* Beginnings in a row that may end a process. */
enum { START_ENDS = 3 };

/* How many beginnings before this one did not come to their end, by the file at `path`; 0 where it
 * is not there, not ours or not a count. */
int start_guard_ended(const char *path);
/* This one begins: the file says `ended` and one more. -1: it cannot be written, so a loop would
 * not be noticed. */
int start_guard_begin(const char *path, int ended);
/* It has come to its end, or the process ends in order. */
void start_guard_end(const char *path);
/* Seconds for which the beginning is put off after so many; 0: it is not. */
double start_guard_wait_s(int ended);

#endif
