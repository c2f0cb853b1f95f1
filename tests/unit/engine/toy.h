/* SPDX-License-Identifier: Apache-2.0 */
/* toy.h - a vocabulary of the 256 bytes and three control tokens, for tests that need text. */
#ifndef WHET_TESTS_UNIT_ENGINE_TOY_H
#define WHET_TESTS_UNIT_ENGINE_TOY_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer.h"

enum { TOY_END = 256, TOY_TURN = 257, TOY_TAG = 258, TOY_VOCAB = 259 };

/* GPT-2's byte-to-unicode map, as UTF-8: printable Latin-1 stands for itself, the rest for the
 * code points from 256 on, in order. */
static inline int toy_byte(int byte, char *out)
{
    int code = byte, shift = 0;
    for (int b = 0; b < byte; b++)
        shift += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174))
        code = 256 + shift;
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xc0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
}

/* Token id == byte; TOY_END and TOY_TURN end a generation, TOY_TAG is special but does not. */
static inline struct tokenizer *toy_tokenizer(void)
{
    static char bytes[256][4];
    static const char *text[TOY_VOCAB];
    static int32_t length[TOY_VOCAB];
    static uint8_t kind[TOY_VOCAB];
    for (int i = 0; i < 256; i++) {
        length[i] = toy_byte(i, bytes[i]);
        text[i] = bytes[i];
        kind[i] = TOKEN_NORMAL;
    }
    const char *const control[] = {"<|end|>", "<|turn|>", "<|tag|>"};
    for (int i = 0; i < 3; i++) {
        text[TOY_END + i] = control[i];
        length[TOY_END + i] = (int32_t)strlen(control[i]);
        kind[TOY_END + i] = TOKEN_CONTROL;
    }
    static const int32_t stop[] = {TOY_TURN};
    struct vocab_source src = {.tokens = TOY_VOCAB,
                               .text = text,
                               .length = length,
                               .kind = kind,
                               .pre = "gpt-2",
                               .bos = -1,
                               .eos = TOY_END,
                               .stop = stop,
                               .stops = 1};
    struct err err = {""};
    struct tokenizer *t = tokenizer_build(&src, &err);
    if (!t)
        fprintf(stderr, "toy_tokenizer: %s\n", err.msg);
    return t;
}

#endif
