/* SPDX-License-Identifier: Apache-2.0 */
/* read_texts.c - the readers as a filter, for scripts/fuzz-reader: kernel texts on stdin, each
 * behind a line with its language and length ("c 123", "cu 123"), and for each one line on stdout:
 * "ok", or the rule. "cubin 123" is for the bytes of a cubin, which its own reader is asked about.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_cubin.h"
#include "specializer/agent/agent_text.h"

enum { MOST = 16 << 20 };

static int judge(const char *language, const char *data, size_t n, struct err *err)
{
    if (strcmp(language, "cubin") == 0)
        return agent_cubin_inspect(data, n, err);
    return agent_text_check(data, n, strcmp(language, "cu") == 0 ? AGENT_CUDA : AGENT_C, err);
}

int main(void)
{
    char language[8], *text = malloc(MOST);
    size_t n;
    while (text && scanf("%7s %zu", language, &n) == 2 && getchar() == '\n' && n <= MOST &&
           fread(text, 1, n, stdin) == n) {
        struct err err = {""};
        int rc = judge(language, text, n, &err);
        printf("%s\n", rc == 0 ? "ok" : err.msg);
        fflush(stdout);
    }
    free(text);
    return 0;
}
