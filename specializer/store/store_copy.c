/* SPDX-License-Identifier: Apache-2.0 */
/* store_copy.c - a store of one's own, begun with what another process's store holds.
 *
 * Two processes that search on one store would take each other's running kernels for the suspects
 * of a crash, retire each other's winners and delete each other's files. So only one has it; the
 * next begins with a copy in a temporary folder, knows all that was known at that moment, and what
 * it learns goes with it. The winners' objects come along, since building them again takes longer
 * than copying them; what does not match its checksum is built again anyway.
 *
 * A copy's folder goes when the store is closed. Of a process that was killed, the next that needs
 * a copy clears it away.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/log.h"
#include "config/safe_path.h"
#include "specializer/store/store_file.h"
#include "specializer/store/store_sql.h"

static const char prefix[] = "whet-store-", file[] = "store.db";
static const int64_t objects_most = 256 << 20;

/* ---- folders -------------------------------------------------------------------------------- */

/* What killed processes left behind. */
static void sweep(void)
{
    const char *base = safe_temporary();
    DIR *d = opendir(base);
    struct dirent *e;
    while (d && (e = readdir(d)) != NULL) {
        if (strncmp(e->d_name, prefix, sizeof prefix - 1) != 0)
            continue;
        char *folder = xasprintf("%s/%s", base, e->d_name),
             *path = xasprintf("%s/%s", folder, file);
        struct stat st;
        if (safe_folder(folder, NULL) == 0 && lstat(folder, &st) == 0 && st.st_uid == geteuid() &&
            store_file_left(path))
            safe_folder_remove(folder);
        free(folder);
        free(path);
    }
    if (d)
        closedir(d);
}

/* ---- contents ------------------------------------------------------------------------------- */

static int copy_rows(const char *from, const char *to, struct err *err)
{
    sqlite3 *a = NULL, *b = NULL;
    sqlite3_backup *backup = NULL;
    int code = sqlite3_open_v2(from, &a, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_open_v2(to, &b, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, NULL);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(a, 2000);
        backup = sqlite3_backup_init(b, "main", a, "main");
        code = backup ? sqlite3_backup_step(backup, -1) : sqlite3_errcode(b);
        sqlite3_backup_finish(backup);
    }
    sqlite3_close(a);
    sqlite3_close(b);
    if (code == SQLITE_DONE)
        return 0;
    return err_set(err, "store %s cannot be copied: %s", from, sqlite3_errstr(code));
}

/* Bytes copied, 0 if it is not a file of ours or did not arrive whole. */
static int64_t copy_file(const char *from, const char *to)
{
    char buffer[65536];
    int64_t bytes = 0;
    ssize_t n = 0;
    int in = safe_open(from, NULL);
    FILE *out = in >= 0 ? safe_create(to) : NULL;
    while (out && bytes < objects_most && (n = read(in, buffer, sizeof buffer)) > 0) {
        if (fwrite(buffer, 1, (size_t)n, out) != (size_t)n)
            break;
        bytes += n;
    }
    if (in >= 0)
        close(in);
    if (out && (fclose(out) != 0 || n != 0)) {
        unlink(to);
        bytes = 0;
    }
    return bytes;
}

/* The objects of winners, kernels before them and pins. */
static void copy_objects(struct store *s, const char *path)
{
    char *from = xasprintf("%s.objects", path), *to = xasprintf("%s.objects", s->path);
    int64_t bytes = 0;
    struct dirent *e;
    DIR *d = safe_folder(from, NULL) == 0 && safe_folder_make(to, NULL) == 0 ? opendir(from) : NULL;
    while (d && bytes < objects_most && (e = readdir(d)) != NULL) {
        char key[KEY_HEX + 1];
        const char *dot = strchr(e->d_name, '.');
        if (!dot || dot - e->d_name != KEY_HEX || strchr(dot + 1, '.'))
            continue;
        snprintf(key, sizeof key, "%.*s", KEY_HEX, e->d_name);
        if (!store_object_used(s, key))
            continue;
        char *one = xasprintf("%s/%s", from, e->d_name), *other = xasprintf("%s/%s", to, e->d_name);
        bytes += copy_file(one, other);
        free(one);
        free(other);
    }
    if (d)
        closedir(d);
    free(from);
    free(to);
}

struct store *store_open_copy(const char *path, struct err *err)
{
    struct err why = {""};
    bool taken;
    sweep();
    char *folder = safe_folder_temporary(prefix, err);
    if (!folder)
        return NULL;
    char *own = xasprintf("%s/%s", folder, file);
    if (store_file_make(own, &why) == 0 && copy_rows(path, own, &why) != 0) {
        log_warn("store", "%s: beginning with nothing", why.msg);
        unlink(own);
    }
    struct store *s = store_open_alone(own, &taken, err);
    free(own);
    if (!s) {
        safe_folder_remove(folder);
        free(folder);
        return NULL;
    }
    s->folder = folder;
    /* What runs in the other process is no suspect here. */
    store_run(s, NULL, "UPDATE candidate SET trial=0", "");
    s->origin = store_open(path, &why);
    if (!s->origin)
        log_warn("store", "%s: what a fleet is to hear goes with this copy", why.msg);
    copy_objects(s, path);
    return s;
}
