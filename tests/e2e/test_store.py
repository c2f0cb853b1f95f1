# SPDX-License-Identifier: Apache-2.0
"""The store and who may have it: two real servers on one file, servers that are killed, tools beside
a server, and a file where everybody could have laid something."""

import contextlib
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
import requests

from conftest import BINARY, MODEL, PATIENCE, ROOT

KEY = "00000000000000aa"
ON = ("--specializer-enabled=true", "--specializer-paused=true")


def sql(store, text):
    with contextlib.closing(sqlite3.connect(store, timeout=30)) as db, db:
        return db.execute(text).fetchall()


def put_on_trial(store):
    """A kernel that the process that has the store runs at this moment."""
    sql(store, "INSERT INTO candidate(key, env, slot, state, trial, changed, knobs, name, origin,"
               " template, source, object_key, object_sum, evidence, reason) VALUES"
               f" ('{KEY}', 'e', 'head/m1', 'canary', 1, 1, '', 'n', 1, 'head', '', '', '', '{{}}', '')")


def trial(store):
    return sql(store, f"SELECT trial, deaths FROM candidate WHERE key='{KEY}'")[0]


def run(*words, **more):
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=300, **more)


@pytest.fixture
def store(tmp_path):
    os.chmod(tmp_path, 0o700)
    return str(tmp_path / "store.db")


def test_second_server_works_with_a_copy_and_leaves_the_first_ones_alone(start, store):
    first = start("--store", store, *ON)
    first.wait_text("; store ")
    put_on_trial(store)
    reference = store + ".references/0123456789abcdef.ref"
    with open(reference, "wb") as f:
        f.write(b"what inputs should give")
    second = start("--store", store, *ON)
    assert second.complete("Bread is")["choices"][0]["text"]
    second.wait_text("; store ")
    said = [line for line in second.text().splitlines() if "in use by" in line]
    assert len(said) == 1, second.text()
    assert f"store {store} is in use by process {first.process.pid} since 20" in said[0]
    assert "works with a copy" in said[0]
    assert trial(store) == (1, 0), "the second took the first's kernel for the suspect of a crash"
    assert os.path.exists(reference), "the second cleared the first's files away"
    assert "on trial" not in second.text()
    own = re.search(r"; store (\S+/whet-store-\w+)/store.db", second.text())
    assert own and os.stat(own[1]).st_mode & 0o777 == 0o700
    assert sql(own[1] + "/store.db", "SELECT trial, deaths FROM candidate") == [(0, 0)]
    second.stop()
    assert not os.path.exists(own[1])
    assert first.complete("Bread is")["choices"][0]["text"]
    assert trial(store) == (1, 0)


def test_killed_server_gives_its_store_back_and_only_then_is_its_kernel_suspected(start, store):
    first = start("--store", store, *ON)
    first.wait_text("; store ")
    put_on_trial(store)
    first.signal(signal.SIGKILL)
    first.wait()
    next_one = start("--store", store, *ON)
    next_one.wait_text("; store ")
    assert "in use" not in next_one.text()
    assert "the last process ended while 1 kernel was on trial" in next_one.text()
    assert trial(store) == (0, 1)


def test_tools_beside_a_server_read_and_do_not_touch(start, store, tmp_path):
    server = start("--store", store, *ON)
    put_on_trial(store)
    listed = run("kernels", "list", "--store", store)
    assert listed.returncode == 0 and KEY in listed.stdout, listed.stderr
    exported = tmp_path / "export.json"
    assert run("kernels", "export", str(exported), "--store", store).returncode == 0
    assert json.loads(exported.read_text())["kernels"][0]["id"] == KEY
    holder = f"in use by process {server.process.pid} since"
    refused = run("kernels", "import", str(exported), "--store", store)
    assert refused.returncode == 1 and holder in refused.stderr, refused.stderr
    assert "/admin/store/import" in refused.stderr
    tuned = run("tune", "--model", MODEL, "--store", store, "--slot", "head/m1", "--seconds", "5")
    assert tuned.returncode == 1 and holder in tuned.stderr, tuned.stderr
    assert trial(store) == (1, 0)
    server.stop()
    assert run("kernels", "import", str(exported), "--store", store).returncode == 0


@pytest.mark.parametrize("words", [("kernels", "list"), ("kernels", "show", KEY), ("kernels", "export", "out.json"),
                                   ("tune", "--report")])
def test_commands_that_read_make_nothing_and_move_nothing(store, words, tmp_path):
    """A path with a slip in it: of a file that is not there, of a text, of another program's database."""
    def refused(says):
        before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
        done = run(*words, "--store", store, cwd=tmp_path)
        assert done.returncode == 1 and says in done.stderr and store in done.stderr, done.stderr
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before

    refused("there is no store")
    (tmp_path / "store.db-wal").write_text("somebody's")
    (tmp_path / "store.db").write_text("a text of mine\n" * 1000)
    refused("is no store of whet")
    (tmp_path / "store.db-wal").unlink()
    (tmp_path / "store.db").unlink()
    sql(store, "CREATE TABLE mine(x)")
    refused("another program")
    (tmp_path / "store.db").write_text("")
    refused("is empty")


def test_a_server_leaves_a_file_that_is_no_store_alone(start, store, tmp_path):
    (tmp_path / "store.db").write_text("a text of mine\n" * 1000)
    server = start("--store", store, *ON)
    assert server.complete("Bread is")["choices"][0]["text"]
    server.wait_text("serving on without the specializer")
    assert "is no store of whet" in server.text() and "moved" not in server.text()
    assert (tmp_path / "store.db").read_text() == "a text of mine\n" * 1000
    assert sorted(p.name for p in tmp_path.iterdir() if "damaged" in p.name) == []


def test_store_where_everybody_can_make_files_is_refused_and_requests_are_served(start, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o1777)
    os.chmod(tmp_path, 0o755)
    objects = shared / "x.db.objects"
    objects.mkdir()
    (objects / f"{KEY}.so").write_bytes(b"\x7fELF planted")
    server = start("--store", str(shared / "x.db"), *ON)
    assert server.complete("Bread is")["choices"][0]["text"]
    server.wait_text("serving on without")
    said = [line for line in server.text().splitlines() if "serving on without" in line]
    assert len(said) == 1, server.text()
    assert f"folder {shared} is shared by all users" in said[0]
    assert sorted(p.name for p in shared.iterdir()) == ["x.db.objects"]


def test_folder_of_objects_that_is_a_link_is_not_followed(start, store, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chmod(elsewhere, 0o777)
    os.symlink(elsewhere, store + ".objects")
    server = start("--store", store, *ON)
    assert server.complete("Bread is")["choices"][0]["text"]
    server.wait_text("nothing is searched for")
    assert re.search(r"elsewhere may be written by other users .*nothing is searched for",
                     server.text()), server.text()
    assert not list(elsewhere.iterdir())


def test_where_no_code_may_be_run_no_kernel_is_refused_for_it(start, store, tmp_path):
    """A noexec mount, in a namespace of the server's own."""
    alone = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    mount = f'mount -t tmpfs -o noexec,mode=0700 none "{tmp_path}"; '
    if subprocess.run([*alone, mount], capture_output=True).returncode != 0:
        pytest.skip("no mounts in a namespace of its own here")
    s = start("--store", store, "--specializer-enabled=true", prefix=[*alone, mount + 'exec "$@"', "sh"])
    s.wait_text("; store ")
    assert re.search(r"error specializer: code in \S+store.db.objects cannot be run: .*noexec.*: "
                     "nothing is searched for", s.text()), s.text()
    for _ in range(4):
        s.complete("Once upon a time", max_tokens=32)
    assert s.metric("whet_specializer_compiler_available") == 0
    assert s.metric("whet_specializer_refusals_total") == 0


def test_server_without_a_descriptor_left_serves_on_and_blames_no_kernel(start, store):
    server = start("--store", store, "--specializer-enabled=true")
    with requests.Session() as line:  # one connection, there before the descriptors are gone
        assert line.get(server.url + "/ready").status_code == 200
        fds = [int(n) for n in os.listdir(f"/proc/{server.process.pid}/fd")]
        before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE,
                                  (max(fds) + 1, max(fds) + 1))
        assert before[0] > max(fds)
        for _ in range(12):
            answer = line.post(server.url + "/v1/completions",
                               json={"prompt": "Once", "max_tokens": 24, "temperature": 0})
            assert answer.status_code == 200, answer.text
    found = sql(store, "SELECT state, reason, deaths FROM candidate")
    assert {row[2] for row in found} <= {0}
    blamed = [row for row in found if row[0] in ("refused", "rolled_back")
              and ("files" in row[1] or "not found" in row[1])]
    assert not blamed, blamed
    complaints = [n for n in server.text().splitlines() if re.search(r"build of|probe of", n)]
    assert len(complaints) <= 30, complaints  # told four times, then ever more rarely


def test_what_cannot_be_written_at_the_start_is_written_when_it_can_be(start, store):
    """The disk was full, say: the search was off until the next start."""
    on = ("--store", store, "--specializer-enabled=true")
    model = str(ROOT / "tests/golden/tiny-llama.gguf")
    s = start(*on, "--specializer-paused", model=model)
    s.wait_text("; store ")
    s.stop()
    folder, = Path(store + ".kernels").iterdir()
    for source in [p for p in folder.rglob("*") if p.is_file()]:
        source.unlink()
    in_the_way = folder / "args.h"
    in_the_way.mkdir()
    s = start(*on, model=model)
    s.wait_text("nothing is built until")
    in_the_way.rmdir()
    end = time.time() + PATIENCE
    while not sql(store, "SELECT 1 FROM trace WHERE event = 'built'"):
        assert time.time() < end, s.text()[-2000:]
        s.complete("Bread is", max_tokens=100, ignore_eos=True)
    assert not sql(store, "SELECT reason FROM candidate WHERE state = 'refused' AND reason LIKE 'build:%'")
