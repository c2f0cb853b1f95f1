/* SPDX-License-Identifier: Apache-2.0 */
/* test_import.c - files that claim to be exports: large ones, and ones that lie. Work is
 * counted in steps of SQLite's machine, so a slow computer changes nothing. */
#include "tests/unit/specializer/store_world.h"

#include "specializer/agent/agent_tree.h"
#include "specializer/search/space.h"
#include "specializer/store/store_json.h"
#include "specializer/transfer/export_text.h"
#include "specializer/transfer/transfer.h"

static struct err err;

/* ---- files --------------------------------------------------------------------------------- */

struct body {
    char *text;
    size_t n;
    FILE *out;
    bool some;
};

static void begin(struct body *b)
{
    *b = (struct body){.text = NULL};
    b->out = open_memstream(&b->text, &b->n);
    fputs("{\"whet_store\":1,\"kernels\":[", b->out);
}

__attribute__((format(printf, 2, 3))) static void add(struct body *b, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fputs(b->some ? "," : "", b->out);
    vfprintf(b->out, fmt, args);
    va_end(args);
    b->some = true;
}

static int import(struct store *s, struct body *b)
{
    fputs("]}", b->out);
    fclose(b->out);
    int taken = store_import(s, b->text, b->n, "req", &err);
    free(b->text);
    return taken;
}

static void add_text(struct body *b, const char *slot, const char *text, int number)
{
    add(b,
        "{\"slot\":\"%s\",\"template\":\"agent_mlp_out\",\"state\":\"active\",\"knobs\":\"ISA=1\","
        "\"agent\":{\"text\":\"%s%d;\",\"label\":\"l\",\"plan\":\"p\",\"prompts\":\"q\"}}",
        slot, text, number);
}

static const char *default_knobs(void)
{
    static char knobs[400];
    const struct template *t = template_find("mlp_out");
    struct point p = template_defaults(t);
    point_text(t, &p, knobs, sizeof knobs);
    return knobs;
}

static void add_kernel(struct body *b, const char *slot, const char *knobs)
{
    add(b, "{\"slot\":\"%s\",\"template\":\"mlp_out\",\"state\":\"active\",\"knobs\":\"%s\"}", slot,
        knobs);
}

/* ---- what there is afterwards -------------------------------------------------------------- */

static int64_t number(struct store *s, const char *sql)
{
    sqlite3_stmt *q = store_query(s, &err, sql, "");
    assert_non_null(q);
    assert_int_equal(sqlite3_step(q), SQLITE_ROW);
    int64_t n = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return n;
}

static int64_t steps; /* of SQLite's machine */

static int count_steps(void *unused)
{
    (void)unused;
    steps++;
    return 0;
}

/* ---- large files --------------------------------------------------------------------------- */

/* Every hundredth row is a text of its own for one slot; the rest are kernels, again and again,
 * slots that are none and texts that break a rule. */
static int64_t work_of(int rows, struct store **out)
{
    struct store *s = store_open(fresh_path(), &err);
    struct body b;
    begin(&b);
    assert_non_null(s);
    for (int i = 0; i < rows; i++) {
        char slot[40];
        snprintf(slot, sizeof slot, "no/slot%d", i);
        if (i % 100 == 0)
            add_text(&b, "mlp_out/m1", "static int a", i);
        else if (i % 4 == 0)
            add_text(&b, "mlp_out/m2", "void f(void) { asm(0); } int b", i);
        else
            add_kernel(&b,
                       i % 4 == 1   ? slot
                       : i % 4 == 2 ? "mlp_out/m1"
                                    : "mlp_out/m2",
                       default_knobs());
    }
    steps = 0;
    sqlite3_progress_handler(s->db, 1, count_steps, NULL);
    assert_true(import(s, &b) > 0);
    sqlite3_progress_handler(s->db, 0, NULL, NULL);
    *out = s;
    return steps;
}

static void import_of_a_hundred_thousand_rows_costs_the_same_for_each(void **unused)
{
    (void)unused;
    struct store *s;
    int64_t few = work_of(5000, &s);
    store_close(s);
    int64_t many = work_of(100000, &s);
    print_message("%lld and %lld steps a row\n", (long long)few / 5000, (long long)many / 100000);
    assert_true(many < 100000 * 1000LL);
    assert_true(many < few * 20 * 2);
    assert_int_equal(number(s, "SELECT count(*) FROM candidate"), 2);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node"), 32);
    assert_true(number(s, "SELECT count(*) FROM trace") <
                32 + 2 + 20); /* the rest is still there */
    assert_int_equal(
        number(s, "SELECT count(*) FROM trace WHERE text LIKE '%no room for 968 rows%'"), 1);
    store_close(s);
}

/* However many files, and whatever slots they name. */
static void texts_of_imports_are_bounded_of_a_slot_and_in_all(void **unused)
{
    (void)unused;
    static const int m[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048};
    struct store *s = store_open(fresh_path(), &err);
    char *large = xcalloc(60001, 1);
    memset(large, '1', 60000);
    for (int file = 0; file < 3; file++) {
        struct body b;
        begin(&b);
        for (int i = 0; i < 600; i++)
            add_text(&b, "mlp_out/m1", "int a", 1000 * file + i);
        for (int i = 0; i < 40; i++) /* 60 kB each */
            add(&b,
                "{\"slot\":\"mlp_out/m2\",\"template\":\"agent_mlp_out\",\"state\":\"active\","
                "\"agent\":{\"text\":\"/*%s*/ int b%d;\"}}",
                large, 1000 * file + i);
        assert_true(import(s, &b) >= 0);
    }
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node WHERE slot='mlp_out/m1'"), 32);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node WHERE slot='mlp_out/m2'"), 17);
    struct body b;
    begin(&b);
    for (int slot = 0; slot < 17; slot++)
        for (int i = 0; i < 40; i++) {
            char name[40];
            snprintf(name, sizeof name, "mlp_out/m%d", m[slot]);
            add_text(&b, name, "int c", i);
        }
    assert_true(import(s, &b) > 0);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node"), IMPORT_TEXTS_MOST);
    assert_true(number(s, "SELECT sum(length(text)) FROM agent_node") <= IMPORT_TEXT_BYTES);
    struct agent_tree tree = {0}; /* and what is kept can be read back */
    assert_int_equal(agent_store_tree(s, imported_texts(MACHINE_CPU), "mlp_out/m1", &tree, &err),
                     0);
    assert_int_equal(tree.nodes, 32);
    tree_free(&tree);
    free(large);
    store_close(s);
}

static void import_again_changes_nothing(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    for (int i = 0; i < 3; i++) {
        struct body b;
        begin(&b);
        add_kernel(&b, "mlp_out/m1", default_knobs());
        add_text(&b, "mlp_out/m1", "int a", 1);
        assert_int_equal(import(s, &b), 2);
        assert_int_equal(number(s, "SELECT count(*) FROM trace"), 2);
    }
    store_close(s);
}

/* ---- files that lie ------------------------------------------------------------------------ */

static void fields_that_this_program_does_not_know_are_not_taken(void **unused)
{
    (void)unused;
    static const char *const slots[] = {
        "",           "x",           "mlp_out",     "mlp_out/m0",
        "mlp_out/m5", "head/m1",     "../../m1",    "mlp_out/m1/c256",
        "/etc/x",     "mlp_out/m1 ", "mlp_out/m-1", "attn/m1/c1"};
    static const char *const knobs[] = {"",       "EVIL=1", "ISA=99999999999999999999",
                                        "ISA=-1", "ISA",    "ISA=1 ISA=1"};
    struct store *s = store_open(fresh_path(), &err);
    struct body b;
    begin(&b);
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        add_kernel(&b, slots[i], default_knobs());
        add_text(&b, slots[i], "int a", (int)i);
    }
    for (size_t i = 0; i < sizeof knobs / sizeof *knobs; i++)
        add_kernel(&b, "mlp_out/m1", knobs[i]);
    add(&b, "null,7,[],\"x\",{},[{\"slot\":\"mlp_out/m1\"}]");
    add(&b, "{\"slot\":[],\"template\":{},\"state\":1,\"knobs\":null,\"agent\":[]}");
    add(&b, "{\"slot\":\"mlp_out/m1\",\"template\":\"agent_mlp_out\",\"state\":\"active\","
            "\"agent\":{\"text\":{},\"label\":[]}}");
    assert_int_equal(import(s, &b), 0);
    assert_int_equal(number(s, "SELECT count(*) FROM candidate"), 0);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node"), 0);
    store_close(s);
}

/* Which formats a model mixes is not known here; that they are formats is, and all of a slot's
 * share its bounds. */
static void slots_of_format_classes_are_taken(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    struct body b;
    begin(&b);
    add_kernel(&b, "mlp_out/m1/q6_k", default_knobs());
    add_kernel(&b, "mlp_out/m1/q4_k", default_knobs());
    add_kernel(&b, "mlp_out/m1/q4_k-q6_k", default_knobs());
    add_kernel(&b, "mlp_out/m1/../../x", default_knobs());
    add_text(&b, "mlp_out/m1/q6_k", "int a", 1);
    for (int i = 0; i < 40; i++)
        add_text(&b, i % 2 ? "mlp_out/m2/q4_k" : "mlp_out/m2/q6_k", "int b", i);
    assert_int_equal(import(s, &b), 3 + 32);
    assert_int_equal(number(s, "SELECT count(*) FROM candidate"), 2);
    assert_int_equal(number(s, "SELECT count(*) FROM candidate WHERE slot='mlp_out/m1/q6_k'"), 1);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node WHERE slot LIKE 'mlp_out/m2/q%'"),
                     32);
    store_close(s);
}

/* Keys and hashes name files of objects and sources. */
static void names_are_made_here_and_not_taken_from_the_file(void **unused)
{
    (void)unused;
    char sql[200];
    struct store *s = store_open(fresh_path(), &err);
    struct body b;
    begin(&b);
    add(&b,
        "{\"id\":\"../../../tmp/evil\",\"name\":\"../evil\",\"slot\":\"mlp_out/m1\",\"template\":"
        "\"mlp_out\",\"state\":\"active\",\"knobs\":\"%s\",\"environment\":\"../evil\","
        "\"source_hash\":\"../../evil\",\"origin\":\"../evil\",\"changed\":1e300,"
        "\"object_key\":\"../evil\",\"object_sum\":\"../evil\",\"rollbacks\":-5}",
        default_knobs());
    add(&b,
        "{\"id\":\"..\",\"slot\":\"mlp_out/m1\",\"template\":\"agent_mlp_out\",\"state\":"
        "\"active\",\"source_hash\":\"../../evil\",\"agent\":{\"text\":\"int a;\",\"source\":"
        "\"../evil\",\"id\":-1,\"parent\":99,\"prompts\":\"../../../../../evil\\u0001\\u001b[31m\","
        "\"label\":\"\\u0007\\ud83d\\ude00\",\"state\":\"measured\",\"speed\":1e9}}");
    assert_int_equal(import(s, &b), 2);
    static const char *const hex[][2] = {{"candidate", "key"}, {"agent_node", "source"}};
    for (int i = 0; i < 2; i++) {
        snprintf(sql, sizeof sql,
                 "SELECT count(*) FROM %s WHERE length(%s)=16 AND %s NOT GLOB '*[^0-9a-f]*'",
                 hex[i][0], hex[i][1], hex[i][1]);
        assert_int_equal(number(s, sql), 1);
    }
    assert_int_equal(number(s, "SELECT count(*) FROM candidate WHERE object_key||object_sum||source"
                               "||name||env LIKE '%evil%' OR rollbacks<>0"),
                     0);
    assert_int_equal(number(s, "SELECT count(*) FROM agent_node WHERE state='ready' AND speed=0 AND"
                               " id=0 AND parent=-1 AND length(prompts)<=16 AND label GLOB '[?]*'"
                               " AND label NOT GLOB '*[^ -~]*' AND prompts NOT GLOB '*[^ -~]*'"),
                     1);
    store_close(s);
}

static void files_that_are_no_export_are_refused_before_they_cost_memory(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    static const char *const bad[][2] = {
        {"", "not JSON"},
        {"[1,2", "not JSON"},
        {"{\"whet_store\":1,\"kernels\":[\"a\\u00g1\"]}", "malformed escape"},
        {"{\"whet_store\":01,\"kernels\":[]}", "malformed escape or number, or U+0000, at byte 14"},
        {"{\"whet_store\":1.,\"kernels\":[]}", "malformed escape or number"},
        {"{}", "not an export"},
        {"{\"whet_store\":1.5,\"kernels\":[]}", "whet_store is 1.5"},
        {"{\"whet_store\":1e300,\"kernels\":[]}", "whet_store is 1"},
        {"{\"whet_store\":1,\"kernels\":{}}", "not an export"},
        {"[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]", "nested more than 16 deep"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(store_import(s, bad[i][0], strlen(bad[i][0]), NULL, &err), -1);
        if (!strstr(err.msg, bad[i][1]))
            fail_msg("%s: %s", bad[i][0], err.msg);
    }
    /* A byte and a comma are 64 bytes of memory once they are parsed. */
    size_t n = 10 << 20;
    char *zeros = xmalloc(n + 1);
    for (size_t i = 0; i < n; i++)
        zeros[i] = i % 2 ? ',' : i == 0 ? '[' : '0';
    assert_int_equal(store_import(s, zeros, n, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "values"));
    for (size_t i = 1; i < n; i++) /* in a string they are one */
        zeros[i] = i == 1 ? '"' : ',';
    assert_int_equal(store_import(s, zeros, n, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "not JSON"));
    free(zeros);
    assert_int_equal(store_import(s, "", (size_t)IMPORT_BYTES_MOST + 1, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "bytes"));
    assert_int_equal(number(s, "SELECT count(*) FROM candidate"), 0);
    store_close(s);
}

/* The disk is full in the middle: an error, a whole store, and the next import is taken. */
static void import_that_finds_no_room_on_the_disk_leaves_a_whole_store(void **unused)
{
    (void)unused;
    struct store *s = store_open(fresh_path(), &err);
    struct body b;
    begin(&b);
    add_kernel(&b, "mlp_out/m1", default_knobs());
    add_text(&b, "mlp_out/m1", "int a", 1);
    assert_int_equal(store_run(s, &err,
                               "CREATE TRIGGER full BEFORE INSERT ON agent_node BEGIN"
                               " SELECT RAISE(ABORT, 'disk is full'); END",
                               ""),
                     0);
    assert_int_equal(import(s, &b), -1);
    assert_non_null(strstr(err.msg, "disk is full"));
    assert_int_equal(number(s, "SELECT count(*) FROM candidate"), 0);
    assert_int_equal(store_run(s, &err, "DROP TRIGGER full", ""), 0);
    begin(&b);
    add_kernel(&b, "mlp_out/m1", default_knobs());
    assert_int_equal(import(s, &b), 1);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_of_a_hundred_thousand_rows_costs_the_same_for_each),
        cmocka_unit_test(texts_of_imports_are_bounded_of_a_slot_and_in_all),
        cmocka_unit_test(import_again_changes_nothing),
        cmocka_unit_test(fields_that_this_program_does_not_know_are_not_taken),
        cmocka_unit_test(slots_of_format_classes_are_taken),
        cmocka_unit_test(names_are_made_here_and_not_taken_from_the_file),
        cmocka_unit_test(files_that_are_no_export_are_refused_before_they_cost_memory),
        cmocka_unit_test(import_that_finds_no_room_on_the_disk_leaves_a_whole_store),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
