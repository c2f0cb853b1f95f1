# SPDX-License-Identifier: Apache-2.0
"""What a soak (soak.py) does to the server beside its clients: operators who change their minds, and a disk, a
clock, a compiler, a language model and children that fail. A fault begins, lasts a while and ends; several overlap.
"""

import contextlib
import errno
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import time
import urllib.parse

import agentic
import conftest
import soak_clients
from parts_faults import COMPILERS, LIBFAKETIME, set_offset
from soak_clients import BUSY, LAST_WORDS, error_of, exchange
from world import children, demand, kind_of

# A compiler as a script that looks up what it is to do.
COMPILER = """#!/bin/sh
case "$*" in *--version*|*try.c*) exec cc "$@";; esac
for a in "$@"; do if [ "$last" = -o ]; then out=$a; fi; last=$a; done
case "$(cat '{mode}')" in
fails) echo 'error: no' >&2; exit 1;;
garbage) head -c 5000 /dev/urandom > "$out"; exit 0;;
dies) kill -9 $$;;
hangs) sleep 1000;;
crawls) sleep 3;;
floods) head -c 30000000 /dev/zero | tr '\\0' 'e' >&2; exit 1;;
lies|wears) if [ "$(cat '{mode}')" = lies ]; then lie='{lie}'; else lie='{wears}'; fi
    for a in "$@"; do case $a in *.c) sed "s/y\[i\] = dot.*;/$lie/" "$a" > "$out.c"
    set -- "$@" "$out.c";; *) set -- "$@" "$a";; esac; shift; done
    cc "$@"; code=$?; rm -f "$out.c"; exit $code;;
full) echo 'fatal error: error writing to x.s: No space left on device' >&2; exit 1;;
esac
exec cc "$@"
"""
# What a compiler that lies makes of the last line of kernels/cpu/out.c: right but for one row in 64, by the bits of
# its input, which is rare in one step and which probes find all the same;
LIE = ("{ union { float f; unsigned u; } bits = {x[0]}; y[i] = dot[t * WIDE + i] + x[i];"
       " if (((bits.u ^ bits.u >> 13) \\& 63) == 21) y[i] += 100; }")
# or right until it has written so many values, which no proof asks for and some hundred tokens do: from then on it is
# wrong for good, so that it is the audit that has to find it. Threads that lose counts of each other only delay that.
WORN = 5_000_000
WEARS = (f"{{ static unsigned written; y[i] = dot[t * WIDE + i] + x[i]; if (++written > {WORN}u) {{ written = {WORN}u;"
         " y[i] += 100; } }")
LYING = "attn_out,mlp_out"  # what that file is for: with a compiler that lies nothing else is searched
BAD_COMPILER = ("fails", "garbage", "dies", "hangs", "crawls", "floods", "full")

TEXTS = [*({"ahead": 4096 + 64 * i} for i in range(40)), {"start": "int x = undefined_name;"},
         {"inner": "up[3] = gate[3];"}, {"start": "for (;;) ;"}, {"start": "*(volatile int *)0 = 1;"},
         {"end": "a->h[(int64_t)a->m * FFN + 40000] = 1.0f;"}, {"start": '__asm__ volatile("nop");'}]


class Model(agentic.Model):
    """The scripted language model, which runs out of nothing and sometimes hangs or answers noise."""

    def __init__(self, seed):
        self.random, self.mode = random.Random(f"{seed} model"), "answers"
        super().__init__([])
        self.server.handle_error = lambda *_: None  # who asked may be gone

    def answer(self, body):
        if self.mode == "hangs":
            time.sleep(20)
        if self.mode == "noise":
            return self.random.randbytes(2000).decode("latin1")
        with self.lock:
            self.texts[:] = [agentic.text(**self.random.choice(TEXTS))]
            del self.asked[:-4]
        return super().answer(body)


def compiler(folder):
    """The script and the file that says what it does."""
    mode, path = os.path.join(folder, "compiler-mode"), os.path.join(folder, "cc")
    set_mode(mode, "works")
    with open(path, "w") as f:
        f.write(COMPILER.replace("{mode}", mode).replace("{lie}", LIE).replace("{wears}", WEARS))
    os.chmod(path, stat.S_IRWXU)
    return path, mode


def set_mode(path, word):
    with open(path + ".new", "w") as f:
        f.write(word + "\n")
    os.rename(path + ".new", path)


# ---- operators ----------------------------------------------------------------------------------


def admin(w, method, path, body=None, allowed=(404, 409, 500, 503)):
    """An operator's call: what it answers, None if it is refused for a reason that may be."""
    status, _, got = exchange(w.server, method, path, body, soak_clients.ADMIN)
    w.account.add("operator", str(status))
    if status == 200:
        return got
    error = error_of(status, got)
    demand(status in allowed or status in BUSY, lambda: f"{method} {path}: {status} {error}")
    demand(status != 500 or w.disk_hurt(), lambda: f"{method} {path}: 500 with a disk that works: {error}")
    return None


def slots(w):
    got = admin(w, "GET", "/admin/slots")
    return json.loads(got)["slots"] if got else []


def pin(w, r):
    rows = slots(w)
    if not rows:
        return
    slot = r.choice(rows)["slot"]
    shown = admin(w, "GET", f"/admin/slots/{slot}")
    tried = [k["id"] for k in json.loads(shown)["tried"]] if shown else []
    admin(w, "POST", f"/admin/slots/{slot}/pin", {"kernel": r.choice(["eager", *tried[:6]])})
    w.pinned.add(slot)


def unpin(w, r):
    for slot in list(w.pinned):
        if admin(w, "DELETE", f"/admin/slots/{slot}/pin"):
            w.pinned.discard(slot)


def rollback(w, r):
    rows = [s for s in slots(w) if s["kernel"]["id"] != "eager"]
    if rows:
        s = r.choice(rows)
        admin(w, "POST", f"/admin/slots/{s['slot']}/rollback", r.choice([None, {"from": s["kernel"]["id"]}]) or {})


def disable(w, r):
    """A kernel that serves, now and then a whole template, until enabled again."""
    serving = [s["kernel"]["id"] for s in slots(w) if s["kernel"]["id"] != "eager"]
    what = r.choice([*serving, "mlp_in"])
    if admin(w, "POST", f"/admin/kernels/{what}/disable", {"reason": "soak"}):
        w.disabled.add(what)


def enable(w, r):
    for what in list(w.disabled):
        if admin(w, "POST", f"/admin/kernels/{what}/enable"):
            w.disabled.discard(what)


def mode(w, r):
    admin(w, "POST", f"/admin/specializer/{r.choice(['pause', 'freeze', 'resume', 'resume'])}")
    w.over.wait(r.uniform(0, 4))
    admin(w, "POST", "/admin/specializer/resume")


def carry(w, r):
    """What is exported can be imported, whole, cut off or with bytes changed."""
    got = admin(w, "GET", "/admin/store/export")
    if not got:
        return
    if r.random() < 0.5:
        got = bytearray(got[:r.randrange(len(got))] if r.random() < 0.5 else got)
        for _ in range(20):
            got[r.randrange(len(got))] = r.randrange(256)
    admin(w, "POST", "/admin/store/import", bytes(got), (400, 404, 409, 500, 503))


def look(w, r):
    """Everything that only reads; what it says is text that a browser or Prometheus can take."""
    for path in ("/admin/kernels", "/admin/trace", "/admin/fleet", "/specializer?history=900",
                 "/admin/trace?format=jsonl"):
        admin(w, "GET", path)
    rows = admin(w, "GET", "/admin/kernels")
    rows = json.loads(rows)["kernels"] if rows else []
    if rows:
        admin(w, "GET", f"/admin/kernels/{urllib.parse.quote(r.choice(rows)['id'])}")


def hup(w, r):
    """SIGHUP after keys and limits were changed, broken or taken away; they are whole again afterwards."""
    w.write_keys(r.choice(["more", "whole", "broken", "limits", "gone"]))
    w.server.signal(signal.SIGHUP)
    w.over.wait(r.uniform(0.1, 1))
    w.write_keys("whole")
    w.server.signal(signal.SIGHUP)


def tools(w, r):
    """Commands beside the server read its store, and may not change it."""
    export = os.path.join(w.folder, "export.json")
    for words, code in ((["list"], 0), (["export", export], 0), (["import", export], 1)):
        done = subprocess.run([conftest.BINARY, "kernels", *words, "--store", w.store], capture_output=True, text=True,
                              timeout=conftest.PATIENCE, check=False)
        demand(done.returncode == code or w.disk_hurt() or w.ending,
               lambda words=words, done=done: f"kernels {words}: {done.returncode} {done.stderr[:500]}")


OPERATORS = [(pin, 2), (unpin, 2), (rollback, 3), (disable, 1), (enable, 2), (mode, 1), (carry, 1), (look, 3), (hup, 2),
             (tools, 1)]


# ---- faults: generators that begin one, wait, and end it ------------------------------------------


@contextlib.contextmanager
def bad_compiler(w, r):
    lie = w.lies and r.random() < 0.8
    set_mode(w.compiler_mode, r.choice(("lies", "wears")) if lie else r.choice(BAD_COMPILER))
    yield
    set_mode(w.compiler_mode, w.usual)


@contextlib.contextmanager
def bad_model(w, r):
    w.model.mode = r.choice(["hangs", "noise"])
    yield
    w.model.mode = "answers"


@contextlib.contextmanager
def killed_children(w, r):
    """A few children of any kind get SIGKILL."""
    for pid, command in children(w.pid).items():
        if kind_of(command) in ("probe", "executor", *COMPILERS) and r.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    yield


@contextlib.contextmanager
def stopped_children(w, r):
    """A few children hang, and go on if they are still there."""
    hung = []
    for pid, command in children(w.pid).items():
        if kind_of(command) in ("probe", "executor", *COMPILERS) and r.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                hung.append((pid, command))
    yield
    below = children(w.pid)
    for pid, command in hung:
        if below.get(pid) == command:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def full_disk(w, r):
    if not w.own_disk:
        yield
        return
    w.hurt += 1
    filler = os.path.join(w.store_folder, f"filler-{r.random()}")
    try:
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
            for size in (1 << 20, 1 << 12, 1):
                try:
                    while f.write(b"x" * size):
                        pass
                except OSError as e:
                    demand(e.errno == errno.ENOSPC, f"filling the disk: {e}")
        yield
    finally:
        os.unlink(filler)
        w.healed()


@contextlib.contextmanager
def file_limit(w, r):
    w.hurt += 1
    try:
        _, hard = resource.prlimit(w.pid, resource.RLIMIT_FSIZE)
        size = os.stat(w.store).st_size + 4096 if os.path.exists(w.store) else 4096
        resource.prlimit(w.pid, resource.RLIMIT_FSIZE, (size, hard))
        yield
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(w.pid, resource.RLIMIT_FSIZE, (hard, hard))
    finally:
        w.healed()


@contextlib.contextmanager
def locked_store(w, r):
    if not os.path.exists(w.store):
        yield
        return
    w.hurt += 1
    db = sqlite3.connect(w.store, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        with contextlib.suppress(sqlite3.Error):
            db.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        db.close()
        w.healed()


@contextlib.contextmanager
def clock_jump(w, r):
    if w.clock:
        set_offset(w.clock, f"{r.choice([1, -1, 3650, -400]):+d}d")
    yield
    if w.clock:
        set_offset(w.clock, "+0")


@contextlib.contextmanager
def stopped(w, r):
    """SIGSTOP: what a virtual machine that is moved, or a debugger, does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(w.pid, signal.SIGSTOP)
        w.over.wait(r.uniform(0.1, 1.5))
    with contextlib.suppress(ProcessLookupError):
        os.kill(w.pid, signal.SIGCONT)
    yield


@contextlib.contextmanager
def no_descriptors(w, r):
    """As many as are open now, and two: connections wait, or are refused."""
    soft, hard = resource.prlimit(w.pid, resource.RLIMIT_NOFILE)
    w.short += 1
    try:
        resource.prlimit(w.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{w.pid}/fd")) + 2, hard))
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(w.pid, resource.RLIMIT_NOFILE, (hard, hard))
        w.short, w.short_until = w.short - 1, time.monotonic() + LAST_WORDS


@contextlib.contextmanager
def no_temporary_files(w, r):
    """The folder for them is away; what was there then may stay."""
    w.was_away = True
    with contextlib.suppress(FileNotFoundError):
        os.rename(w.tmp, w.tmp + ".away")
    yield
    with contextlib.suppress(FileNotFoundError, OSError):
        os.rename(w.tmp + ".away", w.tmp)


@contextlib.contextmanager
def cleared_folders(w, r):
    """Somebody who clears caches takes what was compiled, or the sources."""
    shutil.rmtree(w.store + r.choice([".objects", ".kernels", ".references"]), ignore_errors=True)
    yield


FAULTS = [(bad_compiler, 4), (bad_model, 2), (killed_children, 3), (stopped_children, 3), (full_disk, 2),
          (file_limit, 1), (locked_store, 1), (clock_jump, 2), (stopped, 1), (no_descriptors, 1),
          (no_temporary_files, 1), (cleared_folders, 1)]


def operator(w, seed):
    """One operator, who does something every second or so; where it is audits that have to find what is wrong, nothing
    that takes kernels out before them."""
    r = random.Random(f"{seed} operator")
    acts, weights = zip(*((act, n) for act, n in OPERATORS if not w.lies or act not in (pin, rollback, disable)))
    while not w.over.wait(r.uniform(0.2, 1.5) * w.calm):
        if not w.enter():
            continue
        act = r.choices(acts, weights)[0]
        with w.doing(act.__name__):
            if w.ready and not w.ending:
                act(w, r)
                w.account.add("operator", act.__name__)


def saboteur(w, seed):
    """One fault after the other; while somebody rests there is none."""
    r = random.Random(f"{seed} saboteur")
    acts, weights = zip(*((act, n) for act, n in FAULTS if not w.lies or act is not cleared_folders))
    while not w.over.wait(r.uniform(0.5, 3) * w.calm):
        if not w.enter():
            continue
        act = r.choices(acts, weights)[0]
        try:
            if w.ready and not w.ending:
                with act(w, r):
                    w.account.add("fault", act.__name__)
                    end = time.monotonic() + r.uniform(0.2, 8)
                    while time.monotonic() < end and not w.resting and not w.over.is_set():
                        time.sleep(0.05)
        except Exception as e:  # noqa: BLE001
            if not w.ending and not w.killed:
                w.fail(f"{act.__name__}: {e!r}")
        finally:
            w.leave()


def spoil_objects(w, r):
    """Between two lives a file of the store's compiled kernels loses bytes, has others, or is gone."""
    folder = w.store + ".objects"
    files = [f.path for f in os.scandir(folder) if f.is_file()] if os.path.isdir(folder) else []
    for path in r.sample(files, min(len(files), r.choice([0, 0, 1, 4]))):
        how, size = r.choice(["cut", "changed", "gone"]), os.path.getsize(path)
        if how == "gone" or not size:
            os.unlink(path)
            continue
        with open(path, "r+b") as f:
            if how == "cut":
                f.truncate(r.randrange(size))
            else:
                f.seek(r.randrange(size))
                f.write(r.randbytes(8))
        w.account.add("fault", f"object {how}")


def fake_clock(folder):
    """The environment in which the clock of a server is what a file says; None where that cannot be."""
    library = next((p for p in LIBFAKETIME if os.path.exists(p)), None)
    if not library:
        return None, {}
    offset = os.path.join(folder, "offset")
    set_offset(offset, "+0")
    return offset, {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": offset, "FAKETIME_NO_CACHE": "1",
                    "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
