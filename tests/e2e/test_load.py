# SPDX-License-Identifier: Apache-2.0
"""64 clients at once: every answer comes, and each is what it is alone."""

import os
import threading

import pytest

# 16 show the same races under a thread sanitizer, in a quarter of its minutes.
CLIENTS = int(os.environ.get("WHET_TEST_CLIENTS", 64))

WORDS = ("river", "engine", "garden", "planet", "violin", "harbor", "winter", "market")


def requests_of(i):
    """One client's requests: greedy and seeded, plain and streamed, long and short prompts. The
    seeded ones are kept cool: with a flat distribution the rounding of another batch size may
    turn a near tie."""
    word = WORDS[i % 8]
    prompt = f"The {word} was" if i % 2 else f"Once there was a {word}. " * 6 + "It"
    seeded = {"temperature": 0.3, "seed": i} if i % 4 == 0 else {"temperature": 0}
    return {"prompt": prompt, "max_tokens": 5 + i % 4, **seeded}


@pytest.mark.threads
def test_clients_at_once_get_what_they_would_get_alone(server):
    bodies = [requests_of(i % 16) for i in range(CLIENTS)]
    some = [server.post("/v1/completions", b).json()["choices"][0]["text"] for b in bodies[:16]]
    alone = [some[i % 16] for i in range(CLIENTS)]
    got = [None] * CLIENTS

    def client(i):
        if i % 3 == 0:
            chunks = server.stream("/v1/completions", bodies[i])
            got[i] = "".join(c["choices"][0]["text"] for c in chunks)
        else:
            answer = server.post("/v1/completions", bodies[i])
            got[i] = answer.json()["choices"][0]["text"] if answer.ok else answer.text

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    wrong = [(i, alone[i], got[i]) for i in range(CLIENTS) if alone[i] != got[i]]
    assert not wrong
    assert server.metric("whet_requests_running") == 0
    assert server.metric("whet_kv_pages_used") == 0


def test_more_than_the_cache_holds_at_once(start):
    """Pages run out: requests are preempted and resumed, and nobody notices."""
    s = start("--engine-kv-pages", "16", "--engine-max-context", "256", "--engine-max-batch", "16")
    bodies = [{"prompt": f"Tale {i} of the {WORDS[i % 8]}:", "max_tokens": 44, "temperature": 0,
               "ignore_eos": True} for i in range(10)]
    alone = [s.post("/v1/completions", b).json()["choices"][0]["text"] for b in bodies[:3]]
    got = [None] * 10

    def client(i):
        got[i] = s.post("/v1/completions", bodies[i])

    threads = [threading.Thread(target=client, args=(i,)) for i in range(10)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [g.status_code for g in got] == [200] * 10
    assert all(g.json()["usage"]["completion_tokens"] == 44 for g in got)
    assert s.metric("whet_preemptions_total") > 0
    same = sum(a == g.json()["choices"][0]["text"] for a, g in zip(alone, got))
    assert same >= 2  # resumed prompts are read by the wide kernels, which round differently
