/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_adviser_reply.c - any bytes as the reply of a language model: as advice and as moves. What
 * is accepted must keep to the space, whatever the bytes. */
#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/adviser_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A space of ten points "p0" .. "p9" with two knobs, of one template "t". */
static int32_t find(const void *ctx, const char *id)
{
    (void)ctx;
    return id[0] == 'p' && id[1] >= '0' && id[1] <= '9' && id[2] == 0 ? id[1] - '0' : -1;
}

static int values(const void *ctx, const char *template, const char *knob, int32_t *out)
{
    (void)ctx;
    if (template && strcmp(template, "t") != 0)
        return 0;
    for (int i = 0; i < 4; i++)
        out[i] = 1 << i;
    return strcmp(knob, "ROWS") == 0 ? 4 : strcmp(knob, "PACK") == 0 ? 1 : 0;
}

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void check_advice(const struct advice *a)
{
    demand(strlen(a->label) < sizeof a->label);
    for (int i = 0; i < a->priorities; i++)
        demand(a->priority[i] >= 0 && a->priority[i] < 10);
    demand(a->priorities <= 10 && a->hints <= 4);
    for (int i = 0; i < a->hints; i++)
        for (int v = 0; v < a->hint[i].values; v++)
            demand(a->hint[i].value[v] >= 1 && a->hint[i].value[v] <= 8);
    for (int i = 0; i < a->risks; i++)
        demand(a->risk[i].ids <= 10 && strlen(a->risk[i].note) < sizeof a->risk[i].note);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct reply_terms terms[2] = {{.region = "a/m1", .find = find, .values = values},
                                         {.region = "b/m1", .find = find, .values = values}};
    struct advice advice[2];
    struct moves moves[MOVES_MOST];
    enum reply_fault fault = REPLY_FAULTS;
    struct err err;

    if (adviser_reply_parse((const char *)data, size, terms, 2, advice, &fault, &err) == 0) {
        for (int i = 0; i < 2; i++) {
            check_advice(&advice[i]);
            advice_free(&advice[i]);
        }
    } else {
        demand(fault < REPLY_FAULTS);
    }
    int n = adviser_moves_parse((const char *)data, size, terms, moves, MOVES_MOST, &fault, &err);
    demand(n <= MOVES_MOST);
    for (int i = 0; i < n; i++)
        demand(moves[i].n <= CHANGES_MOST && moves[i].node >= 0 && moves[i].node < 10);
    return 0;
}
