/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_main.c - `whet kernels`: the store from the command line, with no server running.
 *
 *   whet kernels list              one line a kernel: state, slot, gain, name or reason
 *   whet kernels show ID           all that is known of one, as JSON
 *   whet kernels export FILE       what another store can use, as JSON ("-": standard output)
 *   whet kernels import FILE       the other way: admitted kernels become proposals
 */
#include "specializer/transfer/kernels_main.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/log.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/life.h"
#include "specializer/store/store_json.h"
#include "specializer/transfer/transfer.h"

static void list_row(void *ctx, const struct record *r)
{
    (void)ctx;
    printf("%-16s %-11s %-14s %+6.1f %%  %s%s%s\n", r->key, life_name(r->state), r->slot,
           (r->evidence.speed > 0 ? r->evidence.speed - 1 : 0) * 100, r->name,
           r->reason[0] ? ": " : "", r->reason);
}

static int list(struct store *s, const char *unused, struct err *err)
{
    (void)unused;
    struct record_filter all = {0};
    return store_each(s, &all, list_row, NULL, err);
}

static int show(struct store *s, const char *key, struct err *err)
{
    struct record r;
    int found = store_get(s, key, &r, err);
    if (found < 0)
        return -1;
    if (found == 0)
        return err_set(err, "there is no kernel \"%.40s\" in %s", key, store_path(s));
    cJSON *o = record_json(&r);
    struct agent_node n;
    if (r.origin == ORIGIN_AGENT && agent_store_find(s, r.source, &n, NULL) > 0) {
        cJSON_AddStringToObject(o, "source", n.text);
        tree_node_free(&n);
    }
    cJSON_AddStringToObject(o, "log", r.log ? r.log : "");
    char *text = cJSON_Print(o);
    puts(text);
    free(text);
    free(r.log);
    cJSON_Delete(o);
    return 0;
}

static int export_to(struct store *s, const char *path, struct err *err)
{
    cJSON *o = store_export(s, err);
    if (!o)
        return -1;
    char *text = cJSON_Print(o);
    cJSON_Delete(o);
    FILE *out = strcmp(path, "-") == 0 ? stdout : fopen(path, "w");
    int r = out && fprintf(out, "%s\n", text) >= 0 ? 0 : -1;
    if (out && (out == stdout ? fflush(out) : fclose(out)) != 0)
        r = -1;
    free(text);
    return r == 0 ? 0 : err_set(err, "cannot write %s: %s", path, strerror(errno));
}

static int import_from(struct store *s, const char *path, struct err *err)
{
    FILE *in = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!in)
        return err_set(err, "cannot read %s: %s", path, strerror(errno));
    char *text = NULL;
    size_t n = 0, got;
    do { /* one byte more than is taken, and no further */
        text = xrealloc(text, n + 65536);
        n += got = fread(text + n, 1, 65536, in);
    } while (got > 0 && n <= IMPORT_BYTES_MOST);
    int unread = ferror(in) ? errno : 0; /* a folder, for one */
    if (in != stdin)
        fclose(in);
    int taken = unread ? err_set(err, "cannot be read: %s", strerror(unread))
                       : store_import(s, text, n, "command line", err);
    free(text);
    if (taken < 0)
        return err_prefix(err, "%s", path);
    printf("%d kernels will be tried first\n", taken);
    return 0;
}

static const struct command {
    const char *name;
    int words; /* with the name */
    int (*run)(struct store *s, const char *word, struct err *err);
} commands[] = {
    {"list", 1, list}, {"show", 2, show}, {"export", 2, export_to}, {"import", 2, import_from}};

/* NULL: there is none of that name with so many words. */
static const struct command *find_command(int argc, char **argv)
{
    for (size_t i = 0; argc > 0 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[0], commands[i].name) == 0 && argc == commands[i].words)
            return &commands[i];
    return NULL;
}

const char kernels_usage[] =
    "usage: whet kernels list | show ID | export FILE | import FILE [--store FILE]\n";

/* To read, beside a server that has the store; an import is for one that is nobody's, since a
 * server takes imports itself and knows then that there are new ones. */
static struct store *open_store(const struct config *c, const struct command *command,
                                struct err *err)
{
    bool taken = false, import = command->run == import_from;
    char *path = store_default_path(c->specializer_store);
    struct store *s = import ? store_open_alone(path, &taken, err) : store_open_read(path, err);
    free(path);
    if (taken)
        err_prefix(err,
                   "a server takes imports itself (POST /admin/store/import), or stop it first");
    return s;
}

int kernels_main(const struct config *c, int argc, char **argv)
{
    struct err err;
    const struct command *command = find_command(argc, argv);
    if (!command) {
        fputs(kernels_usage, stderr);
        return 2;
    }
    struct store *s = open_store(c, command, &err);
    if (!s) {
        log_error("kernels", "%s", err.msg);
        return 1;
    }
    int r = command->run(s, argc > 1 ? argv[1] : NULL, &err);
    store_close(s);
    if (r != 0)
        log_error("kernels", "%s", err.msg);
    return r == 0 ? 0 : 1;
}
