/* SPDX-License-Identifier: Apache-2.0 */
/* probe_request.h - what passes between the server and `whet probe`: a JSON file one way, a JSON
 * line on stdout the other. */
#ifndef WHET_SPECIALIZER_ADMISSION_PROBE_REQUEST_H
#define WHET_SPECIALIZER_ADMISSION_PROBE_REQUEST_H

#include <stdbool.h>

#include "engine/dispatch.h"
#include "specializer/admission/comparator.h"
#include "specializer/admission/probe.h"
#include "specializer/candidate/candidate.h"

enum { PROBE_CAPTURES_MAX = 6 };

struct probe_request {
    enum machine_kind machine; /* whose kernel it is */
    struct model_shape shape;  /* what captures are read by; of a CPU kv_bf16 is the server's.
                                  MACHINE_CUDA: what to draw weights for where there is no file */
    char *model, *object, *name;
    char *references;                  /* folder of reference_cache.h; "" or NULL: none */
    char *capture[PROBE_CAPTURES_MAX]; /* files of capture_save() */
    int32_t captures;
    enum region region;
    int32_t m_from, m_to, context; /* what the slot serves; context 0 unless attn */
    int32_t layer;                 /* one that it is for: its format class is the slot's */
    enum dtype drawn;              /* MACHINE_CUDA: what weights are drawn in where they are */
    int32_t threads;
    int32_t pack_mib; /* of a CPU kernel: memory for packed weights that the server has */
    enum numerics numerics;
    enum precision precision;
    enum probe_depth depth;
    int32_t risk;     /* enum risk bits */
    bool text;        /* a language model wrote it */
    bool own_formats; /* of the server's model */
    int32_t ranks;    /* that compute it: what is probed is rank 0's part; 1: all of it */
    uint64_t seed;
};

/* 0, or -1 with a message naming the path (and the field). */
int probe_request_write(const struct probe_request *q, const char *path, struct err *err);
int probe_request_read(struct probe_request *q, const char *path, struct err *err);
void probe_request_free(struct probe_request *q);

enum probe_verdict { PROBE_PASS, PROBE_REFUSE, PROBE_ERROR };
struct probe_answer {
    enum probe_verdict verdict;
    char stage[16]; /* "check", "end" */
    char reason[240];
    struct evidence evidence; /* the probe's fields */
    bool sealed;
    bool killed;     /* PROBE_ERROR: something outside killed a process that ran the kernel */
    double kl, top1; /* end to end: mean divergence, share of equal first choices */
};
/* One line of JSON without the newline; malloc'ed. */
char *probe_answer_text(const struct probe_answer *a);
/* 0, or -1 when `text` is not one such line. */
int probe_answer_parse(struct probe_answer *a, const char *text);

#endif
