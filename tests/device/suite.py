#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The device suite: every part in a process of its own, one summary line at the end.

    suite.py PROGRAMS SOURCE [--quick] [--sanitize] [--jobs N] [--logs DIR] [PART ...]

PROGRAMS holds test_device and its companions (a build directory, or an unpacked archive), SOURCE
the kernels and this file's folder. A PART is a name below or the beginning of one ("points").

Parts whose verdict hangs on time, or that take all of a device's memory, have a device to
themselves; all others run side by side before them. Where there are several devices parts are spread
over all of them, and each sees one. --quick takes fewer
points and contexts and lets the whole steps of real shapes, whose times are then worth nothing, run
beside others. --sanitize runs the same kernels under compute-sanitizer instead.

What a part printed is in DIR; here come its failures and its last line. The exit status says
whether anything failed; a part that ended without checks has failed.
"""
import argparse
import concurrent.futures
import itertools
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

FAMILIES = ["gemv", "ring", "mma", "mma_block", "attn_decode", "attn_mma", "attn_even", "wide", "skinny"]
OWN_KERNELS = [flag for name in ("whet_", "eager_", "oracle_", "probe_")
               for flag in ("--kernel-name", "kns=" + name)]
LIMIT_S = 900
COUNTS = re.compile(r"^(\d+) checks, (\d+) failed", re.M)
CLEAN = re.compile(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards")
# What racecheck takes for races between blocks of a cluster and is none: all lanes of a warp store
# to another block, meet (__syncwarp), and one of them arrives at the barrier there with release;
# readers meet, and one of them says so. Release covers what was ordered before it; racecheck lets it
# cover the arriving thread's own accesses only (docs/gpu.md).
RACE = re.compile(r"Race reported between|^=+ +and (Read|Write) access", re.M)
KNOWN_RACE = re.compile(r"(Read|Write) access at (send|meet)\(.* in wide_end\.cuh:")
RACES_SHOWN = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")


class Part:
    """`alone`: has the device to itself. `python`: modules it needs, else it is left out; so it is where
    there are fewer than `devices`, of which it has so many to itself."""

    def __init__(self, name, command, alone=False, python=(), tool="", devices=1):
        self.name, self.command, self.alone, self.devices = name, command, alone, devices
        self.python, self.tool = python, tool
        self.passed = self.failed = 0
        self.seconds, self.why, self.log = 0.0, "", ""


class Places:
    """Where programs are: all in one folder, or as a build directory has them."""

    def __init__(self, programs, source):
        self.programs, self.source = os.path.abspath(programs), os.path.abspath(source)

    def program(self, name):
        for path in (name, "tests/" + name):
            path = os.path.join(self.programs, path)
            if os.path.exists(path):
                return path
        sys.exit(f"suite: there is no {name} in {self.programs}")

    def script(self, name):
        return [sys.executable, os.path.join(self.source, "tests", "device", name)]


def plain_parts(at, quick):
    device, points = at.program("test_device"), at.program("test_points")
    torch = ("torch", "transformers")
    some = ["--points", "1", "--quick"] if quick else []
    contexts = "64,200,4096" if quick else "64,200,1000,4096,32768"
    parts = [Part("compare", at.script("compare_transformers.py") +
                  [device, "--context", contexts], alone=not quick, python=torch)]
    parts += [Part("points " + f, [points, f] + some) for f in FAMILIES]
    parts += [Part("templates " + model, [device, "templates", model],
                   alone=not quick or model == "qwen3-4b")  # takes 32 GiB
              for model in ("llama-3.2-1b", "qwen3-1.7b", "qwen3-4b", "q4_k+q6_k")]
    parts += [Part("bad", [at.program("test_bad_device")]),
              Part("serve", at.script("serve_small.py") +
                   [at.program("whet"), os.path.join(at.source, "tests/golden/tiny-qwen3")],
                   python=torch)]
    parts += [Part(p, [device, p]) for p in ("regions", "steps", "formats", "ahead", "sampler")]
    parts += [Part(p, [device, p], alone=True)
              for p in ("kernels", "lt", "agent", "probe", "probe-formats", "prefill", "graphs")]
    parts += [Part("probe-bad", [at.program("test_bad_probe")], alone=True),
              Part("ranks", [at.program("test_bad_probe"), "--ranks"], alone=True, devices=2),
              Part("broken", at.script("broken.py") + [at.program("whet"), at.program("trap.so")],
                   alone=True)]
    return parts


def sanitizer_parts(at):
    """Templates with allocations as large as they must be, those that read blocks of weights in the
    probe; and what the engine and the probe launch themselves. Uninitialized memory only in the first: a backend's pages are meant to hold any.
    Races without the library's products, which racecheck cannot run (products.c)."""
    device, points = at.program("test_device"), at.program("test_points")
    parts = []

    def add(tool, name, command):
        checker = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99", "--print-limit",
                   "100000", *OWN_KERNELS]
        parts.append(Part(f"{tool} {name}", checker + command, tool=tool))
    for tool in ("racecheck", "initcheck", "memcheck"):  # the longest first
        for family in reversed(FAMILIES):
            add(tool, family, [points, family, "--points", "1", "--quick", "--exact"])
    some = [("steps", "d64 g4"), ("steps", "d128 g2"), ("probe", "d64 g4"), ("probe", "d128 g2"),
            ("regions", "d64 g4"), ("regions", "d128 g2"), ("sampler", ""), ("graphs", "llama"),
            ("probe-formats", "F8"), ("probe-formats", "Q4_K")]
    for tool, flags, which in (("racecheck", ["--plain"], some),
                               ("memcheck", [], some + [("lt", "")])):
        for part, shape in which:
            add(tool, f"{part} {shape}".strip(),
                [device, "--slow", "--brief", *flags, part] + [shape] * bool(shape))
    return parts


def missing(python):
    """The first of these modules that this Python does not have; "" when it has all."""
    for name in python:
        if subprocess.run([sys.executable, "-c", "import " + name], capture_output=True).returncode:
            return name
    return ""


def only_known_races(text):
    """Whether racecheck reports such races as KNOWN_RACE, and no others."""
    lines = [x for x in text.splitlines() if RACE.search(x)]
    shown = RACES_SHOWN.search(text)
    first = sum("Race reported between" in x for x in lines)
    return bool(shown and first == int(shown[1]) and all(KNOWN_RACE.search(x) for x in lines))


def judge(part, status, text):
    counts = COUNTS.findall(text)
    made, part.failed = (int(n) for n in counts[-1]) if counts else (0, 0)
    if part.tool:
        made += 1
        known = only_known_races(text)
        part.failed += not (known or CLEAN.search(text))
        status = 0 if known and status == 99 else status
    if status != 0 and part.failed == 0:
        part.failed, made = 1, made + 1
        part.why = part.why or f"exit status {status}"
    if made == 0:
        part.failed, made, part.why = 1, 1, "nothing was checked"
    part.passed = made - part.failed


running = set()  # process groups


def stop(number, frame):
    """Nothing that was started outlives this process."""
    for group in list(running):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(128 + number)


def device_names():
    """Of the devices that parts may use, as CUDA_VISIBLE_DEVICES wants them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen:
        return chosen.split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    except OSError:
        listed = ""
    return [str(i) for i in range(len(re.findall(r"^GPU \d+", listed, re.M)))] or ["0"]


def run(part, logs, device):
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES=device)
    part.log = os.path.join(logs, re.sub(r"\W+", "-", part.name) + ".log")
    begun = time.monotonic()
    with open(part.log, "w+b") as log:
        process = subprocess.Popen(part.command, stdout=log, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
        running.add(process.pid)
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status, part.why = process.wait(), f"no end after {LIMIT_S} s"
        running.discard(process.pid)
        log.seek(0)
        text = log.read().decode(errors="replace")
    part.seconds = time.monotonic() - begun
    judge(part, status, text)
    say(part, text)


def say(part, text):
    lines = []
    if part.failed:
        lines = [l for l in text.splitlines() if re.match(r"FAIL|WRONG|========= [EU]", l)][:12]
        lines = lines or text.splitlines()[-6:]
    print(f"{'FAIL' if part.failed else 'ok  '} {part.name:22} {part.passed:6} passed, "
          f"{part.failed} failed, {part.seconds:.1f} s  {part.why}", flush=True)
    for line in lines:
        print("       " + line[:200], flush=True)


def run_on_a_free_device(part, logs, free):
    device = free.get()
    try:
        run(part, logs, device)
    finally:
        free.put(device)


def run_all(parts, jobs, logs):
    """First what shares devices, jobs at a time; then what wants one to itself, one a device."""
    devices = device_names()
    shared = [p for p in parts if not p.alone]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, shared, itertools.repeat(logs), itertools.cycle(devices)))
    free = queue.SimpleQueue()
    for device in devices:
        free.put(device)
    with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
        list(pool.map(lambda p: run_on_a_free_device(p, logs, free),
                      [p for p in parts if p.alone and p.devices == 1]))
    for part in parts:
        if part.devices > 1:
            run(part, logs, ",".join(devices[:part.devices]))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("programs")
    p.add_argument("source")
    p.add_argument("part", nargs="*")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--sanitize", action="store_true")
    p.add_argument("--jobs", type=int, default=max(2, (os.cpu_count() or 2) // 2))
    p.add_argument("--logs", default="")
    a = p.parse_intermixed_args()
    at = Places(a.programs, a.source)
    if a.sanitize and not shutil.which("compute-sanitizer"):
        sys.exit("suite: there is no compute-sanitizer on PATH")
    os.environ["WHET_SOURCE_ROOT"] = at.source
    parts = sanitizer_parts(at) if a.sanitize else plain_parts(at, a.quick)
    parts = [x for x in parts if not a.part or any(x.name.startswith(w) for w in a.part)]
    if not parts:
        sys.exit(f"suite: no part is called {' or '.join(a.part)}")
    there = len(device_names())
    left_out = [(x.name, f"this Python has no {missing(x.python)}") for x in parts if missing(x.python)]
    left_out += [(x.name, f"it needs {x.devices} devices, and there is {there}")
                 for x in parts if x.devices > there]
    parts = [x for x in parts if x.name not in dict(left_out)]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    logs = a.logs or tempfile.mkdtemp(prefix="whet-device-")
    os.makedirs(logs, exist_ok=True)
    begun = time.monotonic()
    run_all(parts, a.jobs, logs)
    for name, why in left_out:
        print(f"left out: {name}, {why}")
    print(f"logs in {logs}; {time.monotonic() - begun:.0f} s")
    failed = sum(x.failed for x in parts)
    print(f"{sum(x.passed for x in parts)} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
