/* read_texts.c - the reader as a filter, for scripts/fuzz-reader: kernel texts on stdin, each
 * behind a line with its language and length ("c 123"), and for each one line on stdout: "ok", or
 * the rule.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_text.h"

int main(void)
{
    char language[8], *text = malloc(AGENT_TEXT_MOST + 1);
    size_t n;
    while (text && scanf("%7s %zu", language, &n) == 2 && getchar() == '\n' &&
           n <= AGENT_TEXT_MOST && fread(text, 1, n, stdin) == n) {
        struct err err = {""};
        int rc = agent_text_check(text, n, language[1] ? AGENT_CUDA : AGENT_C, &err);
        printf("%s\n", rc == 0 ? "ok" : err.msg);
        fflush(stdout);
    }
    free(text);
    return 0;
}
