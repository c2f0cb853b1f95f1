/* SPDX-License-Identifier: Apache-2.0 */
// variants.hpp - the CUDA template tables as data, and points of them compiled by NVRTC.
//
// Used by the device programs of this folder. A table is kernels/<file>.def; a point is one value
// a knob; a variant is a point compiled for a shape: compiled by worker threads ahead of time,
// loaded and checked for spills by the thread that first asks for it.
#pragma once
#include "kernels/cuda.h"
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nvrtc.h>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#define CU(x)                                                                              \
    do {                                                                                   \
        cudaError_t e_ = (x);                                                              \
        if (e_) {                                                                          \
            printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

struct shape {
    int REGION, M_MAX, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, HAS_BIAS, HAS_QK_NORM, WTYPE,
        SMS;
};

struct knob {
    const char *name;
    int first;
    std::vector<int> values;
};

typedef std::vector<int> point; // a value for each knob of its table

struct start {
    bool (*holds)(const shape &);
    const char *knobs;
};

struct table {
    const char *file;
    std::vector<knob> knobs;
    const char *(*legal)(const shape &, const point &);
    std::vector<start> starts;

    int index(const std::string &name) const
    {
        for (size_t i = 0; i < knobs.size(); i++)
            if (name == knobs[i].name)
                return (int)i;
        printf("FAIL %s.def has no knob %s\n", file, name.c_str());
        exit(1);
    }
    point defaults() const
    {
        point p;
        for (auto &k : knobs)
            p.push_back(k.first);
        return p;
    }
    point with(point p, const std::string &text) const
    {
        std::stringstream in(text);
        for (std::string word; in >> word;) {
            size_t eq = word.find('=');
            p[index(word.substr(0, eq))] = atoi(word.c_str() + eq + 1);
        }
        return p;
    }
    std::string text(const point &p) const
    {
        std::string s;
        for (size_t i = 0; i < p.size(); i++)
            if (p[i] != knobs[i].first)
                s += (s.empty() ? "" : " ") + std::string(knobs[i].name) + "=" +
                     std::to_string(p[i]);
        return s.empty() ? "defaults" : s;
    }
    // Where a search begins: the table's own start for the shape, or a legal point; `fixed` says
    // what some knobs are. Empty: there is none.
    point begin(const shape &s, const char *fixed) const
    {
        for (auto &t : starts)
            if (t.holds(s)) {
                point p = with(with(defaults(), t.knobs), fixed);
                if (!legal(s, p))
                    return p;
                printf("note: %s.def: start \"%s\" %s: %s\n", file, t.knobs, fixed, legal(s, p));
            }
        point p = with(defaults(), fixed);
        unsigned z = 7;
        for (int i = 0; legal(s, p) && i < 1000000; i++)
            p = with(drawn(z), fixed);
        return legal(s, p) ? point() : p;
    }
    // Any point.
    point drawn(unsigned &z) const
    {
        point p;
        for (auto &k : knobs)
            p.push_back(k.values[(z = z * 1664525u + 1013904223u) / 65536 % k.values.size()]);
        return p;
    }
};

#define V(...)      \
    {               \
        __VA_ARGS__ \
    }
#define TABLE_SHAPE(name) [[maybe_unused]] const int name = s.name;
#define TABLE_SHAPES         \
    TABLE_SHAPE(REGION)      \
    TABLE_SHAPE(M_MAX)       \
    TABLE_SHAPE(HIDDEN)      \
    TABLE_SHAPE(HEADS)       \
    TABLE_SHAPE(KV_HEADS)    \
    TABLE_SHAPE(HEAD_DIM)    \
    TABLE_SHAPE(FFN)         \
    TABLE_SHAPE(VOCAB)       \
    TABLE_SHAPE(HAS_BIAS)    \
    TABLE_SHAPE(HAS_QK_NORM) \
    TABLE_SHAPE(WTYPE)       \
    TABLE_SHAPE(SMS)         \
    [[maybe_unused]] const int HAS_CLUSTERS = 1;

namespace tables
{
#define TABLE gemv
#define TABLE_DEF "kernels/cuda/gemv.def"
#include "tests/device/variant_table.hpp"

#define TABLE ring
#define TABLE_DEF "kernels/cuda/ring.def"
#include "tests/device/variant_table.hpp"

#define TABLE brick
#define TABLE_DEF "kernels/cuda/brick.def"
#include "tests/device/variant_table.hpp"

#define TABLE brick_mma
#define TABLE_DEF "kernels/cuda/brick_mma.def"
#include "tests/device/variant_table.hpp"

#define TABLE mma
#define TABLE_DEF "kernels/cuda/mma.def"
#include "tests/device/variant_table.hpp"

#define TABLE mma_block
#define TABLE_DEF "kernels/cuda/mma_block.def"
#include "tests/device/variant_table.hpp"

#define TABLE attn_decode
#define TABLE_DEF "kernels/cuda/attn_decode.def"
#include "tests/device/variant_table.hpp"

#define TABLE attn_mma
#define TABLE_DEF "kernels/cuda/attn_mma.def"
#include "tests/device/variant_table.hpp"

#define TABLE attn_even
#define TABLE_DEF "kernels/cuda/attn_even.def"
#include "tests/device/variant_table.hpp"
} // namespace tables

struct variant {
    const table *t;
    shape s;
    point p;
    std::string cubin, log;
    bool done = false, loaded = false, good = false;
    std::string why; // not good
    cudaLibrary_t library = nullptr;
    cudaKernel_t kernel[CUDA_LAUNCHES] = {}, pack = nullptr;
    cuda_kernel_info info = {};
    int registers = 0;
};

// Compiles variants in the background and keeps them. One per program.
class compiler
{
  public:
    // carveout: of shared memory, in percent; below 0: as the driver likes.
    compiler(std::string root, int threads, bool device, int carveout = -1)
        : root_(root), device_(device), carveout_(carveout)
    {
        for (int i = 0; i < threads; i++)
            std::thread([this] { work(); }).detach();
    }

    // Starts to compile it, unless that has been asked for.
    variant *ask(const table *t, const shape &s, const point &p)
    {
        std::string key = t->file;
        for (int v : p)
            key += " " + std::to_string(v);
        key.append((const char *)&s, sizeof s);
        std::lock_guard<std::mutex> hold(lock_);
        auto &v = all_[key];
        if (!v) {
            v.reset(new variant);
            v->t = t, v->s = s, v->p = p;
            queue_.push_back(v.get());
            more_.notify_one();
        }
        return v.get();
    }

    // Waits for it; loads it on a device. Says in v->why if it cannot be used.
    variant *get(variant *v)
    {
        std::unique_lock<std::mutex> hold(lock_);
        while (!v->done)
            ready_.wait(hold);
        hold.unlock();
        if (!v->loaded) {
            v->loaded = true;
            load(v);
        }
        return v;
    }
    variant *get(const table *t, const shape &s, const point &p)
    {
        return get(ask(t, s, p));
    }
    size_t count() const
    {
        return all_.size();
    }

  private:
    std::string root_;
    bool device_;
    int carveout_;
    std::mutex lock_;
    std::condition_variable more_, ready_;
    std::deque<variant *> queue_;
    std::map<std::string, std::unique_ptr<variant>> all_;

    void work()
    {
        for (;;) {
            std::unique_lock<std::mutex> hold(lock_);
            while (queue_.empty())
                more_.wait(hold);
            variant *v = queue_.front();
            queue_.pop_front();
            hold.unlock();
            compile(v);
            hold.lock();
            v->done = true;
            ready_.notify_all();
        }
    }

    void compile(variant *v)
    {
        std::vector<std::string> o = {"-std=c++17", "-arch=sm_90a", "-I" + root_ + "/kernels"};
        auto define = [&](const char *n, int x) {
            o.push_back(std::string("-D") + n + "=" + std::to_string(x));
        };
        for (size_t i = 0; i < v->p.size(); i++)
            define(v->t->knobs[i].name, v->p[i]);
#define DEFINE(name) define(#name, v->s.name)
        DEFINE(REGION);
        DEFINE(M_MAX);
        DEFINE(HIDDEN);
        DEFINE(HEADS);
        DEFINE(KV_HEADS);
        DEFINE(HEAD_DIM);
        DEFINE(FFN);
        DEFINE(VOCAB);
        DEFINE(HAS_BIAS);
        DEFINE(HAS_QK_NORM);
        DEFINE(WTYPE);
        DEFINE(SMS);
#undef DEFINE
        std::string path = root_ + "/kernels/cuda/" + v->t->file + ".cu";
        std::ifstream in(path);
        std::stringstream text;
        if (!(text << in.rdbuf())) {
            v->log = path + " cannot be read";
            return;
        }
        std::vector<const char *> c;
        for (auto &x : o)
            c.push_back(x.c_str());
        nvrtcProgram prog;
        if (nvrtcCreateProgram(&prog, text.str().c_str(), path.c_str(), 0, nullptr, nullptr))
            return;
        nvrtcResult r = nvrtcCompileProgram(prog, (int)c.size(), c.data());
        size_t n = 0;
        nvrtcGetProgramLogSize(prog, &n);
        v->log.resize(n);
        nvrtcGetProgramLog(prog, &v->log[0]);
        if (!r && !nvrtcGetCUBINSize(prog, &n)) {
            v->cubin.resize(n);
            nvrtcGetCUBIN(prog, &v->cubin[0]);
        }
        nvrtcDestroyProgram(&prog);
    }

    void load(variant *v)
    {
        if (v->cubin.empty()) {
            v->why = "does not compile: " + v->log.substr(0, 600);
            return;
        }
        if (!device_)
            return;
        void *at;
        size_t n;
        CU(cudaLibraryLoadData(&v->library, v->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr,
                               0));
        CU(cudaLibraryGetGlobal(&at, &n, v->library, "whet_info"));
        CU(cudaMemcpy(&v->info, at, sizeof v->info, cudaMemcpyDeviceToHost));
        for (int i = 0; i < v->info.launches; i++) {
            std::string name = i ? "whet_kernel_" + std::to_string(i) : "whet_kernel";
            CU(cudaLibraryGetKernel(&v->kernel[i], v->library, name.c_str()));
            cudaFuncAttributes a;
            CU(cudaFuncGetAttributes(&a, (const void *)v->kernel[i]));
            v->registers = a.numRegs;
            if (a.localSizeBytes > 0)
                v->why = "spills " + std::to_string(a.localSizeBytes);
            else if (a.maxThreadsPerBlock < v->info.launch[i].threads)
                v->why = "too many registers";
            else if (v->info.launch[i].smem > 227 * 1024 - (int)a.sharedSizeBytes)
                v->why = "too much shared memory";
            if (!v->why.empty())
                return;
            if (carveout_ >= 0)
                CU(cudaFuncSetAttribute((const void *)v->kernel[i],
                                        cudaFuncAttributePreferredSharedMemoryCarveout, carveout_));
            if (v->info.launch[i].smem > 0)
                CU(cudaFuncSetAttribute((const void *)v->kernel[i],
                                        cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        v->info.launch[i].smem));
        }
        if (v->info.packed_bytes > 0)
            CU(cudaLibraryGetKernel(&v->pack, v->library, "whet_pack"));
        v->good = true;
    }
};
