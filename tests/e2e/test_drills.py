# SPDX-License-Identifier: Apache-2.0
"""Fault drills on the real server: whatever dies or fails beside it, requests are answered, with the
same text, and the store stays whole. The state-by-state drills are in the unit tests
(tests/unit/specializer/test_drills.c); here the children, files and signals are real."""

import contextlib
import os
import resource
import signal
import sqlite3
import stat
import time

import pytest

from conftest import BINARY, WHATEVER_SPEED, Server
from load import Load

pytestmark = pytest.mark.once  # the search has to get somewhere: minutes under sanitizers
PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):"]
PATIENCE = 1200
LEGAL = {"proposed", "built", "probed", "benched", "shadowed", "canary", "active", "retired",
         "deferred", "refused", "rolled_back", "disabled"}


def text_of(server, prompt):
    return server.complete(prompt, max_tokens=24)["choices"][0]["text"]


@pytest.fixture(scope="module")
def eager_text():
    s = Server()
    texts = {p: text_of(s, p) for p in PROMPTS}
    s.stop()
    return texts


class Checked(Load):
    """Every answer must be there and have eager's text."""

    def __init__(self, server, expected):
        self.expected = expected
        super().__init__(server)

    def ask(self, server):
        prompt = PROMPTS[len(self.answers) % len(PROMPTS)]
        got = text_of(server, prompt)
        assert got == self.expected[prompt], (prompt, got)
        return got

    def goes_on(self):
        """At least two more answers, and none of them all was wrong."""
        end, before = time.time() + PATIENCE, len(self.answers)
        while len(self.answers) < before + 2:
            assert not self.failed and time.time() < end, self.failed
            time.sleep(0.02)
        assert not self.failed, self.failed


@contextlib.contextmanager
def serving(expected, store, *options):
    s = Server("--specializer-enabled=true", "--specializer-numerics=bit_equal", WHATEVER_SPEED,
               "--store", str(store), *options)
    load = Checked(s, expected)
    try:
        yield s, load
        load.goes_on()
        assert s.process.poll() is None, s.text()
    finally:
        load.end()
        s.stop()


def rows(store, sql):
    """[] while the store is being made."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True,
                                                timeout=5)) as db:
            return db.execute(sql).fetchall()
    except sqlite3.OperationalError:
        return []


def states(store):
    return dict(rows(store, "SELECT state, count(*) FROM candidate GROUP BY state"))


def check_store(store):
    assert rows(store, "PRAGMA integrity_check") == [("ok",)]
    assert set(states(store)) <= LEGAL
    assert not rows(store, "SELECT w.key FROM winner w LEFT JOIN candidate c ON c.key = w.key"
                           " WHERE c.state IS NOT 'active'")
    assert not rows(store, "SELECT key FROM candidate WHERE state = 'active' AND key NOT IN"
                           " (SELECT key FROM winner)")


def wait_until(what, explain):
    end = time.time() + PATIENCE
    while not what():
        assert time.time() < end, explain()
        time.sleep(0.02)


def children(pid, others):
    """Every process below `pid`: its id, its name and whether its parent is `pid` itself. Who is none is
    added to `others` and not looked at again: to read all of /proc so often takes a third of a core."""
    found, parents = [], {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in others:
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as f:
            name, rest = f.read().rsplit(")", 1)
            parents[int(entry)] = (int(rest.split()[1]), name.split("(", 1)[1])
    below = {pid}
    for _ in range(6):
        below |= {p for p, (parent, _) in parents.items() if parent in below}
    for p in below - {pid}:
        found.append((p, parents[p][1], parents[p][0] == pid))
    others |= parents.keys() - below
    return found


def kill_some(server, wanted, count, deep=False):
    """Kills `count` children of the kinds in `wanted` as they come; deep: only children's children."""
    killed, others = set(), set()

    def strike():
        for pid, name, direct in children(server.process.pid, others):
            if name in wanted and not (deep and direct) and pid not in killed and len(killed) < count:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
        return len(killed) >= count

    wait_until(strike, lambda: f"only {len(killed)} of {wanted} seen: {server.text()[-2000:]}")


@pytest.mark.parametrize("wanted, deep", [(("cc1", "cc", "as", "collect2", "ld"), False),
                                          ((os.path.basename(BINARY)[:15],), False),
                                          ((os.path.basename(BINARY)[:15],), True)],
                         ids=["compilers", "probes", "runners"])
def test_children_may_be_killed(tmp_path, eager_text, wanted, deep):
    store = tmp_path / "store.db"
    with serving(eager_text, store) as (s, load):
        kill_some(s, wanted, 6, deep)
        load.goes_on()
        # It says nothing about a kernel that something else killed its compiler. (One that used up
        # the CPU time of a probe was killed too, but by its own doing; and one whose probe was killed
        # three times is let go.)
        assert not rows(store, "SELECT name, reason FROM candidate WHERE state = 'refused' AND"
                               " reason LIKE '%Killed%' AND reason NOT LIKE '%of CPU time' AND"
                               " reason NOT LIKE '%died 3 times without a verdict%'")
        wait_until(lambda: states(store).get("benched", 0) + states(store).get("active", 0)
                   or rows(store, "SELECT 1 FROM trace WHERE event = 'benched'"),
                   lambda: f"nothing gets through: {states(store)} {s.text()[-2000:]}")
    check_store(store)


def test_the_server_may_be_killed_at_any_state(tmp_path, eager_text):
    store = tmp_path / "store.db"
    for state in ("proposed", "built", "probed", "benched", "shadowed"):
        seen = rows(store, "SELECT max(id) FROM trace") or [(0,)]
        s = Server("--specializer-enabled=true", "--specializer-numerics=bit_equal", WHATEVER_SPEED,
                   "--store", str(store))
        load = Checked(s, eager_text)
        wait_until(lambda: load.failed or rows(store, "SELECT 1 FROM trace WHERE event = "
                                              f"'{state}' AND id > {seen[0][0] or 0}"),
                   lambda: f"no {state}: {states(store)} {s.text()[-2000:]}")
        assert not load.failed, load.failed
        load.over.set()
        s.process.kill()
        s.process.wait()
        load.end()
        s.stop()
        check_store(store)
    with serving(eager_text, store) as (s, load):
        load.goes_on()
    check_store(store)


def compiler(path, kernels):
    """A compiler that passes the trial at start and does `kernels` to everything else."""
    path.write_text(f"""#!/bin/sh
case "$*" in *--version*|*try.c*) exec cc "$@";; esac
for a in "$@"; do if [ "$last" = -o ]; then out=$a; fi; last=$a; done
{kernels}
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("kernels", ["echo 'error: no' >&2; exit 1",
                                     "head -c 5000 /dev/urandom > \"$out\"",
                                     "kill -9 $$",
                                     "sleep 1000"], ids=["fails", "garbage", "dies", "hangs"])
def test_a_compiler_that_went_bad_costs_nothing_but_kernels(tmp_path, eager_text, kernels):
    store, cc = tmp_path / "store.db", compiler(tmp_path / "cc", kernels)
    with serving(eager_text, store, "--specializer-compiler", str(cc),
                 "--specializer-build-timeout=1") as (s, load):
        wait_until(lambda: s.metric("whet_specializer_candidates_total") >= 2,
                   lambda: f"nothing was tried: {states(store)} {s.text()[-2000:]}")
        load.goes_on()
        assert s.metric("whet_kernel_active_info") == 0
    assert not set(states(store)) & {"built", "probed", "benched", "active"}
    check_store(store)


def test_a_disk_that_is_full_costs_nothing_but_kernels(tmp_path, eager_text):
    store = tmp_path / "store.db"
    with serving(eager_text, store) as (s, load):
        wait_until(lambda: states(store), lambda: s.text()[-2000:])
        limit = store.stat().st_size + 40_000
        resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        wait_until(lambda: "store" in s.text() and ("full" in s.text() or "I/O" in s.text()),
                   lambda: f"the disk is never full: {s.text()[-2000:]}")
        load.goes_on()
    check_store(store)


def test_objects_and_kernel_sources_may_vanish(tmp_path, eager_text):
    store = tmp_path / "store.db"
    with serving(eager_text, store) as (s, load):
        wait_until(lambda: states(store).get("probed") or states(store).get("benched"),
                   lambda: s.text()[-2000:])
        os.rename(f"{store}.objects", tmp_path / "gone")
        os.rename(f"{store}.kernels", tmp_path / "gone too")
        load.goes_on()
    check_store(store)
    with serving(eager_text, store) as (s, load):  # and a restart makes them again
        wait_until(lambda: os.path.isdir(f"{store}.objects") and os.path.isdir(f"{store}.kernels"),
                   lambda: s.text()[-2000:])
    check_store(store)


def test_a_damaged_store_is_put_aside_and_serving_begins(tmp_path, eager_text):
    store = tmp_path / "store.db"
    with serving(eager_text, store) as (s, load):
        wait_until(lambda: states(store), lambda: s.text()[-2000:])
    with open(store, "r+b") as f:
        f.seek(100)
        f.write(os.urandom(store.stat().st_size - 100))
    with serving(eager_text, store) as (s, load):
        assert "damaged" in s.text()
        load.goes_on()
    assert list(tmp_path.glob("store.db.damaged-*"))
    check_store(store)


def test_without_a_temporary_folder_eager_serves(tmp_path, eager_text, monkeypatch):
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    with serving(eager_text, tmp_path / "store.db") as (s, load):
        load.goes_on()
        wait_until(lambda: s.metric("whet_specializer_compiler_available") == 0
                   and "no compiler" in s.text(), lambda: s.text()[-2000:])
