/* SPDX-License-Identifier: Apache-2.0 */
/* neighbour.cu - what a second process on the GPU does to the steps of the first, act by act.
 *
 * One process replays a graph of short kernels, the next launch queued before the one under way is
 * waited for, as the engine does, and notes when each ended. Its neighbour then does, one after the
 * other and with rests between them, all that a probe does. Both note times of one clock, so every
 * step can be laid beside what went on during it:
 *
 *   nvcc -O2 -std=c++17 -arch=sm_90a tests/device/neighbour.cu -o neighbour && ./neighbour
 *
 * A row: how often the act was done and how long one took; steps that overlap it; how many of them
 * took 10 % longer than the median of all steps and how many 50 %; the longest; and what all of
 * them lost together, for each act. The last rows are turns: the first process stops between two
 * steps, tells its neighbour to work for a while, and goes on when that has answered.
 */
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <functional>
#include <signal.h>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#define CU(call)                                                  \
    do {                                                          \
        cudaError_t code_ = (call);                               \
        if (code_ != cudaSuccess) {                               \
            printf("%s: %s\n", #call, cudaGetErrorString(code_)); \
            fflush(stdout);                                       \
            _exit(1);                                             \
        }                                                         \
    } while (0)

enum { STEPS = 1 << 20, ACTS = 64, KERNELS = 80 };

struct act {
    char name[64];
    int times;
    int64_t from, to, busy; /* busy: sum over the times, without the rests between them */
};

struct shared {
    std::atomic<bool> ready, stop;
    std::atomic<int> steps, acts;
    std::atomic<int> own; /* the act that a thread of the first process is to do */
    std::atomic<int64_t> turn_every, turn_until, turn_done; /* steps; a time; a time */
    int64_t begun[STEPS], ended[STEPS];
    act all[ACTS];
};
static shared *s;

static int64_t now()
{
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void rest(double ms)
{
    usleep((useconds_t)(ms * 1000));
}

__global__ void work(float4 *data, int n, int rounds)
{
    float sum = 0;
    for (int r = 0; r < rounds; r++)
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            float4 v = data[i];
            sum += v.x + v.y + v.z + v.w;
        }
    if (sum == 1.25f)
        data[0].x = sum;
}

__global__ void spin(long long ns)
{
    long long from, at;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(from));
    do
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(at));
    while (at - from < ns);
}

static void capture(cudaStream_t stream, float4 *data, int kernels, cudaGraph_t *graph)
{
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kernels; i++)
        work<<<132 * 4, 256, 0, stream>>>(data + (size_t)i * 2000000, 2000000, 1);
    CU(cudaStreamEndCapture(stream, graph));
}

/* ---- the first process ---------------------------------------------------------------------- */

static std::vector<char> cubin;

static void load_and_unload(int times, bool unload, std::vector<cudaLibrary_t> *keep)
{
    for (int i = 0; i < times; i++) {
        cudaLibrary_t l;
        cudaKernel_t k;
        cudaFuncAttributes a;
        CU(cudaLibraryLoadData(&l, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
        CU(cudaLibraryGetKernel(&k, l, "whet_alone"));
        CU(cudaFuncGetAttributes(&a, (const void *)k));
        if (unload)
            CU(cudaLibraryUnload(l));
        else
            keep->push_back(l);
        rest(5);
    }
}

static void mark(const char *name, int times, double rest_ms, const std::function<void()> &what)
{
    act *a = &s->all[s->acts];
    snprintf(a->name, sizeof a->name, "%s", name);
    a->times = times;
    a->from = now();
    for (int i = 0; i < times; i++) {
        int64_t t = now();
        what();
        a->busy += now() - t;
        rest(rest_ms);
    }
    a->to = now();
    s->acts++;
    rest(100);
}

static void own_thread(float4 *data)
{
    CU(cudaSetDevice(0));
    std::vector<cudaLibrary_t> libraries;
    cudaStream_t stream;
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    while (s->own == 0)
        rest(1);
    mark("own thread: load a kernel", 10, 10, [&] { load_and_unload(1, false, &libraries); });
    mark("own thread: unload a kernel", 10, 10, [&] {
        CU(cudaLibraryUnload(libraries.back()));
        libraries.pop_back();
    });
    cudaGraph_t graph;
    std::vector<cudaGraphExec_t> execs;
    mark("own thread: capture and instantiate", 20, 10, [&] {
        cudaGraphExec_t exec;
        capture(stream, data, KERNELS, &graph);
        CU(cudaGraphInstantiate(&exec, graph, 0));
        execs.push_back(exec);
        cudaGraphDestroy(graph);
    });
    mark("own thread: upload the graph", 20, 10, [&] {
        CU(cudaGraphUpload(execs[(size_t)(rand() % 20)], stream));
        CU(cudaStreamSynchronize(stream));
    });
    mark("own thread: destroy the graph", 20, 10, [&] {
        CU(cudaGraphExecDestroy(execs.back()));
        execs.pop_back();
    });
    void *p;
    mark("own thread: cudaMalloc, cudaFree 64 MB", 5, 10, [&] {
        CU(cudaMalloc(&p, 64 << 20));
        CU(cudaFree(p));
    });
    s->own = 0;
}

static void give_turn()
{
    s->turn_done = 0;
    s->turn_until = now() + 2000000;
    while (!s->turn_done && now() < s->turn_until + 50000000)
        ;
    s->turn_until = 0;
}

static void first(void)
{
    float4 *data;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t done[2];
    CU(cudaMalloc(&data, (size_t)KERNELS * 2000000 * sizeof *data));
    CU(cudaMemset(data, 0, (size_t)KERNELS * 2000000 * sizeof *data));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    capture(stream, data, KERNELS, &graph);
    CU(cudaGraphInstantiate(&exec, graph, 0));
    for (cudaEvent_t &e : done)
        CU(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    std::thread own(own_thread, data);
    bool flying = false;
    int n = 0, since = 0;
    while (!s->stop && n < STEPS) {
        if (s->turn_every > 0 && since >= s->turn_every) {
            if (flying)
                CU(cudaEventSynchronize(done[n & 1]));
            if (flying)
                s->ended[n] = now(), n++, s->steps = n, flying = false;
            since = 0;
            give_turn();
        }
        int next = flying ? n + 1 : n;
        s->begun[next] = now();
        CU(cudaGraphLaunch(exec, stream));
        CU(cudaEventRecord(done[next & 1], stream));
        if (flying) {
            CU(cudaEventSynchronize(done[n & 1]));
            s->ended[n] = now();
            s->steps = ++n;
            since++;
        }
        flying = true;
        s->ready = true;
    }
    _exit(0);
}

/* ---- its neighbour -------------------------------------------------------------------------- */

static void burst(cudaStream_t stream, int kernels, double us)
{
    for (int i = 0; i < kernels; i++)
        spin<<<132, 64, 0, stream>>>((long long)(us * 1000));
    CU(cudaStreamSynchronize(stream));
}

static void bursts(cudaStream_t stream, int times, double gap, int kernels, double us)
{
    char name[64];
    snprintf(name, sizeof name, "%d kernels of %g us, then %g ms", kernels, us, gap);
    mark(name, times, gap, [&] { burst(stream, kernels, us); });
}

static void turns(cudaStream_t stream, int every, int times, int kernels, double us)
{
    char name[64];
    snprintf(name, sizeof name, "turn every %d steps: %d x %g us", every, kernels, us);
    s->turn_every = every;
    mark(name, times, 0, [&] {
        while (s->turn_until == 0 || s->turn_done)
            ;
        burst(stream, kernels, us);
        s->turn_done = now();
        while (s->turn_until)
            ;
    });
    s->turn_every = 0;
    rest(50);
}

static void memory(char *host)
{
    char *big, *small[20];
    int n = 0;
    mark("cudaMalloc 512 MB", 1, 50, [&] { CU(cudaMalloc(&big, 512 << 20)); });
    mark("cudaMemset 512 MB", 5, 20, [&] {
        CU(cudaMemset(big, 1, 512 << 20));
        CU(cudaDeviceSynchronize());
    });
    mark("cudaMalloc 8 MB", 20, 10, [&] { CU(cudaMalloc(&small[n++], 8 << 20)); });
    mark("copy 64 KB to it", 50, 5,
         [&] { CU(cudaMemcpy(big, host, 64 << 10, cudaMemcpyHostToDevice)); });
    mark("copy 4 MB from it", 20, 10,
         [&] { CU(cudaMemcpy(host, big, 4 << 20, cudaMemcpyDeviceToHost)); });
    mark("copy 64 MB to it", 5, 20,
         [&] { CU(cudaMemcpy(big, host, 64 << 20, cudaMemcpyHostToDevice)); });
    mark("cudaFree 8 MB", 20, 10, [&] { CU(cudaFree(small[--n])); });
    mark("cudaFree 512 MB", 1, 50, [&] { CU(cudaFree(big)); });
}

static void loads(void)
{
    std::vector<cudaLibrary_t> libraries;
    mark("load a kernel", 10, 10, [&] { load_and_unload(1, false, &libraries); });
    mark("unload a kernel", 10, 10, [&] {
        CU(cudaLibraryUnload(libraries.back()));
        libraries.pop_back();
    });
}

static void graphs(cudaStream_t stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec[20];
    float4 *data;
    int n = 0;
    CU(cudaMalloc(&data, 1 << 20));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < 8; i++)
        spin<<<132, 64, 0, stream>>>(1000);
    CU(cudaStreamEndCapture(stream, &graph));
    mark("instantiate a graph of 8", 20, 10,
         [&] { CU(cudaGraphInstantiate(&exec[n++], graph, 0)); });
    mark("launch it", 20, 10, [&] {
        CU(cudaGraphLaunch(exec[0], stream));
        CU(cudaStreamSynchronize(stream));
    });
    mark("destroy it", 20, 10, [&] { CU(cudaGraphExecDestroy(exec[--n])); });
}

static void neighbour(void)
{
    cudaStream_t stream;
    mark("nothing", 1, 1000, [] {});
    mark("create a context", 1, 100, [] { CU(cudaFree(0)); });
    int pageable = 0, preempt = 0;
    CU(cudaDeviceGetAttribute(&pageable, cudaDevAttrPageableMemoryAccess, 0));
    CU(cudaDeviceGetAttribute(&preempt, cudaDevAttrComputePreemptionSupported, 0));
    printf("pageable memory access %d, compute preemption %d\n", pageable, preempt);
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    burst(stream, 1, 1);
    mark("nothing, with a context", 1, 1000, [] {});
    char *host = (char *)malloc(64 << 20);
    memset(host, 1, 64 << 20);
    memory(host);
    loads();
    graphs(stream);
    bursts(stream, 100, 20, 1, 20);
    bursts(stream, 100, 5, 1, 20);
    bursts(stream, 300, 1, 1, 20);
    bursts(stream, 2000, 0, 1, 20);
    bursts(stream, 50, 20, 50, 20);
    bursts(stream, 50, 20, 1, 1000);
    bursts(stream, 50, 20, 5, 1000);
    bursts(stream, 20, 50, 1, 10000);
    turns(stream, 20, 50, 1, 20);
    turns(stream, 20, 50, 50, 20);
    turns(stream, 20, 50, 5, 1000);
    turns(stream, 20, 20, 10, 1000);
    s->own = 1;
    while (s->own)
        rest(5);
    mark("destroy the context", 1, 50, [] { CU(cudaDeviceReset()); });
    printf("neighbour done\n");
    fflush(stdout);
    _exit(0);
}

/* A process that is killed while its kernel spins. */
static void killed(void)
{
    pid_t p = fork();
    if (p == 0) {
        spin<<<132, 64>>>(20000000000LL);
        cudaDeviceSynchronize();
        _exit(0);
    }
    rest(1500);
    mark("a kernel of another process spins", 1, 1000, [] {});
    mark("that process is killed", 1, 300, [&] {
        kill(p, SIGKILL);
        waitpid(p, nullptr, 0);
    });
}

/* ---- what came of it ------------------------------------------------------------------------ */

static void report(void)
{
    int steps = s->steps;
    std::vector<int64_t> ns((size_t)steps);
    for (int i = 1; i < steps; i++)
        ns[(size_t)i] = s->ended[i] - s->ended[i - 1];
    std::vector<int64_t> sorted(ns.begin() + 1, ns.end());
    std::sort(sorted.begin(), sorted.end());
    double median = (double)sorted[sorted.size() / 2];
    printf("%d steps, median %.3f ms, p99 of all %.3f ms\n", steps, median * 1e-6,
           (double)sorted[sorted.size() * 99 / 100] * 1e-6);
    printf("%-42s %6s %9s %7s %6s %6s %9s %9s\n", "act", "times", "ms each", "steps", ">10%",
           ">50%", "longest", "lost each");
    for (int a = 0; a < s->acts; a++) {
        const act *at = &s->all[a];
        int n = 0, tenth = 0, half = 0;
        double longest = 0, lost = 0;
        for (int i = 1; i < steps; i++) {
            if (s->ended[i] < at->from || s->ended[i - 1] > at->to)
                continue;
            double more = (double)ns[(size_t)i] - median;
            n++;
            tenth += more > 0.1 * median;
            half += more > 0.5 * median;
            longest = std::max(longest, (double)ns[(size_t)i]);
            lost += more;
        }
        printf("%-42s %6d %9.3f %7d %6d %6d %8.2fms %7.3fms\n", at->name, at->times,
               (double)at->busy * 1e-6 / at->times, n, tenth, half, longest * 1e-6,
               lost * 1e-6 / at->times);
    }
}

int main(int argc, char **argv)
{
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : nullptr;
    if (!f)
        return printf("usage: neighbour KERNEL.cubin (with a kernel whet_alone in it)\n"), 2;
    char buffer[65536];
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, f)) > 0;)
        cubin.insert(cubin.end(), buffer, buffer + n);
    fclose(f);
    s = (shared *)mmap(nullptr, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                       0);
    pid_t one = fork();
    if (one == 0)
        first();
    for (int i = 0; i < 10000 && !s->ready; i++)
        rest(1);
    rest(500);
    pid_t two = fork();
    if (two == 0)
        neighbour();
    for (int i = 0; i < 600 && waitpid(two, nullptr, WNOHANG) == 0; i++)
        rest(100);
    kill(two, SIGKILL);
    killed();
    s->stop = true;
    rest(200);
    kill(one, SIGKILL);
    waitpid(one, nullptr, 0);
    report();
    return 0;
}
