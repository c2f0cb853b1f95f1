# SPDX-License-Identifier: Apache-2.0
"""Between clients: nobody takes the queue, the batch or the cache from others, limits by key, and
nothing of one client's prompts shows to another. What is counted is tokens and requests, no time."""

import itertools
import json
import re
import select
import signal
import socket
import subprocess
import threading
import time

import pytest
import requests

from conftest import BINARY, MODEL, PATIENCE, Server, parse_events

# Nobody waits for its end: it runs for as long as a test looks at what waits beside it, on any machine.
LONG = {"prompt": "Once upon a time", "max_tokens": 8000, "temperature": 0, "ignore_eos": True}
SHORT = {"prompt": "x", "max_tokens": 1, "temperature": 0}
PROMPT = "A beginning that both of them send. " + "The quick brown fox jumps over the dog. " * 12


def bearer(key):
    return {"authorization": "Bearer " + key}


@pytest.fixture
def keyed(tmp_path):
    """Starts servers with three keys, two of them named, and an admin key."""
    started = []

    def one(*options, **more):
        (tmp_path / "keys").write_text("sk-greedy name=greedy\nsk-victim  name=victim # one of ours\n"
                                       "sk-plain\n")
        (tmp_path / "admin").write_text("boss\n")
        s = Server("--server-api-keys", str(tmp_path / "keys"), "--server-admin-key-file",
                   str(tmp_path / "admin"), *options, **more)
        s.folder = tmp_path
        started.append(s)
        return s

    yield one
    for s in started:
        s.stop()


def counted(s, name, client, limit=None):
    """A whet_client_* value, as the operator reads it."""
    labels = f'client="{client}"' + (f',limit="{limit}"' if limit else "")
    text = s.get("/metrics", headers=bearer("boss")).text
    for line in text.splitlines():
        if line.startswith(f"whet_client_{name}{{{labels}}} "):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no {name} of {labels}:\n{text}")


def send(s, body, key="", source="127.0.0.1"):
    """A request that nobody waits for yet, from an address of our choice."""
    data = json.dumps(body).encode()
    c = socket.create_connection((s.host, s.port), PATIENCE, (source, 0))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
              b"Authorization: Bearer %s\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % (key.encode(), len(data)) + data)
    return c


def receive(c):
    """Its answer: status, head, JSON."""
    got = b""
    with c:
        while piece := c.recv(65536):
            got += piece
    head, _, text = got.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), head.decode().lower(), json.loads(text)


class Greedy:
    """Streams that begin again whenever one ends, until told to stop."""

    def __init__(self, server, key, streams):
        self.server, self.key, self.done = server, key, False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(streams)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.done:
            body = {**LONG, "prompt": f"Story {i} of a long night", "max_tokens": 600, "stream": True}
            try:
                with requests.post(self.server.url + "/v1/completions", json=body, stream=True,
                                   headers=bearer(self.key), timeout=PATIENCE) as answer:
                    for _ in answer.iter_lines():
                        if self.done:
                            return
            except requests.ConnectionError:
                return

    def stop(self):
        self.done = True
        for t in self.threads:
            t.join()


def work_to_first_token(s, key, prompt):
    """What the server counts from a request's coming to its first token: tokens computed for anybody. None if
    others had a first token meanwhile and are counted, too. Its usage."""
    name = "whet_work_to_first_token_tokens"
    before = [s.metric(name + what) for what in ("_count", "_sum")]
    answer = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0}, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    count, work = [s.metric(name + what) - b for what, b in zip(("_count", "_sum"), before)]
    assert count >= 1
    return work if count == 1 else None, answer.json()["usage"]


@pytest.mark.threads
def test_64_streams_of_one_key_do_not_triple_anothers_time_to_first_token(keyed):
    """In work: tokens computed between a request and its first token. Alone these are its prompt."""
    s = keyed("--engine-max-context", "1024", "--engine-kv-pages", "4096")
    greedy, work, end = Greedy(s, "sk-greedy", 64), None, time.time() + PATIENCE
    try:
        s.wait_metric("whet_requests_running", 64)
        while s.metric("whet_time_to_first_token_seconds_count") < 64:  # the next are those of their next requests
            assert time.time() < end
            time.sleep(0.02)
        for i in itertools.count():
            work, usage = work_to_first_token(s, "sk-victim", f"{i} times. " + "One more word of it. " * 100)
            if work is not None:
                break
            assert time.time() < end
    finally:
        greedy.stop()
    prompt = usage["prompt_tokens"]
    assert prompt > 400 and usage["prompt_tokens_details"]["cached_tokens"] == 0
    print(f"prompt {prompt}, tokens of all {work:.0f}")
    assert prompt <= work < 3 * prompt


def test_a_full_queue_makes_room_for_another_key(keyed):
    s = keyed("--engine-max-batch", "2", "--server-max-queue", "4")
    held = [send(s, LONG, "sk-greedy") for _ in range(6)]
    s.wait_metric("whet_requests_waiting", 4)
    assert s.post("/v1/completions", SHORT, headers=bearer("sk-greedy")).status_code == 429
    answer = s.post("/v1/completions", SHORT, headers=bearer("sk-victim"))
    assert answer.status_code == 200, answer.text
    answered = select.select(held, [], [], PATIENCE)[0]
    assert len(answered) == 1
    status, head, body = receive(answered[0])
    assert status == 429 and body["error"]["code"] == "queue_full"
    assert 1 <= int(re.search(r"^retry-after: (\d+)\r$", head, re.M)[1]) <= 60
    assert counted(s, "refused_total", "greedy", "displaced") == 1
    assert counted(s, "refused_total", "greedy", "queue") == 1
    assert counted(s, "refused_total", "victim", "queue") == 0
    for c in held:
        c.close()


def test_who_is_turned_away_hears_how_long_the_queue_takes(keyed):
    """Of requests as long as these none ends soon: the longer that lasts, the later one had better come back."""
    s = keyed("--engine-max-batch", "1", "--server-max-queue", "6")
    held = [send(s, LONG, "sk-greedy") for _ in range(7)]
    s.wait_metric("whet_requests_waiting", 6)
    end, said = time.time() + PATIENCE, []
    while not said or said[-1] < 3:
        assert time.time() < end, said
        refused = s.post("/v1/completions", SHORT, headers=bearer("sk-greedy"))
        assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
        said.append(int(refused.headers["retry-after"]))
        time.sleep(0.05)
    assert said == sorted(said)
    assert all(1 <= n <= 60 for n in said)
    for c in held:
        c.close()


def test_an_answer_that_has_begun_keeps_its_place(keyed):
    """Its choices that wait have the most places of the full queue, and the stream is under way."""
    s = keyed("--engine-max-batch", "6", "--server-max-queue", "8")
    for tokens in (120, 480, 1920):  # until its first choices still run when the others come
        with requests.post(s.url + "/v1/completions", json={**LONG, "n": 12, "max_tokens": tokens, "stream": True},
                           stream=True, timeout=PATIENCE, headers=bearer("sk-greedy")) as answer:
            assert answer.status_code == 200
            lines = answer.iter_lines()
            next(lines)
            refused = counted(s, "refused_total", "victim", "queue")
            others = [send(s, LONG, "sk-victim") for _ in range(4)]
            events = parse_events(b"\n\n".join(line for line in lines if line) + b"\n\n")
        refused = counted(s, "refused_total", "victim", "queue") - refused
        for c in others:
            c.close()
        assert all("error" not in e for e in events), events[-1]
        ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] == "length"]
        assert sorted(ends) == list(range(12))
        assert counted(s, "refused_total", "greedy", "displaced") == 0
        if refused == 2:
            return
        s.wait_metric("whet_requests_running", 0)
    pytest.fail("the queue was never full")


# ---- limits ------------------------------------------------------------------------------------


def test_requests_of_a_key_are_limited(keyed):
    s = keyed("--server-key-limits=greedy running=1 waiting=2")
    held = [send(s, LONG, "sk-greedy") for _ in range(3)]
    s.wait_metric("whet_requests_waiting", 2)
    assert s.metric("whet_requests_running") == 1  # of 64 places
    refused = s.post("/v1/completions", SHORT, headers=bearer("sk-greedy"))
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert error["code"] == "rate_limit_exceeded" and error["type"] == "rate_limit_error"
    assert "running=1 waiting=2" in error["message"]
    assert refused.headers["x-ratelimit-limit-requests"] == "3"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    other = s.post("/v1/completions", SHORT, headers=bearer("sk-victim"))
    assert other.status_code == 200 and "x-ratelimit-limit-requests" not in other.headers
    assert counted(s, "refused_total", "greedy", "requests") == 1
    assert counted(s, "active", "greedy") == 3
    for c in held:
        c.close()
    s.wait_metric("whet_requests_running", 0)
    assert s.post("/v1/completions", SHORT, headers=bearer("sk-greedy")).status_code == 200


def test_more_choices_than_a_key_may_ever_have_are_no_429(keyed):
    s = keyed("--server-key-limits=greedy running=2 waiting=2")
    few = {**SHORT, "max_tokens": 4, "ignore_eos": True}
    for body, param in (({**few, "n": 5}, "n"), ({**few, "prompt": ["x"] * 5}, "prompt")):
        never = s.post("/v1/completions", body, headers=bearer("sk-greedy"))
        error = never.json()["error"]
        assert never.status_code == 400 and "retry-after" not in never.headers, never.text
        assert error["param"] == param and error["code"] == "rate_limit_exceeded"
        assert "5 generations" in error["message"] and "running=2 waiting=2" in error["message"]
    assert s.post("/v1/completions", {**few, "n": 5}, headers=bearer("sk-victim")).status_code == 200
    assert s.post("/v1/completions", {**few, "n": 4}, headers=bearer("sk-greedy")).status_code == 200
    held = send(s, LONG, "sk-greedy")
    s.wait_metric("whet_requests_running", 1)
    before = s.metric("whet_prompt_tokens_total")
    later = s.post("/v1/completions", {**few, "n": 4}, headers=bearer("sk-greedy"))
    assert later.status_code == 429 and "retry-after" in later.headers
    assert "1 of your requests run and 0 wait, and these are 4 more" in later.json()["error"]["message"]
    assert s.metric("whet_prompt_tokens_total") == before  # none of the four has begun
    held.close()


def test_tokens_a_minute_are_limited_and_reloaded(keyed, tmp_path):
    limits = tmp_path / "limits"
    limits.write_text("# who  what\n* tokens_per_minute=200\nvictim tokens_per_minute=any\n")
    s = keyed("--server-key-limits", str(limits))
    long = {"prompt": "word " * 120, "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    answer = s.post("/v1/completions", long, headers=bearer("sk-plain"))
    assert answer.status_code == 200
    used = answer.json()["usage"]["total_tokens"]
    assert answer.headers["x-ratelimit-limit-tokens"] == "200"
    assert 0 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 200
    refused = s.post("/v1/completions", long, headers=bearer("sk-plain"))
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert "tokens_per_minute=200" in refused.json()["error"]["message"]
    prompt = answer.json()["usage"]["prompt_tokens"]
    wait = (prompt + used - 200) / (200 / 60)  # were it asked at once
    assert 1 <= int(refused.headers["retry-after"]) <= wait + 1
    for _ in range(3):
        assert s.post("/v1/completions", long, headers=bearer("sk-victim")).status_code == 200
    never = s.post("/v1/completions", {**long, "prompt": "word " * 400}, headers=bearer("sk-plain"))
    assert never.status_code == 400  # a client that tries again gets nowhere
    assert never.json()["error"]["code"] == "rate_limit_exceeded"
    assert counted(s, "refused_total", "other", "tokens") == 2

    limits.write_text("* tokens_per_minute=100000\nnobody running=1\n")  # a typo changes nothing
    s.signal(signal.SIGHUP)
    end = time.time() + PATIENCE
    while f"{limits} line 2" not in s.text():
        assert time.time() < end
        time.sleep(0.02)
    # What the limit gives back in the meantime may do for one, or for two where much else runs: not for six.
    assert 429 in [s.post("/v1/completions", long, headers=bearer("sk-plain")).status_code for _ in range(6)]
    limits.write_text("* tokens_per_minute=100000\n")
    s.signal(signal.SIGHUP)
    while s.post("/v1/completions", long, headers=bearer("sk-plain")).status_code != 200:
        assert time.time() < end
        time.sleep(0.02)


@pytest.mark.parametrize("text", ["greedy", "greedy running=many", "gredy running=1",
                                  "* running=1\n* waiting=1"])
def test_limits_that_make_no_sense_are_refused_at_start(tmp_path, text):
    limits, keys = tmp_path / "limits", tmp_path / "keys"
    limits.write_text("victim running=2\n" + text + "\n")
    keys.write_text("sk-greedy name=greedy\nsk-victim name=victim\n")
    run = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", "0", "--server-api-keys",
                          str(keys), "--server-key-limits", str(limits), "--store",
                          str(tmp_path / "store.db")], capture_output=True, text=True,
                         timeout=PATIENCE)
    assert run.returncode == 1
    assert re.search(rf"{limits} line [23]: ", run.stderr)


# ---- what shows to others ----------------------------------------------------------------------


def cached(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("option,own,other", [("", 64, 0), ("salted", 64, 0), ("true", 64, 0),
                                              ("shared", 64, 64), ("off", 0, 0), ("false", 0, 0)])
def test_cached_tokens_tell_nothing_of_another_key(keyed, option, own, other):
    s = keyed(*(["--engine-prefix-cache", option] if option else []))
    body = {**SHORT, "prompt": PROMPT}
    assert cached(s.post("/v1/completions", body, headers=bearer("sk-greedy"))) == 0
    again = cached(s.post("/v1/completions", body, headers=bearer("sk-greedy")))
    foreign = cached(s.post("/v1/completions", body, headers=bearer("sk-victim")))
    third = cached(s.post("/v1/completions", body, headers=bearer("sk-plain")))
    assert again >= own and (own or again == 0)
    for found in (foreign, third):
        assert found >= other and (other or found == 0)


def test_without_keys_each_address_is_a_client(start):
    s = start("--server-key-limits=* tokens_per_minute=260")  # half a minute to fill up again
    body = {**SHORT, "prompt": PROMPT}

    def ask(source):
        status, _, answer = receive(send(s, body, source=source))
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"] if status == 200 else status

    assert ask("127.0.0.1") == 0
    assert ask("127.0.0.1") >= 64
    assert ask("127.0.0.1") == 429
    assert ask("127.0.0.2") == 0


def test_names_are_for_the_operator_and_keys_for_nobody(keyed):
    s = keyed()
    for key in ("sk-greedy", "sk-plain"):
        assert s.post("/v1/completions", SHORT, headers=bearer(key)).status_code == 200
    for headers in ({}, bearer("sk-victim")):
        page = s.get("/metrics", headers=headers).text
        assert "greedy" not in page and "victim" not in page
        assert 'whet_client_requests_total{client="all"} 2' in page
    page = s.get("/metrics", headers=bearer("boss")).text
    assert "sk-" not in page and "boss" not in page
    assert 'whet_client_requests_total{client="greedy"} 1' in page
    assert 'whet_client_requests_total{client="other"} 1' in page
    assert "sk-" not in s.text()


def test_keys_of_one_name_are_one_client(keyed):
    s = keyed()
    (s.folder / "keys").write_text("sk-old name=acme\nsk-new name=acme\n")  # a key is rotated
    s.signal(signal.SIGHUP)
    end = time.time() + PATIENCE
    while s.get("/v1/models", headers=bearer("sk-new")).status_code != 200:
        assert time.time() < end
        time.sleep(0.02)
    body = {**SHORT, "prompt": PROMPT}
    assert cached(s.post("/v1/completions", body, headers=bearer("sk-old"))) == 0
    assert cached(s.post("/v1/completions", body, headers=bearer("sk-new"))) >= 64
    assert counted(s, "requests_total", "acme") == 2
