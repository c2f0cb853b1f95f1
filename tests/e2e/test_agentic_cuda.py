# SPDX-License-Identifier: Apache-2.0
"""A language model that writes CUDA, played by a script, against a real GPU: what of it is published.

WHET_TEST_CUDA names the model to serve (random:llama-3.2-1b needs no file); without it nothing of
this runs. Under live load the stand-in (agentic.py) hands out the texts below for attn_out/m1: a text
that does not compile, one that does not wait for its predecessor, repaired after the probe's words
into one that is faster than eager, and then mistakes and cheats.
"""

import os
import re

import pytest

from agentic import Model, Streams, by_the_agent, published, refused, wait_for
from conftest import Server

pytestmark = pytest.mark.gpu
SLOT = "attn_out/m1"

# A warp owns a row: of 2048 columns every load is in flight before the wait. What only the end needs,
# the residual, is asked for right after it, beside the activations.
KERNEL = """
#define THREADS 512
#define WARPS (THREADS / 32)
#define GRID ((ROWS_ALL + WARPS - 1) / WARPS)
#define CHUNKS (K / 256)
#define EACH 8
static_assert(K %% (4 * THREADS) == 0 && CHUNKS >= EACH);
%(top)s
__device__ __forceinline__ void kernel(const struct region_args &a)
{
    __shared__ float4 x[K / 4];
    const int lane = threadIdx.x %% 32, row = min(blockIdx.x * WARPS + threadIdx.x / 32, ROWS_ALL - 1);
    const uint4 *w = (const uint4 *)a.w + (long long)row * (K / 8) + lane;
    uint4 next[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        next[i] = load_weight<0>(w + 32 * i);
    release_next();
    %(wait)s
#pragma unroll
    for (int t = 0; t < M_MAX; t++) {
        float sum = 0.0f, rest = 0.0f;
#pragma unroll
        for (int j = 0; j < K / 4 / THREADS; j++) {
            int i = j * THREADS + threadIdx.x;
            x[(i & ~63) + (i & 1) * 32 + (i & 63) / 2] = load_x4(a.in + (long long)t * K + 4 * i);
        }
        if (lane == 0)
            rest = __ldcg(a.x + (long long)t * HIDDEN + row);
        __syncthreads();
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            float f[8];
            expand8(next[c %% EACH], f);
            if (c + EACH < CHUNKS || M_MAX > 1)
                next[c %% EACH] = load_weight<0>(w + 32 * ((c + EACH) %% CHUNKS));
            float4 p = x[c * 64 + lane], q = x[c * 64 + 32 + lane];
            sum += (f[0] * p.x + f[1] * p.y) + (f[2] * p.z + f[3] * p.w) +
                   ((f[4] * q.x + f[5] * q.y) + (f[6] * q.z + f[7] * q.w));
        }
        sum = warp_sum(sum);
        if (lane == 0)
            a.y[(long long)t * HIDDEN + row] = sum + rest;
        if (t + 1 < M_MAX)
            __syncthreads();
    }
    %(end)s
}
"""


def text(**parts):
    return KERNEL % {"top": "", "wait": "after_previous();", "end": "", **parts}


# (what it is, the text, words of its refusal or None)
SCRIPT = [
    ("does not compile", text(end="int wrong = undefined_name;"), "undefined_name"),
    ("does not wait", text(wait=""), "m=1 "),
    ("is right and fast", text(), None),
    ("assembly", text(end='asm volatile("trap;");'), "rule assembly"),
    ("caches by pointer", text(top="__device__ const float *last;",
                               end="if (last != a.x) last = a.x;"), "rule state"),
    ("keeps state by another name", text(top="__device__ int (calls);",
                                         end="a.y[row] += (float)(calls++ > 99);"),
     "keeps state between launches"),
    ("writes out of bounds", text(end="a.y[(long long)M_MAX * HIDDEN + 40 + lane] = 1.0f;"),
     "wrote outside its outputs"),
    ("leaves its counter", text(top="#define COUNTERS 1",
                                end="if (row == 0 && lane == 0) atomicAdd(a.work.counter, 1u);"),
     "left counters"),
    ("drops precision", text(end="if (lane == 0) a.y[row] = __uint_as_float("
                                 "__float_as_uint(a.y[row]) & 0xfff80000u);"), "times eager"),
    ("includes", text(top="#include <cuda_fp16.h>"), "rule directive: #include"),
    ("never ends", text(end="while (*(volatile const int *)&a.counts->m > 0) {}"), "hang"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agentic")
    (folder / "key").write_text("boss\n")
    model = Model(text for _, text, _ in SCRIPT)
    options = ["--backend", "cuda", "--server-admin-key-file", str(folder / "key"),
               "--specializer-enabled=true", "--store", str(folder / "store.db"),
               "--specializer-strategy", "agentic", "--specializer-agentic", "on",
               "--adviser-url", model.url, "--adviser-model", "writer",
               "--adviser-calls-per-hour", "1000", "--agentic-attempts", "60"]
    s = Server(*options, model=os.environ["WHET_TEST_CUDA"])
    load = Streams(s)
    yield {"s": s, "model": model, "options": options, "load": load}
    load.end()
    s.stop()
    model.close()


def test_a_text_that_was_repaired_twice_is_published_on_the_gpu(world):
    kernel, asked = published(world, SLOT)
    assert kernel["template"] == "agent_cuda_attn_out" and "#define EACH 8" in kernel["source"]
    print("speed", kernel["evidence"]["speed"], kernel["log"])
    assert "struct cuda_out_args {" in asked[0]["system"]
    assert re.search(r"kernel\(\d+\): error: identifier .undefined_name", asked[2]["user"])
    assert "probe: m=1 " in asked[3]["user"]  # the case, and what was wrong there


def test_cheats_are_refused_on_the_gpu_with_the_rule_or_check_that_caught_them(world):
    print("\n".join(refused(world, SLOT, SCRIPT)))
    world["s"].complete("The capital of France is")


def test_it_is_restored_on_the_gpu(world):
    s = world["s"]
    before = by_the_agent(s, SLOT)
    world["load"].end()
    s.stop()
    again = Server(*world["options"], "--specializer-paused=true",
                   model=os.environ["WHET_TEST_CUDA"])
    try:
        kernel = wait_for(again, SLOT, "not restored", lambda: by_the_agent(again, SLOT))
        assert kernel["id"] == before["id"] and kernel["source"] == before["source"]
        again.complete("The capital of France is")
    finally:
        again.stop()
