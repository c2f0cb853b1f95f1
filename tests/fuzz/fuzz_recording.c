/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_recording.c - any bytes as a recording of an adviser, and as the question that it is to
 * answer: what follows the first zero byte. Who recorded may be anybody.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/adviser/adviser_replay.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool holds)
{
    if (!holds)
        abort();
}

/* As rows of a store, whose columns may be NULL. */
static void take_rows(struct adviser_replay *r, const char *request, const char *reply)
{
    const struct llm_call row[] = {{.request = request, .reply = reply},
                                   {.request = NULL, .reply = reply},
                                   {.request = request, .reply = NULL}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        take_row(r, &row[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = xcalloc(size + 2, 1);
    struct err err;
    memcpy(text, data, size);
    const size_t lines = strlen(text);
    const char *question = text + lines + (lines < size);
    struct adviser_replay *r = adviser_replay_new();
    FILE *in = lines > 0 ? fmemopen(text, lines, "r") : NULL;
    if (in) {
        read_lines(r, in, &err);
        fclose(in);
    }
    take_rows(r, question, text);
    /* Each record answers once, and then those that were asked of the same state. */
    for (int i = 0; i < r->records + 1; i++) {
        struct answer a;
        adviser_replay_next(r, question, &a);
        demand(a.fault == CALL_OK ? a.text && a.text[0] : a.text == NULL);
        free(a.text);
    }
    adviser_replay_close(r);
    free(text);
    return 0;
}
