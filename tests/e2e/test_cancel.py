# SPDX-License-Identifier: Apache-2.0
"""Clients that leave: their work stops and their pages are free. Who did not notice would find all of
LONG generated: how much was is what tells, not how soon it ended."""

import json
import socket
import threading
import time

import pytest
import requests

LONG = {"prompt": "Tell me a very long story.", "max_tokens": 4000, "ignore_eos": True}


def generated(server):
    return server.metric("whet_generation_tokens_total")


def send(server, body, path="/v1/completions"):
    data = json.dumps(body).encode()
    s = server.connect()
    s.sendall(b"POST %s HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
    return s


@pytest.mark.threads
@pytest.mark.parametrize("more", [{"stream": True}, {}, {"stream": True, "n": 3}, {"n": 2}],
                         ids=["stream", "plain", "stream of 3", "plain of 2"])
def test_running_requests_end_with_their_client(server, more):
    before = generated(server)
    s = send(server, {**LONG, **more})
    server.wait_metric("whet_requests_running", more.get("n", 1))
    if more.get("stream"):
        assert b"200 OK" in s.recv(4096)
    s.close()
    server.wait_metric("whet_requests_running", 0)
    server.wait_metric("whet_kv_pages_used", 0)
    assert generated(server) < before + LONG["max_tokens"] * more.get("n", 1)


def test_a_reset_connection_cancels_too(server):
    before = generated(server)
    s = send(server, {**LONG, "stream": True})
    server.wait_metric("whet_requests_running", 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    s.close()
    server.wait_metric("whet_requests_running", 0)
    assert generated(server) < before + LONG["max_tokens"]


@pytest.mark.threads
def test_queued_requests_end_with_their_client(start):
    s = start("--engine-max-batch", "1")
    running = send(s, {**LONG, "stream": True})
    s.wait_metric("whet_requests_running", 1)
    queued = [send(s, {**LONG, "stream": i % 2 == 0}) for i in range(4)]
    s.wait_metric("whet_requests_waiting", 4)
    for q in queued:
        q.close()
    s.wait_metric("whet_requests_waiting", 0)
    assert s.metric("whet_requests_running") == 1
    running.close()
    s.wait_metric("whet_requests_running", 0)
    assert generated(s) < LONG["max_tokens"]


def test_clients_that_leave_while_their_prompt_is_tokenized(server):
    for _ in range(10):
        send(server, {"prompt": "word " * 200000, "max_tokens": 1}).close()
    server.wait_metric("whet_requests_running", 0)
    assert server.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def test_full_queue_is_429_with_retry_after(start):
    s = start("--engine-max-batch", "1", "--server-max-queue", "2")
    held = [send(s, {**LONG, "stream": True})]
    s.wait_metric("whet_requests_running", 1)
    held += [send(s, LONG) for _ in range(2)]
    s.wait_metric("whet_requests_waiting", 2)
    for path, body in (("/v1/completions", {"prompt": "x"}),
                       ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
        answer = s.post(path, body)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["code"] == "queue_full"
    # Before any work, even parsing: nobody looks at what this says.
    refused = requests.post(s.url + "/v1/completions", data="{not JSON", timeout=60,
                            headers={"Content-Type": "application/json"})
    assert refused.status_code == 429
    for h in held:
        h.close()
    s.wait_metric("whet_requests_running", 0)
    assert generated(s) < LONG["max_tokens"]
    assert s.complete("Hi")["usage"]["completion_tokens"] <= 8


def test_a_storm_of_leaving_clients_leaves_nothing_behind(server):
    def one(i):
        c = send(server, {**LONG, "stream": i % 2 == 0, "prompt": f"story {i} " * (i % 7 + 1)})
        time.sleep(0.003 * (i % 9))
        c.close()

    threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    server.wait_metric("whet_requests_running", 0)
    server.wait_metric("whet_requests_waiting", 0)
    server.wait_metric("whet_kv_pages_used", 0)
