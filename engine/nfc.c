/* nfc.c - NFC through libutf8proc, held to the Unicode version of the reference.
 *
 * The normalizer inside Hugging Face tokenizers works with the tables of Unicode 10. A mark added
 * to Unicode since is unassigned to it: such a character neither moves past its neighbours nor
 * joins with them. libutf8proc knows it as a mark and would reorder it, and the model would see
 * tokens it was not trained on. Hence `fixed`: characters copied as they are, with the text
 * between them normalized piece by piece. That is exact, because a character of combining class 0
 * that takes part in no composition separates its neighbours for good. U+11A7 is one by the
 * standard too; utf8proc 2.8 swallows it behind a Hangul syllable.
 *
 * Checked over every code point in five contexts against tokenizers 0.23.3.
 */
#include "engine/nfc.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "config/err.h"
#include "engine/utf8.h"

/* Marks and halves of compositions assigned after Unicode 10.0, sorted. */
static const struct {
    uint32_t first, last;
} fixed[] = {
    {0x07FD, 0x07FD},   {0x0897, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},
    {0x0C3C, 0x0C3C},   {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x11A7, 0x11A7},
    {0x1715, 0x1715},   {0x1ABF, 0x1AFF},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113FF}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16100, 0x1613F}, {0x16D40, 0x16D7F}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF},
};

static bool is_fixed(uint32_t cp)
{
    size_t low = 0, high = sizeof fixed / sizeof *fixed;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > fixed[mid].last)
            low = mid + 1;
        else if (cp < fixed[mid].first)
            high = mid;
        else
            return true;
    }
    return false;
}

/* Characters below U+0300 neither decompose for good nor join with each other. */
static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0xCC)
            return false;
    return true;
}

struct output {
    char *text;
    size_t n, room;
};

static void append(struct output *o, const char *s, size_t n)
{
    if (o->n + n + 1 > o->room) {
        o->room = 2 * o->room + n + 1;
        o->text = xrealloc(o->text, o->room);
    }
    memcpy(o->text + o->n, s, n);
    o->n += n;
}

static void append_normalized(struct output *o, const char *s, size_t n)
{
    utf8proc_uint8_t *nfc = NULL;
    utf8proc_ssize_t length = 0;
    if (!is_plain(s, n))
        length = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &nfc,
                              UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (nfc && length >= 0)
        append(o, (const char *)nfc, (size_t)length);
    else
        append(o, s, n);
    free(nfc);
}

char *nfc_normalize(const char *text, size_t n, size_t *length)
{
    if (is_plain(text, n))
        return NULL;
    struct output o = {xmalloc(n + 1), 0, n + 1};
    size_t begin = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int got = utf8_decode(text + i, n - i, &cp);
        if (got <= 0)
            break; /* the caller's text is well-formed */
        if (is_fixed(cp)) {
            append_normalized(&o, text + begin, i - begin);
            append(&o, text + i, (size_t)got);
            begin = i + (size_t)got;
        }
        i += (size_t)got;
    }
    append_normalized(&o, text + begin, n - begin);
    *length = o.n;
    return o.text;
}
