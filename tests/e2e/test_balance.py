# SPDX-License-Identifier: Apache-2.0
"""Two servers behind Debian's HAProxy with deploy/haproxy.cfg: rolling restart, a kill, prefixes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import requests

from conftest import BINARY, PATIENCE, ROOT, Server

pytestmark = [pytest.mark.once,  # servers start a dozen times: minutes under sanitizers
              pytest.mark.skipif(not shutil.which("haproxy"), reason="haproxy is not installed")]
CONFIG = ROOT / "deploy" / "haproxy.cfg"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Fleet:
    """Two servers on ports that stay theirs over a restart, and the balancer."""

    def __init__(self, balance, delay_s=2.5, drain_s=600):
        self.drain = ("--server-drain-delay-s", str(delay_s), "--server-drain-s", str(drain_s))
        self.ports = [free_port(), free_port()]
        self.servers = [self.server(0), self.server(1)]
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        env = {**os.environ, "WHET_LISTEN": f"127.0.0.1:{self.port}", "WHET_BALANCE": balance,
               "WHET_ONE": f"127.0.0.1:{self.ports[0]}", "WHET_TWO": f"127.0.0.1:{self.ports[1]}"}
        self.proxy = subprocess.Popen(["haproxy", "-db", "-f", str(CONFIG)], env=env)
        self.wait_served()

    def server(self, i):
        # A later --port beats the one that Server gives; a keyless server knows only IP hosts.
        return Server("--port", str(self.ports[i]), "--threads", "1", *self.drain)

    def wait_served(self):
        end = time.time() + PATIENCE
        while True:
            try:
                if requests.get(self.url + "/ready", timeout=PATIENCE).status_code == 200:
                    return
            except requests.ConnectionError:
                pass
            assert time.time() < end and self.proxy.poll() is None
            time.sleep(0.05)

    def ask(self, prompt, tokens=4, **more):
        return requests.post(self.url + "/v1/completions", timeout=PATIENCE, **more,
                             json={"prompt": prompt, "max_tokens": tokens, "temperature": 0,
                                   "ignore_eos": True})

    def stop(self):
        self.proxy.kill()
        self.proxy.wait()
        for s in self.servers:
            s.stop()


@pytest.fixture
def fleet():
    made = []

    def one(balance, **more):
        made.append(Fleet(balance, **more))
        return made[-1]
    yield one
    for f in made:
        f.stop()


def test_a_rolling_restart_fails_no_request(fleet):
    f = fleet("least")
    codes, over = [], threading.Event()

    def load(i):
        while not over.is_set():
            try:
                answer = f.ask(f"Client {i} says", 8)
                codes.append((answer.status_code, answer.json()["usage"]["completion_tokens"]))
            except requests.RequestException as e:
                codes.append((0, str(e)))
    clients = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for c in clients:
        c.start()
    try:
        for i in (0, 1):
            before = len(codes)
            f.servers[i].signal(signal.SIGTERM)
            assert f.servers[i].wait() == 0
            assert len(codes) > before  # somebody was served meanwhile
            f.servers[i].store.cleanup()
            f.servers[i] = f.server(i)
            end = time.time() + PATIENCE
            while f.servers[i].metric("whet_time_to_first_token_seconds_count") == 0:
                assert time.time() < end  # the balancer has found it again
                time.sleep(0.1)
    finally:
        over.set()
        for c in clients:
            c.join()
    assert set(codes) == {(200, 8)}, set(codes)


def test_what_a_drain_gives_up_is_computed_elsewhere_unless_it_is_a_stream(fleet):
    """A server that may not drain for as long as its requests run."""
    f = fleet("least", delay_s=0.5, drain_s=0)
    whole = []
    client = threading.Thread(target=lambda: whole.append(f.ask("Once upon a time", 400)))
    client.start()
    end = time.time() + PATIENCE
    while not (busy := [s for s in f.servers if s.metric("whet_requests_running") == 1]):
        assert time.time() < end
        time.sleep(0.05)
    other = f.servers[1 - f.servers.index(busy[0])]
    with requests.post(busy[0].url + "/v1/completions", stream=True, timeout=PATIENCE, json={
            "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}) as stream:
        busy[0].signal(signal.SIGTERM)
        last = [line for line in stream.iter_lines() if line][-1]
    assert b"shutting down" in last, last
    client.join()
    assert (whole[0].status_code, whole[0].json()["usage"]["completion_tokens"]) == (200, 400)
    assert 'whet_requests_total{route="/v1/completions",code="200"} 1\n' in other.get("/metrics").text


def test_a_name_that_is_not_there_yet_keeps_nobody_from_starting():
    """One server of two: the other's name is not known, as of a container that has not started."""
    one = Server("--threads", "1")
    port = free_port()
    env = {**os.environ, "WHET_LISTEN": f"127.0.0.1:{port}", "WHET_BALANCE": "least",
           "WHET_ONE": f"127.0.0.1:{one.port}", "WHET_TWO": "whet-two.invalid:8080"}
    proxy = subprocess.Popen(["haproxy", "-db", "-f", str(CONFIG)], env=env)
    try:
        end, code = time.time() + PATIENCE, 0
        while code != 200:
            assert time.time() < end and proxy.poll() is None
            time.sleep(0.05)
            try:
                code = requests.get(f"http://127.0.0.1:{port}/ready", timeout=PATIENCE).status_code
            except requests.ConnectionError:
                pass
    finally:
        proxy.kill()
        proxy.wait()
        one.stop()


def test_a_killed_server_takes_only_its_own_requests(fleet):
    f = fleet("least")
    got = [None] * 6

    def run(i):
        try:
            answer = f.ask(f"Request {i}:", 300)
            got[i] = answer.status_code
        except requests.RequestException:
            got[i] = 0
    clients = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for c in clients:
        c.start()
    for s in f.servers:
        s.wait_metric("whet_requests_running", 3)
    f.servers[0].process.kill()
    for c in clients:
        c.join()
    assert sorted(code == 200 for code in got) == [False] * 3 + [True] * 3, got
    assert [f.ask("After that").status_code for _ in range(4)] == [200] * 4


def test_requests_that_begin_alike_reach_the_same_server(fleet):
    f = fleet("prefix")
    hits = "whet_prefix_cache_hit_tokens_total"
    served = "whet_time_to_first_token_seconds_count"
    beginnings = [f"Book {i}. " + "It was a dark night, and the wind did not rest. " * 6
                  for i in range(8)]
    for turn in range(3):
        for text in beginnings:
            answer = f.ask(text, 1, headers={"x-prefix-key": text[:8]})
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached >= 64) == (turn > 0), (turn, text[:8], cached)
    each = [s.metric(served) for s in f.servers]
    assert sum(each) == 24 and all(n % 3 == 0 and n > 0 for n in each), each
    assert sum(s.metric(hits) for s in f.servers) >= 16 * 64
    # Without the header the beginning of the body decides.
    before = [s.metric(served) for s in f.servers]
    for _ in range(4):
        assert f.ask("The same long beginning. " * 30, 1).status_code == 200
    assert sorted(s.metric(served) - b for s, b in zip(f.servers, before)) == [0, 4]


def test_the_bench_counts_what_servers_found_in_their_caches(tmp_path):
    file = tmp_path / "out.json"
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "bench-balance"), "--binary", BINARY,
                           "--model", "random:tiny", "--requests", "12", "--clients", "3", "--tenants", "6",
                           "--prefix-tokens", "96", "--tail-tokens", "8", "--output-tokens", "2",
                           "--traffic", "few,none", "--json", file, "--", "--backend", "cpu",
                           "--store", str(tmp_path / "store.db")],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    cases = json.loads(file.read_text())
    assert [(c["traffic"], c["balance"]) for c in cases] == \
        [(t, b) for t in ("few", "none") for b in ("least", "prefix")]
    for c in cases:
        assert c["requests"] == 12 == sum(c["each"]) and c["failed"] == 0
        assert 12 * 80 <= c["prompt_tokens"] <= 12 * 130
        assert 0 < c["ttft_p50_ms"] <= c["ttft_p99_ms"]
    # The first round left the beginnings where the hash looks for them; strangers have nothing in common.
    assert cases[1]["cached_tokens"] >= 12 * 64 and cases[2]["cached_tokens"] == cases[3]["cached_tokens"] == 0
    assert "| none | hash of the prefix |" in done.stdout
