/* safetensors.c - u64 header length, a JSON header, then the data.
 *
 *   { "name": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}, ...,
 *     "__metadata__": {"key": "text"} }
 *
 * Offsets count from the end of the header. The format's own rules are enforced where a pointer or
 * a meaning depends on them: the header is an object within bounds, offsets are whole numbers in
 * range, a tensor's extent is exactly what its shape and dtype need, and (when the directory is
 * sealed) no two tensors share a name or a byte. cJSON keeps numbers as doubles, exact up to 2^53,
 * so anything above that is refused rather than rounded.
 */
#include "engine/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "engine/quant.h"

enum { HEADER_MAX = 16 << 20, TENSORS_MAX = 1 << 18 };

/* A whole number 0 .. 2^53; -1 otherwise. */
static int64_t whole(const cJSON *n)
{
    if (!cJSON_IsNumber(n) || !(n->valuedouble >= 0 && n->valuedouble <= 0x1p53) ||
        n->valuedouble != floor(n->valuedouble))
        return -1;
    return (int64_t)n->valuedouble;
}

static int read_dtype(const cJSON *entry, struct tensor *t, const char *file, struct err *err)
{
    static const struct {
        const char *name;
        enum dtype type;
    } known[] = {{"F32", DTYPE_F32}, {"F16", DTYPE_F16}, {"BF16", DTYPE_BF16}};
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));

    if (!name)
        return err_set(err, "%s: tensor '%s': no dtype", file, t->name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) {
            t->type = known[i].type;
            return 0;
        }
    return err_set(err, "%s: tensor '%s': dtype %.32s is not supported (F32, F16 and BF16 are)",
                   file, t->name, name);
}

static int read_shape(const cJSON *entry, struct tensor *t, const char *file, struct err *err)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape"), *dim;

    if (!cJSON_IsArray(shape))
        return err_set(err, "%s: tensor '%s': no shape", file, t->name);
    cJSON_ArrayForEach(dim, shape)
    {
        if (t->dims == TENSOR_DIMS)
            return err_set(err, "%s: tensor '%s': shape: more than %d dimensions", file, t->name,
                           TENSOR_DIMS);
        if ((t->dim[t->dims++] = whole(dim)) < 1)
            return err_set(err, "%s: tensor '%s': shape: dimension %d is no positive number", file,
                           t->name, t->dims - 1);
    }
    if (t->dims == 0)
        return err_set(err, "%s: tensor '%s': shape: no dimensions", file, t->name);
    return 0;
}

static int read_tensor(const cJSON *entry, const uint8_t *base, uint64_t room, const char *file,
                       struct weights *w, struct err *err)
{
    struct tensor t = {.name = entry->string};

    if (!cJSON_IsObject(entry))
        return err_set(err, "%s: tensor '%s': the entry is no object", file, t.name);
    if (read_dtype(entry, &t, file, err) < 0 || read_shape(entry, &t, file, err) < 0)
        return -1;
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin = whole(cJSON_GetArrayItem(offsets, 0));
    int64_t end = whole(cJSON_GetArrayItem(offsets, 1));
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || begin < 0 || end < begin)
        return err_set(err, "%s: tensor '%s': data_offsets are no range", file, t.name);
    if (weights_add(w, &t, base, room, (uint64_t)begin, file, err) < 0)
        return -1;
    int64_t bytes = w->tensor[w->tensors - 1].bytes;
    if (end - begin != bytes)
        return err_set(err, "%s: tensor '%s': data_offsets span %lld bytes, the shape needs %lld",
                       file, t.name, (long long)(end - begin), (long long)bytes);
    return 0;
}

static int read_entries(const cJSON *header, const uint8_t *base, uint64_t room, const char *file,
                        struct weights *w, struct err *err)
{
    const cJSON *entry;
    int64_t count = 0;

    if (!cJSON_IsObject(header))
        return err_set(err, "%s: header: not a JSON object", file);
    cJSON_ArrayForEach(entry, header)
    {
        if (++count > TENSORS_MAX)
            return err_set(err, "%s: header: more than %d tensors", file, TENSORS_MAX);
        if (!strcmp(entry->string, "__metadata__"))
            continue;
        if (read_tensor(entry, base, room, file, w, err) < 0)
            return -1;
    }
    return 0;
}

int safetensors_read(const uint8_t *data, size_t size, const char *file, struct weights *w,
                     struct err *err)
{
    uint64_t n = 0;
    const char *end = NULL;

    if (size < 8)
        return err_set(err, "%s: the file ends inside the header length", file);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | data[i];
    if (n < 2 || n > HEADER_MAX)
        return err_set(err, "%s: header length %llu, expected 2 to %d", file, (unsigned long long)n,
                       HEADER_MAX);
    if (n > size - 8)
        return err_set(err, "%s: the file ends inside the header (%llu bytes)", file,
                       (unsigned long long)n);
    if (data[8] != '{')
        return err_set(err, "%s: header: does not begin with '{'", file);

    const char *text = (const char *)data + 8;
    cJSON *header = cJSON_ParseWithLengthOpts(text, (size_t)n, &end, 0);
    if (!header)
        return err_set(err, "%s: header: not valid JSON", file);
    while (end < text + n && (*end == ' ' || *end == '\n' || *end == '\t' || *end == '\r'))
        end++;
    int rc = end == text + n ? read_entries(header, data + 8 + n, size - 8 - n, file, w, err)
                             : err_set(err, "%s: header: text behind the JSON object", file);
    cJSON_Delete(header);
    return rc;
}
