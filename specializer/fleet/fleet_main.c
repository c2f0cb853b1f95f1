/* SPDX-License-Identifier: Apache-2.0 */
/* fleet_main.c - `whet fleet`: the database of a fleet from the command line, beside the servers.
 *
 *   whet fleet status               tables, rights, servers, leases, winners, retractions
 *   whet fleet show WORD            what is known of a kernel, a slot or a server
 *   whet fleet retract KEY REASON   every server looks at this kernel again, at once
 *   whet fleet export FILE          winners and texts, as `whet kernels import` takes them
 *   whet fleet migrate              makes the tables, as a role that may
 *   whet fleet repair               makes what was dropped of them
 */
#include "specializer/fleet/fleet_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/key_file.h"
#include "config/log.h"
#include "specializer/fleet/fleet_export.h"
#include "specializer/fleet/fleet_parts.h"
#include "specializer/fleet/fleet_rights.h"
#include "specializer/fleet/fleet_row.h"
#include "specializer/fleet/fleet_schema.h"
#include "specializer/fleet/fleet_show.h"
#include "specializer/fleet/fleet_sql.h"

#define CONNECT_S 10.0

/* ---- status ---------------------------------------------------------------------------------- */

static const char *text_of(const cJSON *row, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
    return text ? text : "";
}

static double number_of(const cJSON *row, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void print_server(const cJSON *r)
{
    bool stopped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "stopped"));
    printf("  %-16s %-24s whet %-8s env %s  %s %.0f s ago  %s\n", text_of(r, "server"),
           text_of(r, "name"), text_of(r, "version"), text_of(r, "env"),
           stopped ? "stopped" : "seen", number_of(r, "seen_s"), text_of(r, "device"));
}

static void print_lease(const cJSON *r)
{
    double left = number_of(r, "left_s");
    printf("  %s %-16s %-24s for %.0f s, %s %.0f s\n", text_of(r, "env"), text_of(r, "slot"),
           text_of(r, text_of(r, "name")[0] ? "name" : "server"), number_of(r, "held_s"),
           left >= 0 ? "left" : "over for", left >= 0 ? left : -left);
}

static void print_winner(const cJSON *r)
{
    printf("  %s %-16s %s %+7.1f %%  %.0f of %.0f servers  %s\n", text_of(r, "env"),
           text_of(r, "slot"), text_of(r, "key"), (number_of(r, "speed") - 1) * 100,
           number_of(r, "servers"), number_of(r, "of"), text_of(r, "kernel"));
}

static void print_retraction(const cJSON *r)
{
    printf("  %s %-16s %s by %s %.0f s ago: %s (heard by %.0f of %.0f servers; wrong on %.0f more, "
           "right on %.0f)\n",
           text_of(r, "env"), text_of(r, "slot"), text_of(r, "key"), text_of(r, "name"),
           number_of(r, "at_s"), text_of(r, "reason"), number_of(r, "heard_by"),
           number_of(r, "heard_of"), number_of(r, "confirmed_by"), number_of(r, "refuted_by"));
}

static int not_whole(const struct fleet_missing *missing, struct err *err)
{
    return err_set(
        err,
        "the tables are not whole, missing: %s (whet fleet repair, as their owner, makes "
        "what is missing)",
        missing->text);
}

/* -1 with what the role of this connection may not do, of what servers do. */
static int print_rights(struct fleet_db *db, struct err *err)
{
    struct fleet_rights rights;
    if (fleet_rights_missing(db, &rights, err) != 0)
        return -1;
    if (rights.read_only)
        printf("this session can only read: a standby, or default_transaction_read_only\n");
    printf("rights of role %s: %s\n", rights.role,
           rights.n == 0 ? "all that servers need" : "some are missing; as the tables' owner:");
    for (int i = 0; i < rights.n; i++)
        printf("  %s;\n", rights.missing[i].grant);
    return rights.n == 0 ? 0
                         : err_set(err, "role %s has not all rights that servers need: %s",
                                   rights.role, rights.text);
}

static int print_lists(struct fleet_db *db, struct err *err)
{
    static const struct {
        const char *name;
        void (*print)(const cJSON *row);
    } lists[] = {{"servers", print_server},
                 {"leases", print_lease},
                 {"winners", print_winner},
                 {"retractions", print_retraction}};
    cJSON *view = fleet_view(db, NULL, err);
    if (!view)
        return -1;
    const cJSON *totals = cJSON_GetObjectItemCaseSensitive(view, "totals");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(view, lists[i].name), *row;
        double all = number_of(totals, lists[i].name);
        printf("%s: %.0f%s\n", lists[i].name, all,
               all > cJSON_GetArraySize(list) ? ", of which these are the newest" : "");
        cJSON_ArrayForEach(row, list) lists[i].print(row);
    }
    cJSON_Delete(view);
    return 0;
}

/* Tables first, without which there are no lists. */
static int print_tables(struct fleet_db *db, struct err *err)
{
    struct fleet_missing missing;
    if (fleet_parts_missing(db, &missing, err) != 0)
        return -1;
    if (missing.empty)
        return err_set(err, "there are no tables yet (whet fleet migrate)");
    if (missing.needed > 0)
        return not_whole(&missing, err);
    printf("tables: version %d%s%s\n", missing.version, missing.n > 0 ? ", missing: " : ", whole",
           missing.text);
    return print_lists(db, err);
}

/* Rights that are missing may be why the rest fails; if it does not, they are the error. */
static int status(struct fleet_db *db, char **word, struct err *err)
{
    (void)word;
    int rights = print_rights(db, err);
    return print_tables(db, rights == 0 ? err : NULL) == 0 ? rights : -1;
}

/* ---- retract --------------------------------------------------------------------------------- */

static int retract(struct fleet_db *db, char **word, struct err *err)
{
    const char *v[] = {word[0]};
    struct fleet_rows rows;
    if (!fleet_is_key(word[0]))
        return err_set(err, "\"%.40s\" is no key of a kernel: 16 hexadecimal digits", word[0]);
    if (fleet_db_run(db, FLEET_STATEMENT_S,
                     "SELECT DISTINCT env, slot FROM whet_kernel WHERE key=$1 LIMIT 16", v, 1,
                     &rows, err) != 0)
        return -1;
    int r = rows.n > 0 ? 0 : err_set(err, "no server told of a kernel \"%s\"", word[0]);
    for (int i = 0; i < rows.n && r == 0; i++)
        r = fleet_retract(db, fleet_value(&rows, i, 0), word[0], fleet_value(&rows, i, 1), "",
                          "an operator", word[1], false, err);
    if (r == 0)
        printf("%s (%s) is retracted: servers look at it again\n", word[0],
               fleet_value(&rows, 0, 1));
    fleet_rows_free(&rows);
    return r;
}

/* ---- export ---------------------------------------------------------------------------------- */

static int show(struct fleet_db *db, char **word, struct err *err)
{
    return fleet_show(db, word[0], stdout, err);
}

static int export(struct fleet_db *db, char **word, struct err *err)
{
    return fleet_export(db, word[0], err);
}

/* ---- the command ----------------------------------------------------------------------------- */

static int migrated(struct fleet_db *db, char **word, struct err *err)
{
    int version;
    struct fleet_missing missing;
    (void)word;
    if (fleet_schema_ready(db, &version, err) != 0 || fleet_parts_missing(db, &missing, err) != 0)
        return -1;
    if (missing.n > 0)
        return not_whole(&missing, err);
    printf("the tables are of version %d\n", version);
    return 0;
}

static int repair(struct fleet_db *db, char **word, struct err *err)
{
    struct fleet_missing made;
    (void)word;
    if (fleet_parts_repair(db, &made, err) != 0)
        return err_prefix(err, "nothing was changed");
    if (made.empty)
        return err_set(err, "there are no tables yet (whet fleet migrate)");
    if (made.n > 0)
        printf("made: %s\n", made.text);
    return migrated(db, word, err);
}

static const struct command {
    const char *name;
    int words; /* with the name */
    int (*run)(struct fleet_db *db, char **word, struct err *err);
} commands[] = {{"status", 1, status}, {"show", 2, show},        {"retract", 3, retract},
                {"export", 2, export}, {"migrate", 1, migrated}, {"repair", 1, repair}};

const char fleet_usage[] = "usage: whet fleet status | show KEY|SLOT|SERVER | retract KEY REASON | "
                           "export FILE | migrate | repair\n"
                           "                  --specializer-fleet postgresql://... "
                           "[--specializer-fleet-key-file FILE]\n";

static const struct command *find_command(int argc, char **argv)
{
    for (size_t i = 0; argc > 0 && i < sizeof commands / sizeof *commands; i++)
        if (strcmp(argv[0], commands[i].name) == 0 && argc == commands[i].words)
            return &commands[i];
    return NULL;
}

/* With tables; only `migrate` makes them. */
static struct fleet_db *connect_to(const struct config *c, struct err *err)
{
    const struct fleet_address a = {c->specializer_fleet, c->specializer_fleet_key_file};
    if (!a.uri[0]) {
        err_set(err, "which database? (--specializer-fleet postgresql://...)");
        return NULL;
    }
    struct fleet_db *db =
        fleet_db_check(&a, err) == 0 ? fleet_db_open(&a, CONNECT_S, NULL, err) : NULL;
    int process;
    key_file_warn("specializer.fleet_key_file", a.key_file);
    if (db && fleet_limit(db, &process, err) != 0) {
        fleet_db_close(db);
        return NULL;
    }
    return db;
}

int fleet_main(const struct config *c, int argc, char **argv)
{
    struct err err;
    const struct command *command = find_command(argc, argv);
    if (!command) {
        fputs(fleet_usage, stderr);
        return 2;
    }
    struct fleet_db *db = connect_to(c, &err);
    int r = db ? command->run(db, argv + 1, &err) : -1;
    fleet_db_close(db);
    if (r != 0)
        log_error("fleet", "%s", err.msg);
    return r == 0 ? 0 : 1;
}
