# SPDX-License-Identifier: Apache-2.0
"""A server to be drilled: real program, real model, an empty store in a private folder, the search
at work, clients that stream all the time; and what must be true of it after each part.

Every wait is for a condition and is bounded by a number of looks, so a slow machine takes longer
and fails nothing.
"""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import tempfile
import time

import requests

import clients
import conftest
from agentic import KEY

LOOK = 0.05     # seconds between two looks at a condition
LOOKS = 6000    # before it is given up
MEMORY = 1.10   # of what it was before
OPERATORS = ("/health", "/ready", "/metrics", "/specializer", "/admin/slots")

# A small KV cache and no repacked weights, so that memory has no reason to grow while the search
# works; bit_equal, so that no swap may change a text.
OPTIONS = ["--specializer-enabled=true", "--specializer-numerics", "bit_equal",
           "--specializer-pack-mib", "0", "--engine-kv-pages", "160",
           "--engine-max-context", "1024", "--server-max-connections", "4096",
           "--server-write-timeout", "10", "--server-body-timeout", "15"]


class Failed(Exception):
    """Something that a drill demands is not so; the text says what."""


class Skipped(Exception):
    """A part cannot run here; the text says why."""


def demand(true, what):
    if not true:
        raise Failed(what() if callable(what) else what)


def wait_until(condition, what, looks=LOOKS, pause=LOOK):
    """Looks until `condition()` is something, and returns that. `what` may be a function."""
    for _ in range(looks):
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise Failed(f"after {looks} looks still: {what() if callable(what) else what}")


# ---- what /proc tells -------------------------------------------------------------------------


def end_of(code):
    """How a process ended, in words: a report that leaves numbers out still says which signal it was."""
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"


def children(pid):
    """{pid: its command line} of every process below `pid` that still runs."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as f:
            state, parent = f.read().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents[int(entry)] = int(parent)
    below, grew = {pid}, True
    while grew:
        more = {p for p, parent in parents.items() if parent in below} - below
        below, grew = below | more, bool(more)
    found = {}
    for p in below - {pid}:
        with contextlib.suppress(OSError), open(f"/proc/{p}/cmdline", "rb") as f:
            found[p] = f.read().decode(errors="replace").split("\0")
    return found


def kind_of(command):
    """probe, executor, or the name of the program."""
    if len(command) > 1 and command[1] in ("probe", "executor"):
        return command[1]
    return os.path.basename(command[0])


def memory(pid, field="VmRSS"):
    """In KiB; 0 if it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as f:
        found = re.search(rf"{field}:\s+(\d+)", f.read())
        return int(found.group(1)) if found else 0
    return 0


def forget_peak(pid):
    """VmHWM begins anew."""
    with open(f"/proc/{pid}/clear_refs", "w") as f:
        f.write("5")


# ---- the server -------------------------------------------------------------------------------


class Drilled(conftest.Server):
    """Every request that goes through it is in the book."""

    book = None

    def send(self, method, path, **more):
        if not self.book:
            return super().send(method, path, **more)
        self.book.enter()
        try:
            answer = requests.request(method, self.url + path, timeout=conftest.PATIENCE, **more)
        except requests.RequestException as e:
            self.book.lose(f"{method} {path}: {e!r}")
            raise Failed(f"{method} {path} was not answered: {e!r}") from e
        if clients.is_turned_away(answer.status_code, answer.content):
            self.book.turn_away()
        else:
            self.book.answer(answer.status_code)
        return answer

    def admin(self, method, path, body=None):
        return self.send(method, path, headers=KEY, json=body if method == "POST" else None)

    def samples(self):
        """{sample with its labels: value} of /metrics."""
        answer = self.get("/metrics")
        demand(answer.status_code == 200, lambda: f"/metrics answers {answer.status_code}")
        rows = (line.rsplit(" ", 1) for line in answer.text.splitlines() if line[:1] != "#")
        return {name: float(value) for name, value in rows}


def total(samples, name):
    return sum(v for k, v in samples.items() if k == name or k.startswith(name + "{"))


class World:
    """`with World(...) as w:` - w.server, w.load, w.book, w.check()."""

    def __init__(self, *options, streams=3, numerics="bit_equal", store=None, search=True):
        self.folder = tempfile.TemporaryDirectory(prefix="whet-drill-")
        self.store = store or os.path.join(self.folder.name, "store.db")
        key = os.path.join(self.folder.name, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("boss\n")
        self.server = Drilled(*OPTIONS, "--server-admin-key-file", key, "--store", self.store,
                              "--specializer-numerics", numerics, *options)
        self.pid = self.server.process.pid
        self.book = self.server.book = clients.Book()
        self.count, self.load, self.search, self.before = streams, None, search, None

    def __enter__(self):
        try:
            self.expected = {p: self.text(p) for p in clients.PROMPTS}
            self.load = clients.Load(self.server, self.book, self.expected, self.count)
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        if self.load:
            self.load.end()
        self.server.stop()
        self.folder.cleanup()

    # ---- asking ---------------------------------------------------------------------------------

    def text(self, prompt):
        answer = self.server.post("/v1/completions", {"prompt": prompt, "temperature": 0,
                                                      "max_tokens": clients.TOKENS})
        demand(answer.status_code == 200, lambda: f"{answer.status_code}: {answer.text[:200]}")
        return answer.json()["choices"][0]["text"]

    def words(self):
        """What the server said last, without the requests."""
        return "".join(line for line in self.server.log if " http: " not in line)[-1500:]

    def goes_on(self, answers=2):
        """The load gets that many more answers."""
        before = self.load.answers
        wait_until(lambda: self.load.wrong or self.load.answers >= before + answers,
                   lambda: f"the load gets no answers: {self.words()}")
        demand(not self.load.wrong, lambda: f"the load got {self.load.wrong[:2]}")

    def operators_get_in(self, rounds=3):
        """Operators' routes and a client are answered, each on a connection of its own."""
        for _ in range(rounds):
            for path in OPERATORS:
                answer = self.server.send("GET", path, headers=KEY)
                demand(answer.status_code == 200, lambda: f"{path}: {answer.text[:200]}")
            prompt = clients.PROMPTS[0]
            demand(self.text(prompt) == self.expected[prompt], "another text than before")

    def search_goes_on(self, candidates=1):
        """The search decides on that many more candidates."""
        name = "whet_specializer_candidates_total"
        before = self.server.metric(name)
        wait_until(lambda: self.server.metric(name) >= before + candidates or self.asleep(),
                   lambda: f"the search stands still: {self.words()}", pause=0.2)

    def asleep(self):
        shown = self.server.get("/specializer").json()["specializer"]  # null while it is set up
        return shown is not None and shown["doing"] == "asleep"

    # ---- before and after -----------------------------------------------------------------------

    @contextlib.contextmanager
    def quiet(self):
        """No load and no search meanwhile, and all that is open is closed."""
        self.load.rest()
        self.load_closes()
        mode = self.server.admin("POST", "/admin/specializer/freeze") if self.search else None
        demand(not mode or mode.status_code == 200, lambda: f"freeze: {mode.text[:200]}")
        try:
            yield
        finally:
            if self.search:
                self.server.admin("POST", "/admin/specializer/resume")
            self.load.go_on()

    def load_closes(self):
        """Nobody is under way: what is still open is the load's own, kept connections."""
        wait_until(lambda: self.connections() <= 1 + self.kept(),
                   lambda: f"{self.connections()} connections are open, {self.kept()} are ours",
                   pause=0.1)

    def kept(self):
        return (self.count + 1) // 2

    def connections(self):
        return self.server.metric("whet_connections")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def below(self):
        return sum(memory(p) for p in children(self.pid))

    def begin(self):
        """After everything was touched once: what everything is compared with afterwards."""
        with self.quiet():
            wait_until(lambda: not self.searching(), "the search does not rest")
            self.before = {"memory": self.settled_memory(), "below": self.below(),
                           "descriptors": self.descriptors(), "children": len(children(self.pid))}
        with self.quiet():
            self.mark()
        forget_peak(self.pid)

    def searching(self):
        return self.search and any(kind_of(c) in ("probe", "cc", "cc1", "as", "ld", "collect2")
                                   for c in children(self.pid).values())

    def settled_memory(self):
        """RSS once it changes no more, or after some looks."""
        last = None
        for _ in range(40):
            now = memory(self.pid)
            if last is not None and abs(now - last) < 64:
                break
            last = now
            time.sleep(0.1)
        return now

    def mark(self):
        """The two books begin at the same request: this one is in the server's once it is answered,
        which is after it was read."""
        self.at_start = self.server.samples()
        self.book_at_start = self.book.state()

    def check(self):
        """Everything that must be as before: figures, and a list of what is not."""
        wrong, figures = [], {}
        figures["peak"] = memory(self.pid, "VmHWM")
        for name, look in (("load", self.check_load), ("health", self.check_health)):
            self.guard(wrong, name, look)
        with self.quiet():
            for name, look in (("requests", lambda: self.check_books(figures)),
                               ("text", self.check_text), ("children", self.check_children),
                               ("descriptors", self.check_descriptors),
                               ("memory", lambda: self.check_memory(figures)),
                               ("slots", self.check_slots), ("compiles", self.check_compiles)):
                self.guard(wrong, name, look)
            self.mark()
        forget_peak(self.pid)
        return figures, wrong

    def report(self, words):
        """What a part in a world of its own returns."""
        return words, *self.check()

    @staticmethod
    def guard(wrong, name, look):
        try:
            look()
        except (Failed, OSError, ValueError, KeyError) as e:
            wrong.append(f"{name}: {e}")

    def check_load(self):
        self.load.may_be_refused = False
        self.goes_on()
        lost, self.book.lost = self.book.lost, []
        demand(not lost, lambda: f"{len(lost)} requests were lost: {lost[:2]}")

    def check_health(self):
        for path in ("/health", "/ready"):
            answer = self.server.get(path)
            demand(answer.status_code == 200, lambda: f"{path}: {answer.text[:200]}")

    def check_books(self, figures):
        """sent = answered + errored + left, here and there. Requests that were left may end in the
        server a little after we left them, so it is looked at more than once."""
        def held():
            here, now = self.book.state(), self.server.samples()
            # At the start one request, the look itself, was in our book and not in the server's.
            sent = here["sent"] - self.book_at_start["sent"] + 1
            codes = {}
            for name, value in now.items():
                if found := re.match(r'whet_requests_total\{.*code="(\d+)"', name):
                    code = int(found.group(1))
                    codes[code] = codes.get(code, 0) + value - self.at_start.get(name, 0)
            return here, sent, codes

        def agree():
            here, sent, codes = held()
            ours = {c: n - self.book_at_start["codes"].get(c, 0) for c, n in here["codes"].items()}
            return sum(codes.values()) == sent and all(
                codes.get(c, 0) >= n for c, n in ours.items() if c != 499)

        def tell():
            here, sent, codes = held()
            return f"{sent} were sent, the server counts {sum(codes.values()):.0f}: {codes}; {here}"

        wait_until(agree, tell, looks=200)
        here, sent, _ = held()
        for key in ("answered", "errored", "left"):
            figures[key] = here[key] - self.book_at_start[key]
        figures["sent"] = sent - 1
        demand(here["sent"] == here["answered"] + here["errored"] + here["left"],
               lambda: f"not every request has an end: {here}")

    def check_text(self):
        for prompt, text in self.expected.items():
            demand(self.text(prompt) == text, lambda: f"{prompt!r} has another text than before")

    def check_children(self):
        wait_until(lambda: len(children(self.pid)) <= self.before["children"],
                   lambda: f"still there: {children(self.pid)}")

    def check_descriptors(self):
        wait_until(lambda: self.descriptors() <= self.before["descriptors"],
                   lambda: f"{self.descriptors()} are open, {self.before['descriptors']} were: "
                           f"{self.links()}", looks=400)

    def links(self):
        found = []
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{self.pid}/fd/{fd}"))
        return sorted(found)[-30:]

    def check_memory(self, figures):
        limit = self.before["memory"] * MEMORY
        with contextlib.suppress(Failed):
            wait_until(lambda: memory(self.pid) <= limit, "", looks=100, pause=0.1)
        before, now = self.before["memory"], memory(self.pid)
        figures["memory"] = now
        self.before["memory"] = max(before, now)  # the next part is not blamed for it
        demand(now <= limit, lambda: f"{now} KiB, {before} KiB before")
        below = max(self.before["below"] * MEMORY, 1024)
        demand(self.below() <= below, lambda: f"children: {self.below()} KiB, "
               f"{self.before['below']} KiB before")

    def check_slots(self):
        """What serves is what the store says serves, by its own rows and by `whet kernels list`."""
        def served():
            rows = self.server.admin("GET", "/admin/slots").json()["slots"]
            return {(r["slot"], r["kernel"]["id"]) for r in rows if r["kernel"]["id"] != "eager"}

        def stored():
            with contextlib.closing(sqlite3.connect(f"file:{self.store}?mode=ro", uri=True)) as db:
                return set(db.execute("SELECT slot, key FROM winner"))

        def listed():
            done = subprocess.run([conftest.BINARY, "kernels", "list", "--store", self.store],
                                  capture_output=True, text=True, check=False)
            rows = (line.split()[:3] for line in done.stdout.splitlines())
            return {(slot, key) for key, state, slot in rows if state == "active"}

        if not self.search:
            return
        wait_until(lambda: served() == stored() == listed(),
                   lambda: f"serving {served()}, stored {stored()}, listed {listed()}", looks=100)

    def check_compiles(self):
        compiled = self.server.metric("whet_hot_path_compiles_total")
        demand(compiled == 0, lambda: f"{compiled} compilers were started on the request path")
