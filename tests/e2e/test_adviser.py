"""The adviser's endpoint may be this very server: then its questions are requests like any other, and
whatever comes of them, clients are answered and the server ends when it is told to. And an endpoint
may say back what it was sent, the key included: that ends where the reply is read."""

import http.server
import json
import pathlib
import re
import socket
import threading
import time

import requests

from agentic import Load
from conftest import PATIENCE

KEY = {"authorization": "Bearer boss"}


def start_on_a_known_port(start, options):
    """A server with the options that `options` gives for its port: one that is free, unless somebody
    takes it meanwhile."""
    for last in (False, False, False, False, True):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        try:
            return start("--port", str(port), *options(port))
        except AssertionError as e:
            if last or "no port" not in str(e):
                raise


def counted(s):
    """Questions by what became of them."""
    rows = (line.split(" ") for line in s.get("/metrics").text.splitlines()
            if line.startswith("whet_adviser_requests_total{"))
    return {name.split('"')[1]: float(value) for name, value in rows}


def asked(s):
    return sum(n for outcome, n in counted(s).items() if outcome != "heuristic")


def test_a_server_that_asks_itself_serves_on_and_ends(start, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    s = start_on_a_known_port(start, lambda port: [
        "--specializer-enabled=true", "--server-admin-key-file", str(tmp_path / "key"),
        "--adviser-url", f"http://127.0.0.1:{port}/v1/chat/completions",
        "--adviser-model", "smollm2", "--adviser-timeout", "1", "--engine-max-batch", "2"])
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


class Echo(http.server.BaseHTTPRequestHandler):
    """Advice in form, with the key that came with the question as its label."""
    keys = []

    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        self.keys.append(self.headers["authorization"].removeprefix("Bearer "))
        region = re.search(r'\\"region\\":\s*\\"([a-z_]+/m[^"\\]*)\\"', asked).group(1)
        said = json.dumps({"version": 1, "regions": [
            {"region": region, "label": self.keys[-1], "priority": [], "hints": {}, "risks": []}]})
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_the_key_is_nowhere_but_in_the_header(start, tmp_path):
    secret = "sk-of-the-endpoint-0123456789"
    (tmp_path / "key").write_text("boss\n")
    (tmp_path / "adviser.key").write_text(secret + "\n")
    (tmp_path / "adviser.key").chmod(0o644)
    endpoint = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    s = start("--specializer-enabled=true", "--server-admin-key-file", str(tmp_path / "key"),
              "--adviser-url", f"http://127.0.0.1:{endpoint.server_port}/v1/chat/completions",
              "--adviser-key-file", str(tmp_path / "adviser.key"),
              "--store", str(tmp_path / "store" / "store.db"))
    load = Load(s)
    try:
        end = time.time() + PATIENCE
        while not counted(s).get("accepted"):
            assert time.time() < end, s.text()
            time.sleep(0.1)
    finally:
        load.end()
        endpoint.shutdown()
    assert set(Echo.keys) == {secret}
    assert f"adviser.key_file: other users may read the key in {tmp_path}/adviser.key (mode 0644)" \
        in s.text()
    shown = [requests.get(s.url + path, headers=KEY, timeout=PATIENCE).text
             for path in ("/metrics", "/specializer", "/admin/trace", "/admin/slots",
                          "/admin/kernels", "/admin/store/export")]
    assert "****" in shown[2]  # the label
    assert all(secret not in text for text in [s.text(), *shown])
    s.stop()
    for path in pathlib.Path(tmp_path / "store").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes(), path
