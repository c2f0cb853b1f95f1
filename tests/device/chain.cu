/* SPDX-License-Identifier: Apache-2.0 */
// chain.cu - a whole decode step made of the CUDA templates: is it right, and how fast can it be?
//
//   chain [--model 0,1,2,3] [--batch 1,8,32] [--context 512] [--root DIR] [--threads 14]
//         [--seconds 90] [--quick] [--fine] [--families] [--carveout PERCENT] [--log FILE]
//         [--attn-mma] [--only REGION] [--format DTYPE] [--brick-mma] [--fixed KNOBS]
//         [--points FILE]
//
// Builds the step of Llama-3.2-1B, Qwen3-1.7B, 4B, 0.6B, Llama-3.2-3B, Llama-3.1-8B, of a rank's
// half of Qwen3-4B or Llama-3.1-8B, or of its quarter (--model 0 to 9), with random bf16 weights as
// one graph with programmatic edges, five kernels a layer and the head, each compiled from
// kernels/cuda/*.cu by NVRTC (chain_step.hpp). Every variant is compared with reference.cuh on its
// region before it is timed, and the step's logits in the end (chain_check.hpp). Then a coordinate
// search on the time of the whole step (chain_search.hpp), in stages that unlock one group of knobs
// after another, so that the table says what each is worth; --fine searches near the start only,
// --quick does not search. --families searches with each family of gemv alone, and then lets each
// region choose.
// --format: weights in bricks of this format (a number of enum dtype), and brick.cu,
// or with --brick-mma brick_mma.cu.
// --fixed: knobs of the projections that are the same in all points ("REGS=48").
// --points: no search. Lines "MODEL BATCH REGION FAMILY KNOBS" of FILE, FAMILY mma or mma_block and
// BATCH above 4: each is timed in the step of its model in place of what the region starts with.
// Then the step with the fastest of each region.
// --attn-mma takes attn_mma for attention; --only searches points of one region (0 to 5), the
// others stay at their starts.
#include "tests/device/chain_search.hpp"

static const int order[] = {1, 3, 5, 4, 0, 2}; // of regions, in a pass

struct stage {
    const char *what, *knobs;
    int random;
};

static const stage gemv_stages[] = {
    {"rows, unroll, warps, trigger", "ROWS UNROLL RW TRIGGER SPLITS WARPS", 0},
    {"+ attention: pieces, early, next",
     "MERGE EARLY SPLITS WARPS PIECE PARTS STAGES NEXT NEXT_LATE TRIGGER", 60},
    {"+ blocks that walk", "ROWS UNROLL RW TRIGGER PERSIST", 60},
    {"+ K over warps, x in registers", "ROWS UNROLL RW TRIGGER KW XREGS PERSIST CLUSTER LOAD", 60},
    {"+ L2 prefetch, load policy", "TRIGGER PREFETCH NEXT NEXT_LATE LOAD PERSIST", 10},
    {"+ second pass", "", 40},
};
static const stage mma_stages[] = {
    {"attention", "SPLITS MERGE EARLY WARPS PIECE PARTS STAGES TRIGGER", 40},
    {"+ tiles, unroll, warps, K over a cluster",
     "TILES UNROLL WARPS TRIGGER SPLIT PERSIST SPARE NORMED REDUCE", 30},
    {"+ staged weights", "TILES UNROLL WARPS TRIGGER SPLIT PERSIST SPARE STAGE", 30},
    {"+ L2 prefetch, load policy", "TRIGGER SPLIT PERSIST SPARE STAGE PREFETCH LOAD", 10},
    {"+ second pass",
     "TILES UNROLL WARPS TRIGGER SPLIT PERSIST SPARE NORMED REDUCE STAGE PREFETCH LOAD MEET SPLITS "
     "MERGE "
     "EARLY PIECE PARTS STAGES",
     20},
};

struct options {
    std::vector<int> models = {0, 1, 2}, batch = {1};
    int context = 512, threads = 14, carveout = -1, format = DTYPE_BF16,
        seconds = 90, // of search for a model and batch
        only = -1;    // region that is searched
    bool quick = false, fine = false, families = false, attn_mma = false, brick_mma = false;
    std::string root = ".", fixed, points;
    FILE *log = nullptr;
};

static bool begin(search &f, const family &projections, const options &o)
{
    const family &attend = o.attn_mma ? attention_mma : attention;
    for (int r = 0; r < REGIONS; r++)
        if (!f.begin(r, regions[r] == REGION_ATTN ? attend : projections)) {
            printf("%s M=%d %s: no usable point of %s\n", f.s.m.name, f.s.M, region_names[r],
                   projections.name);
            return false;
        }
    return true;
}

// Passes over all regions until time is over, a few points of each at a time.
static void passes(search &f, double seconds, const char *knobs, int only = -1)
{
    enum { RANDOM = 12, AT_A_TIME = 24 };
    clock_limit until(seconds);
    while (!until.over())
        for (int r : order)
            if (only < 0 || r == only)
                f.attempt(r, f.some(f.around(r, knobs, RANDOM), AT_A_TIME), until);
}

static void by_stages(search &f, const options &o, bool wide)
{
    const stage *stages = wide ? mma_stages : gemv_stages;
    int n = wide ? std::size(mma_stages) : std::size(gemv_stages);
    clock_limit until(o.seconds);
    for (int i = 0; i < n; i++) {
        for (int r : order) // ahead of time
            for (auto &k : f.around(r, stages[i].knobs, 0))
                f.cc.ask(k.f->t, f.sh[r], k.p);
        for (int r : order) {
            f.attempt(r, f.around(r, stages[i].knobs, stages[i].random), until);
            if (i > 0)
                f.attempt(r, f.around(r, stages[i].knobs, 0), until);
        }
        f.row(stages[i].what);
    }
}

// ---- points by name --------------------------------------------------------------------------

static std::vector<std::pair<int, pick>> named(const step &s, const std::string &path)
{
    std::vector<std::pair<int, pick>> v;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        std::stringstream words(line);
        std::string name, region, f, knobs;
        int M = 0, r = 0;
        words >> name >> M >> region >> f;
        std::getline(words, knobs);
        while (r < REGIONS && region != region_names[r])
            r++;
        const family *of = f == mma.name ? &mma : f == mma_block.name ? &mma_block : nullptr;
        if (name == s.m.name && M == s.M && r < REGIONS && of)
            v.push_back({r, {of, of->t->with(of->t->defaults(), knobs)}});
    }
    return v;
}

// Each beside the step as it starts, by turns, and then the fastest of every region together.
static void by_name(search &f, const options &o)
{
    auto points = named(f.s, o.points);
    double most[REGIONS] = {};
    pick fastest[REGIONS];
    std::copy(f.best, f.best + REGIONS, fastest);
    for (auto &[r, k] : points)
        if (const char *why = k.f->t->legal(f.sh[r], k.p))
            printf("    %-9s %s: %s\n", region_names[r], f.text(k).c_str(), why);
        else
            f.cc.ask(k.f->t, f.sh[r], k.p);
    for (auto &[r, k] : points) {
        kernel_choice now, c;
        if (k.f->t->legal(f.sh[r], k.p) || !f.with(-1, {}, &now) || !f.with(r, k, &c))
            continue;
        double gain[3], us = 1e9, old = 1e9;
        for (double &g : gain) {
            double a = time_step(f.s, now, 8), b = time_step(f.s, c, 8);
            g = a - b;
            us = std::min(us, b), old = std::min(old, a);
        }
        std::sort(gain, gain + 3);
        printf("    %-9s %7.1f us for %7.1f, %+6.2f us a layer, %3d registers: %s\n",
               region_names[r], us, old, -gain[1] / f.s.m.layers, c.v[r]->registers,
               f.text(k).c_str());
        fflush(stdout);
        if (gain[1] > most[r])
            most[r] = gain[1], fastest[r] = k;
    }
    std::copy(fastest, fastest + REGIONS, f.best);
    f.row("the fastest of these");
    f.winners();
}

// ---- families side by side ------------------------------------------------------------------

// Of bf16, and of weights in their own format.
static std::vector<const family *> families_of(int format)
{
    if (format == DTYPE_BF16)
        return {&direct, &async, &bulk};
    return {&bricks, &bricks_mma};
}

// The best step in which each projection is what some family found for it; attention stays. Prints
// what a step takes when one region alone is of another family than the first.
static void mix(search &f, const std::vector<pick> *found)
{
    int n = (int)found[0].size(), all = 1;
    double least = f.time;
    pick start[REGIONS], best[REGIONS];
    std::copy(f.best, f.best + REGIONS, start);
    std::copy(f.best, f.best + REGIONS, best);
    for (int r = 0; r < REGIONS; r++)
        all *= regions[r] == REGION_ATTN ? 1 : n;
    for (int code = 0; code < all; code++) {
        int left = code, others = 0, last = 0;
        for (int r = 0; r < REGIONS; r++) {
            if (regions[r] == REGION_ATTN)
                continue;
            if (left % n > 0)
                others++, last = r;
            f.best[r] = found[r][left % n];
            left /= n;
        }
        kernel_choice c;
        if (!f.with(-1, {}, &c))
            continue;
        double us = time_step(f.s, c, others < 2 ? 20 : 4);
        f.tried++;
        if (others == 1)
            printf("    %-9s %-7s %.1f us\n", region_names[last], f.best[last].f->name, us);
        if (us < least)
            least = us, std::copy(f.best, f.best + REGIONS, best);
    }
    std::copy(best, best + REGIONS, f.best);
}

// Each family alone, then each region with what is best there.
static void by_families(search &f, const options &o)
{
    std::vector<pick> found[REGIONS];
    pick attend = f.best[1];
    auto all = families_of(o.format);
    for (const family *one : all) {
        if (!begin(f, *one, o))
            continue;
        f.best[1] = attend;
        f.row((std::string(one->name) + ", as it starts").c_str());
        passes(f, o.seconds / 4.0, "");
        f.row((std::string(one->name) + ", searched").c_str());
        f.winners();
        if (one == all[0])
            attend = f.best[1];
        for (int r = 0; r < REGIONS; r++)
            found[r].push_back(f.best[r]);
    }
    for (int r = 0; r < REGIONS; r++)
        f.best[r] = found[r][0];
    f.row("the first again");
    mix(f, found);
    f.row("each region its own");
    f.winners();
    passes(f, o.seconds / 4.0, "");
    f.row("each region its own, searched");
}

static void run(compiler &cc, const model &m, int M, const options &o)
{
    step s;
    make(s, m, M, o.context, o.format);
    reference(s);
    bool own = o.format != DTYPE_BF16, wide = own ? o.brick_mma : M > 4;
    family projections = own && wide ? bricks_mma : own ? bricks : wide ? mma : direct;
    projections.fixed = o.fixed.c_str();
    // a bf16 an activation, or a half, or more
    bool rounded = wide || (own && o.families);
    search f(s, cc, rounded ? 1.5e-2 : o.format == DTYPE_F8 ? 1e-3 : 1e-4, o.log);
    if (begin(f, projections, o)) {
        f.row("start");
        f.winners();
        f.marginal();
        if (!o.points.empty())
            by_name(f, o);
        else if (o.families && M <= 4)
            by_families(f, o);
        else if (o.only >= 0) {
            passes(f, o.seconds, "", o.only);
            f.row("searched");
        } else if (o.fine) {
            passes(f, o.seconds, wide ? mma_stages[std::size(mma_stages) - 1].knobs : "");
            f.row("searched");
        } else if (!o.quick)
            by_stages(f, o, wide);
        if (!o.quick && o.points.empty()) {
            f.winners();
            f.marginal();
        }
    }
    drop();
}

static std::vector<int> list(const char *s)
{
    std::vector<int> v;
    std::stringstream in(s);
    for (std::string w; std::getline(in, w, ',');)
        v.push_back(atoi(w.c_str()));
    return v;
}

static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        std::string name = argv[i];
        bool *flag = name == "--fine"        ? &o->fine
                     : name == "--quick"     ? &o->quick
                     : name == "--families"  ? &o->families
                     : name == "--attn-mma"  ? &o->attn_mma
                     : name == "--brick-mma" ? &o->brick_mma
                                             : nullptr;
        if (flag) {
            *flag = true;
            continue;
        }
        const char *v = ++i < argc ? argv[i] : "";
        if (name == "--model")
            o->models = list(v);
        else if (name == "--batch")
            o->batch = list(v);
        else if (name == "--format")
            o->format = atoi(v);
        else if (name == "--context")
            o->context = atoi(v);
        else if (name == "--threads")
            o->threads = atoi(v);
        else if (name == "--carveout")
            o->carveout = atoi(v);
        else if (name == "--seconds")
            o->seconds = atoi(v);
        else if (name == "--only")
            o->only = atoi(v);
        else if (name == "--root")
            o->root = v;
        else if (name == "--fixed")
            o->fixed = v;
        else if (name == "--points")
            o->points = v;
        else if (name == "--log")
            o->log = fopen(v, "w");
        else {
            printf("unknown option %s\n", name.c_str());
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    options o;
    if (!parse(argc, argv, &o))
        return 2;
    CU(cudaStreamCreateWithFlags(&st, cudaStreamNonBlocking));
    compiler cc(o.root, o.threads, true, o.carveout);
    printf("| change | model | M | us/step | tok/s | %% of 4.3 TB/s | logits error | tried "
           "|\n|---|---|---|---|---|---|---|---|\n");
    for (int b : o.batch)
        for (int m : o.models) {
            auto t0 = std::chrono::steady_clock::now();
            run(cc, models[m], b, o);
            printf("    %.0f s, %zu compiled\n",
                   std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count(),
                   cc.count());
            if (o.log)
                fflush(o.log);
        }
    fflush(stdout);
    quick_exit(0);
}
