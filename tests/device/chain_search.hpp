/* SPDX-License-Identifier: Apache-2.0 */
// chain_search.hpp - how fast can a step be? Steps timed as one graph with programmatic edges, and
// a search over the points of each region's templates on the time of the whole step. For chain.cu.
#pragma once
#include "tests/device/chain_check.hpp"
#include <chrono>
#include <set>

// ---- timing ---------------------------------------------------------------------------------

struct kernel_choice {
    variant *v[REGIONS];
};

// The step as a graph; region `skip` (by index) left out.
static cudaGraphExec_t record(const step &s, const kernel_choice &c, int skip = -1)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    bool first = true;
    CU(cudaStreamBeginCapture(st, cudaStreamCaptureModeThreadLocal));
    for (int l = 0; l <= s.m.layers; l++)
        for (int r = 0; r < REGIONS; r++) {
            if (r == skip || (l == s.m.layers) != (regions[r] == REGION_HEAD))
                continue;
            any_args a = args_of(s, regions[r], l);
            launch(c.v[r], a, !first);
            first = false;
        }
    CU(cudaStreamEndCapture(st, &g));
    CU(cudaGraphInstantiate(&e, g, 0));
    CU(cudaGraphDestroy(g));
    return e;
}

// Us of a step, the median of three times `reps`.
static double time_step(const step &s, const kernel_choice &c, int reps, int skip = -1)
{
    static cudaEvent_t a, b;
    if (!a) {
        CU(cudaEventCreate(&a));
        CU(cudaEventCreate(&b));
    }
    cudaGraphExec_t e = record(s, c, skip);
    std::vector<float> t;
    CU(cudaGraphLaunch(e, st));
    for (int rep = 0; rep < 3; rep++) {
        CU(cudaEventRecord(a, st));
        for (int i = 0; i < reps; i++)
            CU(cudaGraphLaunch(e, st));
        CU(cudaEventRecord(b, st));
        CU(cudaEventSynchronize(b));
        float ms;
        CU(cudaEventElapsedTime(&ms, a, b));
        t.push_back(ms * 1e3f / reps);
    }
    CU(cudaGraphExecDestroy(e));
    std::sort(t.begin(), t.end());
    return t[1];
}

static double logits_error(const step &s, const kernel_choice &c)
{
    cudaGraphExec_t e = record(s, c);
    CU(cudaMemsetAsync(s.logits, 0xff, (size_t)s.M * s.m.vocab * 4, st));
    CU(cudaGraphLaunch(e, st));
    double r = error_of(s, s.logits, s.rlogits, (size_t)s.M * s.m.vocab);
    CU(cudaGraphExecDestroy(e));
    return r;
}

// ---- search ---------------------------------------------------------------------------------

// A way to do the projections: a table, some of whose knobs are fixed.
struct family {
    const char *name;
    const table *t;
    const char *fixed;
};
static const family direct = {"direct", &tables::gemv, ""},
                    async = {"async", &tables::ring, "BULK=0"},
                    bulk = {"bulk", &tables::ring, "BULK=1"}, mma = {"mma", &tables::mma, ""},
                    mma_block = {"mma_block", &tables::mma_block, ""},
                    bricks = {"brick", &tables::brick, ""},
                    bricks_mma = {"brick_mma", &tables::brick_mma, ""},
                    attention = {"attention", &tables::attn_decode, ""},
                    attention_mma = {"attention mma", &tables::attn_mma, ""};

struct pick {
    const family *f;
    point p;
};

struct clock_limit {
    std::chrono::steady_clock::time_point end;

    explicit clock_limit(double seconds)
        : end(std::chrono::steady_clock::now() +
              std::chrono::milliseconds((long long)(seconds * 1e3)))
    {
    }
    bool over() const
    {
        return std::chrono::steady_clock::now() > end;
    }
};

struct search {
    step &s;
    compiler &cc;
    FILE *log;
    shape sh[REGIONS];
    pick best[REGIONS];
    double time = 1e9, limit;
    int tried = 0, wrong = 0;
    unsigned seed = 99;
    std::map<variant *, bool> checked;

    search(step &step_, compiler &c, double limit_, FILE *log_)
        : s(step_), cc(c), log(log_), limit(limit_)
    {
        for (int r = 0; r < REGIONS; r++)
            sh[r] = {regions[r], s.M,       s.m.hidden, s.m.heads,   s.m.kv_heads, s.m.head_dim,
                     s.m.ffn,    s.m.vocab, 0,          s.m.qk_norm, s.type,       132};
    }

    std::string text(const pick &k) const
    {
        return std::string(k.f->name) + ": " + k.f->t->text(k.p);
    }

    // The variant, compiled, loaded and found right; null if it is no good.
    variant *usable(int r, const pick &k)
    {
        variant *v = cc.get(k.f->t, sh[r], k.p);
        if (!v->good) {
            if (v->why.find("spills") != 0 && v->why.find("too") != 0 && wrong++ < 5)
                printf("  %s %s: %s\n", region_names[r], text(k).c_str(), v->why.c_str());
            return nullptr;
        }
        if (!checked.count(v)) {
            double e = check(s, v, regions[r]);
            // the timed steps write the newest key and value themselves, from rounded activations
            checked[v] = e < (regions[r] == REGION_ATTN ? 1e-3 : limit);
            if (!checked[v] && wrong++ < 12)
                printf("  WRONG %s %s: error %.2e\n", region_names[r], text(k).c_str(), e);
        }
        return checked[v] ? v : nullptr;
    }

    // The best step known, with k in place of region r's (r < 0: as it is).
    bool with(int r, const pick &k, kernel_choice *c)
    {
        for (int i = 0; i < REGIONS; i++)
            if (!(c->v[i] = usable(i, i == r ? k : best[i])))
                return false;
        return true;
    }

    // Starts from the family's own point, or from any that works.
    bool begin(int r, const family &f)
    {
        unsigned z = r + 1;
        pick k = {&f, f.t->begin(sh[r], f.fixed)};
        if (k.p.empty())
            return false;
        for (int tries = 0; !usable(r, k) && tries < 40; tries++)
            do
                k.p = f.t->with(f.t->drawn(z), f.fixed);
            while (f.t->legal(sh[r], k.p));
        best[r] = k;
        return usable(r, k) != nullptr;
    }

    // Tries picks of region r, keeps what is faster.
    void attempt(int r, const std::vector<pick> &picks, const clock_limit &until)
    {
        for (auto &k : picks)
            cc.ask(k.f->t, sh[r], k.p);
        for (auto &k : picks) {
            kernel_choice c;
            if (until.over())
                return;
            if (!with(r, k, &c))
                continue;
            tried++;
            double us = time_step(s, c, 4);
            if (us < time * 0.9985)
                keep_if_faster(r, k, c);
        }
    }

    void keep_if_faster(int r, const pick &k, const kernel_choice &c)
    {
        kernel_choice now;
        with(-1, {}, &now);
        double us = time_step(s, c, 12), old = time_step(s, now, 12);
        if (log)
            fprintf(log, "%s M=%d %s [%s] %.1f against %.1f\n", s.m.name, s.M, region_names[r],
                    text(k).c_str(), us, old);
        time = std::min(us, old);
        if (us < old)
            best[r] = k;
    }

    // One rounded number for an activation that is normed afterwards: fast, and refused by the
    // error rule of admission.
    static bool careless(int r, const table &t, const point &p)
    {
        bool normed = regions[r] == REGION_ATTN_IN || regions[r] == REGION_MLP_IN ||
                      regions[r] == REGION_HEAD;
        return &t == &tables::mma && normed && p[t.index("TERMS")] == 1 &&
               p[t.index("NORMED")] == 0;
    }

    // Points of region r's family that differ from its best in one of the named knobs, and some
    // that differ in a random few of them, or in all.
    std::vector<pick> around(int r, const std::string &names, int random)
    {
        const family &f = *best[r].f;
        const table &t = *f.t;
        std::string words = " " + names + " ";
        std::vector<int> k;
        for (size_t i = 0; i < t.knobs.size(); i++)
            if (names.empty() || words.find(" " + std::string(t.knobs[i].name) + " ") != words.npos)
                k.push_back((int)i);
        std::vector<pick> out;
        std::set<point> seen = {best[r].p};
        auto add = [&](const point &free) {
            point p = t.with(free, f.fixed);
            if (t.legal(sh[r], p) || (!careless(r, t, best[r].p) && careless(r, t, p)) ||
                !seen.insert(p).second)
                return false;
            out.push_back({&f, p});
            return true;
        };
        for (int i : k)
            for (int v : t.knobs[i].values) {
                point p = best[r].p;
                p[i] = v;
                add(p);
            }
        if (words.find(" NORMED ") != words.npos && &t == &tables::mma)
            for (const char *other : {"TERMS=2 NORMED=0", "TERMS=1 NORMED=1", "TERMS=1 NORMED=2"})
                add(t.with(best[r].p, other));
        auto draw = [&] { return (seed = seed * 1664525u + 1013904223u) >> 16; };
        for (int tries = 0; random > 0 && tries < 400000 && !k.empty(); tries++) {
            point p = best[r].p;
            int changes = random % 2 ? 2 + draw() % 4 : 24; // near it, or anywhere
            for (int j = 0; j < changes; j++) {
                int i = k[draw() % k.size()];
                p[i] = t.knobs[i].values[draw() % t.knobs[i].values.size()];
            }
            random -= add(p);
        }
        return out;
    }

    // Some of them, in any order.
    std::vector<pick> some(std::vector<pick> all, size_t n)
    {
        for (size_t i = 0; i < all.size() && i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            std::swap(all[i], all[i + (seed >> 16) % (all.size() - i)]);
        }
        if (all.size() > n)
            all.resize(n);
        return all;
    }

    double row(const char *what)
    {
        kernel_choice c;
        if (!with(-1, {}, &c)) {
            printf("%s M=%d: no usable step\n", s.m.name, s.M);
            return 1e9;
        }
        double us = time_step(s, c, 40), e = logits_error(s, c);
        time = us;
        printf("| %-34s | %s | %d | %7.1f | %6.0f | %4.1f | %.1e | %d |\n", what, s.m.name, s.M, us,
               1e6 * s.M / us, 100 * s.bound_us / us, e, tried);
        fflush(stdout);
        return us;
    }

    void winners()
    {
        for (int r = 0; r < REGIONS; r++)
            printf("    %-9s %s\n", region_names[r], text(best[r]).c_str());
        fflush(stdout);
    }

    // What a step loses when a region is left out, us a layer, beside its bytes at 4.3 TB/s.
    void marginal()
    {
        kernel_choice c;
        if (!with(-1, {}, &c))
            return;
        double whole = time_step(s, c, 20);
        printf("    of %.1f us:", whole);
        for (int r = 0; r < REGIONS - 1; r++) {
            double bytes = regions[r] == REGION_ATTN
                               ? 4.0 * s.M * s.context * s.m.kv_heads * s.m.head_dim
                               : (double)bytes_of(s, matrix_of(regions[r]));
            printf(" %s %.2f (bound %.2f)", region_names[r],
                   (whole - time_step(s, c, 20, r)) / s.m.layers, bytes / 4.3e6);
        }
        printf(" us a layer\n");
        fflush(stdout);
    }
};
