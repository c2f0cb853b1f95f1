/* SPDX-License-Identifier: Apache-2.0 */
/* router.h - which handler answers a path, and who may call it: one table. */
#ifndef WHET_SERVER_ROUTER_H
#define WHET_SERVER_ROUTER_H

#include "server/auth.h"
#include "server/exchange.h"

struct route {
    const char *method;
    const char *pattern; /* `*` matches one or more characters, slashes included */
    const char *label;   /* in metrics */
    enum access access;
    unsigned needs; /* NEED_* */
    void (*run)(struct exchange *x);
};

enum {
    NEED_BODY = 1,  /* a JSON body: 411 and 415 without */
    NEED_MODEL = 2, /* 503 until the model is loaded, and while draining */
    NEED_OPEN = 4,  /* 503 while draining */
};

/* Called when the head is complete: finds the route, checks method, key, state and content type.
 * 0, or -1 with the error to answer. */
int router_admit(struct exchange *x, struct api_error *e);
/* Called when the body is complete: runs the handler. */
void router_run(struct exchange *x);

/* What operators ask: it may be asked when all connections are taken (room.h). */
bool router_for_operators(const struct route *r);

/* A bounded number for a route in metrics, and its text. */
int router_label(const struct route *r);
int router_labels(void);
const char *router_label_text(int label); /* NULL: the same label as an earlier row */

/* Handlers, by file. */
void api_completions(struct exchange *x); /* api_completions.c */
void api_chat(struct exchange *x);        /* api_chat.c */
void api_models(struct exchange *x);      /* api_misc.c */
void api_model(struct exchange *x);
void api_health(struct exchange *x);
void api_ready(struct exchange *x);
void api_version(struct exchange *x);
void api_tokenize(struct exchange *x); /* api_tokens.c */
void api_detokenize(struct exchange *x);
void api_dashboard(struct exchange *x); /* api_status.c */
void api_specializer(struct exchange *x);
void api_metrics(struct exchange *x);
void admin_slots(struct exchange *x); /* admin.c: all of it runs off the loop */
void admin_slot(struct exchange *x);
void admin_pin(struct exchange *x);
void admin_unpin(struct exchange *x);
void admin_rollback(struct exchange *x);
void admin_kernels(struct exchange *x);
void admin_kernel(struct exchange *x);
void admin_disable(struct exchange *x);
void admin_enable(struct exchange *x);
void admin_mode(struct exchange *x);
void admin_trace(struct exchange *x);
void admin_export(struct exchange *x);
void admin_fleet(struct exchange *x);
void admin_import(struct exchange *x);

#endif
