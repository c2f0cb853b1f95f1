# SPDX-License-Identifier: Apache-2.0
"""The real `whet serve` with the real model, one process for most tests.

WHET_BINARY is the program, WHET_TEST_MODEL the GGUF of SmolLM2-135M-Instruct. Servers listen on
a port of the system's choice and keep their store in a directory of their own.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import requests

pytest.register_assert_rewrite("agentic")  # whose checks are worth a look at the values too

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("WHET_BINARY", str(ROOT / "build" / "whet"))
MODEL = os.environ.get("WHET_TEST_MODEL", "")
NAME = "smollm2"
# For a test that needs a kernel to serve and is about something else than speed: what is right serves, however
# fast eager is on the machine.
WHATEVER_SPEED = "--specializer-min-gain=-0.9"
# For one in which no kernel has to serve: none is eleven times as fast as eager, so a batch ends on the bench.
# To tell whether a kernel makes whole steps faster takes up to a thousand of them, most of a search's time.
NONE_SERVES = "--specializer-min-gain=10"
# Sanitizers make everything slower; every wait here is a limit, not a measure.
PATIENCE = 300


class Server:
    """A running `whet serve`; `log` collects its stderr."""

    def __init__(self, *options, wait=True, model=None, prefix=(), env=None):
        self.store = tempfile.TemporaryDirectory(prefix="whet-e2e-")
        command = [*prefix, BINARY, "serve", "--model", model or MODEL, "--model-name", NAME, "--port", "0",
                   "--store", self.store.name + "/store.db"]
        if not any(o.startswith("--specializer-enabled") for o in options):
            command.append("--specializer-enabled=false")
        if not any(o.startswith("--server-hosts") for o in options):
            command.append("--server-hosts=t")  # the Host of requests that tests write themselves
        self.process = subprocess.Popen(command + list(options), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr),
                                       daemon=True)
        self.reader.start()
        line = self.process.stdout.readline()
        found = re.search(r"listening on http://([\d.]+):(\d+)", line)
        assert found, f"no port: {line!r} {self.text()}"
        self.host, self.port = found.group(1), int(found.group(2))
        self.url = f"http://{self.host}:{self.port}"
        if wait:
            self.wait_ready()

    def wait_ready(self):
        end = time.time() + PATIENCE
        while requests.get(self.url + "/ready").status_code != 200:
            assert time.time() < end and self.process.poll() is None, self.text()
            time.sleep(0.02)
        self.wait_text("ready after")  # a thread reads its log: now all that it said until then is here

    def text(self):
        return "".join(self.log)

    # ---- requests -------------------------------------------------------------------------

    def send(self, method, path, **more):
        """A lost connection says whether the server is still there, and its last words."""
        try:
            return requests.request(method, self.url + path, timeout=PATIENCE, **more)
        except requests.ConnectionError as lost:
            try:
                lost.add_note(f"the server ended with {self.process.wait(1)}")
            except subprocess.TimeoutExpired:
                lost.add_note("the server is still there")
            lost.add_note(self.text()[-2000:])
            raise

    def post(self, path, body, **more):
        return self.send("POST", path, json=body, **more)

    def get(self, path, **more):
        return self.send("GET", path, **more)

    def complete(self, prompt, **more):
        """A completion that must succeed; greedy and short unless told otherwise."""
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **more}
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def chat(self, content, **more):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
        answer = self.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, path, body):
        """The JSON chunks of a stream, which must end with [DONE]."""
        with requests.post(self.url + path, json={**body, "stream": True}, stream=True,
                           timeout=PATIENCE) as answer:
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"].startswith("text/event-stream")
            return parse_events(answer.content)

    def connect(self, timeout=PATIENCE):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def raw(self, data, timeout=PATIENCE):
        """Sends bytes on a new connection and returns all that comes until the server closes."""
        with self.connect(timeout) as s:
            s.sendall(data)
            got = b""
            while piece := s.recv(65536):
                got += piece
            return got

    def metric(self, name):
        """Sum over all label sets of one sample name; a metric that does not exist is a mistake."""
        text = self.get("/metrics").text
        assert f"# TYPE {name} " in text or re.search(rf"^{re.escape(name)}[{{ ]", text, re.M), \
            f"there is no metric {name}"
        total = 0.0
        for line in text.splitlines():
            if re.match(re.escape(name) + r"(\{|\s)", line):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def wait_metric(self, name, value):
        end = time.time() + PATIENCE
        while (now := self.metric(name)) != value:
            assert time.time() < end, f"{name} stays {now}, not {value}"
            time.sleep(0.02)

    def wait_text(self, words):
        """Until it has said so: /ready does not wait for ever for the specializer."""
        end = time.time() + PATIENCE
        while words not in self.text():
            assert time.time() < end and self.process.poll() is None, f"{words!r}: {self.text()}"
            time.sleep(0.02)

    # ---- the end ----------------------------------------------------------------------------

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, timeout=PATIENCE):
        code = self.process.wait(timeout)
        self.reader.join(60)
        return code

    def stop(self):
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.store.cleanup()


def parse_events(content):
    """Server-sent events as clients read them, strictly: `data:` lines and comments only."""
    text = content.decode("utf-8", "strict")
    assert text.endswith("\n\n")
    chunks, done = [], False
    for event in text.split("\n\n")[:-1]:
        assert "\n" not in event, event
        if event.startswith(":"):
            continue
        assert event.startswith("data: "), event
        assert not done, "something follows [DONE]"
        if event == "data: [DONE]":
            done = True
        else:
            chunks.append(json.loads(event[6:]))
    assert done, "no [DONE]"
    return chunks


# Files whose tests wait for searches: begun first, the longest of all before the others, or the processes that
# share the files out would not end together.
LONG = ("test_drill.py", "test_ranks.py", "test_fleet.py", "test_drills.py", "test_dashboard.py", "test_classes.py",
        "test_tune.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda i: LONG.index(i.path.name) if i.path.name in LONG else len(LONG))
    on_gpu = [i for i in items if i.get_closest_marker("gpu")]
    if not os.environ.get("WHET_TEST_CUDA"):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="WHET_TEST_CUDA is not set"))
    if MODEL and os.path.exists(MODEL):
        return
    assert not os.environ.get("WHET_TEST_REQUIRE_MODEL"), "WHET_TEST_MODEL is not there"
    for item in items:
        if item not in on_gpu:
            item.add_marker(pytest.mark.skip(reason="WHET_TEST_MODEL is not set"))


@pytest.fixture(scope="session")
def server():
    s = Server()
    yield s
    code = s.process.poll()
    s.stop()
    assert code is None, f"the server ended with {code}:\n{s.text()}"
    assert s.process.returncode == 0, s.text()


@pytest.fixture
def start():
    """Starts further servers; all are stopped at the end of the test."""
    started = []

    def one(*options, **more):
        started.append(Server(*options, **more))
        return started[-1]

    yield one
    for s in started:
        s.stop()


@pytest.fixture(scope="module")
def awake():
    """Keeps the spare core from going to sleep, at the priority of an idle loop. A virtual machine needs
    up to 60 us to wake one, and an executor sleeps between two layers: as much as a text gains."""
    idle = subprocess.Popen([sys.executable, "-c", "import os\n"
                             "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\n"
                             "while True: pass"])
    yield
    idle.kill()
    idle.wait()
