/* SPDX-License-Identifier: Apache-2.0 */
/* model_hint.c - what a path that holds no model may hold instead.
 *
 * "config.json: No such file or directory" is true of an adapter, of a cache and of a folder that a
 * GGUF file lies in, and says nothing of what to do. So where a model could not be opened, its
 * folder is looked at once more for what people have most often in the place of one.
 */
#include "engine/model_load.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A pointer has about 130 bytes; entries of a folder that are looked at. */
enum { POINTER_MAX = 1024, ENTRIES_MAX = 4096 };

static bool there(const char *folder, const char *name)
{
    char *path = xasprintf("%s/%s", folder, name);
    bool found = access(path, F_OK) == 0;
    free(path);
    return found;
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* What a clone without Git LFS has in the place of a large file. */
static bool is_pointer(const char *path)
{
    static const char begins[] = "version https://git-lfs.github.com/spec/";
    struct err ignored = {0};
    size_t n;
    char *text = file_read(path, POINTER_MAX, &n, &ignored);
    bool pointer = text && !strncmp(text, begins, sizeof begins - 1);
    free(text);
    return pointer;
}

/* The first entry of the folder with that end that is (or need not be) a pointer; to be freed. */
static char *find(const char *folder, const char *end, bool pointer)
{
    DIR *dir = opendir(folder);
    char *found = NULL;
    const struct dirent *entry;
    for (int i = 0; dir && !found && i < ENTRIES_MAX && (entry = readdir(dir)); i++) {
        struct err ignored = {0};
        if (!ends_in(entry->d_name, end) || file_check_within(folder, entry->d_name, &ignored) < 0)
            continue;
        char *path = xasprintf("%s/%s", folder, entry->d_name);
        if (!pointer || is_pointer(path))
            found = xstrdup(entry->d_name);
        free(path);
    }
    if (dir)
        closedir(dir);
    return found;
}

/* The hint for a folder, to be freed; NULL: none. */
static char *of_folder(const char *folder)
{
    static const char *const large[] = {".safetensors", "tokenizer.json"};
    char *name = NULL;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++)
        if ((name = find(folder, large[i], true))) {
            char *hint = xasprintf(
                "%s is a Git LFS pointer and not the file: fetch it (git lfs pull)", name);
            free(name);
            return hint;
        }
    if (!there(folder, "config.json")) {
        if (there(folder, "adapter_config.json"))
            return xstrdup("this is an adapter (LoRA) and no model: merge it into its base model");
        if (there(folder, "snapshots"))
            return xstrdup("this is a Hugging Face cache: name the folder below 'snapshots'");
        if ((name = find(folder, ".gguf", false))) {
            char *hint = xasprintf("a GGUF file is named itself: %s/%s", folder, name);
            free(name);
            return hint;
        }
        return NULL;
    }
    if (!there(folder, "model.safetensors") && !there(folder, "model.safetensors.index.json"))
        return there(folder, "pytorch_model.bin") || there(folder, "pytorch_model.bin.index.json")
                   ? xstrdup("pytorch_model.bin is not read: save the model as safetensors")
                   : NULL;
    if (there(folder, "tokenizer.json"))
        return NULL;
    if (there(folder, "tokenizer.model"))
        return xstrdup("tokenizer.model is not read: save the tokenizer with transformers, which "
                       "writes a tokenizer.json");
    return there(folder, "vocab.json") ? xstrdup("vocab.json and merges.txt are not read: save the "
                                                 "tokenizer with transformers, "
                                                 "which writes a tokenizer.json")
                                       : NULL;
}

static char *of_file(const char *path)
{
    if (is_pointer(path))
        return xstrdup("it is a Git LFS pointer and not the file: fetch it (git lfs pull)");
    bool part = ends_in(path, ".safetensors") || ends_in(path, "config.json");
    return part && access(path, F_OK) == 0 ? xstrdup("name the folder that it lies in") : NULL;
}

void model_hint(const char *path, bool folder, struct err *err)
{
    char *hint = folder ? of_folder(path) : of_file(path);
    size_t n = err ? strlen(err->msg) : 0;
    if (hint && err)
        snprintf(err->msg + n, sizeof err->msg - n, "; %s", hint);
    free(hint);
}
