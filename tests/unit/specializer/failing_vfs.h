/* failing_vfs.h - SQLite's file layer with a disk that fails on demand: full for a few writes, or
 * gone in the middle of a page together with the process. It stands between SQLite and the real
 * layer, so neither the store nor SQLite knows of it. Install before the first database is opened.
 */
#ifndef WHET_TESTS_FAILING_VFS_H
#define WHET_TESTS_FAILING_VFS_H

#include <sqlite3.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

static atomic_int disk_full; /* writes that fail */
static atomic_bool tear;     /* the next page is written by half, and the process ends */
static int tear_exit;        /* with this status */

static sqlite3_vfs shim, *beneath;
static sqlite3_io_methods shim_methods;
static const sqlite3_io_methods *real_methods;

static int shim_write(sqlite3_file *f, const void *data, int n, sqlite3_int64 at)
{
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

/* All files of one layer have the same methods; ours differ in one of them. */
static int shim_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *out)
{
    (void)vfs;
    int code = beneath->xOpen(beneath, name, f, flags, out);
    if (code == SQLITE_OK && f->pMethods && !real_methods) {
        real_methods = f->pMethods;
        shim_methods = *f->pMethods;
        shim_methods.xWrite = shim_write;
    }
    if (code == SQLITE_OK && f->pMethods == real_methods)
        f->pMethods = &shim_methods;
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
