/* SPDX-License-Identifier: Apache-2.0 */
/* Model files made to cost memory or time, to lead elsewhere, or changed under the reader: each is
 * refused in words, and none is waited for. */
#include "tests/unit/engine/model_world.h"

#include <sys/mman.h>

#include "engine/gguf.h"
#include "engine/json_file.h"
#include "engine/safetensors.h"

static char *repeat(const char *unit, size_t times, const char *tail)
{
    size_t n = strlen(unit);
    char *text = xmalloc(n * times + strlen(tail) + 1);
    for (size_t i = 0; i < times; i++)
        memcpy(text + i * n, unit, n);
    strcpy(text + n * times, tail);
    return text;
}

static void expect_refused(const char *file, const char *text, const char *message)
{
    char *folder = copy_folder("tiny-llama");
    replace(folder, file, text);
    assert_refused(folder, file, message);
    remove_folder(folder);
}

/* ---- JSON ---------------------------------------------------------------------------------- */

static const char *const json_files[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                         "generation_config.json", "model.safetensors.index.json"};

static void json_is_refused_before_it_is_parsed(void **state)
{
    (void)state;
    char *deep = repeat("[", 1000, ""), *objects = repeat("{\"a\":", 40, "");
    char *items = repeat("1,", 1 << 20, "1]"), *list = xasprintf("[%s", items);
    for (size_t i = 0; i < sizeof json_files / sizeof *json_files; i++) {
        expect_refused(json_files[i], deep, "nested deeper than 32 levels");
        expect_refused(json_files[i], objects, "nested deeper than 32 levels");
        if (strcmp(json_files[i], "tokenizer.json") != 0)
            expect_refused(json_files[i], list,
                           strcmp(json_files[i], "config.json") &&
                                   strcmp(json_files[i], "generation_config.json")
                               ? "more than 1048576 items"
                               : "bytes, at most 1048576 are read");
        expect_refused(json_files[i], "{} x", "not valid JSON");
        expect_refused(json_files[i], "{\"a\": \"b\\u00g1 c\"}", "malformed escape");
        expect_refused(json_files[i], "{\"a\": [1, 02]}",
                       "malformed escape or number, or U+0000, at byte 10");
        expect_refused(json_files[i], "{\"a\": -.5}", "malformed escape or number");
        expect_refused(json_files[i], "{\"a\\u0000b\": 1}", "U+0000, at byte 3");
    }
    free(deep);
    free(objects);
    free(items);
    free(list);
    items = repeat("1,", 4 << 20, "1]");
    list = xasprintf("[%s", items);
    expect_refused("tokenizer.json", list, "more than 4194304 items");
    free(items);
    free(list);
}

/* Brackets and commas in strings are text, also behind quotes that are escaped. */
static void what_stands_in_strings_does_not_count(void **state)
{
    (void)state;
    struct err err;
    const char *text =
        "{\"a\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[,,,\\\\\",\"b\":[1]}\n";
    cJSON *json = json_text_parse(text, strlen(text), 6, "some", &err);
    assert_non_null(json);
    cJSON_Delete(json);
    assert_null(json_text_parse("{\"a\":\"x\0y\"}", 11, 6, "some", &err));
    assert_string_equal(err.msg,
                        "some: not valid JSON: malformed escape or number, or U+0000, at byte 7");
    assert_null(json_text_parse(text, strlen(text), 3, "some", &err));
    assert_string_equal(err.msg, "some: more than 3 items");
}

/* A file that ends with its page and in the middle of an object: nothing behind is looked at. */
static void json_that_ends_with_its_memory_is_not_read_past(void **state)
{
    (void)state;
    static const char *const texts[] = {"{\"1\":1,", "{\"1\":1", "[1,", "{\"", "\"\\",
                                        "\"\\u12",   "t",        "-",   "1e",  " "};
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mprotect(at + page, page, PROT_NONE), 0);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t n = strlen(texts[i]);
        memcpy(at + page - n, texts[i], n);
        assert_null(json_text_parse(at + page - n, n, 100, "some", NULL));
    }
    munmap(at, 2 * page);
}

static void numbers_that_are_none_are_refused(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "hidden_size",         "num_hidden_layers",       "intermediate_size",
        "num_attention_heads", "num_key_value_heads",     "head_dim",
        "vocab_size",          "max_position_embeddings", "rms_norm_eps",
        "rope_theta",          "partial_rotary_factor"};
    static const char *const values[] = {"1e308", "-1e308", "1e999", "-1", "2147483648"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
            char *folder = copy_folder("tiny-llama");
            edit(folder, "config.json", "rope_parameters", NULL);
            edit(folder, "config.json", fields[i], "\"@\""); /* cJSON would print 1e999 as null */
            char *command = xasprintf("sed -i 's/\"@\"/%s/' %s/config.json", values[k], folder);
            assert_int_equal(system(command), 0);
            free(command);
            struct err err = {""};
            struct model *m = model_open(folder, true, NULL, NULL, &err);
            bool harmless = strcmp(fields[i], "rope_theta") == 0 && k == 4;
            if ((m != NULL) != harmless)
                fail_msg("%s: %s: %s", fields[i], values[k], m ? "taken" : err.msg);
            model_close(m);
            remove_folder(folder);
        }
    expect_refused("config.json", "{\"hidden_size\":NaN}", "not valid JSON");
}

/* ---- links, pipes -------------------------------------------------------------------------- */

static const char *const all_files[] = {"config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "generation_config.json",
                                        "chat_template.jinja",
                                        "model-00002-of-00003.safetensors",
                                        "model.safetensors.index.json"};

static void link_to(const char *folder, const char *name, const char *target)
{
    char *path = xasprintf("%s/%s", folder, name);
    unlink(path);
    assert_int_equal(symlink(target, path), 0);
    free(path);
}

static void a_link_out_of_the_folder_is_not_followed(void **state)
{
    (void)state;
    char *other = copy_folder("tiny-llama"), *beside = xasprintf("%s-other", other);
    assert_int_equal(rename(other, beside), 0);
    for (size_t i = 0; i < sizeof all_files / sizeof *all_files; i++) {
        char *folder = copy_folder("tiny-llama");
        char *target = xasprintf("%s/%s", beside, all_files[i]);
        if (access(target, F_OK) == 0) {
            link_to(folder, all_files[i], target);
            assert_refused(folder, all_files[i], "leads out of the model's folder");
            link_to(folder, all_files[i], "/etc/passwd");
            assert_refused(folder, all_files[i], "leads out of the model's folder");
        }
        free(target);
        remove_folder(folder);
    }
    free(other);
    remove_folder(beside);
}

static void links_within_a_model_or_its_cache_are_followed(void **state)
{
    (void)state;
    char *cache = xstrdup("/tmp/whet-cache-XXXXXX");
    assert_non_null(mkdtemp(cache));
    char *golden = golden_path("tiny-llama");
    char *command =
        xasprintf("mkdir -p %s/snapshots/abc && cp -r %s %s/blobs && cd %s/snapshots/abc && "
                  "for f in ../../blobs/*; do ln -s \"$f\" .; done",
                  cache, golden, cache, cache);
    assert_int_equal(system(command), 0);
    char *folder = xasprintf("%s/snapshots/abc", cache);
    struct err err = {""};
    struct model *m = model_open(folder, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    model_close(m);
    link_to(folder, "config.json", "../../blobs/../../../etc/passwd");
    assert_refused(folder, "config.json", "leads out of the model's folder");
    link_to(folder, "config.json", "../../blobs-of-others");
    free(folder);
    free(command);
    free(golden);
    remove_folder(cache);

    folder = copy_folder("tiny-llama");
    command = xasprintf("mv %s/config.json %s/real.json", folder, folder);
    assert_int_equal(system(command), 0);
    link_to(folder, "config.json", "real.json");
    m = model_open(folder, true, NULL, NULL, &err);
    assert_non_null(m);
    model_close(m);
    free(command);
    remove_folder(folder);
}

static void pipes_and_devices_in_a_folder_are_not_waited_for(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all_files / sizeof *all_files; i++) {
        char *folder = copy_folder("tiny-llama"), *path = xasprintf("%s/%s", folder, all_files[i]);
        unlink(path);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_refused(folder, all_files[i], "not a regular file");
        free(path);
        remove_folder(folder);
    }
}

static void an_index_names_files_of_its_folder(void **state)
{
    (void)state;
    static const char *const names[] = {
        "../model.safetensors", "/etc/passwd", ".hidden", "", "a/../../b", "."};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *text = xasprintf("{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        expect_refused("model.safetensors.index.json", text, "'a' is in no file of this directory");
        free(text);
    }
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    fputs("{\"weight_map\":{\"t\":\"f\"", out);
    for (int i = 0; i < 5000; i++)
        fprintf(out, ",\"t%d\":\"f%d\"", i, i);
    fputs("}}", out);
    fclose(out);
    expect_refused("model.safetensors.index.json", text, "more than 4096 files");
    free(text);
}

/* ---- templates ----------------------------------------------------------------------------- */

static void a_template_of_megabytes_is_refused(void **state)
{
    (void)state;
    char *text = repeat("{##}", 300000, ""),
         *quoted = xasprintf("{\"chat_template\":\"%s\"}", text);
    expect_refused("chat_template.jinja", text, "bytes, at most 1048576 are read");
    char *folder = copy_folder("tiny-llama");
    replace(folder, "chat_template.jinja", NULL);
    replace(folder, "tokenizer_config.json", quoted);
    assert_refused(folder, "template", "'chat_template': more than 1048576 bytes");
    remove_folder(folder);
    free(quoted);
    free(text);
}

/* ---- files that change --------------------------------------------------------------------- */

static char *copy_file(const char *name)
{
    size_t n;
    uint8_t *data = golden_bytes(name, &n);
    char *path = xstrdup("/tmp/whet-file-XXXXXX");
    int fd = mkstemp(path);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
    free(data);
    return path;
}

/* The reader has the file open and mapped, and somebody cuts it off: an error, not a signal. */
static void metadata_that_was_cut_off_is_an_error(void **state)
{
    (void)state;
    struct err err = {""};
    char *path = copy_file("tiny-llama.gguf");
    struct filemap *map = filemap_open(path, &err);
    assert_int_equal(truncate(path, 0), 0);
    assert_null(gguf_open(map, &err));
    assert_non_null(strstr(err.msg, "has become shorter"));
    filemap_close(map);
    unlink(path);
    free(path);
    path = copy_file("tiny-qwen3/model.safetensors");
    map = filemap_open(path, &err);
    struct weights w = {0};
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(safetensors_open(map, &w, &err), -1);
    assert_non_null(strstr(err.msg, "has become shorter"));
    weights_free(&w);
    filemap_close(map);
    unlink(path);
    free(path);
}

static void append_a_byte(void *path, double fraction)
{
    (void)fraction;
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputc(0, f);
    fclose(f);
}

static void a_file_that_is_written_to_meanwhile_is_refused(void **state)
{
    (void)state;
    struct err err = {""};
    char *path = copy_file("tiny-llama.gguf");
    assert_null(model_open(path, true, append_a_byte, path, &err));
    assert_non_null(strstr(err.msg, "was changed while it was read"));
    unlink(path);
    free(path);
}

static void cut_off(void *path, double fraction)
{
    if (fraction == 0)
        assert_int_equal(truncate(path, 0), 0);
}

/* The weights are about to be brought into memory when the file loses them. */
static void weights_that_were_cut_off_are_an_error(void **state)
{
    (void)state;
    struct err err = {""};
    char *path = copy_file("tiny-llama.gguf");
    struct filemap *map = filemap_open(path, &err);
    bool tells = madvise((void *)map->data, 4096, 22) == 0; /* MADV_POPULATE_READ of Linux 5.14 */
    filemap_close(map);
    if (tells) {
        assert_null(model_open(path, true, cut_off, path, &err));
        assert_non_null(strstr(err.msg, "has become shorter"));
    }
    unlink(path);
    free(path);
    if (!tells)
        skip();
}

/* ---- GGUF metadata of any length ----------------------------------------------------------- */

static void put64(FILE *f, uint64_t v)
{
    fwrite(&v, sizeof v, 1, f);
}

static void put32(FILE *f, uint32_t v)
{
    fwrite(&v, sizeof v, 1, f);
}

/* One array of n bytes, one number behind it, one tensor. */
static char *long_metadata(uint64_t n)
{
    char *path = xstrdup("/tmp/whet-gguf-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    fwrite("GGUF", 4, 1, f);
    put32(f, 3);
    put64(f, 1);
    put64(f, 2);
    put64(f, 1);
    fputs("a", f);
    put32(f, GGUF_ARRAY);
    put32(f, GGUF_U8);
    put64(f, n);
    fseek(f, (long)n, SEEK_CUR);
    put64(f, 1);
    fputs("b", f);
    put32(f, GGUF_U32);
    put32(f, 17);
    put64(f, 1);
    fputs("t", f);
    put32(f, 1);
    put64(f, 8);
    put32(f, 0);
    put64(f, 0);
    long end = (ftell(f) + 31) / 32 * 32;
    fseek(f, end + 31, SEEK_SET);
    fputc(0x40, f);
    fclose(f);
    return path;
}

static void metadata_is_read_as_far_as_it_goes(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1000, (4 << 20) - 64, (4 << 20) - 63, 4 << 20, 17 << 20};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct err err = {""};
        char *path = long_metadata(lengths[i]);
        struct filemap *map = filemap_open(path, &err);
        struct gguf *g = gguf_open(map, &err);
        if (!g)
            fail_msg("%s", err.msg);
        int64_t b = 0;
        assert_int_equal(gguf_int(g, "b", &b, &err), 1);
        assert_int_equal(b, 17);
        assert_int_equal(gguf_find(g, "a")->count, lengths[i]);
        assert_int_equal(((const uint8_t *)weights_find(&g->weights, "t")->data)[31], 0x40);
        gguf_free(g);
        filemap_close(map);
        unlink(path);
        free(path);
    }
    char *path = long_metadata((uint64_t)200 << 20); /* a sparse file */
    assert_refused(path, "metadata", "the metadata has more than 134217728 bytes");
    unlink(path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_is_refused_before_it_is_parsed),
        cmocka_unit_test(what_stands_in_strings_does_not_count),
        cmocka_unit_test(json_that_ends_with_its_memory_is_not_read_past),
        cmocka_unit_test(numbers_that_are_none_are_refused),
        cmocka_unit_test(a_link_out_of_the_folder_is_not_followed),
        cmocka_unit_test(links_within_a_model_or_its_cache_are_followed),
        cmocka_unit_test(pipes_and_devices_in_a_folder_are_not_waited_for),
        cmocka_unit_test(an_index_names_files_of_its_folder),
        cmocka_unit_test(a_template_of_megabytes_is_refused),
        cmocka_unit_test(metadata_that_was_cut_off_is_an_error),
        cmocka_unit_test(a_file_that_is_written_to_meanwhile_is_refused),
        cmocka_unit_test(weights_that_were_cut_off_are_an_error),
        cmocka_unit_test(metadata_is_read_as_far_as_it_goes),
    };
    return cmocka_run_group_tests_name("engine/model_hostile", tests, NULL, NULL);
}
