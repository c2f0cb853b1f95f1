/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_store_import.c - any bytes as an export of another store. Whatever comes, what it leaves in
 * the store is bounded, its names were made here, and its texts obey the rules. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/dispatch.h"
#include "engine/plan.h"
#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_tree.h"
#include "specializer/store/store_json.h"
#include "specializer/store/store_sql.h"
#include "specializer/transfer/export_text.h"
#include "specializer/transfer/transfer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/whet-fuzz-store-XXXXXX";
static struct store *store;
static struct dispatch *slots;

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void clean_up(void)
{
    static const char *const file[] = {"x.db", "x.db-wal", "x.db-shm", "x.db.lock"};
    store_close(store);
    dispatch_close(slots);
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        char *path = xasprintf("%s/%s", folder, file[i]);
        unlink(path);
        free(path);
    }
    rmdir(folder);
}

/* One store for all inputs; opening one takes longer than an import. */
static void set_up(void)
{
    struct err err;
    demand(mkdtemp(folder) != NULL);
    char *path = xasprintf("%s/x.db", folder);
    store = store_open(path, &err);
    free(path);
    demand(store != NULL && store_run(store, &err, "PRAGMA synchronous=OFF", "") == 0);
    slots = dispatch_open_names();
    atexit(clean_up);
}

static void check_hash(const char *name)
{
    demand(strlen(name) == KEY_HEX && strspn(name, "0123456789abcdef") == KEY_HEX);
}

static void check_kernel(void *ctx, const struct record *r)
{
    struct point p;
    const struct template *t = template_find(r->template);
    check_hash(r->key);
    demand(strcmp(r->env, ENV_IMPORTED) == 0 && r->state == LIFE_PROPOSED && !r->object_key[0]);
    demand(t && dispatch_find_plain(slots, r->slot) && point_parse(t, r->knobs, &p, NULL) == 0);
    ++*(int *)ctx;
}

static int check_texts(enum machine_kind machine)
{
    int n = 0;
    for (int i = 0; i < dispatch_slots(slots); i++) {
        struct agent_tree tree = {0};
        struct err err;
        demand(agent_store_tree(store, imported_texts(machine), dispatch_slot_at(slots, i)->name,
                                &tree, &err) == 0);
        for (int k = 0; k < tree.nodes; k++) {
            const char *text = tree.node[k].text;
            check_hash(tree.node[k].source);
            demand(tree.node[k].state == AGENT_READY);
            demand(agent_text_check(text, strlen(text), agent_language(machine), &err) == 0);
        }
        n += tree.nodes;
        tree_free(&tree);
    }
    return n;
}

static void check_store(int taken)
{
    struct record_filter all = {0};
    struct err err;
    int kernels = 0;
    demand(store_each(store, &all, check_kernel, &kernels, &err) == 0);
    int texts = check_texts(MACHINE_CPU) + check_texts(MACHINE_CUDA);
    demand(kernels <= IMPORT_KERNELS_MOST && texts <= IMPORT_TEXTS_MOST);
    demand(taken < 0 || kernels + texts <= taken);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    if (!store)
        set_up();
    uint64_t errors = store_errors(store);
    int taken = store_import(store, (const char *)data, size, "fuzz", &err);
    demand(store_errors(store) == errors); /* no input is the store's fault */
    if (taken <= 0)
        return 0;
    check_store(taken);
    demand(store_import(store, (const char *)data, size, "again", &err) == taken);
    demand(store_run(store, &err, "DELETE FROM candidate", "") == 0 &&
           store_run(store, &err, "DELETE FROM agent_node", "") == 0 &&
           store_run(store, &err, "DELETE FROM trace", "") == 0);
    return 0;
}
