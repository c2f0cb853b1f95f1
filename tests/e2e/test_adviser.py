# SPDX-License-Identifier: Apache-2.0
"""The adviser's endpoint may be this very server: then its questions are requests like any other, and
whatever comes of them, clients are answered and the server ends when it is told to. And an endpoint
may say back what it was sent, the key included: that ends where the reply is read."""

import http.server
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

import pytest
import requests

from agentic import PATIENCE as LONGER
from agentic import ALONE, Streams
from conftest import BINARY, NONE_SERVES, PATIENCE, ROOT

# LONGER is for what follows a first batch of candidates: nobody is asked before it is decided. With one
# slot that is its own first batch, not the last of every slot's.
ONE_SLOT = ["--specializer-slots", "mlp_in/m1", NONE_SERVES, *ALONE]
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


def trace(s):
    return requests.get(s.url + "/admin/trace", headers=KEY, timeout=PATIENCE).json()["trace"]


def asked(s):
    return sum(n for outcome, n in counted(s).items() if outcome != "heuristic")


@pytest.mark.once  # a batch under a sanitizer takes minutes
def test_a_server_that_asks_itself_serves_on_and_ends(start, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    s = start_on_a_known_port(start, lambda port: [
        "--specializer-enabled=true", "--server-admin-key-file", str(tmp_path / "key"), *ONE_SLOT,
        "--adviser-url", f"http://127.0.0.1:{port}/v1/chat/completions",
        "--adviser-model", "smollm2", "--adviser-timeout", "1", "--engine-max-batch", "2"])
    load = Streams(s)
    try:
        end = time.time() + LONGER
        while asked(s) < 1:
            assert time.time() < end, s.text()
            time.sleep(0.1)
        assert s.complete("The capital of France is")["choices"][0]["text"]
        assert any(r["event"].startswith("advice") for r in trace(s)), trace(s)[:20]
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


@pytest.mark.once  # a batch under a sanitizer takes minutes
def test_the_key_is_nowhere_but_in_the_header(start, tmp_path):
    secret = "sk-of-the-endpoint-0123456789"
    (tmp_path / "key").write_text("boss\n")
    (tmp_path / "adviser.key").write_text(secret + "\n")
    (tmp_path / "adviser.key").chmod(0o644)
    endpoint = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    s = start("--specializer-enabled=true", "--server-admin-key-file", str(tmp_path / "key"), *ONE_SLOT,
              "--adviser-url", f"http://127.0.0.1:{endpoint.server_port}/v1/chat/completions",
              "--adviser-key-file", str(tmp_path / "adviser.key"),
              "--store", str(tmp_path / "store" / "store.db"))
    load = Streams(s)
    try:
        end = time.time() + LONGER
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


class Mailbox:
    """scripts/mailbox on a folder; `answer` is whoever looks into it: of a request's body it makes a
    reply, or None to leave it unanswered."""

    def __init__(self, folder, answer):
        self.folder, self.answer, self.stop = folder, answer, threading.Event()
        self.process = subprocess.Popen([sys.executable, ROOT / "scripts" / "mailbox", folder, "--port", "0"],
                                        stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split(",")[0].removeprefix("mailbox: ")
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.stop.wait(0.05):
            for letter in sorted(self.folder.glob("[0-9]*.json")):
                reply = letter.with_suffix(".reply")
                said = None if reply.exists() else self.answer(json.loads(letter.read_text()))
                if said is not None:
                    part = letter.with_suffix(".part")
                    part.write_text(said)
                    part.rename(reply)

    def close(self):
        self.stop.set()
        self.thread.join()
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def mailbox(tmp_path):
    """Opens one; closed at the end of the test."""
    opened = []

    def one(answer):
        opened.append(Mailbox(tmp_path / "letters", answer))
        return opened[-1]

    yield one
    for box in opened:
        box.close()


def test_a_mailbox_asks_whoever_looks_into_it(mailbox):
    box = mailbox(lambda body: body["messages"][1]["content"].upper() if body["model"] == "loud" else None)
    body = {"model": "loud", "messages": [{"role": "system", "content": "be loud"},
                                          {"role": "user", "content": "hello"}]}
    said = requests.post(box.url, json=body, timeout=PATIENCE).json()
    assert said["choices"][0]["message"] == {"role": "assistant", "content": "HELLO"}
    assert (box.folder / "0001.txt").read_text() == "--- system\n\nbe loud\n\n--- user\n\nhello\n"
    assert json.loads((box.folder / "0001.json").read_text()) == body
    with pytest.raises(requests.Timeout):  # nobody answers, and the asker leaves
        requests.post(box.url, json={**body, "model": "deaf"}, timeout=1)
    end = time.time() + PATIENCE
    while not (box.folder / "0002.gone").exists():
        assert time.time() < end
        time.sleep(0.05)
    for wrong in ({"messages": 7}, [], {"model": "loud"}):
        assert requests.post(box.url, json=wrong, timeout=PATIENCE).status_code == 400
    assert len(list(box.folder.glob("*.json"))) == 2
    box.close()
    again = mailbox(lambda body: "x")  # the numbers go on, letters of the last run stay
    assert requests.post(again.url, json=body, timeout=PATIENCE).status_code == 200
    assert (again.folder / "0003.reply").exists()


def first_of_the_list(body):
    """As a model that believes the cost model would."""
    region = json.loads(body["messages"][1]["content"])["regions"][0]
    if "nodes" in region:
        return json.dumps({"version": 1, "nodes": []})
    return json.dumps({"version": 1, "regions": [
        {"region": region["region"], "label": "by mail",
         "priority": [c["id"] for c in region["candidates"][:2]], "hints": {}, "risks": []}]})


@pytest.mark.once  # a batch under a sanitizer takes minutes
def test_a_person_can_be_the_adviser_of_a_server(start, mailbox, tmp_path):
    (tmp_path / "key").write_text("boss\n")
    box = mailbox(first_of_the_list)
    s = start("--specializer-enabled=true", "--server-admin-key-file", str(tmp_path / "key"), *ONE_SLOT,
              "--specializer-strategy", "mcts", "--adviser-url", box.url)
    load = Streams(s)
    try:
        end = time.time() + LONGER
        while not any(r["event"] == "advice" and r["text"].startswith("by mail") for r in trace(s)):
            assert time.time() < end, s.text()
            time.sleep(0.1)
    finally:
        load.end()
    asked = [json.loads(json.loads(p.read_text())["messages"][1]["content"])["regions"][0]
             for p in sorted(box.folder.glob("*.json"))]
    # Nobody is asked about a slot of which nothing is known, and that cannot learn from another.
    assert all(r["results"]["measured"] > 0 or r["results"]["refused"] or r.get("lessons") for r in asked)
    assert counted(s)["rejected"] == 0, s.text()


def test_an_ablation_shows_as_much_history_as_it_is_told(mailbox, tmp_path):
    shown = {}
    for history in (1, 2):
        box = mailbox(first_of_the_list)
        before = set(box.folder.glob("*.json"))
        done = subprocess.run([BINARY, "tune", "--ablate", "--table", ROOT / "tests/golden/tune_table.json",
                               "--seeds", "1", "--seconds", "10", "--adviser-url", box.url, "--history",
                               str(history)], capture_output=True, text=True, timeout=LONGER)
        assert done.returncode == 0, done.stderr
        asked = [json.loads(json.loads(p.read_text())["messages"][1]["content"])["regions"][0]
                 for p in set(box.folder.glob("*.json")) - before]
        moves = [r for r in asked if "nodes" in r]
        shown[history] = {name for r in moves for node in r["nodes"] for name in node}
        assert all(r["results"]["measured"] > 0 or r["results"]["refused"] for r in moves)
        box.close()  # or two would answer the next one's letters
    assert shown == {1: {"node"}, 2: {"node", "parent"}}


def test_an_ablation_asks_by_mail_and_only_once(mailbox, tmp_path):
    box, said, out = mailbox(first_of_the_list), tmp_path / "said.jsonl", tmp_path / "out.json"
    command = [BINARY, "tune", "--ablate", "--table", ROOT / "tests/golden/tune_table.json", "--seeds",
               "1", "--seconds", "10", "--adviser-url", box.url, "--record", said, "--json", out]
    runs = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGER)
        assert done.returncode == 0, done.stderr
        assert re.search(r"^llm mcts +mlp_in/m1 +a search: [1-9]", done.stdout, re.M), done.stdout
        runs.append([v for v in json.loads(out.read_text())["variants"] if v["adviser"] == "llm"])
        letters = len(list(box.folder.glob("*.json")))
    recorded = [json.loads(line) for line in said.read_text().splitlines()]
    assert 0 < len(recorded) == letters  # the second run asked nobody anything new
    assert {r["kind"] for r in recorded} == {"advice", "moves"}
    assert runs[0] == runs[1] and len(runs[0]) == 8
    assert all(v["llm"]["rejected"] == 0 for v in runs[0])
