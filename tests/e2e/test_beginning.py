# SPDX-License-Identifier: Apache-2.0
"""A server that something ends while its specializer begins, restarted as a supervisor does it: the fourth serves
without one until an operator lets it go on."""

import os
import stat
import time

from conftest import PATIENCE, Server

BOSS = {"authorization": "Bearer boss"}


def compiler(path, deadly):
    """A compiler that ends who asks for its version, as long as the file `deadly` is there."""
    path.write_text(f"""#!/bin/sh
[ ! -e {deadly} ] || kill -KILL $PPID
exec cc "$@"
""")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def serve(tmp_path, deadly, **more):
    key = tmp_path / "key"
    key.write_text("boss\n")
    key.chmod(0o600)
    return Server("--specializer-enabled=true", "--store", str(tmp_path / "store.db"), "--specializer-compiler",
                  str(compiler(tmp_path / "cc", deadly)), "--server-admin-key-file", str(key), **more)


def doing(server):
    return server.get("/specializer").json()["specializer"]["doing"]


def test_a_beginning_that_ends_three_servers_is_put_off(tmp_path):
    os.chmod(tmp_path, 0o700)
    deadly, guard = tmp_path / "deadly", tmp_path / "store.db.start"
    deadly.touch()
    for ends in range(3):
        server = serve(tmp_path, deadly, wait=False)
        assert server.process.wait(PATIENCE) == -9, server.text()
        server.stop()
        assert guard.read_text() == f"{ends + 1}\n"
    server = serve(tmp_path, deadly)
    try:
        assert server.complete("The capital of France is")["choices"][0]["text"]
        end = time.time() + PATIENCE
        while doing(server) != "held_back":
            assert time.time() < end, server.text()
            time.sleep(0.02)
        assert "held back, eager kernels serve: the last 3 processes ended" in server.text()
        assert any(row["event"] == "held_back" for row in server.get("/specializer").json()["specializer"]["trace"])
        refused = server.send("GET", "/admin/slots", headers=BOSS)
        assert refused.status_code == 503 and "held back" in refused.text
        assert guard.read_text() == "3\n"  # it has not begun
        deadly.unlink()
        answer = server.send("POST", "/admin/specializer/resume", headers=BOSS)
        assert answer.status_code == 200, answer.text
        while guard.exists() or server.send("GET", "/admin/slots", headers=BOSS).status_code != 200:
            assert time.time() < end, server.text()
            time.sleep(0.02)
        assert server.complete("The capital of France is")["choices"][0]["text"]
    finally:
        server.stop()
    assert not guard.exists()
