"""The adviser's endpoint may be this very server: then its questions are requests like any other, and
whatever comes of them, clients are answered and the server ends when it is told to."""

import socket
import time

import requests

from agentic import Load
from conftest import PATIENCE

KEY = {"authorization": "Bearer boss"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def counted(s):
    """Questions by what became of them."""
    rows = (line.split(" ") for line in s.get("/metrics").text.splitlines()
            if line.startswith("whet_adviser_requests_total{"))
    return {name.split('"')[1]: float(value) for name, value in rows}


def asked(s):
    return sum(n for outcome, n in counted(s).items() if outcome != "heuristic")


def test_a_server_that_asks_itself_serves_on_and_ends(start, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    port = free_port()
    s = start("--port", str(port), "--specializer-enabled=true",
              "--server-admin-key-file", str(tmp_path / "key"),
              "--adviser-url", f"http://127.0.0.1:{port}/v1/chat/completions",
              "--adviser-model", "smollm2", "--adviser-timeout", "1", "--engine-max-batch", "2")
    load = Load(s)
    try:
        end = time.time() + PATIENCE
        while asked(s) < 1:
            assert time.time() < end, s.text()
            time.sleep(0.1)
        assert s.complete("The capital of France is")["choices"][0]["text"]
        trace = requests.get(s.url + "/admin/trace", headers=KEY, timeout=PATIENCE).json()["trace"]
        assert any(r["event"].startswith("advice") for r in trace), trace[:20]
    finally:
        load.end()
    s.stop()
    assert s.process.returncode == 0
