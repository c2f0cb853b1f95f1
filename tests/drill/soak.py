# SPDX-License-Identifier: Apache-2.0
"""Everything at once, for as long as is asked: clients of all kinds, operators, a search that swaps as often as it
can, and faults that overlap, on servers that live a minute or two and are drained or killed, all on one store.

A part of the drill (drill.py) does one thing and holds everything else still; here nothing is still, so what is
found is what two things do to each other. Everything is drawn from a seed, but two runs are not alike: threads and
the machine have their say. Whenever the server rests, and after each of its ends, it is looked over (soak_checks.py).
"""

import argparse
import collections
import contextlib
import ctypes
import faulthandler
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import conftest
import load
import soak_checks as checks
import soak_clients as clients
import soak_faults as faults
from world import Failed, demand, end_of, wait_until

PR_SET_CHILD_SUBREAPER = 36
DRAIN_S = 5
ENDS = ("drained", "drained", "killed", "told twice")
AUDITS_MIN = 5  # minutes in which an audit finds a kernel that wears out
ADMITTED_LOOKS = 3000
TOLD = 4  # times that something is told of which there is more
# What a drain, ten seconds for an engine that hangs, and a busy machine take together at most.
END_S = 120

# A small cache, queue and batch, and a search that takes what it can: whatever can meet, meets often.
ALWAYS = ["--specializer-enabled=true", conftest.WHATEVER_SPEED, *"""
          --engine-max-batch 8 --engine-max-context 512 --engine-prefill-chunk 64
          --server-max-queue 12 --server-write-timeout 20
          --specializer-opening-share 0.5 --specializer-cpu-slice-steps 0
          --specializer-build-timeout 5 --specializer-probe-timeout 20
          --specializer-builds-per-hour 100000 --specializer-agentic on
          --adviser-model writer --adviser-timeout 3 --agentic-timeout 5
          --adviser-calls-per-hour 100000 --adviser-tokens-per-hour 1000000000
          --agentic-attempts 100000 --agentic-tokens 0""".split(),
          "--server-drain-s", str(DRAIN_S)]
DRAWN = {"--engine-kv-pages": ("34", "48", "96"), "--engine-threads": ("1", "2", "2"),
         "--engine-prefix-cache": ("salted", "salted", "shared", "off"),
         "--engine-speculate": ("off", "ngram"), "--engine-huge-pages": ("true", "false"),
         "--server-max-connections": ("16", "1024"), "--log-level": ("info", "debug"),
         "--specializer-numerics": ("bit_equal", "tolerance"),
         "--specializer-strategy": ("template", "template", "agentic", "mcts", "evolve"),
         "--specializer-share": ("0.1", "0.5"), "--specializer-watch-every": ("1", "5"),
         "--specializer-pack-mib": ("-1", "0", "20"), "--specializer-restore-s": ("0", "2")}

# With a compiler that lies: all servers restore what one of them has found, and search nothing else.
LYING = {"--engine-threads": "2", "--specializer-numerics": "tolerance", "--specializer-pack-mib": "-1",
         "--specializer-slots": faults.LYING}


class Soak:
    """One run: what threads share. `enter()` and `leave()` stand around everything that is done to the server."""

    def __init__(self, folder, a):
        self.lies, self.ranks, self.folder, self.seed, self.random = (
            a.lies, a.ranks, folder, a.seed, random.Random(f"{a.seed} lives"))
        self.store_folder, self.tmp = os.path.join(folder, "store"), os.path.join(folder, "tmp")
        for path in (self.store_folder, self.tmp):
            os.mkdir(path, 0o700)
        self.own_disk, self.store = False, os.path.join(self.store_folder, "store.db")
        self.account, self.model = clients.Account(), faults.Model(a.seed)
        self.compiler, self.compiler_mode = faults.compiler(folder)
        # A kernel that passes all proofs and is wrong later has to serve for a while: there is more time between two
        # acts of operators, and between two faults or rests.
        self.usual, self.calm = ("wears", 3) if a.lies else ("works", 1)
        self.over, self.gate = threading.Event(), threading.Condition()
        self.inside, self.resting, self.ready, self.ending, self.killed = 0, True, False, False, False
        self.short, self.short_until = 0, 0
        self.life, self.ended_at, self.hurt, self.healed_at, self.lied = 0, 0, 0, 0, a.lies
        self.pinned, self.disabled, self.wrong = set(), set(), []
        self.told = collections.Counter()
        self.lines, self.counters, self.first, self.rests, self.ends = collections.Counter(), {}, None, 0, []
        self.server = self.clock = None
        self.write_keys("whole")

    # ---- what threads ask -----------------------------------------------------------------------

    def enter(self):
        """False: nothing may be done now, ask again."""
        with self.gate:
            if self.resting or self.ending or not self.ready:
                self.gate.wait(0.2)
                return False
            self.inside += 1
            return True

    def leave(self):
        with self.gate:
            self.inside -= 1
            self.gate.notify_all()

    @contextlib.contextmanager
    def doing(self, what, begun=None):
        """After enter(): whatever ends it is told under this name, a lost connection unless something excuses that,
        and a mistake of the soak itself, which must not end it in silence."""
        life = self.life
        try:
            yield
        except clients.Lost as e:
            # A server that was ended may cut what it had not read, and everything if it was killed.
            excused = self.life != life or self.excused(begun)
            self.account.add(what, "cut" if excused else "LOST")
            if not excused:
                self.fail(f"{what}: lost without an error: {e}")
            time.sleep(0.2)
        except Failed as e:
            self.fail(f"{what}: {e}")
        except Exception as e:  # noqa: BLE001
            self.fail(f"{what}: {e!r}")
        finally:
            self.leave()

    def fail(self, text):
        self.wrong.append(text)
        kind = re.sub(r"[0-9a-f]*\d[0-9a-f.]*", "#", text)[:100]
        self.told[kind] += 1
        if self.told[kind] <= TOLD:
            print(f"  WRONG, life {self.life}, {time.strftime('%H:%M:%S')}: {text[:6000]}", flush=True)

    def disk_hurt(self):
        return self.hurt > 0 or time.monotonic() < self.healed_at + 20

    def healed(self):
        self.hurt, self.healed_at = self.hurt - 1, time.monotonic()

    def excused(self, begun=None):
        """A connection may end without an answer: the server was killed, or ended before it can have read the
        request, or had no descriptor for it."""
        late = begun is None or begun > self.ended_at - clients.LAST_WORDS
        return self.killed or (self.ending and late) or self.short > 0 or time.monotonic() < self.short_until

    @property
    def pid(self):
        return self.server.process.pid

    def write_keys(self, how):
        """The files that SIGHUP reads again."""
        keys = [f"{key} name={name}" for name, key in clients.KEYS.items()]
        limits = ["beta running=3 waiting=9"]
        if how == "more":
            keys.append(f"sk-{clients.MARK}-more name=gamma")
            limits.append("gamma tokens_per_minute=10")
        if how == "limits":
            limits.append("alpha running=6 waiting=6 tokens_per_minute=100000")
        if how == "broken":
            limits.append("nobody at all = 7")
        self.put("admin", [clients.ADMIN])
        self.put("limits", limits)
        if how == "gone":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.folder, "keys"))
        else:
            self.put("keys", keys)

    def put(self, name, lines):
        path = os.path.join(self.folder, name)
        with open(os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
            f.write("\n".join(lines) + "\n")
        os.rename(path + ".new", path)

    # ---- a life -----------------------------------------------------------------------------------

    def begin(self):
        self.life += 1
        if not self.lies:  # what is built again is no longer the file that was proven, and does not come back
            faults.spoil_objects(self, self.random)
        r = self.random
        drawn = {name: r.choice(values) for name, values in DRAWN.items()} | (LYING if self.lies else {})
        self.options = [*ALWAYS, *(w for pair in drawn.items() for w in pair), "--store", self.store,
                        "--engine-ranks", str(self.ranks)]
        of = lambda name: os.path.join(self.folder, name)
        self.options += ["--server-api-keys", of("keys"), "--server-key-limits", of("limits"),
                         "--server-admin-key-file", of("admin"), "--specializer-compiler", self.compiler,
                         "--adviser-url", self.model.url]
        self.clock, env = faults.fake_clock(self.folder) if r.random() < 0.5 and checks.plain() else (None, {})
        print(f"life {self.life}: {' '.join(f'{k[2:]}={v}' for k, v in drawn.items())}"
              f"{' clock' if self.clock else ''}", flush=True)
        self.server = conftest.Server(*self.options, env={**env, "TMPDIR": self.tmp}, wait=False)
        self.counters, self.first, self.ready_once, self.was_away = {}, None, False, False

    def work(self):
        """Everybody begins."""
        self.server.wait_ready()
        self.ready_once = True
        with self.gate:
            self.ready, self.ending, self.killed, self.resting = True, False, False, False
            self.gate.notify_all()

    def rest(self):
        """Nobody does anything, and everything that there was to do is done."""
        self.resting = True
        try:
            with self.gate:
                demand(self.gate.wait_for(lambda: not self.inside, conftest.PATIENCE),
                       lambda: f"{self.inside} requests or calls do not end: {checks.state(self)}")
            checks.rest(self)
            self.rests += 1
        finally:
            with self.gate:
                self.resting = False
                self.gate.notify_all()

    def end(self, how):
        """SIGTERM, twice, or SIGKILL, with everything under way."""
        with self.gate:
            self.ended_at = time.monotonic()
            self.killed = how != "drained"
            self.ending = True
        begun = time.monotonic()
        self.server.signal(signal.SIGKILL if how == "killed" else signal.SIGTERM)
        if how == "told twice":
            time.sleep(self.random.uniform(0, 1))
            self.server.signal(signal.SIGTERM)
        try:
            code = self.server.wait(END_S)
        except subprocess.TimeoutExpired:
            self.fail(f"the server does not end: {checks.state(self)}")
            self.server.process.send_signal(signal.SIGABRT)
            code = self.server.wait(END_S)
        self.ends.append((how, time.monotonic() - begun))
        with self.gate:
            self.killed, self.ready = True, False
        checks.after(self, how, code)
        with self.gate:
            demand(self.gate.wait_for(lambda: not self.inside, conftest.PATIENCE), "clients do not see the end")
        self.server.store.cleanup()

    def live(self, seconds):
        """One server from its start to its end."""
        self.begin()
        if self.random.random() < 0.15:  # while it loads, restores or opens its store
            time.sleep(self.random.uniform(0, 1.5))
            self.end(self.random.choice(ENDS))
            return
        self.work()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pause = min(until, time.monotonic() + self.random.uniform(15, 40) * min(self.calm, 3))
            while time.monotonic() < pause:
                if self.server.process.poll() is not None:
                    self.killed = True
                    end = end_of(self.server.process.returncode)
                    self.fail(f"the server ended {end}: {self.server.text()[-6000:]}")
                    self.ending, self.ready = True, False
                    return
                time.sleep(0.2)
            if self.random.random() < 0.7:
                self.guard(self.rest)
        self.end(self.random.choice(ENDS))

    def admit_lies(self):
        """Undisturbed, kernels that will wear out win slots of a single sequence. Nothing is audited meanwhile."""
        faults.set_mode(self.compiler_mode, "wears")
        s = conftest.Server(*ALWAYS, *(w for pair in LYING.items() for w in pair), "--store", self.store,
                            "--specializer-watch-every", "1000000", "--specializer-agentic", "off",
                            "--specializer-compiler", self.compiler)
        try:
            with load.Load(s):
                demand(s.process.poll() is None, s.text)
                wait_until(lambda: checks.rows_of(self.store, "SELECT 1 FROM winner WHERE slot LIKE '%/m1'"),
                           lambda: f"no kernel is admitted: {s.text()[-3000:]}", looks=ADMITTED_LOOKS, pause=0.2)
        finally:
            s.stop()
        print(f"wear out: {checks.rows_of(self.store, 'SELECT slot, key FROM winner')}", flush=True)

    def guard(self, work):
        try:
            work()
        except Failed as e:
            self.fail(str(e))

    def run(self, minutes, life, count):
        reference = conftest.Server("--engine-max-context", "512")
        try:
            (self.texts, least), self.room = clients.references(reference), clients.room_of(reference)
        finally:
            reference.stop()
        print(f"{len(self.texts)} prompts; their tokens are {least:.4f} apart at least", flush=True)
        if self.lies:
            self.admit_lies()
        work = [(clients.client, i) for i in range(count)] + [(checks.poller, 0), (faults.operator, 0),
                                                             (faults.saboteur, 1), (faults.saboteur, 2)]
        threads = [threading.Thread(target=f, daemon=True, args=(self, i, f"{self.seed} {i}") if f is clients.client
                                    else (self, f"{self.seed} {i}")) for f, i in work]
        for t in threads:
            t.start()
        end = time.monotonic() + minutes * 60
        try:
            while time.monotonic() < end:
                self.guard(lambda: self.live(min(self.random.uniform(0.1, 1.9) * life, end - time.monotonic())))
                print(f"  {self.account.total()} requests and calls, {self.rests} rests", flush=True)
        finally:
            self.over.set()
            if self.server.process.poll() is None:
                self.server.process.kill()
            for t in threads:
                t.join(30)
            self.model.close()


def report(w, minutes):
    for kind, row in sorted(w.account.counts.items()):
        print(f"{kind:10} " + ", ".join(f"{k} {n}" for k, n in sorted(row.items())))
    for how in sorted({h for h, _ in w.ends}):
        times = [t for h, t in w.ends if h == how]
        print(f"{how:10} {len(times)} times, the longest took {max(times):.1f} s")
    for line, n in w.lines.most_common(60):
        print(f"  {n:6} {line}")
    for kind, n in w.told.most_common():
        print(f"  wrong {n} times: {kind}")
    print(f"{minutes:.0f} min, {w.life} lives, {w.rests} rests, {w.account.total()} requests and calls, "
          f"{len(w.wrong)} wrong", flush=True)
    return 1 if w.wrong else 0


def main():
    p = argparse.ArgumentParser(prog="scripts/drill --soak", description=__doc__.splitlines()[0])
    p.add_argument("minutes", type=float)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--life", type=float, default=90, help="seconds that a server lives, about")
    p.add_argument("--clients", type=int, default=6)
    p.add_argument("--ranks", type=int, default=1, help="processes that compute the model together")
    p.add_argument("--lies", action="store_true",
                   help="the compiler makes wrong kernels, too, some of which an audit has to find; texts are compared at "
                   "rest only from the first one on, when it has")
    p.add_argument("--keep", action="store_true", help="keep the folder with store and logs")
    a = p.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Children of a server that died are ours, so that they are seen.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.ExitStack() as stack:
        folder = (tempfile.mkdtemp(prefix="whet-soak-") if a.keep else
                  stack.enter_context(tempfile.TemporaryDirectory(prefix="whet-soak-", ignore_cleanup_errors=True)))
        w = Soak(folder, a)
        if os.environ.get("WHET_DRILL_MAY_MOUNT"):
            mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m,mode=0700", "none", w.store_folder],
                                     capture_output=True, text=True, check=False)
            w.own_disk = not mounted.returncode
            if w.own_disk:
                stack.callback(lambda: subprocess.run(["umount", "-l", w.store_folder], check=False))
        begun = time.monotonic()
        w.run(a.minutes, a.life, a.clients)
        if a.lies and a.minutes >= AUDITS_MIN:
            w.guard(lambda: demand(checks.rows_of(w.store, checks.WRONG), "no audit has found any of the lies"))
        return report(w, (time.monotonic() - begun) / 60)


if __name__ == "__main__":
    sys.exit(main())
