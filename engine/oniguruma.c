/* SPDX-License-Identifier: Apache-2.0 */
/* oniguruma.c - rewrites a pre-tokenizer pattern from Oniguruma's dialect to PCRE2's.
 *
 * Hugging Face tokenizers runs its patterns through Oniguruma (Ruby syntax). PCRE2 reads nearly
 * all of them alike; where it does not, text would be cut elsewhere and the model would see
 * other tokens than it was trained on, without any error. The differences that matter here:
 *
 *   \s          PCRE2 counts U+180E as a space, Unicode and Oniguruma do not
 *   \w \h       word characters differ (marks, connectors); \h is a hex digit in Ruby
 *   \p{L} ...   PCRE2 knows the Unicode version it was built with (Debian 12: 14.0), the
 *               reference knows 16.0: what was assigned since is added here
 *   \p{Han}     a script; PCRE2 counts what is used with it too (Script_Extensions: the ideographic
 *               comma and full stop, the brackets), Oniguruma only its own characters
 *   x{2,3}+     Ruby repeats the group, PCRE2 takes it for possessive
 *   x{2}?       Ruby makes the repeated group optional, PCRE2 takes it for lazy
 *   [a[b]] &&   class unions and intersections exist only in Oniguruma: refused
 *
 * No pattern needs more than classes, groups, repeats and lookaround. Whatever else there is in
 * either dialect is refused by name: code that runs (callouts, recursion, conditions, verbs that
 * set PCRE2's options), matches that end where they should not (\K, \G), references back, and what
 * the two call by different names. Escapes and groups are taken from a list of those that are
 * known, not kept off by a list of those that are bad.
 *
 * A callout, (?C1), is put behind every repeat and every group: there a match can go on in more
 * than one way, and pretokenize.c counts the ways that are tried.
 *
 * Measured over every code point against tokenizers 0.23.3: \s, \d, \w, \p{L}, \p{N}, \p{M}, \p{P},
 * \p{S} and the scripts below agree.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/oniguruma.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Assigned in Unicode 15.0, 15.1 and 16.0 (DerivedGeneralCategory.txt of those versions). Naming
 * them twice does no harm under a newer PCRE2. */
#define NEW_UPPER "\\x{1C89}\\x{A7CB}-\\x{A7CC}\\x{A7DA}\\x{A7DC}\\x{10D50}-\\x{10D65}"
#define NEW_LOWER "\\x{1C8A}\\x{A7CD}\\x{A7DB}\\x{10D70}-\\x{10D85}\\x{1DF25}-\\x{1DF2A}"
#define NEW_MODIFIER                                                 \
    "\\x{10D4E}\\x{10D6F}\\x{16D40}-\\x{16D42}\\x{16D6B}-\\x{16D6C}" \
    "\\x{1E030}-\\x{1E06D}\\x{1E4EB}"
#define NEW_OTHER                                                                         \
    "\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D4D}\\x{10D4F}\\x{10EC2}-\\x{10EC4}"           \
    "\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}" \
    "\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"  \
    "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}"           \
    "\\x{16100}-\\x{1611D}\\x{16D43}-\\x{16D6A}\\x{18CFF}\\x{1B132}\\x{1B155}"            \
    "\\x{1E4D0}-\\x{1E4EA}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}" \
    "\\x{31350}-\\x{323AF}"
#define NEW_LETTERS NEW_UPPER NEW_LOWER NEW_MODIFIER NEW_OTHER
#define NEW_NUMBERS                                                                        \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}" \
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}"
#define NEW_DIGITS                                                                         \
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}" \
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1E4F0}-\\x{1E4F9}" \
    "\\x{1E5F1}-\\x{1E5FA}"
#define NEW_PUNCTUATION                                                                \
    "\\x{1B4E}-\\x{1B4F}\\x{1B7F}\\x{10D6E}\\x{113D4}-\\x{113D5}\\x{113D7}-\\x{113D8}" \
    "\\x{11B00}-\\x{11B09}\\x{11BE1}\\x{11F43}-\\x{11F4F}\\x{16D6D}-\\x{16D6F}\\x{1E5FF}"
#define NEW_SYMBOLS                                                                           \
    "\\x{2427}-\\x{2429}\\x{2FFC}-\\x{2FFF}\\x{31E4}-\\x{31E5}\\x{31EF}\\x{10D8E}-\\x{10D8F}" \
    "\\x{1CC00}-\\x{1CCEF}\\x{1CD00}-\\x{1CEB3}\\x{1F6DC}\\x{1F774}-\\x{1F776}"               \
    "\\x{1F77B}-\\x{1F77F}\\x{1F7D9}\\x{1F8B2}-\\x{1F8BB}\\x{1F8C0}-\\x{1F8C1}"               \
    "\\x{1FA75}-\\x{1FA77}\\x{1FA87}-\\x{1FA89}\\x{1FA8F}\\x{1FAAD}-\\x{1FAAF}"               \
    "\\x{1FABB}-\\x{1FABF}\\x{1FAC6}\\x{1FACE}-\\x{1FACF}\\x{1FADA}-\\x{1FADC}\\x{1FADF}"     \
    "\\x{1FAE8}-\\x{1FAE9}\\x{1FAF7}-\\x{1FAF8}\\x{1FBCB}-\\x{1FBEF}"
#define NEW_MARKS                                                                         \
    "\\x{0897}\\x{0CF3}\\x{0ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}"     \
    "\\x{113B8}-\\x{113C0}\\x{113C2}\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}" \
    "\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}\\x{11F03}\\x{11F34}-\\x{11F3A}" \
    "\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}\\x{1611E}-\\x{1612F}" \
    "\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}"
/* Letters, marks, digits, letter-like numbers, connectors and the circled and squared letters
 * (Other_Alphabetic). Other numbers (fractions, superscripts) are no word characters, but those of
 * Latin-1 are where \w stands outside a character class. */
#define WORD                                                                      \
    "\\p{L}" NEW_LETTERS "\\p{M}" NEW_MARKS "\\p{Nd}" NEW_DIGITS "\\p{Nl}\\p{Pc}" \
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"
#define LATIN_WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"

/* Escapes that stand for a set of characters, as the inside of a character class. */
static const struct {
    const char *escape, *set;
} sets[] = {
    {"s", "\\p{Z}\\x{09}-\\x{0D}\\x{85}"},
    {"w", WORD},
    {"h", "0-9A-Fa-f"},
    {"p{L}", "\\p{L}" NEW_LETTERS},
    {"p{N}", "\\p{N}" NEW_NUMBERS},
    {"p{M}", "\\p{M}" NEW_MARKS},
    {"p{P}", "\\p{P}" NEW_PUNCTUATION},
    {"p{S}", "\\p{S}" NEW_SYMBOLS},
    {"p{Nd}", "\\p{Nd}" NEW_DIGITS},
    {"p{Lu}", "\\p{Lu}" NEW_UPPER},
    {"p{Ll}", "\\p{Ll}" NEW_LOWER},
    {"p{Lm}", "\\p{Lm}" NEW_MODIFIER},
    {"p{Lo}", "\\p{Lo}" NEW_OTHER},
    {"d", "\\p{Nd}" NEW_DIGITS},
};

/* Characters that a script has gained since Unicode 14.0. */
static const struct {
    const char *name, *gained;
} scripts[] = {
    {"Han", "\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}"},
    {"Hiragana", "\\x{1B132}"},
    {"Katakana", "\\x{1B155}"},
    {"Latin", "\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{1DF25}-\\x{1DF2A}"},
    {"Cyrillic", "\\x{1C89}-\\x{1C8A}\\x{1E030}-\\x{1E06D}\\x{1E08F}"},
    {"Arabic", "\\x{0897}\\x{10EC2}-\\x{10EC4}\\x{10EFC}-\\x{10EFF}"},
};

enum { NESTING = 64, REPEAT_MAX = 1000 };

struct rewrite {
    const char *in; /* the next character of the pattern */
    char *out;
    size_t n, room;
    size_t atom;           /* where the last atom begins in out, for X{n,m}+ */
    size_t group[NESTING]; /* where the open groups begin */
    int depth;
    bool choice; /* a repeat or a group ends here, and its callout is still to be written */
};

static void put(struct rewrite *w, const char *s, size_t n)
{
    if (w->n + n + 1 > w->room) {
        w->room = 2 * w->room + n + 64;
        w->out = xrealloc(w->out, w->room);
    }
    memcpy(w->out + w->n, s, n);
    w->n += n;
    w->out[w->n] = 0;
}

static void put_text(struct rewrite *w, const char *s)
{
    put(w, s, strlen(s));
}

/* The set that the escape at e (behind the backslash) names; `*negated` for \S, \P{L}, \p{^L}. */
static const char *escape_set(const char *e, size_t *length, bool *negated)
{
    bool upper = *e == 'S' || *e == 'W' || *e == 'H' || *e == 'P' || *e == 'D';
    bool caret = (*e == 'p' || *e == 'P') && strncmp(e + 1, "{^", 2) == 0;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const char *want = sets[i].escape;
        size_t tail = strlen(want) - 1;
        const char *name = want[1] ? want + 2 : "";
        if ((*e | 0x20) != want[0])
            continue;
        if (tail && (strncmp(e + 1, caret ? "{^" : "{", caret ? 2 : 1) != 0 ||
                     strncmp(e + (caret ? 3 : 2), name, strlen(name)) != 0))
            continue;
        *length = 1 + tail + (caret ? 1 : 0);
        *negated = upper != caret;
        return sets[i].set;
    }
    return NULL;
}

/* "sc:NAME" if PCRE2 knows NAME as a script by that spelling. Before 10.40 it knew no spelling, and
 * the bare name meant what it means in Oniguruma. */
static bool is_script(const char *name, int n)
{
    char pattern[80];
    int code;
    PCRE2_SIZE at;
    if (n < 3 || n > 60)
        return false;
    snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", n, name);
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    if (!re && code == PCRE2_ERROR_HEAP_FAILED) /* which says nothing of the name */
        xmade(NULL);
    pcre2_code_free(re);
    return re != NULL;
}

/* \p{Han}: 1 if it was one. w->in is behind the backslash. */
static int rewrite_script(struct rewrite *w, bool in_class, struct err *err)
{
    if ((*w->in != 'p' && *w->in != 'P') || w->in[1] != '{')
        return 0;
    bool caret = w->in[2] == '^', negated = (*w->in == 'P') != caret;
    const char *name = w->in + (caret ? 3 : 2);
    int n = (int)strcspn(name, "}");
    if (name[n] != '}' || !is_script(name, n))
        return 0;
    if (in_class && negated)
        return err_set(err, "\\P{%.*s} inside a character class", n, name);
    put_text(w, in_class ? "" : negated ? "[^" : "[");
    put_text(w, "\\p{sc:");
    put(w, name, (size_t)n + 1);
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++)
        if (strlen(scripts[i].name) == (size_t)n && memcmp(scripts[i].name, name, (size_t)n) == 0)
            put_text(w, scripts[i].gained);
    put_text(w, in_class ? "" : "]");
    w->in = name + n + 1;
    return 1;
}

/* Whether the escape at e (behind the backslash) means the same in both dialects: a character that
 * is no letter or digit means itself. */
static bool is_known_escape(const char *e, bool in_class)
{
    static const char hex[] = "0123456789abcdefABCDEF";
    if (!isalnum((unsigned char)*e))
        return true;
    if (*e == 'x' && e[1] == '{')
        return strspn(e + 2, hex) > 0 && e[2 + strspn(e + 2, hex)] == '}';
    if (*e == 'x') /* a byte; two digits below 80 are a character too */
        return e[1] >= '0' && e[1] <= '7' && e[2] && strchr(hex, e[2]);
    if (*e == 'p' || *e == 'P')
        return e[1] == '{';
    return strchr(in_class ? "tnrfaeub" : "tnrfaeuAzZ", *e) != NULL;
}

/* An escape, inside a class or not. w->in is behind the backslash. */
static int rewrite_escape(struct rewrite *w, bool in_class, struct err *err)
{
    size_t length;
    bool negated;
    const char *set = escape_set(w->in, &length, &negated);
    if (set && in_class && negated)
        return err_set(err, "\\%.*s inside a character class", (int)length, w->in);
    if (set) {
        put_text(w, in_class ? "" : negated ? "[^" : "[");
        put_text(w, set);
        put_text(w, !in_class && (*w->in | 0x20) == 'w' ? LATIN_WORD : "");
        put_text(w, in_class ? "" : "]");
        w->in += length;
        return 0;
    }
    if (!*w->in)
        return err_set(err, "a backslash at the end");
    int script = rewrite_script(w, in_class, err);
    if (script)
        return script < 0 ? -1 : 0;
    if (!is_known_escape(w->in, in_class))
        return err_set(err, "\\%c", *w->in);
    if (*w->in == 'u') { /* \uHHHH */
        if (strspn(w->in + 1, "0123456789abcdefABCDEF") < 4)
            return err_set(err, "\\u without four hex digits");
        put_text(w, "\\x{");
        put(w, w->in + 1, 4);
        put_text(w, "}");
        w->in += 5;
        return 0;
    }
    put_text(w, "\\");
    put(w, w->in, 1);
    bool braces = (*w->in == 'p' || *w->in == 'P' || *w->in == 'x') && w->in[1] == '{';
    w->in++;
    if (braces) { /* the name belongs to the escape, not to a {n,m} behind it */
        const char *end = strchr(w->in, '}');
        if (!end)
            return err_set(err, "an escape with an unclosed brace");
        put(w, w->in, (size_t)(end + 1 - w->in));
        w->in = end + 1;
    }
    return 0;
}

/* A character class; w->in is at its opening bracket. */
static int rewrite_class(struct rewrite *w, struct err *err)
{
    put(w, w->in++, 1);
    if (*w->in == '^')
        put(w, w->in++, 1);
    if (*w->in == ']')
        return err_set(err, "a character class that is empty or begins with ]");
    while (*w->in && *w->in != ']') {
        if (*w->in == '\\') {
            w->in++;
            if (rewrite_escape(w, true, err))
                return -1;
            continue;
        }
        if (*w->in == '[')
            return err_set(err, "a class inside a character class");
        if (strncmp(w->in, "&&", 2) == 0)
            return err_set(err, "a class intersection (&&)");
        put(w, w->in++, 1);
    }
    if (!*w->in)
        return err_set(err, "an unclosed character class");
    put(w, w->in++, 1);
    return 0;
}

/* Whether {n}, {n,}, {n,m} or {,m} begins at s; sets its numbers (most: -1 if there is none) and
 * its length. Anything else in braces is text. */
static bool is_interval(const char *s, long *least, long *most, size_t *length)
{
    char *end;
    const char *at = s + 1;
    if (*s != '{' || (!isdigit((unsigned char)*at) && *at != ','))
        return false;
    *least = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : 0;
    at += strspn(at, "0123456789");
    *most = *least;
    if (*at == ',') {
        at++;
        if (s[1] == ',' && !isdigit((unsigned char)*at))
            return false;
        *most = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
        at += strspn(at, "0123456789");
    }
    *length = (size_t)(at + 1 - s);
    return *at == '}';
}

/* X{n,m}+ means (?:X{n,m})+ in Ruby. w->in is at the plus behind the brace. */
static void wrap_interval(struct rewrite *w)
{
    put_text(w, "(?:)");
    memmove(w->out + w->atom + 3, w->out + w->atom, w->n - 4 - w->atom);
    memcpy(w->out + w->atom, "(?:", 3);
    w->out[w->n - 1] = ')';
}

static int rewrite_brace(struct rewrite *w, struct err *err)
{
    long least, most;
    size_t length;
    if (!strchr(w->in, '}'))
        return err_set(err, "an unclosed {");
    if (!is_interval(w->in, &least, &most, &length)) {
        w->atom = w->n;
        put_text(w, "\\{");
        w->in++;
        return 0;
    }
    if (least > REPEAT_MAX || most > REPEAT_MAX)
        return err_set(err, "a repeat of more than %d times", REPEAT_MAX);
    put_text(w, w->in[1] == ',' ? "{0" : "{");
    bool exact = !memchr(w->in, ',', length);
    put(w, w->in + 1, length - 1);
    w->in += length;
    if (*w->in == '+' || (*w->in == '?' && exact))
        wrap_interval(w);
    w->choice = true;
    return 0;
}

/* Length of what opens the group at s, without options but for the case of letters; 0 for anything
 * else. Ruby's (?m) is PCRE2's (?s), and (?i) within a pattern reaches further in Ruby. */
static size_t group_head(const char *s, bool at_start)
{
    static const char *const known[] = {"(?=", "(?!", "(?>", "(?<=", "(?<!"};
    if (s[1] != '?')
        return s[1] == '*' ? 0 : 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(s, known[i], strlen(known[i])) == 0)
            return strlen(known[i]);
    size_t options = strspn(s + 2, "i-");
    if (s[2 + options] == ':')
        return 3 + options;
    return options && at_start && s[2 + options] == ')' ? 2 + options : 0;
}

static int open_group(struct rewrite *w, struct err *err)
{
    if (w->depth == NESTING)
        return err_set(err, "more than %d nested groups", NESTING);
    size_t head = group_head(w->in, w->n == 0);
    if (!head)
        return err_set(err, "the group %.4s", w->in);
    w->group[w->depth++] = w->n;
    put(w, w->in, head);
    w->in += head;
    return 0;
}

/* Writes the callout that is due, unless the repeat or the group is itself repeated. */
static void put_callout(struct rewrite *w)
{
    long least, most;
    size_t length;
    bool repeated = *w->in && (strchr("*+?", *w->in) || is_interval(w->in, &least, &most, &length));
    if (!w->choice || repeated)
        return;
    put_text(w, "(?C1)");
    w->choice = false;
}

static int rewrite_one(struct rewrite *w, struct err *err)
{
    put_callout(w);
    size_t begin = w->n;
    switch (*w->in) {
    case '\\':
        w->atom = begin;
        w->in++;
        return rewrite_escape(w, false, err);
    case '[':
        w->atom = begin;
        return rewrite_class(w, err);
    case '(':
        return open_group(w, err);
    case ')':
        if (w->depth == 0)
            return err_set(err, "an unmatched closing parenthesis");
        w->atom = w->group[--w->depth];
        w->choice = true;
        break;
    case '{':
        return rewrite_brace(w, err);
    case '*':
    case '+':
    case '?':
        w->choice = true;
        break;
    case '|':
        break;
    default:
        w->atom = begin;
    }
    put(w, w->in++, 1);
    return 0;
}

char *oniguruma_to_pcre2(const char *pattern, struct err *err)
{
    struct rewrite w = {.in = pattern};
    put_text(&w, "");
    while (*w.in) {
        if (rewrite_one(&w, err)) {
            err_prefix(err, "pre-tokenizer pattern %.200s is refused for", pattern);
            free(w.out);
            return NULL;
        }
    }
    put_callout(&w);
    return w.out;
}
