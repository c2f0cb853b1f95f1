/* SPDX-License-Identifier: Apache-2.0 */
/* store_words.h - what a server has to tell its fleet of kernels that are wrong, until it could.
 *
 * A word is written when the kernel is found wrong, so it survives the process and whatever keeps
 * the database away. One that was told stays for a while, because a database may lose it again (a
 * standby that took over, a backup) or be another one than before.
 *
 * A store that is a copy (store_open_copy()) goes with its process: its words are in the file that
 * it was copied from, whose other servers tell what its own could not. Any thread; functions return
 * 0 or -1 with a message.
 */
#ifndef WHET_SPECIALIZER_STORE_STORE_WORDS_H
#define WHET_SPECIALIZER_STORE_STORE_WORDS_H

#include "specializer/store/store.h"

enum { STORE_WORDS_MOST = 1024, STORE_TOLD_DAYS = 30 };

struct store_word {
    int64_t id;           /* ascending; from store_words() */
    int64_t at;           /* unix seconds; from store_words() */
    bool verdict, upheld; /* on what somebody found; else what was found here */
    char env[KEY_HEX + 1], key[KEY_HEX + 1], slot[40], words[240];
    char server[KEY_HEX + 1], name[100]; /* whose word it is */
};

/* Adds a word that is still to be told, in place of an older one of that server about that kernel.
 * Of more than STORE_WORDS_MOST those go first that were told, then verdicts, then the oldest; told
 * ones go after STORE_TOLD_DAYS in any case. */
int store_word_keep(struct store *s, const struct store_word *w, struct err *err);
typedef void store_word_fn(void *ctx, const struct store_word *w);
/* Words with an id above `after`, oldest first, at most `most`: told or still to be told, of this
 * server, and of others those that are older than `others_s` seconds. */
int store_words(struct store *s, bool told, const char *server, int64_t others_s, int64_t after,
                int most, store_word_fn *fn, void *ctx, struct err *err);
int store_word_told(struct store *s, int64_t id, struct err *err);
int store_word_forget(struct store *s, int64_t id, struct err *err);
/* An operator allows the kernel again: nothing is told of it any more. */
int store_words_allow(struct store *s, const char *key, struct err *err);
/* How many are still to be told, of whichever server. */
int store_words_untold(struct store *s);

#endif
