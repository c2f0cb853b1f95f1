/* SPDX-License-Identifier: Apache-2.0 */
/* store_world.h - a folder of store files and rows to put into them, for all tests of the store. */
#ifndef WHET_TESTS_UNIT_SPECIALIZER_STORE_WORLD_H
#define WHET_TESTS_UNIT_SPECIALIZER_STORE_WORLD_H

#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "specializer/candidate/life.h"
#include "specializer/store/store_sql.h"

static char folder[] = "/tmp/whet-test-store-XXXXXX";
static int files;

static int make_folder(void **unused)
{
    (void)unused;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    char command[80];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *fresh_path(void)
{
    static char path[120];
    snprintf(path, sizeof path, "%s/sub%d/store.db", folder, files++);
    return path;
}

__attribute__((unused)) static struct record row_of(int key, const char *slot)
{
    struct record r = {.origin = ORIGIN_TEMPLATE};
    snprintf(r.key, sizeof r.key, "%016x", key);
    snprintf(r.object_key, sizeof r.object_key, "%016x", key / 2);
    snprintf(r.env, sizeof r.env, "env");
    snprintf(r.source, sizeof r.source, "source");
    snprintf(r.template, sizeof r.template, "mlp_out");
    snprintf(r.slot, sizeof r.slot, "%s", slot);
    snprintf(r.knobs, sizeof r.knobs, "ISA=%d", key);
    snprintf(r.name, sizeof r.name, "kernel %d", key);
    return r;
}

__attribute__((unused)) static void print_row(void *ctx, const struct trace_row *row)
{
    fprintf(ctx, "%s %s %s|", row->event, row->name ? row->name : "-", row->text);
}

__attribute__((unused)) static enum life state_of(struct store *s, int key)
{
    char text[17];
    struct record r;
    struct err err;
    snprintf(text, sizeof text, "%016x", key);
    assert_int_equal(store_get(s, text, &r, &err), 1);
    free(r.log);
    return r.state;
}

#endif
