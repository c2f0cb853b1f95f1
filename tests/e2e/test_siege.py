# SPDX-License-Identifier: Apache-2.0
"""Clients that want the whole server: its connections, threads and memory, its operators' names.

What is looked at is what the server says of itself and the memory of its process, never a clock."""

import contextlib
import json
import os
import re
import threading

import requests

from conftest import PATIENCE
from test_http import GET, HEAD, statuses

MIB = 1 << 20
KV_BYTES = 30 * 2 * 3 * 64 * 4  # a token's keys and values in the default model: layers, both, heads, width, floats
LONG = HEAD + b"Content-Length: %d\r\n\r\n"


def resident(s, field="VmHWM"):
    with open(f"/proc/{s.process.pid}/status") as f:
        return int(re.search(field + r":\s+(\d+) kB", f.read()).group(1)) << 10


def body_of(size):
    return b'{"prompt":"' + b"word " * ((size - 13) // 5) + b'"}'


def marks_of(size):
    return b'{"prompt":"e' + "\u0301\u0316".encode() * ((size - 14) // 4) + b'"}'


def test_bodies_of_clients_that_left_are_given_up(start):
    """150 bodies of 8 MiB were 1545 MiB: bounded is 32 of them, and what tokenizing makes of four.

    Of combining marks, so that tokenizing does not keep up with clients by being fast alone."""
    s = start()
    body = marks_of(8 * MIB)
    before = resident(s)
    for _ in range(150):
        with s.connect() as c:
            try:
                c.sendall(LONG % len(body) + body)
            except OSError:
                pass  # refused: too much is held already
    assert s.metric("whet_pending_bytes") <= 33 * 8 * MIB
    assert s.metric("whet_pending_jobs") <= 40
    s.wait_metric("whet_pending_bytes", 0)
    s.wait_metric("whet_pending_jobs", 0)
    assert resident(s) - before < 900 * MIB
    assert s.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def test_predictions_of_requests_that_wait_hold_no_more_than_a_context(start):
    """`prediction` is a text of up to a whole body, and a request may wait for long: text and tokens of
    all of it were kept meanwhile, which nobody counted."""
    # what AddressSanitizer keeps of freed memory, to find its use, would count as the server's
    asan = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
    # and room for keys and values comes with the tokens that need it in small pages only
    s = start("--engine-max-batch", "1", "--engine-huge-pages=false", prefix=["env", "ASAN_OPTIONS=" + asan])
    content = "it is " * (2 * MIB // 6)
    body = json.dumps({"prompt": "a", "prediction": {"type": "content", "content": content}}).encode()
    first = json.dumps({"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}).encode()
    with contextlib.ExitStack() as clients:
        clients.enter_context(s.connect()).sendall(LONG % len(first) + first)
        s.wait_metric("whet_requests_running", 1)
        made, before = s.metric("whet_generation_tokens_total"), resident(s, "VmRSS")
        for n in range(16):
            clients.enter_context(s.connect()).sendall(LONG % len(body) + body)
            s.wait_metric("whet_requests_waiting", n + 1)
        assert s.metric("whet_pending_bytes") == 16 * 4 * (8192 + 1) + 4
        # the one that runs goes on meanwhile, and its tokens take room in the cache of keys and values
        running = (s.metric("whet_generation_tokens_total") - made) * KV_BYTES
        assert resident(s, "VmRSS") - before - running < 32 * MIB


def test_operators_do_not_wait_for_texts_that_clients_left(start):
    """Texts of combining marks, whose order once took time that grew with the square of their number."""
    s = start()
    body = marks_of(MIB)
    clients = [s.connect() for _ in range(8)]
    for c in clients:
        c.sendall(LONG % len(body) + body)
    for c in clients:
        c.close()
    for path in ("/metrics", "/health", "/specializer"):
        assert s.get(path).status_code == 200
    assert s.metric("whet_pending_jobs") <= 4
    s.wait_metric("whet_pending_jobs", 0)


def test_answers_above_the_limit_fail_and_are_freed(start):
    s = start("--server-max-answer", "1048576")
    before = resident(s)
    answer = s.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "n": 64, "max_tokens": 500,
        "logprobs": True, "top_logprobs": 20, "ignore_eos": True})
    assert answer.status_code == 400
    assert "server.max_answer" in answer.json()["error"]["message"]
    s.wait_metric("whet_requests_running", 0)
    assert s.metric("whet_answer_bytes") < 100000
    assert resident(s) - before < 300 * MIB
    assert s.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def test_idle_connections_do_not_keep_anybody_out(start):
    s = start("--server-max-connections", "64")
    idle = [s.connect() for _ in range(64)]
    for c in idle:
        c.sendall(GET)
        assert statuses(c.recv(65536)) == [200]
    for _ in range(3):
        assert s.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")
    for c in idle:
        c.close()


def test_descriptors_never_run_out(start):
    """The limit of open files is met by idle clients: a working one still gets in."""
    s = start(prefix=["prlimit", "--nofile=160:160"])
    idle = [s.connect() for _ in range(200)]
    for c in idle:
        try:
            c.sendall(GET)
            c.recv(65536)
        except OSError:
            pass  # closed for another one already
    assert s.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")
    assert s.metric("process_open_fds") < 160
    assert s.get("/health").status_code == 200
    for c in idle:
        c.close()


def test_names_that_dns_may_turn_around(start):
    s = start("--server-hosts=whet.example, other.example")
    def ask(host, **more):
        return requests.get(s.url + "/v1/models", headers={"host": host, **more}, timeout=PATIENCE)
    for host in ("localhost", "127.0.0.1:1", "[::1]", "whet.example:8080", "other.example"):
        assert ask(host).status_code == 200, host
    for host in ("evil.example", "whet.example.evil", "localhost.evil.example"):
        answer = ask(host)
        assert answer.status_code == 421 and "server.hosts" in answer.text, host


def test_pages_of_other_sites_change_nothing(server):
    def post(**headers):
        return server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=headers)
    assert post().status_code == 200
    assert post(origin=server.url).status_code == 200
    for origin in ("https://evil.example", "null", server.url + "0"):
        answer = post(origin=origin)
        assert answer.status_code == 403 and "server.cors_origins" in answer.text
    plain = requests.post(server.url + "/v1/completions", data=b'{"prompt": "x"}', timeout=PATIENCE,
                          headers={"content-type": "text/plain"})
    assert plain.status_code == 415


def test_many_at_once_are_all_answered(start):
    """The bounds are far above what clients do who mean well."""
    s = start()
    results = []

    def one(i):
        results.append(s.post("/v1/completions", {"prompt": f"{i} " * 20, "max_tokens": 1}))
    threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [r.status_code for r in results] == [200] * 60
