# SPDX-License-Identifier: Apache-2.0
"""Things that die or fail beside the server: its children, its disk, its store, its clock, its
descriptors, the model that it asks. Each part is a function of a world (world.py) and the counts of
the run; its sentence says what it defends."""

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import time

import agentic
import clients
import conftest
import test_agentic
from parts_net import connect
from world import (Failed, Skipped, World, children, demand, kind_of, wait_until)

LIFE = ("built", "probed", "benched", "refused", "deferred", "rolled_back", "retired", "shadowed", "canary",
        "active")
COMPILERS = ("cc", "cc1", "as", "collect2", "ld", "gcc", "clang")


# ---- children ---------------------------------------------------------------------------------


def kill_some(w, kinds, count):
    """SIGKILL to so many children of these kinds, as they come."""
    killed = set()

    def strike():
        for pid, command in children(w.pid).items():
            if kind_of(command) in kinds and pid not in killed and len(killed) < count:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        return len(killed) >= count

    wait_until(strike, lambda: f"only {len(killed)} of {kinds} came: {w.words()}",
               looks=60000, pause=0.005)
    return killed


def killed_probes(w, n):
    """A probe that is killed costs its kernel a try, and nothing else."""
    kill_some(w, ("probe",), n["kills"])
    w.goes_on()
    w.search_goes_on()
    return f"{n['kills']} killed"


def killed_compilers(w, n):
    """A compiler that is killed says nothing about its kernel."""
    kill_some(w, COMPILERS, n["kills"])
    w.goes_on()
    w.search_goes_on()
    with contextlib.closing(sqlite3.connect(f"file:{w.store}?mode=ro", uri=True)) as db:
        blamed = db.execute("SELECT name FROM candidate WHERE state = 'refused' AND reason LIKE"
                            " '%Killed%'").fetchall()
    demand(not blamed, lambda: f"refused because something else killed its compiler: {blamed}")
    return f"{n['kills']} killed"


def killed_executors(_, __):
    """The process of a kernel that a language model wrote is killed while it runs steps: nobody
    waits for it, no text changes, and its slot never is without a process that can run it."""
    slot = "mlp_in/m1"
    # They have eager's bits, and each is the same work, tried anew. How fast they are is no matter: slower
    # ones pass, so that each runs beside live steps and in a canary.
    model = agentic.Model([test_agentic.text(ahead=8192 + 64 * i) for i in range(40)])
    try:
        with World("--specializer-strategy", "agentic", "--specializer-agentic", "on",
                   "--specializer-slots", slot, "--adviser-url", model.url, "--adviser-model",
                   "writer", "--adviser-calls-per-hour", "1000", "--specializer-pack-mib", "-1",
                   conftest.WHATEVER_SPEED, "--agentic-attempts", "100",
                   *test_agentic.ALONE, streams=2) as w:
            w.goes_on()
            w.begin()
            killed = set()
            # One that dies while it is started is started again, so that is no proof: until a text whose
            # process died between steps was judged for it.
            wait_until(lambda: blamed(w, slot) or kill_in_steps(w, slot, killed),
                       lambda: f"no decision says why its process died, {len(killed)} were killed: "
                               f"{w.words()} {trace(w, slot)[:4]}", looks=3000, pause=0.2)
            w.goes_on(4)
            wait_until(lambda: serving(w, slot) == "eager" or any(
                kind_of(c) == "executor" for c in children(w.pid).values()),
                "a kernel serves and has no process to run in")
            return w.report(f"{len(killed)} killed")
    finally:
        model.close()


def kill_in_steps(w, slot, killed):
    """Kills the process of a text that has run beside live steps. Always false: who asks looks again."""
    if in_steps(w, slot):
        for pid, command in children(w.pid).items():
            if kind_of(command) == "executor" and pid not in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
    return False


def blamed(w, slot):
    """A kernel that had run beside live steps was judged for the death of its process."""
    rows = trace(w, slot)
    ran = {r["kernel"] for r in rows if r["event"] == "shadowed"}
    return any("SIGKILL" in r.get("text", "") and r.get("kernel") in ran for r in rows)


def trace(w, slot):
    answer = w.server.admin("GET", f"/admin/trace?slot={slot}")
    return answer.json()["trace"] if answer.status_code == 200 else []


def in_steps(w, slot):
    """The kernel that the search is at has run beside live steps, or serves them."""
    life = [r["event"] for r in trace(w, slot) if r["event"] in LIFE]
    return bool(life) and life[0] in LIFE[-3:]


def serving(w, slot):
    answer = w.server.admin("GET", f"/admin/slots/{slot}")  # 503 until the search is set up
    return answer.json()["kernel"]["id"] if answer.status_code == 200 else "eager"


# ---- the adviser ------------------------------------------------------------------------------


class Endpoint:
    """Where the adviser is asked: hangs, or answers what is not an answer."""

    def __init__(self, mode):
        self.mode, self.asked, self.held = mode, 0, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1/chat/completions"
        if mode == "closed":
            self.socket.close()
            return
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                s, _ = self.socket.accept()
            except OSError:
                return
            self.asked += 1
            with contextlib.suppress(OSError):
                self.answer(s)

    def answer(self, s):
        if self.mode == "hangs":
            self.held.append(s)
            return
        s.recv(65536)
        size = 10_000_000 if self.mode == "huge" else 4096
        body = (b'{"choices": "' + b"a" * size) if self.mode == "huge" else os.urandom(size)
        s.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                  b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        s.close()

    def close(self):
        self.socket.close()
        for s in self.held:
            s.close()


def bad_adviser(mode):
    def part(_, n):
        endpoint = Endpoint(mode)
        try:
            # One slot, that every step of the one stream fills: nobody is asked before something
            # was measured, which is sooner so.
            with World("--adviser-url", endpoint.url, "--adviser-model", "any",
                       "--specializer-slots", "mlp_in/m1",
                       "--adviser-timeout", "2", "--adviser-calls-per-hour", "1000",
                       streams=1) as w:
                w.goes_on()
                w.begin()
                wait_until(lambda: w.server.metric("whet_adviser_faults_total") >= n["advice"],
                           lambda: f"the adviser was not missed: {w.words()}", pause=0.2)
                demand(mode == "closed" or endpoint.asked, "nobody was asked")
                w.goes_on()
                w.search_goes_on()
                return w.report(f"{n['advice']} answers missed")
        finally:
            endpoint.close()
    part.__doc__ = (f"An adviser that {ADVISERS[mode]} costs advice and nothing else.")
    return part


ADVISERS = {"closed": "is not there", "hangs": "never answers", "garbage": "answers noise",
            "huge": "answers 10 MB"}


# ---- the disk and the store -------------------------------------------------------------------


def writes_fail(w):
    """Changes that an operator makes are stored first: until the store says that it cannot."""
    before = w.server.metric("whet_store_errors_total")

    def one():
        for mode in ("pause", "resume"):
            answer = w.server.admin("POST", f"/admin/specializer/{mode}")
            if answer.status_code >= 500:
                return True
        return w.server.metric("whet_store_errors_total") > before

    wait_until(one, lambda: f"the store never fails: {w.words()}", looks=2000, pause=0)


def writes_work(w):
    last = []

    def works():
        last[:] = [w.server.admin("POST", "/admin/specializer/resume")]
        return last[0].status_code == 200

    wait_until(works, lambda: f"the store does not come back: {last[0].status_code} {last[0].text}"
                              f" {w.words()}", looks=200)


def disk_full(_, n):
    """A full disk costs evidence and swaps, no answer; with room again the search goes on."""
    if not os.environ.get("WHET_DRILL_MAY_MOUNT"):
        raise Skipped("needs root and a mount namespace")
    with tempfile.TemporaryDirectory(prefix="whet-drill-disk-") as disk:
        size = "size=192m,mode=0700"
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", disk],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode:
            raise Skipped(mounted.stderr.strip())
        try:
            with World(store=f"{disk}/store.db") as w:
                w.search_goes_on()
                w.begin()
                fill(f"{disk}/filler")
                writes_fail(w)
                w.operators_get_in(1)
                w.goes_on(n["answers"])
                os.unlink(f"{disk}/filler")
                room = os.statvfs(disk)
                demand(room.f_bavail > room.f_blocks // 8, lambda: f"there is no room: {room} "
                       f"{sorted((f.stat().st_size, f.name) for f in os.scandir(disk))}")
                writes_work(w)
                w.search_goes_on()
                return w.report(f"{n['answers']} answers meanwhile")
        finally:
            subprocess.run(["umount", "-l", disk], check=False)


def fill(path):
    """Writes until there is no room, down to the last byte."""
    with open(path, "wb", buffering=0) as f:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while f.write(b"x" * size):
                    pass
            except OSError as e:
                demand(e.errno == errno.ENOSPC, f"filling the disk: {e}")


def file_limit(w, n):
    """RLIMIT_FSIZE, a quota of a kind: writes fail with EFBIG, answers do not."""
    _, hard = resource.prlimit(w.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(w.pid, resource.RLIMIT_FSIZE, (os.stat(w.store).st_size + 4096, hard))
    try:
        writes_fail(w)
        w.operators_get_in(1)
        w.goes_on(n["answers"])
    finally:
        resource.prlimit(w.pid, resource.RLIMIT_FSIZE, (hard, hard))
    writes_work(w)
    return f"{n['answers']} answers meanwhile"


def store_locked(w, n):
    """While another process holds the store, answers go on and operators can look."""
    locked, done, said = sqlite3.connect(w.store, timeout=60, isolation_level=None), [], []
    locked.execute("BEGIN EXCLUSIVE")
    try:
        # A change waits for the store; nobody else may wait for it.
        def change():
            try:
                done.append(w.server.admin("POST", "/admin/specializer/resume")
                            .status_code)
            except Failed as e:
                said.append(str(e))

        changing = threading.Thread(target=change, daemon=True)
        changing.start()
        w.goes_on(n["answers"])
        for path in ("/health", "/ready", "/metrics", "/specializer"):
            demand(w.server.get(path).status_code == 200, path)
    finally:
        locked.execute("ROLLBACK")
        locked.close()
    changing.join(300)
    demand(done and not said, lambda: f"the change was not answered: {said}")
    writes_work(w)
    return f"{n['answers']} answers meanwhile"


# ---- the clock --------------------------------------------------------------------------------

LIBFAKETIME = ["/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
               "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
               "/usr/lib/faketime/libfaketimeMT.so.1"]


def clock_jumps(_, n):
    """The wall clock jumps, forth and back: answers and the search take no notice."""
    library = next((p for p in LIBFAKETIME if os.path.exists(p)), None)
    if not library:
        raise Skipped("needs libfaketime")
    with tempfile.TemporaryDirectory(prefix="whet-drill-clock-") as folder:
        offset = f"{folder}/offset"
        set_offset(offset, "+0")
        fake = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": offset, "FAKETIME_NO_CACHE": "1",
                "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        before = {k: os.environ.get(k) for k in fake}
        os.environ.update(fake)
        try:
            w = World()
        finally:
            for k, v in before.items():
                os.environ.pop(k) if v is None else os.environ.update({k: v})
        with w:
            w.goes_on(4)
            w.begin()
            for days in n["days"]:
                set_offset(offset, f"{days:+d}d")
                wait_until(lambda days=days: abs(wall_clock(w) - time.time() - days * 86400) < 3600,
                           f"the clock does not jump by {days} days", looks=100)
                w.goes_on(3)
                w.operators_get_in(1)
            w.search_goes_on()
            set_offset(offset, "+0")
            return w.report(f"{len(n['days'])} jumps")


def set_offset(path, text):
    with open(path + ".new", "w") as f:
        f.write(text + "\n")
    os.rename(path + ".new", path)


def wall_clock(w):
    answer = w.server.post("/v1/completions", json.loads(clients.completion("A", max_tokens=1)))
    return answer.json()["created"]


# ---- descriptors ------------------------------------------------------------------------------


BODY = clients.completion("A", max_tokens=1)
HALF = BODY[:10], BODY[10:]


def half_of_a_post(w):
    """A completion that is sent but for the end of its body; the server says when it has it."""
    w.book.enter()
    return clients.post(b"", len(BODY), "Expect: 100-continue\r\n") + HALF[0]


def no_descriptors(w, n):
    """Out of descriptors: what was begun is answered, new connections wait or are refused.

    One between two requests may be closed to make room (RFC 9112, section 9.3.1), so those that are
    counted on have begun one: their request has arrived but for its last bytes."""
    with clients.closing_all([connect(w) for _ in range(10)]) as begun:
        for s in begun:
            s.sendall(half_of_a_post(w))
            demand(b"100 Continue" in s.recv(100), "no answer")
        soft, hard = resource.prlimit(w.pid, resource.RLIMIT_NOFILE)
        w.load.may_be_refused = True
        with clients.closing_all([]) as crowd:
            resource.prlimit(w.pid, resource.RLIMIT_NOFILE, (w.descriptors(), hard))
            try:
                for _ in range(n["crowd"]):
                    with contextlib.suppress(OSError):
                        crowd.append(connect(w))
                for s in begun:
                    s.sendall(HALF[1])
                    demand(clients.read_answer(s, w.book), "what was begun got no answer")
                w.goes_on(n["answers"])
            finally:
                resource.prlimit(w.pid, resource.RLIMIT_NOFILE, (soft, hard))
            w.operators_get_in(1)
    w.load.rest()
    w.load.may_be_refused = False
    w.load.go_on()
    w.goes_on(4)
    w.search_goes_on()
    return f"{n['crowd']} connections too many"
