/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - the step as data: which regions run in which order, and what each must cost.
 *
 * One table (plan.c) says for every region how many bytes it must move and how many floating-point
 * operations it must do. The benchmark, the roofline check, the cost model, the metrics and the
 * docs read it; nobody counts bytes anywhere else.
 */
#ifndef WHET_ENGINE_PLAN_H
#define WHET_ENGINE_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "config/err.h"
#include "engine/model.h"

/* A plan of several ranks has two kinds of nodes more, which put together what the region before
 * them left on each rank: reduce (kernels/args.h) sums all ranks' attn_out or mlp_out and adds the
 * residual, which these leave out there; gather joins the logits that each rank has for its rows of
 * the head. Gather has no slot and no kernel, but a collective (collective.h).
 */
enum { REGION_GATHER = REGION_NODES, REGION_PLANNED };

/* What holds of a region whatever the model's shape. */
struct region_info {
    const char *name;
    bool once;    /* runs once a step, as layer 0; without it, once in every layer */
    bool twice;   /* runs twice in every layer: reduce */
    bool rows;    /* runs on the rows that need logits, and not at all where there are none */
    bool matrix;  /* reads weights that an earlier kernel may fetch ahead */
    int8_t x, y;  /* which of the two buffers of the residual stream it reads, and which it writes;
                     of reduce, those of the region whose results it puts together */
    int8_t ahead; /* while it runs, the weights of the ahead-th later node with a matrix may be
                     fetched; 0: none */
    enum region feeds; /* the only region that reads what it leaves, where that lies between two
                          regions and may be bf16; REGION_EMBED: there is none such */
    /* Fused: one kernel may stand for these neighbours of a layer, in steps of up to m_most
     * tokens. Any other region: no parts. */
    int8_t parts;
    int32_t m_most;
    enum region part[2];
};
const struct region_info *region_info(enum region r);
const char *region_name(enum region r); /* "attn_in" */
int region_parse(const char *name);     /* enum region, or -1 */
/* How often it runs in a step of a model with so many layers (reduce: of several ranks). */
int32_t region_runs(enum region r, int32_t layers);
/* Its m in a step of m tokens that needs the logits of `rows`. */
int32_t region_m(enum region r, int32_t m, int32_t rows);

struct plan_node {
    enum region region; /* or REGION_GATHER */
    int32_t layer;      /* 0 for embed and head */
    enum region of;     /* reduce and gather: the region whose results they join; else itself */
};

/* Whether r is a fused region that steps of m tokens may have a kernel for. */
bool region_fused(enum region r, int32_t m);

/* Which of a layer's runs of its region a node is: mlp_out's reduce is 1, all else 0. */
int32_t plan_node_turn(const struct plan_node *n);

/* The order of a step: whoever runs one, in whatever way, walks these nodes. */
struct plan {
    int32_t nodes;
    struct plan_node *node; /* [nodes] */
};

/* Never NULL; to be given to plan_free(). plan_build(): of a rank that is alone. */
struct plan *plan_build(const struct model_shape *shape);
struct plan *plan_build_ranks(const struct model_shape *shape, int32_t world);
void plan_free(struct plan *p);

typedef int plan_visit(void *ctx, const struct plan_node *n, struct err *e);
/* Visits the nodes of a step that needs the logits of `rows`, in their order; where bit r of
 * `whole` is set, fused region r once instead of its parts. Stops at the first visit that is not 0
 * and returns that. */
int plan_walk(const struct plan *p, int32_t rows, uint32_t whole, plan_visit *visit, void *ctx,
              struct err *e);
/* Where a region runs in a layer (any layer will do for one that runs once), or -1. A layer that
 * only a probe knows is nowhere, and so is everything without a plan (NULL). */
int32_t plan_at(const struct plan *p, enum region r, int32_t layer);
/* The node whose weights may be fetched while r runs in `layer`; NULL: none. */
const struct plan_node *plan_ahead(const struct plan *p, enum region r, int32_t layer);

/* The format of the matrix that a region reads on a GPU, in a layer and in steps of `m` tokens (of
 * logits, the head): what the file has where all of it (q, k and v; gate and up) is in one that can
 * be kept (kernels/bricks.h) and the model says that it is (own_formats; F8, if fine_scales does
 * not forbid it), else bf16. Where there is bf16 beside it (bf16_copies), steps of more than
 * OWN_MOST tokens read that: on an H200 they are faster with it from 32 on (docs/gpu.md). Those of
 * more than E4M3_OVER read F8 again if kernels may multiply it as it is (e4m3_products). */
enum { OWN_MOST = 16, E4M3_OVER = 256, ZONES = 3 };
/* Steps of a zone read the same form of each matrix. Its limits are M buckets (dispatch.h). */
int device_zone(int m);
/* The fewest tokens of a zone. */
int device_zone_from(int zone);
enum dtype device_type(const struct model *model, enum region r, int layer, int m);
/* Whether steps of m tokens read the bf16 copy of a matrix in format `own`, if there is one. */
bool device_reads_copy(const struct model *model, enum dtype own, int m);
/* Whether there is such a copy. */
bool device_copied(const struct model *model, enum region r, int layer);

/* What a region must do at least, for `m` tokens in `sequences` sequences of `context` positions
 * each, the tokens the last of them: bytes = weights once + activations in and out + KV read or
 * written.
 * `layer` is 0 for embed and head; `logits_rows` counts for the head alone, which has no `m`. */
struct region_cost {
    int64_t weight_bytes, activation_bytes, kv_bytes;
    int64_t weights;     /* how many of them; weight_bytes are the model's own format's */
    double kept_element; /* bytes of one as a GPU keeps it; 0: it becomes bf16 there */
    int64_t flops;
};
struct region_cost plan_cost(const struct model *model, enum region r, int layer, int m,
                             int sequences, int64_t context, int logits_rows);
int64_t region_cost_bytes(const struct region_cost *c);

/* What kind of templates a machine runs. */
enum machine_kind { MACHINE_CPU, MACHINE_CUDA };

struct cpu_facts;

/* What this machine can do, measured at start (backend) and never typed in. */
struct machine {
    char device[96];          /* "Intel(R) Xeon(R) ..., 2 threads" */
    double read_bandwidth;    /* bytes/s of a streaming read over more than the last-level cache,
                                 or over the model's own size if that is smaller */
    double peak_flops;        /* FLOP/s: of a register-resident multiply-add loop in f32, or on a
                                 GPU of a large product in bf16 */
    double product_flops;     /* FLOP/s of a matrix product in f32 as eager does it; 0: unknown */
    const char *product_core; /* the kernels that did it, in their library's words; NULL: unknown */
    double boundary_s;        /* seconds from the end of one region to the start of the next */
    int32_t kv_element;       /* bytes of one element of the KV cache; 0: 4 */
    int32_t weight_element;   /* bytes of a weight in a format that it does not keep; 0: it keeps
                                 all */
    enum machine_kind kind;
    bool pinned; /* compute threads keep to cores of their own, which are all that there are */
    const struct cpu_facts *cpu; /* what a language model is told besides (cpu_facts.h), or NULL */
    /* MACHINE_CUDA: */
    int32_t sms;                                   /* multiprocessors */
    int32_t sm_registers, sm_shared, block_shared; /* of one: registers; bytes of shared memory, and
                                                      of them what one block may have; 0: unknown */
    int32_t l2_bytes, clock_mhz;
    char target[16]; /* "sm_90a": what kernels are compiled for */
    char driver[64]; /* version of the driver and of its libraries: part of every key */
};

/* Bytes of `c` where weights, keys and values have the machine's own size. */
double machine_bytes(const struct machine *machine, const struct region_cost *c);
double machine_weight_bytes(const struct machine *machine, const struct region_cost *c);

/* Seconds below which `c` cannot be done on `machine`: max of bytes and FLOPs. plan_cost() counts
 * keys and values as floats; a machine that keeps them smaller has less to move. */
double roofline_s(const struct machine *machine, const struct region_cost *c);

#endif
