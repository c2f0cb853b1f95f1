/* SPDX-License-Identifier: Apache-2.0 */
/* cost.c - the formula. What is learned is in cost_learn.c, how well predictions rank in
 * cost_rank.c.
 *
 * The formula knows knobs by their roles (kernels/roles.def); a template without one of them takes
 * its neutral value, and a role that is not known here is left to learning. On a GPU the formula is
 * bytes over the measured bandwidth, less what is lost with few bytes in flight or an uneven last
 * wave, plus the boundary; attention by ordinary units is counted in iterations of a latency each.
 */
#include "specializer/search/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "config/err.h"
#include "engine/quant.h"
#include "specializer/candidate/hash.h"

/* ---- the formula ---------------------------------------------------------------------------- */

/* Rows and columns of the region's weights taken together; attention reads KV instead, at a
 * context that only scales all of its points alike. */
static void region_matrix(const struct facts *f, double *rows, double *cols)
{
    enum { SOME_CONTEXT = 256 };
    double heads = (double)f->HEADS * f->HEAD_DIM, kv = (double)f->KV_HEADS * f->HEAD_DIM;
    *rows = 1;
    *cols = f->HIDDEN;
    switch ((enum region)f->REGION) {
    case REGION_ATTN_IN:
        *rows = heads + 2 * kv;
        break;
    case REGION_ATTN:
        *rows = 2 * heads;
        *cols = SOME_CONTEXT;
        break;
    case REGION_ATTN_OUT:
        *rows = f->HIDDEN;
        *cols = heads;
        break;
    case REGION_MLP_IN:
        *rows = 2.0 * f->FFN;
        break;
    case REGION_MLP_OUT:
        *rows = f->HIDDEN;
        *cols = f->FFN;
        break;
    case REGION_HEAD:
        *rows = f->VOCAB;
        break;
    case REGION_MLP:
        *rows = 3.0 * f->FFN;
        break;
    case REGION_EMBED:
    case REGION_REDUCE:
        break;
    }
}

static double bytes_per_weight(const struct facts *f)
{
    if (f->REGION == REGION_ATTN || f->WTYPE < 0 || f->WTYPE >= DTYPE_COUNT)
        return 4;
    return (double)dtype_bytes((enum dtype)f->WTYPE, 256) / 256;
}

/* Multiply-adds of an instruction set against those that the peak of its machine was measured with.
 * Portable code is the last that is looked at where there is anything else. */
static double isa_speed(const struct facts *f, int isa, int digits, int parts)
{
    const double portable = f->HAS_AVX2 || f->HAS_NEON ? 0.02 : 1;
    const double f32[] = {portable, 0.5, 1, 1, 1, 1, 1, 1};
    static const double int8[] = {1, 2, 1, 4, 16, 1, 4, 8}; /* products against those of floats */
    const int most = sizeof f32 / sizeof *f32 - 1;
    int i = isa < 0 ? 0 : isa > most ? most : isa;
    /* 64 products a VNNI instruction, 1024 an AMX one, 32 two of AVX2; ARM: 16 and 32 */
    if (digits > 0 && int8[i] > 1)
        return int8[i] / digits;
    if (parts > 0 && i == 4) /* bf16 products, an activation in parts */
        return 8.0 / parts;
    return f32[i];
}

enum { ENOUGH_AHEAD = 4096 }; /* bytes of a stream under way that hide the latency of memory */

static double by_lot(uint64_t seed, const struct template *t, const struct point *p)
{
    uint64_t h = hash_bytes(hash_text(HASH_START ^ seed, t->id), p, sizeof *p);
    return 1e-4 * (1 + 1e-6 * (double)(hash_mix(h) % 10000));
}

static double cpu_formula(const struct cost *c, const struct template *t, const struct point *p,
                          const struct facts *f)
{
    int isa = role_value(t, p, ROLE_ISA), parts = role_value(t, p, ROLE_XPARTS);
    int rows_in = role_value(t, p, ROLE_ROWS);
    int tokens = role_value(t, p, ROLE_TOKENS), digits = role_value(t, p, ROLE_DIGITS);
    int packed = role_value(t, p, ROLE_PACK), prep = role_value(t, p, ROLE_PREP);
    double rows, cols, m = f->M_MAX < 1 ? 1 : f->M_MAX;
    region_matrix(f, &rows, &cols);
    if (tokens > m)
        tokens = (int)m;

    /* Weights come from memory once and are unpacked once for each tile of tokens. */
    double passes = ceil(m / (tokens < 1 ? 1 : tokens));
    double bytes = rows * cols * bytes_per_weight(f) + m * cols * 4;
    double unpack = passes * rows * cols * (packed ? 0.5 : f->WTYPE >= DTYPE_Q8_0 ? 6 : 1);

    /* Eight independent sums keep two pipes with four cycles of latency busy; each digit of an
     * activation is a sum of its own. */
    double sums = fmax(rows_in, 1) * fmax(tokens, 1) * fmax(digits, 1);
    double in_flight = fmin(1, sums / 8);
    double speed = isa_speed(f, isa, digits, parts);
    double operations = 2 * m * rows * cols / (speed * fmax(in_flight, 0.1)) +
                        unpack / fmin(speed, 1) + digits * m * cols * 4;

    /* Rows are dealt to threads in groups; the slowest thread decides. */
    double group = (rows_in < 1 ? 1 : rows_in) * (packed ? 16 : 1);
    double groups = ceil(rows / group);
    double imbalance = ceil(groups / c->threads) * c->threads / fmax(groups, 1);

    /* Loads and arithmetic overlap, but not wholly: a part of the smaller cost still shows. A core
     * that only asks for what it is about to use waits for memory: hardware looks ahead within a
     * page, software as far as it says. */
    double prefetch =
        role_value(t, p, ROLE_PREFETCH_BYTES) + 4096.0 * role_value(t, p, ROLE_PREFETCH_PAGES);
    double ahead = fmin(prefetch, ENOUGH_AHEAD) / ENOUGH_AHEAD;
    double load_s = bytes / (c->machine->read_bandwidth * (0.5 + 0.5 * ahead));
    double work_s = operations / c->machine->peak_flops;
    double seconds = fmax(load_s, work_s) + 0.3 * fmin(load_s, work_s);
    return seconds * imbalance + c->machine->boundary_s * (prep ? 2 : 1);
}

/* ---- on a GPU ------------------------------------------------------------------------------- */

/* Memory answers after this long. Little's law: a multiprocessor must have asked for its share of
 * the measured bandwidth times that, or less than the bandwidth is reached. */
static const double latency_s = 0.9e-6;

/* Rows or tiles are dealt to blocks, blocks to multiprocessors: the share of the last wave used. */
static double wave_share(double blocks, double places)
{
    return blocks / (ceil(blocks / fmax(places, 1)) * fmax(places, 1));
}

/* What is kept of the bandwidth when a multiprocessor has `flight` bytes on their way and should
 * have `times` what Little's law asks for; with next to nothing, `least` of it. */
static double kept_bandwidth(const struct cost *c, const struct facts *f, double flight,
                             double times, double least)
{
    double wanted = times * c->machine->read_bandwidth * latency_s / f->SMS;
    return c->machine->read_bandwidth * (least + (1 - least) * fmin(1, flight / wanted));
}

enum { SHARED = 227 * 1024 }; /* bytes that the blocks of a multiprocessor can have */

/* How a kernel for one to four tokens lies on the device. A ring is STAGES steps of each warp in
 * shared memory, and a kernel without one has a step in registers. */
struct gemv_shape {
    double warps, m, tiles, blocks,
        fit;              /* of a block; tokens; of all; of all; blocks an SM can hold */
    double split;         /* blocks that share K */
    double steps, flight; /* of a warp and row; bytes on their way to an SM */
    bool ring, in_registers, walks;
};

static struct gemv_shape gemv_shape(const struct template *t, const struct point *p,
                                    const struct facts *f, double rows, double cols)
{
    enum { BLOCKS_MOST = 32, WARPS_RESIDENT = 48, CHUNK = 256 };
    double step = CHUNK * bytes_per_weight(f);
    double kw = role_value(t, p, ROLE_KW), rw = role_value(t, p, ROLE_RW),
           stages = role_value(t, p, ROLE_STAGES);
    double each = role_value(t, p, ROLE_ROWS), persist = role_value(t, p, ROLE_PERSIST);
    struct gemv_shape g = {.warps = kw * rw, .m = fmax(1, f->M_MAX), .ring = stages > 0};
    double unroll = fmin(role_value(t, p, ROLE_UNROLL), cols / CHUNK / kw);
    double waiting = g.warps * step * each * unroll * fmax(1, stages);
    g.in_registers = role_value(t, p, ROLE_XREGS) > 0;
    g.walks = persist > 0;
    g.tiles = ceil(rows / (each * rw));
    g.split = fmax(1, role_value(t, p, ROLE_K_SPLIT));
    cols /= g.split;
    g.blocks = (g.walks ? fmin(g.tiles, floor(persist * f->SMS / g.split)) : g.tiles) * g.split;
    g.fit = fmin(BLOCKS_MOST, floor(WARPS_RESIDENT / g.warps));
    if (g.ring)
        g.fit = fmin(g.fit, floor(SHARED / (waiting + (g.in_registers ? 0 : cols * 4 * g.m))));
    g.fit = fmax(1, g.fit);
    g.steps = fmax(1, ceil(cols / CHUNK / kw / unroll));
    g.flight = fmin(ceil(g.blocks / f->SMS), g.fit) * waiting;
    return g;
}

/* One to four tokens on ordinary units. Weights are read once, and a few microseconds of work are
 * easily doubled by what is around them: each block brings x from L2 into shared memory, in batches
 * of eight loads a thread, each tile ends with sums over warps and a barrier, and every step in a
 * row waits a little. The factors are those of an H200 (docs/ablation.md), chosen on two slots;
 * what a ring costs is that of whole steps
 * (docs/lab/2026-11-22-gpu-templates.md). */
static double gemv_s(const struct cost *c, const struct template *t, const struct point *p,
                     const struct facts *f, double rows, double cols)
{
    enum { BATCH = 8, LANES = 32 };
    struct gemv_shape g = gemv_shape(t, p, f, rows, cols);
    double bytes = rows * cols * bytes_per_weight(f);
    double seconds = bytes / kept_bandwidth(c, f, g.flight, 3.5, 0.7);
    if (g.blocks > f->SMS)
        seconds *= 1 + 0.5 * (1 / wave_share(g.blocks, f->SMS) - 1);
    if (g.ring)
        seconds *= 1.1; /* every weight goes through shared memory, and steps are waited for */
    double own = cols / g.split; /* of x, of a block */
    double x_bytes = g.blocks * own * 4 * g.m * (g.in_registers ? role_value(t, p, ROLE_RW) : 1);
    double batches = g.in_registers ? 1 : ceil(own * g.m / (4 * g.warps * LANES * BATCH));
    double next = role_value(t, p, ROLE_NEXT) * 1048576.0; /* pays in the step, not here */
    double iterations =
        g.walks ? ceil(g.tiles * g.split / g.blocks) : 0.3 * fmax(1, g.blocks / (f->SMS * g.fit));
    seconds += g.split > 1 ? 0.6e-6 : 0; /* its blocks meet */
    seconds += (1.3 * x_bytes + 0.5 * next) / c->machine->read_bandwidth;
    seconds += 0.12e-6 * batches + 0.4e-6 * iterations + 0.09e-6 * g.steps;
    return fmax(seconds, 2 * g.m * rows * cols / (c->machine->peak_flops * 0.05));
}

/* How a kernel on tensor cores lies on the device: PERSIST deals units evenly to clusters. */
struct mma_shape {
    double warps, wide, split,
        persist;                    /* of a block; tiles of a unit; blocks of a cluster; an SM */
    double units, clusters, tokens; /* tokens: with what fills the last tile */
};

static struct mma_shape mma_shape(const struct template *t, const struct point *p,
                                  const struct facts *f, double rows)
{
    struct mma_shape g = {.warps = role_value(t, p, ROLE_WARPS),
                          .wide = role_value(t, p, ROLE_TILES),
                          .split = role_value(t, p, ROLE_K_SPLIT),
                          .persist = role_value(t, p, ROLE_PERSIST),
                          .tokens = 8 * ceil(fmax(1, f->M_MAX) / 8)};
    g.units = ceil(rows / (16 * g.wide));
    double most = floor((f->SMS - role_value(t, p, ROLE_SPARE)) / g.split) * g.persist;
    double lines = g.warps / role_value(t, p, ROLE_KW); /* of warps with units of their own */
    g.clusters = g.persist > 0 ? fmax(1, fmin(most, g.units)) : ceil(g.units / lines);
    return g;
}

/* Weights as they come: how many bytes are on their way, and how evenly the tiles fall on the
 * multiprocessors. */
static double mma_stream_s(const struct cost *c, const struct template *t, const struct point *p,
                           const struct facts *f, const struct mma_shape *g, double bytes)
{
    double each = g->wide * 16 * 64 / 32 * role_value(t, p, ROLE_UNROLL) * 32;
    double blocks = g->clusters * g->split, room = f->SMS * fmax(1, g->persist);
    double resident = g->persist > 0 ? g->persist : fmax(1, floor(2048 / (g->warps * 32 * 2)));
    double flight = fmin(resident, ceil(blocks / f->SMS)) * g->warps * each *
                    (1 + role_value(t, p, ROLE_STAGES));
    /* Clusters of four and more never take the last multiprocessors: some would wait for the end of
     * others. A second wave of small work starts as blocks of the first end, so only a part of its
     * imbalance shows. */
    double waits = g->split >= 4 && blocks > 0.95 * room ? 2 : 1;
    double uneven = g->persist > 0 ? waits * g->clusters * ceil(g->units / g->clusters) / g->units
                                   : 1 + 0.5 * (1 / wave_share(blocks, room) - 1);
    return bytes / kept_bandwidth(c, f, flight, 1, 0.4) * uneven;
}

/* On tensor cores the stream of weights, the products and what these read of x from shared memory
 * overlap; before them each cluster brings all of x from L2, behind them its blocks exchange sums
 * of every row and token. Both grow with the tokens, and decide at 32 to 64 of them (mma.cu). */
static double mma_s(const struct cost *c, const struct template *t, const struct point *p,
                    const struct facts *f, double rows, double cols)
{
    static const double shared_bandwidth = 200e9, l2 = 1.3; /* of an SM; over that of memory */
    struct mma_shape g = mma_shape(t, p, f, rows);
    double terms = role_value(t, p, ROLE_TERMS), again = role_value(t, p, ROLE_NORMED) == 1 ? 2 : 1;
    double loads = mma_stream_s(c, t, p, f, &g, rows * cols * 2);
    double work = 2 * g.tokens * terms * rows * cols / (c->machine->peak_flops * 0.5);
    double reads = rows * cols / (16 * g.wide) * g.tokens * terms * 2 / (f->SMS * shared_bandwidth);
    double x = g.clusters * g.tokens * cols * 4 * again / (c->machine->read_bandwidth * l2);
    double sums = g.split > 1 ? rows * g.tokens * 4 / c->machine->read_bandwidth : 0;
    double passes = ceil(g.units / g.clusters / g.warps), round = role_value(t, p, ROLE_REDUCE);
    if (round > 0) /* a barrier each, and the first weights after it are there by then */
        sums += 0.8e-6 * (ceil(passes / round) - 1);
    work = fmax(work, reads);
    return fmax(loads, work) + 0.2 * fmin(loads, work) + x + sums;
}

/* Products of many tokens out of shared memory: a step of 64 columns, or of 128 of e4m3, takes as
 * long as tensor cores multiply, or as its bytes come from L2, where CLUSTER blocks share those of
 * the activations; tiles go to clusters in rounds, and a part of K for each of SPLIT blocks ends
 * with an exchange of sums. */
static double wide_s(const struct cost *c, const struct template *t, const struct point *p,
                     const struct facts *f, double rows, double cols)
{
    enum { ROWS_OF_A_PRODUCT = 64, ROW_BYTES = 128, SOME_STAGES = 4 };
    const double step_cols = role_value(t, p, ROLE_OPERANDS) ? 128 : 64; /* in as many clocks */
    static const double l2 = 1.7, fill_s = 2e-6; /* over the bandwidth of memory; of a pipeline */
    double m = fmax(1, f->M_MAX), tokens = role_value(t, p, ROLE_TOKENS);
    double here = ROWS_OF_A_PRODUCT * role_value(t, p, ROLE_TILES) * role_value(t, p, ROLE_WARPS);
    double split = role_value(t, p, ROLE_K_SPLIT), shared = role_value(t, p, ROLE_CLUSTER);
    double places = floor((f->SMS - role_value(t, p, ROLE_SPARE)) / (split * shared));
    double rounds = ceil(ceil(rows / here / shared) * ceil(m / tokens) / fmax(1, places));
    double work = 2 * here * tokens * 64 / (c->machine->peak_flops / f->SMS);
    double loads =
        (here + tokens / shared) * ROW_BYTES / (c->machine->read_bandwidth * l2 / f->SMS);
    double steps = rounds * ceil(cols / step_cols / split);
    double seconds = fmax(steps * fmax(work, loads), rows * cols * 2 / c->machine->read_bandwidth);
    if (split > 1)
        seconds += rounds * (1e-6 + here * tokens * 4 * f->SMS / (c->machine->read_bandwidth * l2));
    seconds *= 1 + 0.02 * fmax(0, SOME_STAGES - role_value(t, p, ROLE_STAGES));
    return seconds + rounds * here * tokens * 4 * f->SMS / (4 * c->machine->read_bandwidth) +
           fill_s;
}

/* Weights as columns of an instruction: what a block has waiting in shared memory is on its way,
 * and a block has one tile of ROWS. Beside them comes x, once a block out of L2; with PREP a launch
 * before makes it, and SPLIT blocks end with an exchange of sums. Products take less until some 200
 * tokens. */
static double skinny_s(const struct cost *c, const struct template *t, const struct point *p,
                       const struct facts *f, double rows, double cols)
{
    static const double l2 = 1.5, launch_s = 1.7e-6, sums_s = 1.2e-6;
    double tokens = 64 * ceil(fmax(1, f->M_MAX) / 64), each = role_value(t, p, ROLE_ROWS);
    double split = fmax(1, role_value(t, p, ROLE_K_SPLIT)), blocks = ceil(rows / each) * split;
    double step = each * 128,
           fit = floor(SHARED / (role_value(t, p, ROLE_STAGES) * (step + tokens * 128)));
    double room = f->SMS * fmax(1, fit) * (split >= 4 ? 0.93 : 1); /* as in mma_stream_s() */
    double waves = ceil(blocks / room), bytes = rows * cols * 2;
    double flight =
        fmin(ceil(blocks / f->SMS), fmax(1, fit)) * role_value(t, p, ROLE_STAGES) * step;
    double loads = bytes / kept_bandwidth(c, f, flight, 3, 0.4);
    loads *= waves > 1 ? waves * room / blocks : 1;
    double work = 2 * tokens * rows * cols / (c->machine->peak_flops * 0.8);
    double x = blocks * cols / split * tokens * 2 / (c->machine->read_bandwidth * l2);
    double sums = split > 1 ? sums_s + rows * tokens * 4 / c->machine->read_bandwidth : 0;
    double most = fmax(loads, work);
    double prep = role_value(t, p, ROLE_PREP) * launch_s;
    return most + 0.2 * (loads + work - most) + 0.5 * x + sums + prep;
}

/* A product of the library's: near what memory and tensor cores allow, and the library has put its
 * algorithms in order. */
static double library_s(const struct cost *c, const struct template *t, const struct point *p,
                        const struct facts *f, double rows, double cols)
{
    double m = fmax(1, f->M_MAX), bytes = rows * cols * 2 + m * (rows + cols) * 4;
    double loads = bytes / (c->machine->read_bandwidth * 0.75);
    double work = 2 * m * rows * cols / (c->machine->peak_flops * 0.9);
    double later = role_value(t, p, ROLE_RANK) + 2 * (role_value(t, p, ROLE_ASK) > 0) +
                   role_value(t, p, ROLE_K_SPLIT) * m / 64;
    return (fmax(loads, work) + 0.2 * fmin(loads, work)) * (1 + 0.005 * later);
}

static double projection_s(const struct cost *c, const struct template *t, const struct point *p,
                           const struct facts *f, double rows, double cols)
{
    if (t->library)
        return library_s(c, t, p, f, rows, cols);
    if (template_role(t, ROLE_TOKENS) >= 0)
        return wide_s(c, t, p, f, rows, cols);
    if (template_role(t, ROLE_ROWS) >= 0 && template_role(t, ROLE_RW) < 0)
        return skinny_s(c, t, p, f, rows, cols);
    return template_role(t, ROLE_TILES) >= 0 ? mma_s(c, t, p, f, rows, cols)
                                             : gemv_s(c, t, p, f, rows, cols);
}

/* Blocks of attention that a multiprocessor holds, by registers as cubins have them. */
static double attention_room(const struct facts *f, double warps, double heads, double piece,
                             double stages)
{
    enum { REGISTERS = 65536, LANES = 32, BLOCKS_MOST = 32, OWN = 48 };
    double each = heads * 16 + piece * stages * f->HEAD_DIM / 32 + OWN;
    return fmax(1, fmin(BLOCKS_MOST, floor(REGISTERS / (each * warps * LANES))));
}

/* Attention at the contexts of small buckets is latency: pages in turn, then partial sums. With
 * many tokens it is bytes, if as many blocks run at once as it takes to ask for them. */
static double attention_s(const struct cost *c, const struct template *t, const struct point *p,
                          const struct facts *f)
{
    enum { SOME_CONTEXT = 512 };
    double splits = role_value(t, p, ROLE_SPLITS), warps = role_value(t, p, ROLE_WARPS);
    double piece = role_value(t, p, ROLE_PIECE), stages = role_value(t, p, ROLE_PIECES);
    double parts = role_value(t, p, ROLE_PARTS), m = fmax(1, f->M_MAX);
    double blocks = splits * f->KV_HEADS * parts * m;
    double room = attention_room(f, warps, f->HEADS / (f->KV_HEADS * parts), piece, stages);
    double iterations = ceil(SOME_CONTEXT / (splits * warps * piece)), latency = 0.8e-6;
    double waves = ceil(blocks / (f->SMS * room));
    double merge = splits > 1 ? role_value(t, p, ROLE_MERGE) ? 0.4e-6 : 0.8e-6 : 0;
    double chain = waves * (iterations * latency / fmin(stages, 2) + merge);
    double loads = 4.0 * SOME_CONTEXT * f->KV_HEADS * f->HEAD_DIM * m / c->machine->read_bandwidth;
    return fmax(chain, loads) + 0.2 * fmin(chain, loads);
}

/* Attention on tensor cores is bytes, unless a warp has many pages to multiply one after the other.
 * Pages wait in shared memory, or one a warp in registers, of which a thread has about HEAD_DIM. */
static double attention_mma_s(const struct cost *c, const struct template *t, const struct point *p,
                              const struct facts *f)
{
    enum { SOME_PAGES = 32, SUMS = 5 * 1024, BLOCKS_MOST = 32, REGISTERS = 65536 };
    double splits = role_value(t, p, ROLE_SPLITS), warps = role_value(t, p, ROLE_WARPS);
    double stages = role_value(t, p, ROLE_STAGES), page = 64.0 * f->HEAD_DIM, m = fmax(1, f->M_MAX);
    double persist = role_value(t, p, ROLE_PERSIST); /* blocks that all pages are dealt to */
    double blocks = persist > 0 ? persist * f->SMS : splits * f->KV_HEADS * m;
    double iterations = ceil(SOME_PAGES * f->KV_HEADS * m / (blocks * warps));
    double fit = stages > 0 ? floor(SHARED / (warps * stages * page + SUMS))
                            : floor(REGISTERS / (warps * 32 * (f->HEAD_DIM + 40.0)));
    double room = fmax(1, fmin(BLOCKS_MOST, fit)) * f->SMS;
    double flight = fmin(blocks, room) / f->SMS * warps * fmin(fmax(1, stages), iterations) * page;
    double uneven = blocks > room ? 1 + 0.5 * (1 / wave_share(blocks, room) - 1) : 1;
    double bytes = page * SOME_PAGES * f->KV_HEADS * m;
    double loads = bytes / kept_bandwidth(c, f, flight, 2, 0.2) * uneven;
    double work = ceil(blocks / room) * (latency_s + iterations * 0.4e-6);
    bool parts = splits > 1 || persist > 0;
    double merge = parts ? role_value(t, p, ROLE_MERGE) ? 0.4e-6 : 0.8e-6 : 0;
    return fmax(loads, work) + 0.2 * fmin(loads, work) + merge;
}

static double cuda_attention_s(const struct cost *c, const struct template *t,
                               const struct point *p, const struct facts *f)
{
    return template_role(t, ROLE_PIECE) >= 0 ? attention_s(c, t, p, f)
                                             : attention_mma_s(c, t, p, f);
}

/* Sums of ranks: every shot goes over the link once, and a thread's items come in batches, one
 * after the other. The link's rate is what the largest sums took (docs/scaling.md, two H100); all
 * else is reckoned. */
static double peers_s(const struct template *t, const struct point *p, const struct facts *f)
{
    static const double bytes[] = {8, 128.0 / 30, 4, 4}; /* of a number, by how it travels */
    static const double link = 2e11, over_s = 1.2e-6, flag_s = 1e-6, batch_s = 0.6e-6;
    int way = (int)role_value(t, p, ROLE_WAY);
    double shots = role_value(t, p, ROLE_SHOTS), blocks = role_value(t, p, ROLE_GRID);
    double all = (double)f->M_MAX * f->HIDDEN * bytes[way];
    double batch = 32 * blocks * role_value(t, p, ROLE_WARPS) * role_value(t, p, ROLE_UNROLL);
    double batches = ceil(all / 16 / shots / batch);
    return all / link + shots * (over_s + (way == 2 ? flag_s : 0) + batches * batch_s) +
           5e-9 * blocks;
}

static double cuda_formula(const struct cost *c, const struct template *t, const struct point *p,
                           const struct facts *f)
{
    double rows, cols;
    region_matrix(f, &rows, &cols);
    double s = f->REGION == REGION_ATTN     ? cuda_attention_s(c, t, p, f)
               : f->REGION == REGION_REDUCE ? peers_s(t, p, f)
                                            : projection_s(c, t, p, f, rows, cols);
    return s + c->machine->boundary_s;
}

double cost_formula(const struct cost *c, const struct template *t, const struct point *p,
                    const struct facts *f)
{
    if (c->blind)
        return by_lot(c->blind, t, p);
    static double (*const formula[])(const struct cost *, const struct template *,
                                     const struct point *, const struct facts *) = {
        [MACHINE_CPU] = cpu_formula, [MACHINE_CUDA] = cuda_formula};
    return formula[t->machine](c, t, p, f);
}
