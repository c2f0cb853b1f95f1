# SPDX-License-Identifier: Apache-2.0
"""bench_whet.py - `whet bench` and `whet tune` of one binary on one backend, as functions.

What scripts/bench-h200, scripts/bench-gains and scripts/bench-agentcompile share.
"""
import collections
import json
import os
import subprocess
import sys
import tempfile

# engine/dispatch.c
M_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 2048)
COPY_BYTES_PER_S = 4.3e12  # of an H200: the bound that tables of docs/ are shares of

Whet = collections.namedtuple("Whet", "binary backend")


def slots(batches, contexts):
    """The slots that decode steps of so many sequences at these contexts fall into."""
    tokens = sorted({next(m for m in M_BUCKETS if m >= n) for n in batches})
    buckets = sorted({max(256, 1 << (c - 1).bit_length()) for c in contexts})
    return [slot for m in tokens for slot in
            [f"attn/m{m}/c{c}" for c in buckets] +
            [f"{region}/m{m}" for region in ("mlp_in", "attn_in", "mlp_out", "attn_out", "head")]]


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return done


def tune(whet, model, seconds, which, options=(), log="", store=None):
    """A store, a new one in a folder of its own unless it goes on with `store`, with what a search of
    the slots `which` found, and the last words of `whet tune`: a line a slot. All that it said is
    added to the file `log`."""
    store = store or os.path.join(tempfile.mkdtemp(prefix="whet-bench-store-"), "store.db")
    command = [whet.binary, "tune", "--model", model, "--backend", whet.backend, "--store", store,
               "--seconds", str(seconds), "--specializer-build-jobs",
               str(max(1, (os.cpu_count() or 1) // 2)), *options]
    for slot in which:
        command += ["--slot", slot]
    done = run(command)
    if log:
        with open(log, "a") as f:
            f.write(f"== {model} {' '.join(options)}\n{done.stdout}{done.stderr}")
    return store, done.stdout.rsplit("\n\n", 1)[-1].strip().splitlines()


def bench(whet, model, mode, *options):
    """What `whet bench` writes as JSON; of each step's figures the median of three pairs."""
    with tempfile.NamedTemporaryFile(suffix=".json") as f:
        run([whet.binary, "bench", mode, "--model", model, "--backend", whet.backend, "--json",
             f.name, "--pairs", "3", *options])
        return json.load(f)
