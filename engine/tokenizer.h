/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.h - text to token ids and back: byte-level BPE, and the BPE of SentencePiece, as
 * Hugging Face `tokenizers` does them.
 *
 * Immutable after it was built; encode and decode may run on any thread at once. Equal to Hugging
 * Face tokenizers on every string (tests/golden/tokenizer/ holds the proof).
 */
#ifndef WHET_ENGINE_TOKENIZER_H
#define WHET_ENGINE_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/err.h"

struct tokenizer;

enum { TOKENS_MAX = 1 << 20 }; /* as many as a model may have */

enum token_kind { TOKEN_NORMAL, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

/* How an added token (control or user-defined) is matched in the text. */
enum added_flag {
    ADDED_LSTRIP = 1,      /* swallows the whitespace before it */
    ADDED_RSTRIP = 2,      /* ... and after it */
    ADDED_SINGLE_WORD = 4, /* only where no word character touches it */
    ADDED_NORMALIZED = 8,  /* looked for in the normalized text, after all the others */
    ADDED_OUTSIDE = 16,    /* not in the model's own vocabulary: no word is made of it */
};

/* One pre-tokenizer step: cuts every piece of text into smaller ones. */
struct pre_step {
    const char *pattern; /* matches become pieces (Oniguruma syntax); NULL: no cut */
    bool drop_gaps;      /* text between the matches is dropped, not kept as pieces */
    bool prefix_space;   /* first, a piece that does not begin with a space is given one */
};

/* How tokens of SentencePiece write a space: U+2581. */
#define PIECE_SPACE "\xE2\x96\x81"
enum { PIECE_SPACE_BYTES = 3 };

/* Where a text that does not begin with a space is given one. */
enum space_prefix {
    PREFIX_NONE,
    PREFIX_FIRST, /* where the text begins, not behind an added token there */
    PREFIX_EACH,  /* each piece of text between added tokens */
};

/* What a vocabulary of SentencePiece has besides. Its tokens are written in the text's own
 * characters, PIECE_SPACE for a space, and <0xE2> for the byte E2. */
struct vocab_pieces {
    const float
        *score;      /* [tokens] merges follow from these, the highest first; NULL: from `merge` */
    int32_t unknown; /* the token of a character that has none; -1: it is left out */
    bool byte_fallback; /* such a character is its bytes, if they all have tokens */
    bool fuse_unknown;  /* several of them in a row are one token */
    bool normalizes; /* spaces are written as PIECE_SPACE before added tokens are looked for in the
                        normalized text, and the prefix comes even before a space */
    enum space_prefix prefix;
    bool splits; /* each space begins a word; otherwise the text is one word */
    bool strips; /* decoding leaves out the space that a text begins with */
};

/* What a vocabulary source (GGUF metadata or tokenizer.json) must provide. Texts are in the
 * byte-level alphabet (GPT-2's byte-to-unicode map), those of control and user-defined tokens as
 * they stand in a prompt; all UTF-8 (of SentencePiece: see above). Zero-initialize it; the builder
 * copies what it keeps. */
struct vocab_source {
    int32_t tokens;
    const char **text;     /* [tokens] */
    const int32_t *length; /* [tokens] bytes of text */
    const uint8_t *kind;  /* [tokens] enum token_kind; control and user-defined are matched whole */
    const uint8_t *added; /* [tokens] enum added_flag bits, or NULL: none set */
    int64_t merges;
    const char **merge;          /* [merges] "left right" */
    const int32_t *merge_length; /* [merges] */
    const char *pre; /* GGUF name: "gpt-2", "llama-bpe", "qwen2", "smollm", ... or NULL */
    const struct vocab_pieces *pieces; /* SentencePiece; then neither `pre` nor `step` is needed */
    const struct pre_step *step; /* [steps] the pre-tokenizer spelled out when `pre` is NULL */
    int32_t steps;
    bool ignore_merges; /* a word that is a token is not merged; a named `pre` knows for itself */
    bool nfc;           /* text is put in Unicode NFC first; a named `pre` knows for itself */
    int32_t bos, eos;   /* -1: none */
    int8_t add_bos, add_eos; /* 1 yes, 0 no, -1 as the models of this `pre` do (GGUF is silent) */
    const int32_t *stop;     /* further end-of-generation ids */
    int32_t stops;
};

struct tokenizer *tokenizer_build(const struct vocab_source *src, struct err *err);
/* Reads a Hugging Face tokenizer.json (with tokenizer_config.json beside it if there) for a model
 * that has `rows` tokens. Added tokens behind those are left out, with a line in the log: their
 * text is like any other, and no id stands for it. */
struct tokenizer *tokenizer_from_json(const char *path, int32_t rows, struct err *err);
void tokenizer_free(struct tokenizer *t);

/* Encodes `n` bytes of `text` (any bytes; invalid UTF-8 is treated as Hugging Face's from_utf8
 * lossy replacement). `special`: add BOS/EOS as the model wants. Special-token text inside the
 * string always becomes the special token. Returns the count, *ids malloc'ed; -1 on error. */
int64_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool special,
                         int32_t **ids, struct err *err);

/* What a caller holds over one encoding; zero-initialize. */
struct encode_control {
    const atomic_bool *cancel; /* once another thread sets it, the encoding ends soon; or NULL */
    bool cancelled;            /* out: it did, and -1 came of that and of no fault in the text */
    int64_t work;              /* out: operations done, at most proportional to n log n */
    int64_t polled;            /* of the tokenizer: `work` when it last looked at `cancel` */
};

/* tokenizer_encode() that can be told to end: `cancel` is looked at every some thousand operations
 * (microseconds), also in the middle of a word, a run of marks or a pattern's match. What is not
 * interrupted is the first pass, which looks for ill-formed UTF-8 (1 ms a megabyte), and composing
 * one run of characters that all hang together (15 ms a megabyte of nothing but marks). */
int64_t tokenizer_encode_cancellable(const struct tokenizer *t, const char *text, size_t n,
                                     bool special, struct encode_control *control, int32_t **ids,
                                     struct err *err);

/* The bytes of one token (not NUL-terminated; may be half a character). Empty for special tokens
 * unless `special`. The pointer lives as long as the tokenizer. */
const char *tokenizer_bytes(const struct tokenizer *t, int32_t id, bool special, size_t *n);

/* The text of a token as a prompt has it: what chat templates write. Otherwise as above. */
const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *n);

/* The bytes of a token within a text that is decoded token by token. *begun: whether a token before
 * this one had bytes; false at first, and set here. The first bytes of a text leave out the space
 * that a SentencePiece vocabulary has put in front of it. */
const char *tokenizer_next_bytes(const struct tokenizer *t, int32_t id, bool special, bool *begun,
                                 size_t *n);

/* Whole text of ids, incomplete UTF-8 replaced by U+FFFD; malloc'ed, NUL-terminated. */
char *tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t n, bool special,
                       size_t *length);

int32_t tokenizer_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);              /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);              /* -1: none */
bool tokenizer_is_stop(const struct tokenizer *t, int32_t id); /* ends a generation */
/* Whether it puts spaces in front of texts, or of pieces of them, that are not in them. */
bool tokenizer_adds_spaces(const struct tokenizer *t);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Id of a token by its exact text (special or normal); -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text);

/* Incremental UTF-8: appends token bytes and hands out only whole characters. */
struct utf8_stream {
    unsigned char held[4];
    int n;
};
/* Appends n bytes; writes whole characters to out (room for n + 4 + 3 per replaced byte: 3n + 16)
 * and returns their byte count. Bytes that can never complete become U+FFFD. `flush` also hands
 * out what is held, as U+FFFD. */
size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, bool flush, char *out);

#endif
