/* SPDX-License-Identifier: Apache-2.0 */
/* test_gguf.c - the GGUF reader on a file written by the gguf Python package (golden/formats.gguf)
 * and on damaged ones. Run under ASan: every copy handed to the parser is exactly as long as the
 * file is said to be, so a read past its end is caught. */
#include "tests/unit/unit.h"

#include "engine/gguf.h"
#include "engine/quant.h"
#include "tests/unit/engine/gguf_file.h"
#include "tests/unit/engine/golden.h"

/* Parses a copy with nothing behind it. */
static struct gguf *parse(const uint8_t *data, size_t n, uint8_t **copy, struct err *err)
{
    *copy = xmalloc(n);
    memcpy(*copy, data, n);
    err->msg[0] = 0;
    return gguf_parse(*copy, n, "some.gguf", err);
}

/* ---- good files ---------------------------------------------------------------------------- */

struct fixture {
    uint8_t *data;
    size_t n;
    struct gguf *g;
};

static int open_formats(void **state)
{
    struct fixture *f = xcalloc(1, sizeof *f);
    struct err err;
    f->data = golden_bytes("formats.gguf", &f->n);
    f->g = gguf_parse(f->data, f->n, "formats.gguf", &err);
    if (!f->g)
        fail_msg("%s", err.msg);
    *state = f;
    return 0;
}

static int close_formats(void **state)
{
    struct fixture *f = *state;
    gguf_free(f->g);
    free(f->data);
    free(f);
    return 0;
}

static void reads_numbers_of_every_type(void **state)
{
    const struct gguf *g = ((struct fixture *)*state)->g;
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{"test.uint8", 200},
                {"test.int8", -100},
                {"test.uint16", 60000},
                {"test.int16", -30000},
                {"test.uint32", 4000000000},
                {"test.int32", -2000000000},
                {"test.int64", -((int64_t)1 << 62)}};
    int64_t v;
    double d;
    bool b = false;
    struct err err;

    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
        assert_int_equal(gguf_int(g, ints[i].key, &v, &err), 1);
        assert_true(v == ints[i].value);
    }
    assert_int_equal(gguf_float(g, "test.float32", &d, &err), 1);
    assert_true(d == 1.5);
    assert_int_equal(gguf_float(g, "test.float64", &d, &err), 1);
    assert_true(d == 0.1);
    assert_int_equal(gguf_float(g, "test.int16", &d, &err), 1);
    assert_true(d == -30000);
    assert_int_equal(gguf_bool(g, "test.bool", &b, &err), 1);
    assert_true(b);
}

static void reads_strings_and_arrays(void **state)
{
    const struct gguf *g = ((struct fixture *)*state)->g;
    struct gguf_string s, *list;
    int32_t *ints;
    int64_t n;
    struct err err;

    assert_int_equal(gguf_string(g, "test.string", &s, &err), 1);
    assert_int_equal(s.n, strlen("a string with ünïcode"));
    assert_memory_equal(s.s, "a string with ünïcode", s.n);
    assert_int_equal(gguf_strings(g, "test.strings", &list, &n, &err), 1);
    assert_int_equal(n, 3);
    assert_int_equal(list[1].n, 0);
    assert_memory_equal(list[2].s, "three", 5);
    free(list);
    assert_int_equal(gguf_ints(g, "test.ints", &ints, &n, &err), 1);
    assert_int_equal(n, 3);
    assert_int_equal(ints[1], -2);
    free(ints);
    const struct gguf_value *nested = gguf_find(g, "test.deep");
    assert_non_null(nested);
    assert_int_equal(nested->item, GGUF_ARRAY);
    assert_int_equal(nested->count, 2);
}

static void an_absent_key_is_no_error_and_leaves_the_value(void **state)
{
    const struct gguf *g = ((struct fixture *)*state)->g;
    int64_t v = 42;
    struct err err;

    assert_int_equal(gguf_int(g, "test.nothing", &v, &err), 0);
    assert_int_equal(v, 42);
    assert_null(gguf_find(g, ""));
}

static void a_key_of_another_type_is_refused_by_name(void **state)
{
    const struct gguf *g = ((struct fixture *)*state)->g;
    struct gguf_string s, *list;
    int32_t *ints;
    int64_t v, n;
    double d;
    bool b;
    struct err err = {0};

    assert_int_equal(gguf_int(g, "test.string", &v, &err), -1);
    assert_non_null(strstr(err.msg, "'test.string': is string, expected an integer"));
    assert_int_equal(gguf_int(g, "test.uint64", &v, &err), -1); /* 2^63 + 5 */
    assert_non_null(strstr(err.msg, "test.uint64"));
    assert_int_equal(gguf_float(g, "test.bool", &d, &err), -1);
    assert_int_equal(gguf_bool(g, "test.uint8", &b, &err), -1);
    assert_int_equal(gguf_string(g, "test.strings", &s, &err), -1);
    assert_int_equal(gguf_strings(g, "test.ints", &list, &n, &err), -1);
    assert_int_equal(gguf_ints(g, "test.floats", &ints, &n, &err), -1);
    assert_int_equal(gguf_ints(g, "test.nested", &ints, &n, &err), -1);
    assert_non_null(strstr(err.msg, "array array, expected an array of integers"));
}

static void tensors_of_every_format_are_where_the_file_has_them(void **state)
{
    const struct gguf *g = ((struct fixture *)*state)->g;
    cJSON *golden = golden_json("quant.json"), *entry;
    char name[64];

    assert_int_equal(g->weights.tensors, DTYPE_COUNT - 1); /* GGUF has no F8 */
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(golden, "dequantize"))
    {
        size_t n;
        if (strcmp(golden_string(entry, "type"), "F8") == 0)
            continue;
        uint8_t *blocks = golden_hex(entry, "blocks", &n);
        snprintf(name, sizeof name, "tensor.%s", golden_string(entry, "type"));
        const struct tensor *t = weights_find(&g->weights, name);
        assert_non_null(t);
        assert_string_equal(dtype_name(t->type), golden_string(entry, "type"));
        assert_int_equal(t->dims, 2);
        assert_int_equal(t->dim[0], 2);
        assert_int_equal(t->dim[1], 256);
        assert_int_equal(t->bytes, n);
        assert_memory_equal(t->data, blocks, n);
        assert_int_equal((uintptr_t)t->data % 64, 0);
        free(blocks);
    }
    cJSON_Delete(golden);
}

/* ---- damaged files ------------------------------------------------------------------------- */

/* Whatever a parsed file offers must be readable. */
static uint64_t read_everything(const struct gguf *g, const uint8_t *data, size_t n)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < g->weights.tensors; i++) {
        const struct tensor *t = &g->weights.tensor[i];
        const uint8_t *p = t->data;
        assert_true(p >= data && t->bytes > 0 && (size_t)t->bytes <= n - (size_t)(p - data));
        for (int64_t b = 0; b < t->bytes; b++)
            sum += p[b];
    }
    for (int64_t i = 0; i < g->values; i++) {
        const char *key = g->value[i].key;
        struct gguf_string s = {NULL, 0}, *list = NULL;
        int32_t *ints = NULL;
        int64_t count = 0;
        double d = 0;
        gguf_float(g, key, &d, NULL);
        if (gguf_string(g, key, &s, NULL) > 0 && s.n)
            sum += (uint8_t)s.s[s.n - 1];
        if (gguf_strings(g, key, &list, &count, NULL) > 0)
            for (int64_t j = 0; j < count; j++)
                sum += list[j].n ? (uint8_t)list[j].s[list[j].n - 1] : 0;
        gguf_ints(g, key, &ints, &count, NULL);
        free(list);
        free(ints);
    }
    return sum;
}

static void a_file_cut_anywhere_is_refused_by_name(void **state)
{
    (void)state;
    struct file f = whole_file();
    struct err err;
    uint8_t *copy;

    for (size_t n = 0; n <= f.n; n++) {
        struct gguf *g = parse(f.data, n, &copy, &err);
        if (n < f.n) {
            assert_null(g);
            assert_non_null(strstr(err.msg, "some.gguf: "));
        } else {
            assert_non_null(g);
        }
        gguf_free(g);
        free(copy);
    }
    free(f.data);
}

static void every_flipped_bit_is_refused_or_harmless(void **state)
{
    struct fixture *golden = *state;
    struct file f = whole_file();
    const uint8_t *source[] = {f.data, golden->data};
    const size_t size[] = {f.n, golden->n};
    const size_t header[] = {f.n - 192, 1960};
    struct err err;

    for (int s = 0; s < 2; s++) {
        uint8_t *bad = xmalloc(size[s]);
        memcpy(bad, source[s], size[s]);
        for (size_t bit = 0; bit < 8 * header[s]; bit++) {
            bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
            err.msg[0] = 0;
            struct gguf *g = gguf_parse(bad, size[s], "some.gguf", &err);
            if (g)
                read_everything(g, bad, size[s]);
            else
                assert_true(err.msg[0] != 0);
            gguf_free(g);
            bad[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        free(bad);
    }
    free(f.data);
}

static const struct {
    const char *field;
    size_t width;
    uint64_t value;
    const char *message;
} corruptions[] = {
    {"magic", 4, 0x46554746, "not a GGUF file"},
    {"version", 4, 1, "GGUF version 1 is not supported"},
    {"version", 4, 4, "GGUF version 4 is not supported"},
    {"version", 4, 0x03000000, "big-endian"},
    {"tensor count", 8, 0, "no tensors"},
    {"tensor count", 8, 3, "a tensor name"},
    {"tensor count", 8, 1ull << 61, "too many"},
    {"value count", 8, UINT64_MAX, "too many"},
    {"value count", 8, 6, "ends inside a tensor name"},
    {"key length", 8, 0, "a metadata key is empty"},
    {"key length", 8, 1ull << 63, "ends inside a metadata key"},
    {"key length", 8, UINT64_MAX, "ends inside a metadata key"},
    {"key", 1, 0, "a metadata key is empty, not printable ASCII"},
    {"key", 1, 0x1b, "a metadata key is empty, not printable ASCII"},
    {"type", 4, 13, "'a.string': unknown type 13"},
    {"type", 4, UINT32_MAX, "unknown type"},
    {"string length", 8, UINT64_MAX - 7, "ends inside metadata 'a.string'"},
    {"item type", 4, 99, "'b.array': unknown item type 99"},
    {"item count", 8, 1ull << 62, "ends inside metadata 'b.array'"},
    {"item length", 8, 1ull << 40, "ends inside metadata 'b.array'"},
    {"outer count", 8, UINT64_MAX, "metadata 'c.nested'"},
    {"inner type", 4, 77, "'c.nested': unknown item type 77"},
    {"inner count", 8, 1ull << 61, "ends inside metadata 'c.nested' (2305843009213693952 items"},
    {"inner count", 8, UINT64_MAX, "metadata 'c.nested'"},
    {"alignment type", 4, GGUF_F32, "'general.alignment': is f32"},
    {"alignment", 4, 0, "'general.alignment': 0 is no power of two"},
    {"alignment", 4, 24, "'general.alignment': 24"},
    {"alignment", 4, 1u << 31, "'general.alignment'"},
    {"alignment", 4, 64, "no multiple of the alignment"},
    {"bool", 1, 2, "'z.bool': 2 is no bool"},
    {"name length", 8, 0, "a tensor name is empty"},
    {"name length", 8, 1ull << 50, "ends inside a tensor name"},
    {"name", 1, 0, "a tensor name is empty, not printable ASCII"},
    {"name", 1, 0xc3, "a tensor name is empty, not printable ASCII"},
    {"dims", 4, 0, "tensor 't.one': 0 dimensions"},
    {"dims", 4, 5, "tensor 't.one': 5 dimensions"},
    {"dims", 4, UINT32_MAX, "tensor 't.one'"},
    {"columns", 8, 0, "tensor 't.one': dimension 0 is 0"},
    {"columns", 8, 33, "no whole Q8_0 blocks"},
    {"columns", 8, 1ull << 63, "tensor 't.one': dimension 0"},
    {"columns", 8, 1ull << 62, "more than 2^63"},
    {"columns", 8, 1ull << 40, "tensor 't.one': bytes 0 +"},
    {"rows", 8, 0, "tensor 't.one': dimension 1 is 0"},
    {"rows", 8, UINT64_MAX, "tensor 't.one': dimension 1"},
    {"rows", 8, INT64_MAX, "more than 2^63"},
    {"rows", 8, 3, "tensor 't.one': bytes 0 + 204, but its data area has 192"},
    {"tensor type", 4, 16, "tensor 't.one': type IQ2_XXS is not supported"},
    {"tensor type", 4, 15, "tensor 't.one': type Q8_K is not supported"},
    {"tensor type", 4, 26, "tensor 't.one': type I32 is not supported"},
    {"tensor type", 4, 4, "tensor 't.one': unknown type 4"},
    {"tensor type", 4, 4000000000, "unknown type 4000000000"},
    {"offset", 8, 1, "tensor 't.one': offset 1 is no multiple"},
    {"offset", 8, 192, "tensor 't.one': bytes 192 + 136, but its data area has 192"},
    {"offset", 8, (uint64_t)-32, "tensor 't.one': bytes"},
    {"second name", 5, 0x656e6f2e74, "two tensors are named 't.one'"},
    {"second size", 8, 9, "tensor 't.two'"},
    {"second type", 4, 31, "unknown type 31"},
    {"second offset", 8, 128, "overlap"},
    {"second offset", 8, 0, "overlap"},
};

static void every_field_is_checked_and_named(void **state)
{
    (void)state;
    struct err err;
    uint8_t *copy;

    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        struct file f = whole_file();
        patch(&f, corruptions[i].field, corruptions[i].width, corruptions[i].value);
        struct gguf *g = parse(f.data, f.n, &copy, &err);
        if (g || !strstr(err.msg, corruptions[i].message))
            fail_msg("%s = %llx: expected '%s', got '%s'", corruptions[i].field,
                     (unsigned long long)corruptions[i].value, corruptions[i].message,
                     g ? "no error" : err.msg);
        free(copy);
        free(f.data);
    }
}

/* A file whose only value is `depth` arrays inside one another, or two values of one key. */
static struct gguf *parse_values(int depth, bool twice, struct err *err)
{
    struct file f = {0};
    uint8_t *copy;

    put(&f, NULL, "GGUF", 4);
    put32(&f, NULL, 3);
    put64(&f, NULL, 0);
    put64(&f, NULL, twice ? 2 : 1);
    for (int i = 0; i <= twice; i++) {
        put_string(&f, NULL, NULL, "key");
        put32(&f, NULL, depth ? GGUF_ARRAY : GGUF_U32);
        for (int d = 1; d < depth; d++) {
            put32(&f, NULL, GGUF_ARRAY);
            put64(&f, NULL, 1);
        }
        if (depth) {
            put32(&f, NULL, GGUF_U32);
            put64(&f, NULL, 1);
        }
        put32(&f, NULL, 1);
    }
    struct gguf *g = parse(f.data, f.n, &copy, err);
    free(copy);
    free(f.data);
    return g;
}

static void arrays_nested_without_end_are_refused(void **state)
{
    (void)state;
    struct err err;

    assert_null(parse_values(5, false, &err)); /* deep enough for any file, but without tensors */
    assert_non_null(strstr(err.msg, "no tensors"));
    assert_null(parse_values(6, false, &err));
    assert_non_null(strstr(err.msg, "'key': arrays nested deeper"));
    assert_null(parse_values(1000, false, &err));
    assert_non_null(strstr(err.msg, "nested deeper"));
}

static void a_key_given_twice_is_refused(void **state)
{
    (void)state;
    struct err err;

    assert_null(parse_values(0, true, &err));
    assert_non_null(strstr(err.msg, "'key' is given twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reads_numbers_of_every_type, open_formats, close_formats),
        cmocka_unit_test_setup_teardown(reads_strings_and_arrays, open_formats, close_formats),
        cmocka_unit_test_setup_teardown(an_absent_key_is_no_error_and_leaves_the_value,
                                        open_formats, close_formats),
        cmocka_unit_test_setup_teardown(a_key_of_another_type_is_refused_by_name, open_formats,
                                        close_formats),
        cmocka_unit_test_setup_teardown(tensors_of_every_format_are_where_the_file_has_them,
                                        open_formats, close_formats),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_by_name),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_refused_or_harmless, open_formats,
                                        close_formats),
        cmocka_unit_test(every_field_is_checked_and_named),
        cmocka_unit_test(arrays_nested_without_end_are_refused),
        cmocka_unit_test(a_key_given_twice_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
