/* SPDX-License-Identifier: Apache-2.0 */
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
 * The work is decomposing, ordering and composing. libutf8proc orders marks by exchanging
 * neighbours until none is out of place, which is quadratic: 80 kB of marks took it 7 s (2-core
 * Intel Xeon, 2026-11-22). So marks are ordered here, by a stable distribution over the 256
 * combining classes, and the library is asked for the two steps that it does in linear time. A
 * character below U+0300 ends what the one before it can join with: text is worked on from one of
 * those to the next.
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
#include "engine/encode_work.h"
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

/* Bytes of text before the first character that is not plain. Characters below U+0300 neither
 * decompose for good nor join with each other, and none of them joins with what is before it. */
static size_t plain_run(const char *text, size_t n)
{
    size_t i = 0;
    while (i < n && (unsigned char)text[i] < 0xCC)
        i++;
    return i;
}

enum { HELD_ENOUGH = 4096 }; /* characters after which the next chance to compose is taken */

struct normalizer {
    char *text; /* the result so far */
    size_t n, room;
    /* Decomposed characters that are not yet composed, and their combining classes. */
    utf8proc_int32_t *cp, *spare;
    uint8_t *class, *spare_class;
    size_t held, held_room;
    size_t run;    /* where the marks behind the last starter begin */
    int64_t moves; /* of marks to their place, not yet counted */
};

static void append(struct normalizer *z, const char *s, size_t n)
{
    if (z->n + n + 1 > z->room) {
        z->room = 2 * z->room + n + 1;
        z->text = xrealloc(z->text, z->room);
    }
    memcpy(z->text + z->n, s, n);
    z->n += n;
}

/* ---- canonical order ------------------------------------------------------------------------ */

/* Marks in place already, or so few that exchanging them costs nothing: nearly all text. Returns
 * the exchanges. */
static int64_t insert_marks(utf8proc_int32_t *cp, uint8_t *class, size_t n)
{
    int64_t moves = 0;
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t c = cp[i];
        uint8_t k = class[i];
        size_t j = i;
        for (; j > 0 && class[j - 1] > k; j--, moves++) {
            cp[j] = cp[j - 1];
            class[j] = class[j - 1];
        }
        cp[j] = c;
        class[j] = k;
    }
    return moves;
}

/* Any number of marks, to where their classes belong by the counts of all. */
static void distribute_marks(struct normalizer *z, utf8proc_int32_t *cp, uint8_t *class, size_t n)
{
    size_t at[256] = {0}, sum = 0;
    for (size_t i = 0; i < n; i++)
        at[class[i]]++;
    for (int k = 0; k < 256; k++) {
        size_t count = at[k];
        at[k] = sum;
        sum += count;
    }
    for (size_t i = 0; i < n; i++) {
        z->spare_class[at[class[i]]] = class[i];
        z->spare[at[class[i]]++] = cp[i];
    }
    memcpy(cp, z->spare, n * sizeof *cp);
    memcpy(class, z->spare_class, n);
}

/* Puts the marks behind the last starter in the order of their classes; equal ones stay in order.
 */
static void order_marks(struct normalizer *z)
{
    enum { FEW = 32 };
    size_t n = z->held - z->run;
    if (n > FEW) {
        distribute_marks(z, z->cp + z->run, z->class + z->run, n);
        z->moves += 2 * (int64_t)n;
    } else if (n > 1) {
        z->moves += insert_marks(z->cp + z->run, z->class + z->run, n);
    }
}

/* ---- from one plain character to the next ---------------------------------------------------- */

static void hold(struct normalizer *z, utf8proc_int32_t cp)
{
    if (z->held == z->held_room) {
        z->held_room = 2 * z->held_room + 64;
        z->cp = xrealloc(z->cp, z->held_room * sizeof *z->cp);
        z->spare = xrealloc(z->spare, z->held_room * sizeof *z->spare);
        z->class = xrealloc(z->class, z->held_room);
        z->spare_class = xrealloc(z->spare_class, z->held_room);
    }
    uint8_t class = (uint8_t)utf8proc_get_property(cp)->combining_class;
    if (class == 0) {
        order_marks(z);
        z->run = z->held + 1;
    }
    z->cp[z->held] = cp;
    z->class[z->held++] = class;
}

static void hold_decomposed(struct normalizer *z, uint32_t cp)
{
    utf8proc_int32_t part[16]; /* the longest canonical decomposition has four */
    int boundary = 0;
    utf8proc_ssize_t parts =
        utf8proc_decompose_char((utf8proc_int32_t)cp, part, sizeof part / sizeof *part,
                                UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
    if (parts < 0 || parts > (utf8proc_ssize_t)(sizeof part / sizeof *part))
        hold(z, (utf8proc_int32_t)cp);
    for (utf8proc_ssize_t i = 0; i < parts && parts <= 16; i++)
        hold(z, part[i]);
}

/* Composes what is held and appends it. */
static void release(struct normalizer *z)
{
    if (z->held) {
        order_marks(z);
        utf8proc_ssize_t n = utf8proc_normalize_utf32(z->cp, (utf8proc_ssize_t)z->held,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            char s[4];
            append(z, s, (size_t)utf8_encode((uint32_t)z->cp[i], s));
        }
    }
    z->held = z->run = 0;
}

/* The plain characters text[0..n), n >= 1: all but the last, which marks may follow, are done. */
static void take_plain(struct normalizer *z, const char *text, size_t n)
{
    size_t last = n - 1;
    uint32_t cp = 0;
    while (last > 0 && ((unsigned char)text[last] & 0xC0) == 0x80)
        last--;
    release(z);
    append(z, text, last);
    utf8_decode(text + last, n - last, &cp);
    hold_decomposed(z, cp);
}

/* Letters of long texts without a plain character, none of which joins with what is before it:
 * ideographs, kana, Hangul syllables, emoji. */
static bool begins_anew(uint32_t cp)
{
    return (cp >= 0x3041 && cp <= 0x3096) || (cp >= 0x30A1 && cp <= 0x30FA) ||
           (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0xAC00 && cp <= 0xD7A3) ||
           (cp >= 0x1F300 && cp <= 0x1F9FF);
}

static int normalize(struct normalizer *z, const char *text, size_t n,
                     struct encode_control *control, struct err *err)
{
    for (size_t i = 0; i < n;) {
        size_t plain = plain_run(text + i, n - i);
        uint32_t cp;
        int got = 0;
        if (plain)
            take_plain(z, text + i, plain);
        else if ((got = utf8_decode(text + i, n - i, &cp)) <= 0)
            break; /* the caller's text is well-formed */
        else if (!is_fixed(cp)) {
            if (z->held >= HELD_ENOUGH && begins_anew(cp))
                release(z);
            hold_decomposed(z, cp);
        } else {
            release(z);
            append(z, text + i, (size_t)got);
        }
        i += plain + (size_t)got;
        control->work += z->moves;
        z->moves = 0;
        if (encode_work(control, (int64_t)plain + got, err))
            return -1;
    }
    release(z);
    return 0;
}

int nfc_normalize(const char *text, size_t n, char **nfc, size_t *length,
                  struct encode_control *control, struct err *err)
{
    *nfc = NULL;
    if (plain_run(text, n) == n)
        return encode_work(control, (int64_t)n, err);
    struct normalizer z = {.text = xmalloc(n + 1), .room = n + 1};
    int rc = normalize(&z, text, n, control, err);
    free(z.cp);
    free(z.spare);
    free(z.class);
    free(z.spare_class);
    if (rc) {
        free(z.text);
        return -1;
    }
    *nfc = z.text;
    *length = z.n;
    return 0;
}
