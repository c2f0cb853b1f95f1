/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_private.h - the CUDA backend's own state, shared by engine/cuda/.
 *
 *   device.c   opening, what the device is, eager kernels out of the embedded images
 *   memory.c   the plan of device memory, and one allocation for each part of it
 *   weights.c  the model's tensors to bf16 on the device
 *   blas.c     matrix products of the eager regions; lt.c other algorithms for them (products.h)
 *   eager.c    a region as primitive kernels and products
 *   loaded.c   a region as a loaded cubin; pack.c its repacked weights
 *   walk.c     a whole step on a stream; graph.c the same captured, one graph for a bucket
 *   exchange.c a step's block in, its tokens out
 *   step.c     what the engine calls
 *   sample.c   parameters to the device's sampler, tokens back
 *   lab.c, inputs.c, bench.c  taps, captured inputs, benches
 *   rehearse.c the whole model with a candidate
 *   probe*.c   first runs of a kernel, in a process of its own
 *
 * Threads: the engine thread runs steps, taps and benches; the specializer thread loads and
 * unloads; the builder thread (graph.c) captures graphs. What two of them touch says so.
 */
#ifndef WHET_ENGINE_CUDA_CUDA_PRIVATE_H
#define WHET_ENGINE_CUDA_CUDA_PRIVATE_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "engine/backend.h"
#include "kernels/eager.h"

/* Steps up to this many tokens run as graphs, with float activations between the regions. */
enum {
    NARROW = 64,
    NARROW_BUCKETS = 12,
    BEST_PARTS = 32,
    MAX_SPLITS = 32,
    VARIANTS = 4,
    WIDE_CELLS = 8
};

/* Records where a call of the runtime failed; -1. */
int cuda_failed(struct err *e, cudaError_t code, const char *what, const char *file, int line);
#define CU(call)                                                     \
    do {                                                             \
        cudaError_t code_ = (call);                                  \
        if (code_ != cudaSuccess)                                    \
            return cuda_failed(e, code_, #call, __FILE__, __LINE__); \
    } while (0)

/* Every primitive of kernels/eager*.cu. */
enum primitive {
    PRIM_COPY,
    PRIM_OPEN,
    PRIM_CLOSE,
    PRIM_EMBED,
    PRIM_NORM,
    PRIM_ROUND,
    PRIM_SILU,
    PRIM_ROPE,
    PRIM_DECODE_64_1,
    PRIM_DECODE_64_2,
    PRIM_DECODE_64_4,
    PRIM_DECODE_64_8,
    PRIM_DECODE_128_1,
    PRIM_DECODE_128_2,
    PRIM_DECODE_128_4,
    PRIM_DECODE_128_8,
    PRIM_PREFILL_64,
    PRIM_PREFILL_128,
    PRIM_WGMMA_64, /* NULL where the device has no such instructions */
    PRIM_WGMMA_128,
    PRIM_BEST,
    PRIM_SAMPLE,
    PRIM_READ,
    PRIM_COMPARE,
    PRIM_GATHER,
    PRIM_COUNT
};

/* ---- memory ------------------------------------------------------------------------------- */

/* One allocation, handed out from the front. */
struct arena {
    char *base;
    int64_t bytes, used;
};

struct device_layer {
    float *attn_norm, *mlp_norm;
    float *bias;            /* [(heads + 2 kv_heads) head_dim] or NULL */
    float *q_norm, *k_norm; /* or NULL */
    void *wqkv, *wo, *wgu, *wdown;
};

struct device_model {
    void *embed, *head; /* bf16; the same when tied */
    float *final_norm, *rope_cos, *rope_sin;
    struct device_layer *layer;
};

/* The dynamic data of a step: one block at a fixed address on the device, its mirror in pinned
 * memory, copied in one piece up to the end of what is used. Pointers are of the device;
 * block_mirror() gives the host's. */
struct step_block {
    char *host, *device;
    int32_t tokens, rows, spans; /* capacities */
    int64_t pages, bytes;
    struct cuda_counts *counts;
    struct cuda_counts *lead; /* of the decodes that a step with prompts begins with (step.c) */
    int32_t *token, *position, *kv_at, *pages_at, *row, *single;
    struct span *span;
    struct eager_tile *tile;
    int32_t *page_table; /* last */
};

/* ---- kernels ------------------------------------------------------------------------------ */

struct lt; /* products.h */

/* kernel.backend of a loaded kernel. */
struct loaded {
    struct loaded *next_retired;
    struct kernel *kernel;
    uint64_t number;      /* in the order in which kernels were loaded, from 1 */
    _Atomic bool retired; /* it will be in no slot again; specializer thread */
    cudaLibrary_t library;
    cudaKernel_t entry[CUDA_LAUNCHES];
    struct cuda_kernel_info info; /* launches 0: no cubin but a library's algorithm */
    struct pack *pack;
    struct lt *lt;
};

/* Repacked weights of one region in all layers, shared by the kernels of a layout. */
struct pack {
    struct pack *next;
    char layout[64];
    enum region region;
    int32_t users;
    int64_t each, at, bytes; /* bytes a layer; place in the arena */
};

/* ---- taps and benches --------------------------------------------------------------------- */

enum { LAB_PAGES_BYTES = 64 << 20 };

/* What a tapped or benched kernel gets instead of a step's outputs and inputs. W: tokens of the
 * widest step, but no fewer than NARROW. */
struct lab {
    float *y;            /* [NARROW, max(vocab, ffn, q)] or [W, hidden]: any float output */
    void *raw;           /* bf16 [W, max(qkv, 2 ffn)]: a wide product that is looked at */
    int32_t *best;       /* [NARROW] */
    int32_t *own_at;     /* [W]: 0, 1, 2, ...: token i at position i of own_k, own_v */
    void *own_k, *own_v; /* pages of W tokens */
    unsigned *result, *result_host; /* of eager_compare, one for each output */
    cudaEvent_t event[4];           /* served from, to; tapped from, to */
    bool pending;                   /* a comparison is under way on the stream */
    int32_t gathered;               /* pages of a capture that wait in k and v */
    int32_t layer;                  /* to look at in this step */
    /* a bench's inputs */
    struct step_block block; /* of W tokens */
    float *x, *in;           /* [W, hidden], [NARROW, max(q, ffn)] */
    void *k, *v;             /* LAB_PAGES_BYTES each */
};

/* ---- graphs ------------------------------------------------------------------------------- */

/* What a step runs: the kernels, and the buckets they were chosen for. */
struct choice {
    const struct kernel *kernel[REGION_COUNT];
    struct slot *slot[REGION_COUNT];
    int32_t m, rows;        /* bucket values (narrow), or the padded counts (wide) */
    int32_t context;        /* bucket value */
    int32_t tiles, singles; /* wide: what attention is launched for */
    int32_t lead; /* not decode: tokens of which the kernel of attention is a template's */
    bool decode;  /* every sequence has one token */
    bool trial;   /* one kernel is a canary's, and in no slot */
};

struct variant {
    struct choice choice;
    int32_t launches[REGION_COUNT];
    cudaGraphExec_t exec; /* NULL: empty */
    uint64_t last_used;
};

struct cell {
    struct variant variant[VARIANTS];
    bool asked;                 /* the builder has it */
    uint64_t not_before;        /* step: a graph of it could not be made */
    struct choice last;         /* wide: of the cell's last step, and how often in a row; engine */
    int32_t repeats;            /* thread */
    uint64_t steps;             /* engine thread */
    double share[REGION_COUNT]; /* of a step's time, as last measured; engine thread */
    const struct kernel
        *served[REGION_COUNT]; /* by the last graph, canaries aside; engine thread */
};

struct builder {
    pthread_t thread;
    pthread_mutex_t lock; /* cells, request; never held while something is captured */
    pthread_cond_t wake;
    bool running, stop;
    bool busy; /* a graph of `making` is made, perhaps out of an executable of `leaving` */
    struct choice making, leaving;
    struct cell *cell; /* that wants a graph of `request` next; NULL: none */
    struct choice request;
    cudaStream_t stream;
};

/* One step under way, with everything of it that must not be the next one's. There are two, used in
 * turn, so a step can be sent while the one before it runs. Pointers: pinned host memory. */
struct flight {
    const struct step *step; /* NULL: not under way */
    struct choice choice;
    bool plain;       /* every row wants its best token and no more */
    bool wide;        /* runs on the wide block */
    bool look;        /* a tap looks at it */
    bool graph;       /* it runs as a graph */
    bool drawn_there; /* every row's token is in b->best when it has run */
    int32_t rows, samples;
    int32_t launches[REGION_COUNT];
    int64_t start_ns;
    char *narrow_host, *wide_host; /* the blocks' mirrors */
    int32_t *best;
    struct eager_sample *sample; /* [samples] */
    struct eager_adjust *adjust;
    struct eager_sampled *sampled; /* [rows] written by the device */
    cudaEvent_t done;
    cudaEvent_t region_event[REGION_COUNT][2];
};

struct backend {
    const struct model *model;
    struct backend_options options;
    struct plan *plan;
    struct machine machine;
    struct dispatch *dispatch;
    struct kernel eager[REGION_COUNT];
    struct cudaDeviceProp device;
    int32_t positions; /* rows of the rope tables */

    cudaStream_t stream; /* steps */
    cudaStream_t loader; /* specializer thread: kernels on their way in, preparing benches */
    struct flight flight[2];
    int turn; /* the flight of the next step */
    int told; /* exchange.c */
    int32_t *turn_there, (*turn_host)[4];
    int64_t landed_ns;        /* when the last step ended */
    cudaLibrary_t library[6]; /* one a file of eager kernels */
    int libraries;
    cudaKernel_t primitive[PRIM_COUNT];

    struct arena weights, kv, buffers, packs;
    struct arena *lent, *lent_pinned; /* a probe's: its memory comes from here; else NULL */
    int64_t table_least;              /* a probe's: entries of the lab's page table, at least */
    struct device_model on;
    int64_t kv_layer; /* bytes of k (or v) of a layer */

    struct step_block narrow, wide;
    float *x[2], *q, *a, *h;     /* narrow (and x also wide): float */
    void *q16, *a16, *h16, *n16; /* bf16; n16: normed rows */
    void *raw;                   /* projections before rope or silu: float or bf16 */
    float *logits;
    int32_t *best; /* [max_rows] what each row of the last step drew; read by the next */
    int32_t *seen; /* [max_tokens] the step's tokens, as embed found them */
    uint64_t *best_part;
    unsigned *counter; /* zero between kernels */
    char *work;
    int64_t work_bytes;

    struct eager_sample *sample;
    struct eager_adjust *adjust;
    int32_t adjusts; /* capacity */
    float *weight;

    struct blas *blas;
    struct cell cell[NARROW_BUCKETS][CONTEXT_BUCKETS], wide_cell[WIDE_CELLS];
    struct builder builder;
    _Atomic uint64_t steps; /* begun; the engine thread counts, the builder looks */

    uint64_t loads;            /* specializer thread */
    pthread_mutex_t load_lock; /* packs_list, retired: specializer and engine thread */
    struct pack *packs_list;
    struct loaded *retired;

    _Atomic(struct tap *) tap;
    _Atomic bool looking; /* the engine thread may hold a tap */
    int64_t matches;
    int32_t look_layer;
    struct lab lab;
};

/* device.c */
int device_open(struct backend *b, struct err *e);
int device_takes(const struct model_shape *s, struct err *e);
int device_kernels(struct backend *b, struct err *e);
/* The image of a source file that suits the device best. */
int device_image(struct backend *b, const char *file, cudaLibrary_t *library, struct err *e);

/* memory.c */
int memory_open(struct backend *b, struct err *e);
void memory_close(struct backend *b);
/* Pages of a layer's keys (and values) that the lab has room for. */
int32_t memory_lab_pages(const struct model_shape *s);
/* Device memory that a process probing kernels of this model allocates. */
int64_t memory_probe_arena(const struct model_shape *s);
/* Host memory that the device can read; from b->lent_pinned if there is one. */
int memory_pinned(struct backend *b, void **p, int64_t bytes, struct err *e);
/* backend_ops.kv_room */
int64_t memory_kv_room(const struct model *m, const struct backend_options *o, int64_t *page_bytes);
/* backend_ops.fixed_bytes */
int64_t memory_fixed(const struct model *m, const struct backend_options *o);
void *arena_take(struct arena *a, int64_t bytes);
/* The host mirror of a device pointer of `s` in pinned host memory. */
void *block_mirror(const struct step_block *s, const void *device);
void *kv_pages(const struct backend *b, int32_t layer, int v);

/* weights.c */
int64_t weights_bytes(const struct model *m);
int weights_upload(struct backend *b, struct err *e);
/* The same in two halves: places and vectors, which are small copies; then the matrices. */
struct upload;
struct upload *weights_begin(struct backend *b, struct err *e);
int weights_finish(struct upload *u, struct err *e);
void weights_drop(struct upload *u); /* instead of the second half */

/* walk.c: one step, or a region of it, on a stream. */
struct walk {
    struct backend *b;
    cudaStream_t stream;
    const struct step_block *block;
    const struct choice *choice;
    const struct step *look;          /* a live step that taps may look at, or NULL */
    bool wide;                        /* bf16 between regions; loaded: attention of `lead` */
    bool decode;                      /* every sequence has one token */
    int32_t m, rows;                  /* to launch for; the true counts are in the block */
    int32_t context;                  /* bucket value */
    int32_t tiles, singles;           /* attention of what is not decode: in the block */
    int32_t lead;                     /* and tokens before them, which a template takes */
    const struct cuda_counts *counts; /* of attention: instead of the block's, if not NULL */
    float *x, *y;                     /* residual stream before and after the region */
    float *q, *a, *h;                 /* float activations; NULL when wide */
    float *logits;
    int32_t *best;
    void *k_pages, *v_pages;   /* instead of the layer's, if not NULL */
    const int32_t *kv_at;      /* instead of the block's, if not NULL */
    bool have16[REGION_COUNT]; /* the region's output is there in bf16, too */
    const void *next;          /* instead of the weights a later region reads, if not NULL */
    int64_t next_bytes;
    struct flight *timed; /* record its region_event around the regions of timed_layer */
    int32_t timed_layer;
    int32_t launches[REGION_COUNT]; /* so far */
    enum region region;             /* being walked */
    const struct lt *lt;            /* whose algorithm its product takes, or NULL */
};
/* A walk over the backend's own buffers. */
void walk_init(struct walk *w, struct backend *b, cudaStream_t stream, const struct step_block *s,
               const struct choice *c);
int launch(struct walk *w, enum primitive p, dim3 grid, int threads, int smem, const void *args,
           struct err *e);
int walk_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                struct err *e);
/* Points a walk over the backend's own buffers at those of the residual stream that r uses. */
void walk_aim(struct walk *w, enum region r);
int walk_step(struct walk *w, struct err *e);
/* Tokens or rows to launch for: a bucket up to NARROW, a multiple of NARROW beyond. */
int32_t walk_padded(int32_t n);
/* eager.c: query heads of a block of the eager decode attention. */
int32_t decode_group(const struct backend *b);
/* Attention of a step with prompts, where `k` is a template and takes the first w->lead tokens. */
int eager_attn_beside(struct walk *w, const struct kernel *k, int32_t layer, struct err *e);

/* exchange.c: a few KB to or from pinned host memory, on the stream. `early`: they are there
 * already, whatever runs before it on the stream. Both sides have room for whole 16 bytes. */
int transfer(struct backend *b, void *to, const void *from, size_t bytes, bool early,
             struct err *e);
/* First and last node of a graph. */
int exchange_open(struct walk *w, struct err *e);
int exchange_close(struct walk *w, struct err *e);
/* Launches a graph of the cell of `c` on the narrow block of flight b->turn, of which `used` bytes
 * are filled. The drawn tokens will be in the flight's `best`. */
int exchange_launch(struct backend *b, const struct choice *c, cudaGraphExec_t exec, size_t used,
                    struct err *e);

/* eager.c */
int eager_region(struct walk *w, enum region r, int32_t layer, struct err *e);

/* pack.c: under load_lock, but for matrix_of. */
struct matrix {
    const void *data; /* bf16 [rows, cols] */
    int32_t rows, cols;
};
/* The matrix that region r reads in a layer; nothing for embed and attn. */
struct matrix matrix_of(const struct backend *b, enum region r, int32_t layer);
/* Sets l->pack: the copy of its layout, made if it is not there. */
int pack_open(struct backend *b, struct loaded *l, enum region r, struct err *e);
void pack_drop(struct backend *b, struct pack *p);

/* loaded.c */
struct kernel *cuda_load(struct backend *b, const struct kernel_object *o, struct err *e);
/* The same; without `packs` its repacked weights are the caller's business. */
struct kernel *loaded_open(struct backend *b, const struct kernel_object *o, bool packs,
                           struct err *e);
void cuda_unload(struct backend *b, struct kernel *k);
int loaded_region(struct walk *w, const struct kernel *k, enum region r, int32_t layer,
                  struct err *e);
/* Engine thread: frees what no graph refers to any more. `all`: at close. */
void loaded_reap(struct backend *b, bool all);

/* graph.c */
int graph_open(struct backend *b, struct err *e);
void graph_close(struct backend *b);
/* The executable of a choice, or an older one of the same bucket while the builder makes the right
 * one; never one that was made for a canary and nothing else. NULL: neither is there, or the older
 * one has a kernel that was unloaded, or one where eager or an earlier kernel is wanted, which may
 * be because it is wrong; then the step is walked. Never captures. */
struct variant *graph_get(struct backend *b, const struct choice *c);
/* The same for a wide step, of which no other graph will do; asks for one once the same step has
 * come WIDE_REPEATS times in a row. It begins after the block has been copied and leaves no tokens.
 */
struct variant *graph_get_wide(struct backend *b, const struct choice *c);
bool graph_uses(struct backend *b, const struct kernel *k, bool drop);
/* Whether there is a graph of exactly this choice; asks the builder for one if not. */
bool graph_there(struct backend *b, const struct choice *c);
/* The same without asking. */
bool graph_known(struct backend *b, const struct choice *c);

/* The cell that steps of these buckets belong to. */
struct cell *graph_cell(struct backend *b, const struct choice *c);

/* step.c */
bool cuda_ready(struct backend *b, const struct step *s, struct slot *slot, const struct kernel *k);
int cuda_step(struct backend *b, const struct step *s, struct slot *override_slot,
              const struct kernel *override, struct err *e);
int cuda_step_start(struct backend *b, const struct step *s, struct slot *override_slot,
                    const struct kernel *override, struct err *e);
int cuda_step_wait(struct backend *b, const struct step *s, struct err *e);

/* sample.c */
bool sample_plain(const struct step *s);
/* Sets f->samples and f->drawn_there. */
int sample_launch(struct backend *b, struct flight *f, const struct step *s, struct err *e);
void sample_collect(struct backend *b, const struct flight *f, const struct step *s);

/* lab.c */
int cuda_tap(struct backend *b, struct tap *t);
int lab_open(struct backend *b, struct err *e);
void lab_close(struct backend *b);
/* Engine thread. Whether a tap looks at this step: then it is walked with w->look set, and lab_done
 * follows when the stream is idle again (`failed`: the step was not run to its end). */
bool lab_wants(struct backend *b, const struct choice *c);
int lab_before(struct walk *w, enum region r, int32_t layer, struct err *e);
int lab_after(struct walk *w, enum region r, int32_t layer, struct err *e);
void lab_done(struct backend *b, bool failed);
/* A walk whose outputs are the lab's; lab_redirect() poisons region r's. */
void lab_aim(struct walk *w, enum region r);
int lab_redirect(struct walk *w, enum region r, struct err *e);

/* inputs.c: a captured step in the lab's own block and pages; engine thread. Of a wide step a
 * capture has NARROW rows, which are repeated until there are as many as the step had. */
int32_t inputs_width(const struct backend *b, const struct capture *c); /* padded */
/* bf16 inputs of a wide attn_out or mlp_out, where eager wants them; on the walk's stream. */
int inputs_widen(struct walk *w, const struct capture *c, struct err *e);
int inputs_send(struct backend *b, cudaStream_t stream, const struct capture *c, struct err *e);
/* Points a walk over the lab's block at them; `turn` picks a copy of the pages. */
void inputs_aim(struct walk *w, const struct capture *c, int32_t turn);
/* Runs `k` once on them; outputs as malloc'ed rows of floats (attn_in: q, k, v; others one). q and
 * k come in the device's order of RoPE pairs. */
int inputs_run(struct backend *b, const struct kernel *k, const struct capture *c, float *out[3],
               struct err *e);

/* bench.c */
int cuda_bench_begin(struct backend *b, struct bench_job *job, struct err *e);
int cuda_bench(struct backend *b, struct bench_job *job, int64_t budget_ns, struct err *e);
void cuda_bench_end(struct backend *b, struct bench_job *job);

/* rehearse.c */
int cuda_rehearse(struct backend *b, struct rehearsal *r, struct err *e);

/* probe.c */
extern const struct device_probe_ops cuda_probe;

#endif
