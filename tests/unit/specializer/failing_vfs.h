/* SPDX-License-Identifier: Apache-2.0 */
/* failing_vfs.h - SQLite's file layer with a disk that fails on demand: full for a few writes, or
 * gone in the middle of a page together with the process. It stands between SQLite and the real
 * layer, so neither the store nor SQLite knows of it. Install before the first database is opened.
 */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_FAILING_VFS_H
#define WHET_TESTS_UNIT_SPECIALIZER_FAILING_VFS_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static atomic_int disk_full; /* writes that fail */
static atomic_bool tear;     /* the next page is written by half, and the process ends */
static int tear_exit;        /* with this status */

enum { KINDS_MOST = 4 };

/* Files of one kind have the same methods; ours differ in one of them. A database has others than
 * its journal and its WAL, which need no locks. */
struct shim_kind {
    sqlite3_io_methods methods;
    const sqlite3_io_methods *real;
};
static sqlite3_vfs shim, *beneath;
static struct shim_kind shim_kind[KINDS_MOST];
static int shim_kinds;

static const sqlite3_io_methods *real_of(const sqlite3_file *f)
{
    int i = 0;
    while (f->pMethods != &shim_kind[i].methods)
        i++;
    return shim_kind[i].real;
}

static int shim_write(sqlite3_file *f, const void *data, int n, sqlite3_int64 at)
{
    const sqlite3_io_methods *real_methods = real_of(f);
    if (atomic_load(&tear)) {
        real_methods->xWrite(f, data, n / 2, at);
        _exit(tear_exit);
    }
    if (atomic_load(&disk_full) > 0) {
        atomic_fetch_sub(&disk_full, 1);
        return SQLITE_FULL;
    }
    return real_methods->xWrite(f, data, n, at);
}

static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    int code = beneath->xOpen(beneath, name, f, flags, out);
    int i = 0;
    if (code != SQLITE_OK || !f->pMethods)
        return code;
    while (i < shim_kinds && shim_kind[i].real != f->pMethods)
        i++;
    if (i == KINDS_MOST)
        return SQLITE_INTERNAL;
    if (i == shim_kinds) {
        shim_kind[i] = (struct shim_kind){*f->pMethods, f->pMethods};
        shim_kind[i].methods.xWrite = shim_write;
        shim_kinds++;
    }
    f->pMethods = &shim_kind[i].methods;
    return code;
}

static inline void failing_vfs_install(int exit_when_torn)
{
    tear_exit = exit_when_torn;
    beneath = sqlite3_vfs_find(NULL);
    shim = *beneath;
    shim.zName = "drill";
    shim.xOpen = shim_open;
    sqlite3_vfs_register(&shim, 1);
}

#endif
