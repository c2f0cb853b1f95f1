/* SPDX-License-Identifier: Apache-2.0 */
/* bench_private.h - what is measured, how, and where it goes: shared by bench*.c. One thread. */
#ifndef WHET_BENCH_BENCH_PRIVATE_H
#define WHET_BENCH_BENCH_PRIVATE_H

#include "config/config.h"
#include "engine/backend.h"

enum { LIST_MAX = 16, PAIRS_MAX = 101, SETS = 2 };
enum set { SET_EAGER, SET_SPECIALIZED };

struct list {
    int n, value[LIST_MAX];
};

struct bench {
    const char *mode, *json; /* json: NULL for none */
    const char *shape;       /* --shape NAME: random weights of this shape, or NULL */
    struct list batch, context, prompt;
    bool starts;        /* kernels where searches start, instead of the store's winners */
    const char *points; /* --points FILE, or NULL; with it, both tables hold such kernels */
    int pairs;
    struct config config;
    struct model *model;
    const struct backend_ops *ops;
    struct backend *backend;
    struct lead *lead; /* of several ranks; NULL: this process has the whole model */
    struct plan *plan;
    struct dispatch *table[SETS];
    int sets;           /* 1: the store has no winners for this machine and model */
    int winners;        /* slots that hold one */
    int32_t pages_each; /* KV pages of one sequence */
    int32_t chunk;      /* prompt tokens of a step */
};

/* What is timed as one: a decode step of `sequences` tokens at `context`, or one prompt of
 * `context` tokens (sequences 1) in chunks of `chunk`. */
struct work {
    int32_t sequences, context;
    int32_t chunk; /* 0: decode */
};

struct region_time {
    double s[SETS];         /* median of one work */
    int64_t launches[SETS]; /* of kernels, in one work */
    struct region_cost cost;
    double roofline_s;
};

struct result {
    struct work work;
    int32_t tokens;               /* that one work feeds */
    double s[SETS], spread[SETS]; /* median; (90th - 10th percentile) / median */
    double gain;                  /* median over pairs of eager time / specialized time */
    double gain_low, gain_high;   /* 10th and 90th percentile of it */
    double roofline_s, bytes;
    struct region_time region[REGION_NODES]; /* a fused region's: of the works that ran it as one */
};

/* Fills the KV pages of `sequences` sequences up to `context`, so decode reads real values. */
int bench_fill(struct bench *b, int32_t sequences, int32_t context, struct err *e);
/* Interleaved A-B-A-B: b->pairs samples of each set. */
int bench_measure(struct bench *b, const struct work *w, struct result *out, struct err *e);
/* One work with a set, of which nothing is noted: kernels that left the tables run no more. */
int bench_once(struct bench *b, const struct work *w, enum set set, struct err *e);

/* bench_points.c: the kernels that the lines of b->points name against those in the tables, line by
 * line, each on top of those that were kept. Prints what comes of them. -1: a step failed, or the
 * file cannot be read; lines that cannot be measured are reported and skipped. */
int bench_points(struct bench *b, struct err *e);
/* Says beforehand whether the file can be read. */
int bench_points_check(const struct bench *b, struct err *e);

void bench_print_head(const struct bench *b);
void bench_print_rates(const struct bench *b, const struct result *r, int n);
void bench_print_regions(const struct bench *b, const struct result *r, int n);
/* Writes everything as JSON to b->json. */
int bench_write_json(const struct bench *b, const struct result *r, int n, struct err *e);

#endif
