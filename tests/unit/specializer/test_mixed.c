/* SPDX-License-Identifier: Apache-2.0 */
/* Lives of slots in which everything meets: points of templates, texts of a language model,
 * retrials, winners of other servers, imports, operators, audits that find a kernel wrong,
 * executors that break, disks that take nothing, restarts. What happens next is drawn
 * (mixed_world.h), and after each thing the slots, the store and what is loaded have to agree.
 *
 *   test_specializer_mixed FIRST LAST    lives of these seeds, each printed when it begins
 */
#include "tests/unit/unit.h"

#include <sqlite3.h>

#include "specializer/agent/agent_source.h"
#include "specializer/agent/agent_store.h"
#include "specializer/candidate/life.h"
#include "specializer/restore.h"
#include "specializer/why.h"
#include "tests/unit/specializer/mixed_world.h"

enum { RESTARTS = 4, STEPS = 220 };
static char folder[] = "/tmp/whet-test-mixed-XXXXXX", store_file[120];
static struct config config;
static bool full, gone; /* the disk; the table of texts */
static const char *numerics;
static char *exported; /* of a life before */
static char audit_key[24], broken_key[24], slow_key[24], probe_key[24];

/* ---- what happens ---------------------------------------------------------------------------- */

static struct slot_search *any_slot(void)
{
    static const char *const names[] = {"mlp_out/m1", "mlp_out/m2", "head/m1",    "mlp_in/m1",
                                        "attn_in/m1", "mlp/m1",     "attn_out/m1"};
    struct slot_search *p = slot_search_find(s, names[below(7)]);
    return p ? p : &s->slot_search[below((uint32_t)s->slot_searches)];
}

static void steps_run(void)
{
    for (int i = 0; i < 4; i++) {
        struct slot *slot = any_slot()->slot;
        const uint64_t runs = 1 + below(4000);
        slot->counters.steps += runs;
        slot->counters.runs += runs;
        slot->counters.tokens += runs * (uint64_t)slot->m;
        slot->counters.context += 10 * runs;
        slot->counters.sequences += runs;
        slot->counters.ns += runs * (20000 + below(100000));
    }
    dispatch_boundary(fake.dispatch, false);
    dispatch_boundary(fake.dispatch, false);
}

static void take_key(void *ctx, const struct record *r)
{
    char *key = ctx;
    if (!key[0] || one_in(6))
        snprintf(key, 24, "%s", r->key);
}

/* A kernel's key, a template's name, or what is neither. */
static void any_name(char out[24])
{
    static const char *const names[] = {"eager",      "mlp_out", "agent_mlp_out",
                                        "agent_head", "?",       "mlp"};
    struct record_filter all = {.limit = 40};
    out[0] = 0;
    if (one_in(4))
        snprintf(out, 24, "%s", names[below(6)]);
    else
        store_each(s->store, &all, take_key, out, NULL);
}

static void operator_acts(void)
{
    char what[24], *text = NULL;
    any_name(what);
    struct slot_search *p = any_slot();
    const char *slot = p->slot->name;
    const char *serves = p->locked.active ? p->locked.active->key : "eager";
    switch (below(12)) {
    case 0:
        specializer_pin(s, slot, what, "op", &text);
        break;
    case 1:
        specializer_pin(s, slot, serves, "op", &text);
        break;
    case 2:
    case 3:
        specializer_unpin(s, slot, "op", &text);
        break;
    case 4:
        specializer_rollback(s, slot, NULL, "op", &text);
        break;
    case 5:
        specializer_rollback(s, slot, serves, "op", &text);
        break;
    case 6:
        specializer_disable(s, what, "not liked", "op", &text);
        break;
    case 7:
    case 8:
        specializer_enable(s, what, "op", &text);
        break;
    case 9:
        specializer_set_mode(s, (enum specializer_mode)below(3), "op", &text);
        break;
    default:
        specializer_set_mode(s, SPECIALIZER_RUN, "op", &text);
        break;
    }
    free(text);
}

/* Other threads act while this one measures, waits or restores; one may end the server. */
static void others_act(void)
{
    if (one_in(12))
        operator_acts();
    if (one_in(1500)) {
        atomic_store(&s->stop, true);
        atomic_store(&s->interrupt, true);
    }
}

static void somebody_looks(void)
{
    char what[24], *text = NULL;
    size_t n = 0;
    any_name(what);
    free(specializer_json(s));
    specializer_slots(s, NULL, &text);
    free(text);
    specializer_slots(s, any_slot()->slot->name, &text);
    free(text);
    specializer_kernels(s, one_in(2) ? NULL : what, &text);
    free(text);
    specializer_trace(s, NULL, 0, one_in(2), &text);
    free(text);
    FILE *f = open_memstream(&text, &n);
    specializer_metrics(s, f);
    fclose(f);
    free(text);
}

static void stores_are_exchanged(void)
{
    char *text = NULL, *answer = NULL;
    if (specializer_export(s, &text) == ANSWER_DONE && (!exported || one_in(3))) {
        free(exported);
        exported = text;
    } else {
        free(text);
    }
    if (exported)
        specializer_import(s, exported, strlen(exported), "op", &answer);
    free(answer);
}

/* The key of what serves a slot, for a fault to be its own; "": eager serves. */
static const char *noted(char key[24])
{
    const struct slot_search *p = any_slot();
    snprintf(key, 24, "%s", p->locked.active ? p->locked.active->key : "");
    return key[0] ? key : NULL;
}

static void sql(const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(store_file, &db), SQLITE_OK);
    sqlite3_exec(db, text, NULL, NULL, NULL);
    sqlite3_close(db);
}

static void disk_changes(void)
{
    static const char *const what[] = {"INSERT ON candidate", "UPDATE ON candidate",
                                       "INSERT ON agent_node", "INSERT ON winner",
                                       "INSERT ON trace"};
    char text[160];
    snprintf(text, sizeof text,
             "CREATE TRIGGER full BEFORE %s BEGIN SELECT RAISE(ABORT, 'disk is full'); END",
             what[below(5)]);
    sql(full ? "DROP TRIGGER full" : text);
    full = !full;
}

static void texts_go_or_come(void)
{
    sql(gone ? "ALTER TABLE gone RENAME TO agent_node" : "ALTER TABLE agent_node RENAME TO gone");
    gone = !gone;
}

static void all_is_well(void)
{
    fake_mend();
    if (full)
        disk_changes();
    if (gone)
        texts_go_or_come();
}

static void something_breaks(void)
{
    switch (below(12)) {
    case 0:
        atomic_store(&fake.audit_fails, noted(audit_key));
        break;
    case 1:
        atomic_store(&fake.broken, noted(broken_key));
        break;
    case 2:
        atomic_store(&fake.slowed, noted(slow_key));
        break;
    case 3:
        atomic_store(&fake.probe_fails, noted(probe_key));
        break;
    case 4:
        atomic_store(&fake.no_room, one_in(2));
        break;
    case 5:
        atomic_store(&fake.other_bytes, one_in(2));
        break;
    case 6:
        atomic_store(&fake.builds_die, (int)below(4));
        break;
    case 7:
        atomic_store(&fake.probes_die, (int)below(4));
        break;
    case 8:
        atomic_store(&fake.outrun, (int)below(4));
        break;
    case 9:
        gone ? (void)0 : disk_changes();
        break; /* triggers are of tables */
    case 10:
        full ? (void)0 : texts_go_or_come();
        break;
    default:
        atomic_store(&fake.live, one_in(2));
        break;
    }
}

/* As `whet tune` has it: who decides what comes next is another. */
static void a_batch_is_asked_for(void)
{
    const struct proposer *by[] = {&proposer_points, &proposer_retrials, &proposer_texts};
    struct slot_search *p = any_slot();
    if (!s->batch.slot_search && !p->promoted.c && slot_search_open(s, p) &&
        slot_search_inputs(s, p)) {
        const uint32_t kind = below(3);
        if (kind == 0 || (kind == 1 && retrial_due(s, p)) || (kind == 2 && agent_waiting(s) == p))
            by[kind]->next(s, p);
    } else if (slot_search_open(s, p) && strategy_proposes(s->strategy)) {
        consult_ahead(s, p);
    }
}

static void something_happens(void)
{
    const uint32_t what = below(100);
    if (what < 45)
        take_turn(s);
    else if (what < 60)
        steps_run();
    else if (what < 68)
        pass(one_in(4) ? 30 + below(200) : 0.001 * below(3000));
    else if (what < 76)
        operator_acts();
    else if (what < 78)
        somebody_looks();
    else if (what < 80)
        stores_are_exchanged();
    else if (what < 84)
        something_breaks();
    else if (what < 86)
        all_is_well();
    else if (what < 90)
        a_batch_is_asked_for();
    else if (what < 96)
        replies_come();
    else
        others_say(any_slot()->slot);
}

/* ---- what has to hold ------------------------------------------------------------------------ */

static int held; /* kernels that somebody has loaded */

static void hold(const struct candidate *c)
{
    held += c && c->kernel;
}

static void slot_agrees(const struct slot_search *p)
{
    const struct candidate *a = p->locked.active, *b = p->locked.previous;
    assert_ptr_equal(slot_kernel(p->slot), a ? a->kernel : p->slot->eager);
    assert_true(!a || (a != b && a->state == LIFE_ACTIVE));
    assert_true(!b || (b->kernel && (!a || strcmp(a->key, b->key) != 0)));
    assert_true(!a || s->numerics != NUMERICS_BIT_EQUAL || a->kernel->bit_equal);
    assert_true(!a || !is_disabled_locked(s, a->key, a->template->id));
    if (p->locked.pinned[0] && !p->locked.pin_missing && a)
        assert_string_equal(a->key, p->locked.pinned);
    const struct candidate *c = p->promoted.c;
    assert_true(!c || (c != a && c != b && c->kernel));
    assert_true(!c || !a || strcmp(c->key, a->key) != 0);
    if (c && p->promoted.from.by != &proposer_texts)
        assert_non_null(p->space);
    hold(a);
    hold(b);
    hold(c);
    int tried = 0, measured = 0;
    for (int32_t i = 0; p->space && i < space_size(p->space); i++) {
        tried += p->search.trial[i] != TRIAL_NONE;
        measured += p->search.trial[i] == TRIAL_MEASURED;
    }
    assert_int_equal(tried, p->search.tried);
    assert_int_equal(measured, p->search.measured);
}

static void winner_serves(void *ctx, const struct winner *w)
{
    int *winners = ctx;
    const struct slot_search *p = slot_search_find(s, w->slot);
    assert_non_null(p);
    if (p->locked.active)
        assert_string_equal(p->locked.active->key, w->key);
    ++*winners;
}

/* Active rows are winners: `ctx`, so many. */
static void count_active(void *ctx, const struct record *r)
{
    (void)r;
    ++*(int *)ctx;
}

static void all_agree(void)
{
    held = 0;
    for (int i = 0; i < s->slot_searches; i++)
        slot_agrees(&s->slot_search[i]);
    for (int i = 0; i < s->batch.n; i++) {
        const struct trial *t = &s->batch.trial[i];
        hold(t->c);
        if (t->c && t->from.by != &proposer_texts)
            assert_non_null(t->slot_search->space);
    }
    assert_int_equal(atomic_load(&fake.loaded), held + s->locked.retires);
    int winners = 0, active = 0;
    assert_int_equal(store_winners(s->store, s->keys.env, winner_serves, &winners, NULL), 0);
    for (int i = 0; i < s->slot_searches; i++)
        active += s->slot_search[i].locked.active != NULL;
    assert_true(winners >= active);
    int rows = 0;
    struct record_filter of = {.env = s->keys.env, .states = 1u << LIFE_ACTIVE};
    assert_int_equal(store_each(s->store, &of, count_active, &rows, NULL), 0);
    assert_int_equal(rows, winners);
}

static char texts[256][17]; /* hashes of texts that were admitted */
static int n_texts;

static void take_text(void *ctx, const struct record *r)
{
    (void)ctx;
    if (n_texts < 256 && agent_template_find(r->template) && life_admitted(r->state))
        snprintf(texts[n_texts++], sizeof texts[0], "%s", r->source);
}

/* What the store has for the hash of a text is that text, or no kernel of it would come back. */
static void texts_are_whole(void)
{
    struct record_filter all = {0};
    struct err err;
    struct store *store = store_open(store_file, &err);
    assert_non_null(store);
    n_texts = 0;
    store_each(store, &all, take_text, NULL, NULL);
    for (int i = 0; i < n_texts; i++) {
        struct agent_node n;
        assert_int_equal(agent_store_find(store, texts[i], &n, NULL), 1);
        assert_true(agent_text_has_hash(n.text, texts[i]));
        tree_node_free(&n);
    }
    store_close(store);
}

/* ---- lives ----------------------------------------------------------------------------------- */

static void begin(void)
{
    static const char *const strategies[] = {"template", "template", "mcts", "evolve", "agentic"};
    static const char *const slots[] = {"", "", "", "mlp_out", "mlp_out/m1,head"};
    static const char *const gains[] = {"0.02", "0.02", "-0.5"};
    char *argv[] = {(char *)"whet",
                    (char *)"--store",
                    store_file,
                    (char *)"--specializer-strategy",
                    (char *)strategies[below(5)],
                    (char *)"--specializer-numerics",
                    (char *)numerics,
                    (char *)"--specializer-slots",
                    (char *)slots[below(5)],
                    (char *)"--specializer-min-gain",
                    (char *)gains[below(3)],
                    (char *)"--specializer-agentic",
                    (char *)(one_in(5) ? "off" : "on"),
                    (char *)"--specializer-starts",
                    (char *)(one_in(4) ? "off" : "on"),
                    (char *)"--adviser-url",
                    (char *)(one_in(4) ? "" : "http://127.0.0.1:9/v1"),
                    NULL};
    struct err err = {{0}};
    config_free(&config);
    if (config_parse(&config, sizeof argv / sizeof *argv - 1, argv, &err) != 0)
        fail_msg("%s", err.msg);
    s = specializer_new(&config, NULL, false, &err);
    assert_non_null(s);
    s->env.tick = tick;
    s->env.tick_ctx = s;
    specializer_setup(s);
    if (!s->agent) /* no process can be sealed here; none is begun */
        s->agent = agent_open(&config, s->store, adviser_llm(s->adviser), s->keys.env, MACHINE_CPU);
    assert_int_equal(operators_read(s, &err), 0);
    if (!one_in(4))
        s->fleet = join_fleet();
    fake.meanwhile = others_act;
    restore_winners(s);
    retrials_recall(s);
    why_recall(s);
    s->since_ns = clock_ns();
}

static void end(void)
{
    struct fleet *f = s->fleet;
    fake.meanwhile = NULL;
    all_is_well();
    dispatch_boundary(fake.dispatch, true);
    fleet_loop_close(s);
    specializer_free(s);
    if (f)
        memory_close(f);
    s = NULL;
    texts_are_whole();
    assert_int_equal(atomic_load(&fake.loaded), 0);
    for (; fake.graves > 0; fake.graves--)
        free(fake.grave[fake.graves - 1]);
}

static void live(uint64_t seed)
{
    static const char *const all_numerics[] = {"tolerance", "tolerance", "bit_equal", "reduced"};
    chance = seed * UINT64_C(0x9E3779B97F4A7C15) + 1;
    numerics = all_numerics[below(4)];
    snprintf(store_file, sizeof store_file, "%s/%llu/store.db", folder, (unsigned long long)seed);
    for (int i = 0; i < RESTARTS; i++) {
        begin();
        all_agree();
        for (int k = 0; k < STEPS && !atomic_load(&s->stop); k++) {
            something_happens();
            all_agree();
        }
        end();
    }
    free(exported);
    exported = NULL;
}

static void whatever_happens_slots_store_and_memory_agree(void **unused)
{
    (void)unused;
    for (uint64_t seed = 1; seed <= 6; seed++)
        live(seed);
}

static int open_world(void **unused)
{
    (void)unused;
    fake_make();
    return mkdtemp(folder) ? 0 : -1;
}

static int close_world(void **unused)
{
    (void)unused;
    char command[80];
    dispatch_close(fake.dispatch);
    model_close(fake.model);
    config_free(&config);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static uint64_t first, last;

static void lives_of_seeds(void **unused)
{
    (void)unused;
    for (uint64_t seed = first; seed <= last; seed++) {
        print_message("seed %llu\n", (unsigned long long)seed);
        live(seed);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_happens_slots_store_and_memory_agree)};
    const struct CMUnitTest by_hand[] = {cmocka_unit_test(lives_of_seeds)};
    if (argc < 3)
        return cmocka_run_group_tests(tests, open_world, close_world);
    first = strtoull(argv[1], NULL, 10);
    last = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(by_hand, open_world, close_world);
}
