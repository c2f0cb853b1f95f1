/* SPDX-License-Identifier: Apache-2.0 */
/* model_gguf.h - what the two halves of the GGUF reader share. */
#ifndef WHET_ENGINE_MODEL_GGUF_H
#define WHET_ENGINE_MODEL_GGUF_H

#include "config/err.h"
#include "engine/gguf.h"
#include "engine/model_load.h"

/* Reads the vocabulary into m->tokenizer, and the chat template if there is one. -1 with a message
 * that names the file and the key. */
int model_gguf_tokenizer(struct model *m, const struct gguf *g, struct err *err);

#endif
