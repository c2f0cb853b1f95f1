# SPDX-License-Identifier: Apache-2.0
"""A kernel that passes all proofs and kills the server while it serves: the next server knows which one it
was and does without. Restarted as a supervisor does it."""

import contextlib
import os
import re
import signal
import sqlite3
import stat
import time

import pytest
import requests

from broken_memory import FAULTS, overwrite_kernels
from conftest import WHATEVER_SPEED, Server
from load import Load

pytestmark = pytest.mark.once  # a search has to publish something: minutes under sanitizers
PATIENCE = 1200
SLOT = "attn/m1/c512"
DEADLY = 433  # a context that no proof has and no request but ours
# What the compiler makes of a template's source: the same kernel, but for one context.
STRUCK = r"""
static void struck(const void *args, const struct team *team)\n{\n
    const struct attn_args *a = args;\n
    if (a->spans == 1 \&\& a->m == 1 \&\& a->span[0].context == DEADLY)\n
        *(volatile int *)8 = 1;\n
    run(args, team);\n}\n"""
SERVED = {"prompt": [i % 400 + 300 for i in range(300)], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
LONG = {**SERVED, "prompt": [i % 300 + 400 for i in range(DEADLY - 30)], "max_tokens": 60}


def compiler(path):
    text = STRUCK.replace("\n", "").replace("DEADLY", str(DEADLY))
    path.write_text(f"""#!/bin/sh
for a in "$@"; do case $a in */attn*.c) src=$a;; esac; done
[ -n "$src" ] || exec cc "$@"
copy={path.parent}/$$.c
sed -e 's/^const struct cpu_kernel whet_kernel/{text}&/' -e 's/\\.run = run,/.run = struck,/' "$src" >"$copy"
for a in "$@"; do
    shift
    if [ "$a" = "$src" ]; then a=$copy; fi
    set -- "$@" "$a"
done
exec cc "$@" "-I$(dirname "$src")"
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def row(store, key):
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as db:
        return db.execute("SELECT state, reason, served_deaths, deaths FROM candidate WHERE key=?", (key,)).fetchone()


class Served(Load):
    def ask(self, server):
        return server.post("/v1/completions", SERVED).json()["choices"][0]["text"]


def admin(server, method, path):
    """What an operator is answered, once the store is open."""
    end = time.time() + PATIENCE
    while (answer := server.send(method, path, headers={"authorization": "Bearer boss"})).status_code == 503:
        assert time.time() < end, answer.text
        time.sleep(0.05)
    assert answer.status_code == 200, answer.text
    return answer.json()


def kernel_of(server, slot=SLOT):
    """Its key, or "eager"."""
    return admin(server, "GET", f"/admin/slots/{slot}")["kernel"]["id"]


def test_a_kernel_that_kills_the_server_is_not_restored(tmp_path):
    os.chmod(tmp_path, 0o700)
    store = tmp_path / "store.db"
    (tmp_path / "key").write_text("boss\n")
    options = ("--server-admin-key-file", str(tmp_path / "key"), "--specializer-enabled=true", WHATEVER_SPEED,
               "--store", str(store), "--specializer-slots", SLOT, "--specializer-compiler", str(compiler(tmp_path / "cc")))
    s = Server(*options)
    load = Served(s)
    end = time.time() + PATIENCE
    while kernel_of(s) == "eager":
        assert time.time() < end and not load.failed, (load.failed, s.text()[-3000:])
        time.sleep(0.2)
    load.end()
    admin(s, "POST", "/admin/specializer/pause")
    key = kernel_of(s)
    assert key != "eager" and row(store, key)[0] == "active"

    with pytest.raises(requests.RequestException):  # the kernel takes the server with it
        requests.post(s.url + "/v1/completions", json=LONG, timeout=PATIENCE)
    assert s.process.wait(PATIENCE) == -signal.SIGSEGV
    s.reader.join(PATIENCE)
    assert re.search(r"error crash: SIGSEGV writing 0x8 in thread whet-\w+, at 0x", s.text())
    assert f"error engine: SIGSEGV in kernel {key} (" in s.text()
    assert row(store, key)[0] == "active"  # nobody had the time to say otherwise

    s = Server(*options)
    end = time.time() + PATIENCE
    while row(store, key)[0] == "active" and kernel_of(s) != key:  # until it is out, or back
        assert time.time() < end, s.text()
        time.sleep(0.05)
    answer = s.post("/v1/completions", LONG)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == LONG["max_tokens"]
    assert kernel_of(s) == "eager"
    s.wait_text("the last process died of SIGSEGV with 1 kernel of the search, in its code")
    shown = admin(s, "GET", f"/admin/kernels/{key}")
    assert shown["state"] == "refused" and shown["reason"] == "the server died of SIGSEGV in it"
    assert row(store, key) == ("refused", "the server died of SIGSEGV in it", 1, 0)
    assert 'whet_kernel_rollbacks_total{reason="crash"} 1' in s.get("/metrics").text
    s.process.kill()  # from outside: nobody is blamed for that
    s.process.wait()
    s.stop()
    s = Server(*options)
    s.wait_text("; store ")
    assert kernel_of(s) == "eager"
    assert s.post("/v1/completions", LONG).status_code == 200
    assert "the last process died of" not in s.text()
    s.stop()


class Short(Load):
    def ask(self, server):
        return server.complete("One two three", max_tokens=20)["choices"][0]["text"]


def test_a_kernel_that_kills_another_rank_is_not_restored(tmp_path):
    """Rank 1 has no store and is dead; rank 0, which ends because of that, has noted what it died in."""
    os.chmod(tmp_path, 0o700)
    store, slot = tmp_path / "store.db", "mlp_in/m1"
    (tmp_path / "key").write_text("boss\n")
    options = ("--engine-ranks=2", "--engine-backend=cpu", "--server-admin-key-file", str(tmp_path / "key"),
               "--specializer-enabled=true", WHATEVER_SPEED, "--store", str(store), "--specializer-slots", slot)
    s = Server(*options, model="random:tiny")
    end = time.time() + PATIENCE
    with Short(s) as load:
        while kernel_of(s, slot) == "eager":
            assert time.time() < end and not load.failed, (load.failed, s.text()[-3000:])
            time.sleep(0.2)
    admin(s, "POST", "/admin/specializer/freeze")
    key = kernel_of(s, slot)
    assert key != "eager" and row(store, key)[0] == "active"

    rank = int(re.search(r"rank 1 of 2 is here: process (\d+)", s.text())[1])
    overwrite_kernels(rank, FAULTS)
    with contextlib.suppress(requests.RequestException):
        assert requests.post(s.url + "/v1/completions", json={"prompt": "x", "max_tokens": 8},
                             timeout=PATIENCE).status_code != 200
    assert s.wait(PATIENCE) == 3, s.text()  # engine/ranks.h
    assert f"error engine: SIGILL in kernel {key} (" in s.text()
    assert f"rank 1 (process {rank} at 127.0.0.1) is gone: it died of SIGILL" in s.text()
    assert row(store, key)[0] == "active"

    s = Server(*options, model="random:tiny")
    s.wait_text("the last process died of SIGILL on rank 1 with 1 kernel of the search, in its code")
    assert s.complete("x", max_tokens=8)["usage"]["completion_tokens"] > 0
    shown = admin(s, "GET", f"/admin/kernels/{key}")
    assert (shown["state"], shown["reason"]) == ("refused", "the server died of SIGILL on rank 1 in it")
    assert row(store, key) == ("refused", "the server died of SIGILL on rank 1 in it", 1, 0)
    assert kernel_of(s, slot) == "eager"  # frozen, nothing else has come
    assert 'whet_kernel_rollbacks_total{reason="crash"} 1' in s.get("/metrics").text
    admin(s, "POST", f"/admin/kernels/{key}/enable")  # it was the memory, after all
    assert row(store, key) == ("proposed", "", 0, 0)
    s.stop()
