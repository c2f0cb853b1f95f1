/* SPDX-License-Identifier: Apache-2.0 */
/* store_file.h - inside the store: the files that it is made of, and who has them. */
#ifndef WHET_SPECIALIZER_STORE_STORE_FILE_H
#define WHET_SPECIALIZER_STORE_STORE_FILE_H

#include <stdbool.h>

#include "config/err.h"

/* Makes the folder and the file, if they are missing, for us alone, and refuses what is not: a
 * link, another's file, a folder that others may write to, for the file and each that SQLite keeps
 * beside it. 0, or -1 with a message naming path and rule. */
int store_file_make(const char *path, struct err *err);

/* Takes the store for this process: a descriptor to close in the end, which is given back however
 * the process ends. -1 with a message; *taken says whether that is because another process has it,
 * whose number and start are in the message. */
int store_file_lock(const char *path, bool *taken, struct err *err);
/* Whether `path`, a store's file, was left behind by a process that is gone. */
bool store_file_left(const char *path);

/* The same for who only reads: makes nothing, and a file that is not there is an error. */
int store_file_find(const char *path, struct err *err);

/* PRAGMA application_id of a store: "whet" in ASCII. */
#define STORE_APPLICATION_ID 0x77686574
/* What a file is by its first 100 bytes, without SQLite, which takes a log beside any file for that
 * file's and deletes it. */
enum store_file_kind {
    STORE_FILE_NONE,    /* missing or empty: nothing is lost if it becomes a store */
    STORE_FILE_OURS,    /* has our application_id where SQLite keeps it, and the zeros behind that
                         * every database has; "SQLite format 3" before it may be damaged */
    STORE_FILE_UNSAID,  /* a database that says of no program that it made it: a store that was
                         * killed early has the id in its log only */
    STORE_FILE_FOREIGN, /* another program's database */
    STORE_FILE_OTHER,   /* no database, cut off within its header, or not to be read */
};
enum store_file_kind store_file_kind(const char *path);

/* Renames a damaged store, for whoever wants to look, with a line in the log: the file and those
 * that SQLite keeps beside it, so that SQLite finds them together under the new name, too. For who
 * holds its lock, of a STORE_FILE_OURS. */
int store_file_move_aside(const char *path, const char *why, struct err *err);

#endif
