/* SPDX-License-Identifier: Apache-2.0 */
/* agent_text.h - any bytes as a kernel's text. What the reader calls harmless is told again by a
 * checker that shares nothing with it but the lists of names: the text without comments, as plain
 * substrings, must not hold what can only do harm. (The macros are expanded by a compiler in
 * scripts/fuzz-reader, which takes longer.) */
#ifndef WHET_TESTS_FUZZ_AGENT_TEXT_H
#define WHET_TESTS_FUZZ_AGENT_TEXT_H

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specializer/agent/agent_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact, const char *what)
{
    if (!fact) {
        fprintf(stderr, "accepted with %s\n", what);
        abort();
    }
}

/* The text without comments and character constants; blanks for both. */
static char *without_comments(const char *text, size_t n)
{
    char *out = calloc(n + 1, 1);
    for (size_t i = 0; i < n; i++) {
        out[i] = text[i];
        if (text[i] == '/' && i + 1 < n && (text[i + 1] == '/' || text[i + 1] == '*')) {
            const bool block = text[i + 1] == '*';
            out[i] = out[i + 1] = ' ';
            for (i += 2; i < n; i++) {
                out[i] = text[i] == '\n' ? '\n' : ' ';
                if (block && text[i] == '*' && i + 1 < n && text[i + 1] == '/') {
                    out[++i] = ' ';
                    break;
                }
                if (!block && text[i] == '\n')
                    break;
            }
        } else if (text[i] == '\'') {
            out[i] = ' ';
            for (i++; i < n && text[i] != '\''; i++) {
                out[i] = ' ';
                if (text[i] == '\\' && i + 1 < n)
                    out[++i] = ' ';
            }
            if (i < n)
                out[i] = ' ';
        }
    }
    return out;
}

/* Where `word` stands as a whole name in the rest of `text` from `at` on, or NULL. */
static const char *next_word(const char *text, const char *at, const char *word)
{
    const size_t n = strlen(word);
    for (; (at = strstr(at, word)) != NULL; at++) {
        bool begins = at == text || !(isalnum((unsigned char)at[-1]) || at[-1] == '_');
        if (begins && !isalnum((unsigned char)at[n]) && at[n] != '_')
            return at;
    }
    return NULL;
}

static bool has_word(const char *text, const char *word)
{
    return next_word(text, text, word) != NULL;
}

/* As names of variables these are nobody's business, and so they may stand in an attribute's
 * arguments: aligned(section) names a variable. As attributes, inside two parentheses, they are. */
static void check_attributes(const char *plain)
{
    static const char *const attributes[] = {"constructor", "destructor", "section", "ifunc",
                                             "alias",       "cleanup",    "weak",    "naked"};
    for (const char *at = plain; (at = next_word(plain, at, "__attribute__")) != NULL; at++) {
        const char *open = strchr(at, '('), *end = open;
        if (!open)
            continue;
        char *inside = calloc(strlen(open) + 1, 1); /* without arguments */
        size_t n = 0;
        for (int depth = 0; *end && (depth > 0 || end == open); end++) {
            depth += *end == '(' ? 1 : *end == ')' ? -1 : 0;
            inside[n++] = depth <= 2 ? *end : ' ';
        }
        for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
            demand(!has_word(inside, attributes[i]), attributes[i]);
        free(inside);
    }
}

static int fuzz_text(const uint8_t *data, size_t size, enum agent_language language)
{
    static const char *const words[] = {"asm",
                                        "__asm",
                                        "__asm__",
                                        "extern",
                                        "goto",
                                        "_Pragma",
                                        "virtual",
                                        "clock64",
                                        "printf",
                                        "uintptr_t",
                                        "cpu_kernel",
                                        "__thread",
                                        "AGENT_BODY",
                                        "whet_kernel",
                                        "whet_info",
                                        "__global__",
                                        "__nanosleep",
                                        "alloca",
                                        "__builtin_return_address",
                                        "__builtin_apply",
                                        "_Thread_local"};
    static const char *const marks[] = {"\\\n", "##", "[[", "??", "%:", "<:", "<%", "\"", "::"};
    struct err err;
    char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    if (agent_text_check(copy, size, language, &err) != 0) {
        demand(strncmp(err.msg, "line ", 5) == 0, "a refusal without a line");
        free(copy);
        return 0;
    }
    copy[size] = 0;
    char *plain = without_comments(copy, size);
    demand(strlen(plain) == size, "a zero");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        demand(!has_word(plain, words[i]), words[i]);
    check_attributes(plain);
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        demand(!strstr(plain, marks[i]), marks[i]);
    free(plain);
    free(copy);
    return 0;
}

#endif
