/* SPDX-License-Identifier: Apache-2.0 */
/* lt_record.c - see lt_record.h.
 *
 *   whet-lt 1
 *   library 130100
 *   region mlp_in
 *   shape 2048 16384 2048
 *   ids algorithm 66, tile 184, ...
 *   algo 0000000000000042 ... (8 words)
 *
 * Lines have this order and nothing follows the last: a reader that tolerates more would accept a
 * file that was cut short or grown together with another.
 */
#include "engine/cuda/lt_record.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/plan.h"

static const char title[] = "whet-lt 1";

bool lt_record_is(const char *path)
{
    char line[sizeof title] = "";
    FILE *f = fopen(path, "re");
    bool is = f && fgets(line, sizeof line, f) && strcmp(line, title) == 0;
    if (f)
        fclose(f);
    return is;
}

int lt_record_write(const char *path, const struct lt_record *r, struct err *e)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return err_set(e, "%s: %s", path, strerror(errno));
    fprintf(f, "%s\nlibrary %" PRId64 "\nregion %s\nshape %d %d %d\nids %s\nalgo", title,
            r->library, region_name(r->region), r->m, r->n, r->k, r->ids);
    for (int i = 0; i < LT_WORDS; i++)
        fprintf(f, " %016" PRIx64, r->algo[i]);
    bool whole = fputc('\n', f) != EOF && !ferror(f);
    if (fclose(f) != 0 || !whole)
        return err_set(e, "%s: %s", path, strerror(errno));
    return 0;
}

/* The next line without its end; what follows `name` and a space in it. NULL: another line. */
static const char *field(FILE *f, const char *name, char *line, int size)
{
    size_t n = strlen(name);
    if (!fgets(line, size, f))
        return NULL;
    size_t length = strlen(line);
    if (length == 0 || line[length - 1] != '\n')
        return NULL;
    line[length - 1] = 0;
    return strncmp(line, name, n) == 0 && line[n] == ' ' ? line + n + 1 : NULL;
}

static bool region_of(const char *name, enum region *r)
{
    for (int i = REGION_ATTN_IN; i < REGION_COUNT; i++)
        if (i != REGION_ATTN && strcmp(region_name((enum region)i), name) == 0) {
            *r = (enum region)i;
            return true;
        }
    return false;
}

static bool words_of(const char *text, uint64_t word[LT_WORDS])
{
    for (int i = 0; i < LT_WORDS; i++) {
        int used = 0;
        if (sscanf(text, "%16" SCNx64 "%n", &word[i], &used) != 1 || used < 16)
            return false;
        text += used + (text[used] == ' ');
    }
    return *text == 0;
}

static const char *read_fields(FILE *f, struct lt_record *r)
{
    char line[400];
    const char *at;
    int end = 0;
    if (!fgets(line, sizeof line, f) || strncmp(line, title, sizeof title - 1) != 0 ||
        strcmp(line + sizeof title - 1, "\n") != 0)
        return "its title";
    if (!(at = field(f, "library", line, sizeof line)) ||
        sscanf(at, "%" SCNd64 "%n", &r->library, &end) != 1 || at[end] || r->library < 1)
        return "the library's version";
    if (!(at = field(f, "region", line, sizeof line)) || !region_of(at, &r->region))
        return "the region";
    if (!(at = field(f, "shape", line, sizeof line)) ||
        sscanf(at, "%d %d %d%n", &r->m, &r->n, &r->k, &end) != 3 || at[end] || r->m < 1 ||
        r->m > LT_M_MOST || r->n < 1 || r->k < 1)
        return "the shape";
    if (!(at = field(f, "ids", line, sizeof line)) || strlen(at) >= sizeof r->ids)
        return "the ids";
    snprintf(r->ids, sizeof r->ids, "%.199s", at);
    if (!(at = field(f, "algo", line, sizeof line)) || !words_of(at, r->algo))
        return "the algorithm";
    return fgetc(f) == EOF ? NULL : "its end";
}

int lt_record_read(const char *path, struct lt_record *r, struct err *e)
{
    FILE *f = fopen(path, "re");
    *r = (struct lt_record){.library = 0};
    if (!f)
        return err_set(e, "cannot be read: %s", strerror(errno));
    const char *wrong = read_fields(f, r);
    fclose(f);
    return wrong ? err_set(e, "is no record of a library's algorithm: %s is wrong", wrong) : 0;
}
