/* SPDX-License-Identifier: Apache-2.0 */
/* probe_private.h - the inside of a device probe, shared by engine/cuda/probe*.c.
 *
 *   probe.c           the process's session; opening and closing the probe of one kernel
 *   probe_runs.c     a case: runs of the kernel under test, what must hold after each, batches
 *   probe_case.c      sequences and parameters of a case
 *   probe_contents.c  its activations and pages, and how they get where the kernel reads them
 *   probe_reduce.c    kernels that ranks run together, which share nothing with the above
 *   probe_sums.c      projections that add other ranks' numbers, which the probe plays
 *   probe_truth.c     the same inputs through eager and the oracle; outputs, kept and as rows
 *
 * A step of a wide slot has more rows than there is time to look at. So it has NARROW rows that are
 * drawn, judged and compared with the oracle, and all others are copies of them: what a kernel
 * makes of a copy must be what it made of the original, up to the order of a sum. Attention, which
 * has up to DECODE_MOST rows and no weights to multiply, has none: rows_seen().
 */
#ifndef WHET_ENGINE_CUDA_PROBE_PRIVATE_H
#define WHET_ENGINE_CUDA_PROBE_PRIVATE_H

#include "engine/cuda/cuda_backend.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/loaded.h"
#include "engine/cuda/memory.h"
#include "engine/device_probe.h"
#include "kernels/probe_args.h"

/* Device memory between two bands that nothing may write to. All memory that is nobody's has the
 * same value: no number, whether it is read as float or as bf16. */
enum { BAND = 4096, SPARE_PAGES = 2, SPARE_ROWS = 3 };
#define BAND_VALUE 0xffa5ffa5u
struct held {
    char *base, *data;
    int64_t bytes;
};

/* The step of a case, in host memory: m rows, and copies of them up to `all`, whose keys and values
 * have pages of their own behind the others. */
struct sequences {
    int32_t m, rows, spans, context, pages, table_n;
    int32_t all, all_pages;
    struct span span[DECODE_MOST];
    int32_t position[DECODE_MOST], kv_at[DECODE_MOST], pages_at[DECODE_MOST], row[DECODE_MOST];
    int32_t *table;
};

enum tool {
    TOOL_FILL,
    TOOL_BRICKS,
    TOOL_POISON,
    TOOL_PAGES,
    TOOL_PRODUCE,
    TOOL_DIFFER,
    TOOL_SUM,
    TOOL_HALVES,
    TOOL_ROWS,
    TOOL_PRODUCT,
    TOOL_HEADS,
    TOOL_FINISH,
    TOOL_ATTN,
    TOOLS
};

/* What is counted on the device after a run. */
enum tally { TALLY_BANDS, TALLY_BITS, TALLY_INPUTS, TALLY_COUNTERS, TALLY_HALVES, TALLIES };
/* Behind them two checksums, and what eager_compare says of copies in four words. */
enum { TALLY_COPIES = TALLIES + 2, TALLY_ALL = TALLIES + 4 };

/* What the process has as long as it lives. Memory is one piece, dealt out anew to each probe. */
struct device_session {
    struct backend
        base; /* device, streams, own kernels, cuBLASLt: what a probe's backend begins as */
    struct device_slices slices;
    struct arena memory, pinned;
    cudaLibrary_t library[2];
    cudaKernel_t tool[TOOLS];
    cudaEvent_t done;
};

/* Outputs of a case that wait on the device to be fetched, [content][eager]. */
struct kept {
    struct device_case c;
    struct sequences s;
    struct held_rows {
        char *y, *k, *v;
    } rows[2][2];
    char *best[2], *truth[2], *scores[2];
};
enum { BATCH_MOST = 64 };

struct device_probe {
    struct device_session *session;
    struct device_probe_options o;
    struct backend *b;
    struct kernel *kernel;
    struct loaded *loaded;
    struct pack pack; /* stands for one of the server's: the copy is in `packed` */
    int32_t layers;   /* of the reduced model; index `layers` is the layer of drawn parameters */

    /* Live: what kernels are given. Staged: what their predecessor will write there. */
    struct held x, in, k, v; /* k, v: attn reads them, attn_in writes them */
    struct held stage_x, stage_in, stage_k, stage_v;
    struct held y, best, work, packed;  /* y: the float output */
    struct held y16;                    /* the same in bf16, of a kernel that leaves that, too */
    struct held keep_y, keep_k, keep_v; /* outputs of the first run */
    struct held drawn;                  /* the region's matrix of a case with drawn parameters */
    struct held gains;                  /* its vectors */
    struct held in64, raw64, out64;     /* of the oracle */
    struct held segments, small;        /* small: delay, tallies, sums */
    struct arena shelf;                 /* outputs of a batch of cases */
    unsigned long long *tally_host;     /* [TALLY_ALL] */
    struct probe_differ_args jobs;      /* being collected */
    int32_t job_n;
    int64_t x_bytes, in_bytes, y_cols;
    int32_t room; /* rows of x and of inputs: NARROW, or the slot's padded tokens */
    struct device_layer real_head; /* wqkv: the model's head; attn_norm: its final norm */

    struct sequences s;
    struct device_case c;
    int32_t layer;     /* that the case runs in */
    int32_t page_room; /* pages of k and v */
    int32_t segments_n, resets_n;
    cudaGraphExec_t graph[2]; /* with edges as the kernel declares, and with full ones */
    bool pages_staged; /* a captured case's pages are there; nothing but the case changes them */
    bool dead;         /* a kernel did not end */
};

int64_t page_bytes(const struct device_probe *p);
/* The delay, the tallies and the sums in p->small. */
unsigned *probe_delay(const struct device_probe *p);
unsigned long long *probe_tally(const struct device_probe *p, int i);
int tool_launch(const struct device_probe *p, enum tool t, dim3 grid, int threads, const void *args,
                bool early, struct err *e);
/* Collects a comparison; differ_launch() runs all that were collected. */
void differ(struct device_probe *p, enum tally t, const void *a, const void *b, int64_t bytes,
            unsigned value);
int differ_launch(struct device_probe *p, struct err *e);
void slice_begin(const struct device_probe *p);
bool slice_over(const struct device_probe *p);
void slice_end(const struct device_probe *p);

/* probe_runs.c */
/* Bytes that the outputs of a case of m tokens take on the shelf. */
int64_t shelf_bytes(const struct device_probe *p, int32_t m, int contents);
enum device_verdict probe_run(struct device_probe *p, const struct device_case *c, int n,
                              struct device_outcome *out, int *done, int *failed, struct err *e);
enum device_verdict probe_finish(struct device_probe *p, struct err *e);

/* probe_case.c. A case: its sequences, block and parameters; everything but the contents. */
int case_sequences(struct device_probe *p, struct err *e);
int case_params(struct device_probe *p, struct err *e);
struct matrix case_matrix(const struct device_probe *p);
/* n numbers of a kind (enum probe_fill) at `to`, on the stream; `half`: as bf16. `cols`: of a row.
 */
int case_fill(const struct device_probe *p, void *to, int64_t n, int32_t cols, int kind,
              float scale, bool half, uint64_t seed, struct err *e);
/* Whether what the kernel made of copies is what it made of their originals, into TALLY_COPIES. */
int case_copies(struct device_probe *p, struct err *e);
/* Sum over everything that the kernel may only read (weights, gains, packed weights) into the tally
 * TALLIES + which. */
int case_checksum(struct device_probe *p, int which, struct err *e);

/* probe_contents.c */
/* Puts content 0 or 1 into the staged memory. */
int case_stage(struct device_probe *p, int content, struct err *e);
/* What the producer copies and poisons, and what is reset before it. */
int case_segments(struct device_probe *p, struct err *e);
/* A walk over the live memory. */
void case_walk(struct device_probe *p, struct walk *w, struct kernel_choice *choice);

/* probe_reduce.c */
enum device_verdict probe_reduce(struct device_session *s, const struct device_reduce *q,
                                 int32_t *calls, bool *spent, struct err *e);

/* probe_sums.c. After the last case, in a slice. */
enum device_verdict probe_sums(struct device_probe *p, struct err *e);

/* probe_truth.c */
/* Seconds that all runs of a case may take; a test under a tool that slows kernels sets more. */
extern double probe_hang_s;
/* Waits for the stream; DEVICE_FAULT: it did not end, or the context broke. */
enum device_verdict probe_wait(struct device_probe *p, double limit_s, const char *what,
                               struct err *e);
/* Puts what the last run left onto the shelf. */
int outcome_keep(struct device_probe *p, struct kept *kept, int content, bool eager, struct err *e);
/* Eager and the oracle on content `content`, kept as well. */
int outcome_reference(struct device_probe *p, struct kept *kept, int content, struct err *e);
/* From the shelf to the host; DEVICE_FAULT: the outputs contradict themselves. */
enum device_verdict outcome_fetch(struct device_probe *p, const struct kept *kept,
                                  struct device_outcome *out, struct err *e);

#endif
