/* SPDX-License-Identifier: Apache-2.0 */
/* test_safetensors.c - the safetensors reader on a file that transformers wrote and on damaged
 * ones. Copies handed to the reader are exactly as long as the file, so ASan sees a read past it.
 */
#include "tests/unit/unit.h"

#include "engine/quant.h"
#include "engine/safetensors.h"
#include "tests/unit/engine/golden.h"

/* A file of this header, padded with spaces to a multiple of 8 as writers do, and `data` zero
 * bytes. `length` other than 0 is written as the header length instead of the true one. */
static uint8_t *make_file(const char *header, size_t data, uint64_t length, size_t *n)
{
    uint64_t padded = (strlen(header) + 7) / 8 * 8;
    *n = 8 + (size_t)padded + data;
    uint8_t *file = xcalloc(*n, 1);
    memset(file + 8, ' ', (size_t)padded);
    memcpy(file, length ? &length : &padded, 8);
    memcpy(file + 8, header, strlen(header));
    return file;
}

/* Reads and seals, as model_hf.c does for a single file. */
static int read_file(const uint8_t *file, size_t n, struct weights *w, struct err *err)
{
    *w = (struct weights){0};
    err->msg[0] = 0;
    if (safetensors_read(file, n, "some.safetensors", w, err) < 0)
        return -1;
    return weights_seal(w, "some.safetensors", err);
}

static void reads_what_transformers_wrote(void **state)
{
    (void)state;
    size_t n;
    uint8_t *file = golden_bytes("tiny-qwen3/model.safetensors", &n);
    struct weights w;
    struct err err;

    assert_int_equal(read_file(file, n, &w, &err), 0);
    assert_int_equal(w.tensors, 2 + 2 * 11);
    const struct tensor *t = weights_find(&w, "model.layers.1.self_attn.q_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->type, DTYPE_BF16);
    assert_int_equal(t->dims, 2);
    assert_int_equal(t->dim[0], 4 * 32);
    assert_int_equal(t->dim[1], 64);
    assert_int_equal(t->bytes, 4 * 32 * 64 * 2);
    assert_null(weights_find(&w, "lm_head.weight"));
    weights_free(&w);
    free(file);
}

static void tensors_lie_at_their_offsets(void **state)
{
    (void)state;
    size_t n;
    struct weights w;
    struct err err;
    uint8_t *file = make_file("{\"__metadata__\":{\"format\":\"pt\"},"
                              "\"b\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                              "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                              20, 0, &n);

    for (size_t i = 0; i < 20; i++)
        file[n - 20 + i] = (uint8_t)i;
    assert_int_equal(read_file(file, n, &w, &err), 0);
    assert_int_equal(w.tensors, 2);
    assert_int_equal(((const uint8_t *)weights_find(&w, "a")->data)[0], 0);
    assert_int_equal(((const uint8_t *)weights_find(&w, "b")->data)[0], 8);
    assert_int_equal(weights_find(&w, "b")->bytes, 12);
    weights_free(&w);
    free(file);
}

/* They may lie wherever another begins or ends, as writers put them. */
static void tensors_that_hold_nothing_overlap_none(void **state)
{
    (void)state;
    static const char *const places[] = {"[0,0]", "[8,8]", "[16,16]"};
    size_t n;
    struct weights w;
    struct err err;

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *header = xasprintf("{\"z\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,16]},"
                                 "\"b\":{\"dtype\":\"F16\",\"shape\":[2,0],\"data_offsets\":%s},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                                 places[i]);
        uint8_t *file = make_file(header, 16, 0, &n);
        if (read_file(file, n, &w, &err))
            fail_msg("%s: %s", places[i], err.msg);
        assert_int_equal(weights_find(&w, "b")->bytes, 0);
        assert_string_equal(tensor_element_name(weights_find(&w, "z")), "F64");
        weights_free(&w);
        free(file);
        free(header);
    }
}

#define GOOD "\"a\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}"
#define TENSOR(dtype, shape, offsets) \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header, *message;
} corruptions[] = {
    {"[1]", "does not begin with '{'"},
    {" {}", "does not begin with '{'"},
    {"{}", "no tensors"},
    {"{\"a\":", "not valid JSON"},
    {"{" GOOD "} x", "text behind the value"},
    {"{\"a\":3}", "tensor 'a': the entry is no object"},
    {"{\"a\":[]}", "tensor 'a': the entry is no object"},
    {"{\"a\":{}}", "tensor 'a': no dtype"},
    {TENSOR("7", "[4]", "[0,8]"), "tensor 'a': no dtype"},
    {TENSOR("\"F4\"", "[4]", "[0,2]"), "tensor 'a': dtype F4 is not known"},
    {TENSOR("\"a plain weight format\"", "[4]", "[0,8]"), "dtype a plain weight format is not"},
    {TENSOR("\"I16\"", "[3]", "[0,8]"), "span 8 bytes, the shape needs 6"},
    {TENSOR("\"F64\"", "[2]", "[24,40]"), "tensor 'a': bytes 24 + 16"},
    {TENSOR("\"I32\"", "[4]", "[0,8]"), "span 8 bytes, the shape needs 16"},
    {TENSOR("\"F8_E4M3\"", "[4]", "[0,8]"), "span 8 bytes, the shape needs 4"},
    {TENSOR("\"I64\"", "[1]", "[4,12]"), "tensor 'a': misaligned for I64 (offset 4)"},
    {TENSOR("\"F16\"", "4", "[0,8]"), "tensor 'a': no shape"},
    {TENSOR("\"F16\"", "[]", "[0,4]"), "span 4 bytes, the shape needs 2"},
    {TENSOR("\"F16\"", "[1,1,1,1,4]", "[0,8]"), "tensor 'a': shape: more than 4 dimensions"},
    {TENSOR("\"F16\"", "[0]", "[0,2]"), "span 2 bytes, the shape needs 0"},
    {TENSOR("\"F16\"", "[0]", "[34,34]"), "tensor 'a': bytes 34 + 0, but its data area has 32"},
    {TENSOR("\"F16\"", "[2,-2]", "[0,8]"), "shape: dimension 1 is no whole number"},
    {TENSOR("\"F16\"", "[2.5]", "[0,5]"), "shape: dimension 0 is no whole number"},
    {TENSOR("\"F16\"", "[\"4\"]", "[0,8]"), "shape: dimension 0 is no whole number"},
    {TENSOR("\"F16\"", "[1e400]", "[0,8]"), "shape: dimension 0 is no whole number"},
    {TENSOR("\"F16\"", "[9007199254740992,9007199254740992]", "[0,8]"), "more than 2^63"},
    {TENSOR("\"F16\"", "[9007199254740992,512]", "[0,8]"), "more than 2^63 bytes"},
    {TENSOR("\"F16\"", "[4]", "8"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[0]"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[0,8,16]"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[8,0]"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[-8,0]"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[0,1e30]"), "data_offsets are no range"},
    {TENSOR("\"F16\"", "[4]", "[0,6]"), "data_offsets span 6 bytes, the shape needs 8"},
    {TENSOR("\"F16\"", "[4]", "[0,10]"), "data_offsets span 10 bytes, the shape needs 8"},
    {TENSOR("\"F16\"", "[64]", "[0,128]"), "tensor 'a': bytes 0 + 128, but its data area has 32"},
    {TENSOR("\"F16\"", "[4]", "[26,34]"), "tensor 'a': bytes 26 + 8"},
    {TENSOR("\"F16\"", "[4]", "[9007199254740000,9007199254740008]"), "tensor 'a': bytes"},
    {"{" GOOD "," GOOD "}", "overlap"},
    {"{" GOOD ",\"a\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[8,16]}}",
     "two tensors are named 'a'"},
    {"{" GOOD ",\"b\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[6,14]}}", "overlap"},
};

static void every_field_is_checked_and_named(void **state)
{
    (void)state;
    struct weights w;
    struct err err;
    size_t n;

    for (size_t i = 0; i < sizeof corruptions / sizeof *corruptions; i++) {
        uint8_t *file = make_file(corruptions[i].header, 32, 0, &n);
        int rc = read_file(file, n, &w, &err);
        if (rc == 0 || !strstr(err.msg, corruptions[i].message) ||
            !strstr(err.msg, "some.safetensors"))
            fail_msg("%s: expected '%s', got '%s'", corruptions[i].header, corruptions[i].message,
                     rc ? err.msg : "no error");
        weights_free(&w);
        free(file);
    }
}

static void a_misaligned_tensor_is_refused(void **state)
{
    (void)state;
    size_t n;
    struct weights w;
    struct err err;
    uint8_t *file = make_file(TENSOR("\"F16\"", "[4]", "[1,9]"), 32, 0, &n);

    assert_int_equal(read_file(file, n, &w, &err), -1);
    assert_non_null(strstr(err.msg, "tensor 'a': misaligned for F16"));
    weights_free(&w);
    free(file);
}

static void the_header_length_is_checked(void **state)
{
    (void)state;
    static const struct {
        uint64_t length;
        const char *message;
    } cases[] = {
        {1, "header length 1, expected 2 to"},
        {UINT64_MAX, "header length 18446744073709551615"},
        {(16 << 20) + 1, "header length 16777217"},
        {1 << 20, "the file ends inside the header"},
        {20, "not valid JSON"},
    };
    struct weights w;
    struct err err;
    size_t n;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *file = make_file("{" GOOD "}", 8, cases[i].length, &n);
        assert_int_equal(read_file(file, n, &w, &err), -1);
        if (!strstr(err.msg, cases[i].message))
            fail_msg("length %llu: %s", (unsigned long long)cases[i].length, err.msg);
        weights_free(&w);
        free(file);
    }
}

static void a_file_cut_anywhere_is_refused_by_name(void **state)
{
    (void)state;
    size_t n;
    uint8_t *file = golden_bytes("tiny-qwen3/model.safetensors", &n);
    uint64_t header;
    struct weights w;
    struct err err;

    memcpy(&header, file, 8);
    for (size_t cut = 0; cut < n; cut += cut < header + 64 ? 1 : 997) {
        uint8_t *copy = xmalloc(cut);
        memcpy(copy, file, cut);
        assert_int_equal(read_file(copy, cut, &w, &err), -1);
        assert_non_null(strstr(err.msg, "some.safetensors: "));
        weights_free(&w);
        free(copy);
    }
    free(file);
}

static void every_flipped_header_bit_is_refused_or_harmless(void **state)
{
    (void)state;
    size_t n;
    uint8_t *file = make_file("{\"__metadata__\":{\"k\":\"v\"}," GOOD
                              ",\"b\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[8,24]}}",
                              24, 0, &n);
    struct weights w;
    struct err err;

    for (size_t bit = 0; bit < 8 * (n - 24); bit++) {
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (read_file(file, n, &w, &err) < 0) {
            assert_true(err.msg[0] != 0);
        } else {
            for (int64_t i = 0; i < w.tensors; i++) {
                const uint8_t *p = w.tensor[i].data;
                assert_true(p >= file && p + w.tensor[i].bytes <= file + n);
            }
        }
        weights_free(&w);
        file[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_transformers_wrote),
        cmocka_unit_test(tensors_lie_at_their_offsets),
        cmocka_unit_test(tensors_that_hold_nothing_overlap_none),
        cmocka_unit_test(every_field_is_checked_and_named),
        cmocka_unit_test(a_misaligned_tensor_is_refused),
        cmocka_unit_test(the_header_length_is_checked),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_by_name),
        cmocka_unit_test(every_flipped_header_bit_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
