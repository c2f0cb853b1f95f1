/* SPDX-License-Identifier: Apache-2.0 */
/* model_world.h - for tests that open models: the golden ones, and copies with one thing changed.
 */
#ifndef WHET_TESTS_UNIT_ENGINE_MODEL_WORLD_H
#define WHET_TESTS_UNIT_ENGINE_MODEL_WORLD_H

#include "tests/unit/unit.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/quant.h"
#include "engine/tokenizer.h"
#include "tests/unit/engine/golden.h"

static inline struct model *open_golden(const char *name)
{
    struct err err;
    char *path = golden_path(name);
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    free(path);
    return m;
}

/* A folder of its own with copies of a golden model's files. */
static inline char *copy_folder(const char *name)
{
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "chat_template.jinja",
                                        "tokenizer_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00003.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model-00003-of-00003.safetensors"};
    char *folder = xstrdup("/tmp/whet-model-XXXXXX"), *from = golden_path(name), *command = NULL;
    size_t n;
    FILE *out = open_memstream(&command, &n);

    assert_non_null(mkdtemp(folder));
    fprintf(out, "cp -t '%s'", folder);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *source = xasprintf("%s/%s", from, files[i]);
        if (access(source, F_OK) == 0)
            fprintf(out, " '%s'", source);
        free(source);
    }
    fclose(out);
    /* One process for all: sanitized ones take long to start others. */
    assert_int_equal(system(command), 0);
    free(command);
    free(from);
    return folder;
}

static inline void remove_folder(char *folder)
{
    char *command = xasprintf("rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
    free(command);
    free(folder);
}

/* Replaces a file of the folder by `text`; removes it if that is NULL. */
static inline void replace(const char *folder, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    unlink(path);
    if (text) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    free(path);
}

/* Sets a field of a JSON file of the folder, or removes it if `value` is NULL. */
static inline void edit(const char *folder, const char *name, const char *field, const char *value)
{
    char *path = xasprintf("%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    char text[65536];
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    cJSON_DeleteItemFromObjectCaseSensitive(json, field);
    if (value)
        cJSON_AddItemToObject(json, field, cJSON_Parse(value));
    char *edited = cJSON_Print(json);
    replace(folder, name, edited);
    free(edited);
    cJSON_Delete(json);
    free(path);
}

/* A copy of the model of a case in rope-models.json, with the rotary fields of the case. */
static inline char *copy_rope_case(const cJSON *entry)
{
    char *folder = copy_folder(cJSON_GetObjectItem(entry, "model")->valuestring);
    const cJSON *field;

    edit(folder, "config.json", "rope_parameters", NULL);
    cJSON_ArrayForEach(field, cJSON_GetObjectItem(entry, "config"))
    {
        char *value = cJSON_PrintUnformatted(field);
        edit(folder, "config.json", field->string, value);
        free(value);
    }
    return folder;
}

/* A golden file without its tokenizer. */
static inline struct model *open_golden_weights(const char *name)
{
    struct err err;
    char *path = golden_path(name);
    struct model *m = model_open(path, false, NULL, NULL, &err);
    if (!m)
        fail_msg("%s", err.msg);
    free(path);
    return m;
}

/* The model of a case of rope-models.json. */
static inline struct model *open_rope_case(const cJSON *entry, bool with_tokenizer)
{
    char *folder = copy_rope_case(entry);
    struct err err;
    struct model *m = model_open(folder, with_tokenizer, NULL, NULL, &err);
    if (!m)
        fail_msg("%s: %s", cJSON_GetObjectItem(entry, "case")->valuestring, err.msg);
    remove_folder(folder);
    return m;
}

static inline void assert_refused(const char *path, const char *what, const char *message)
{
    struct err err = {0};
    struct model *m = model_open(path, true, NULL, NULL, &err);
    if (m || !strstr(err.msg, message))
        fail_msg("%s: expected '%s', got '%s'", what, message, m ? "a model" : err.msg);
}

/* Writes a golden GGUF file with keys in front of its own: "name=value" of a string, "name:F" of a
 * float, "name?0" of a flag. One more key makes the tensors keep their alignment. */
static inline void write_gguf(int fd, const char *golden, const char *const *key)
{
    size_t n, size;
    uint64_t keys;
    uint8_t *file = golden_bytes(golden, &n);
    char *more = NULL;
    FILE *f = open_memstream(&more, &size);

    memcpy(&keys, file + 16, 8);
    for (; *key; key++, keys++) {
        uint64_t length = strcspn(*key, "=:?");
        const char *value = *key + length + 1;
        uint32_t type = value[-1] == '=' ? 8 : value[-1] == ':' ? 6 : 7;
        uint64_t text = strlen(value);
        float number = strtof(value, NULL);
        fwrite(&length, 8, 1, f);
        fwrite(*key, 1, length, f);
        fwrite(&type, 4, 1, f);
        if (type == 8)
            fwrite(&text, 8, 1, f);
        if (type == 6)
            fwrite(&number, 4, 1, f);
        else if (type == 8)
            fwrite(value, 1, text, f);
        else
            fputc(*value == '1', f);
    }
    fflush(f);
    uint64_t one = 1, rest = 63 - (size + 20) % 32; /* the last key has 21 bytes and its text */
    fwrite(&one, 8, 1, f);
    fwrite("x\10\0\0\0", 1, 5, f);
    fwrite(&rest, 8, 1, f);
    fprintf(f, "%*s", (int)rest, "");
    fclose(f);
    keys++;
    memcpy(file + 16, &keys, 8);
    assert_int_equal(size % 32, 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, file, 24, 0), 24);
    assert_int_equal(pwrite(fd, more, size, 24), size);
    assert_int_equal(pwrite(fd, file + 24, n - 24, 24 + (off_t)size), n - 24);
    free(more);
    free(file);
}

#endif
