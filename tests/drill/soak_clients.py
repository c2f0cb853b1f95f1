# SPDX-License-Identifier: Apache-2.0
"""Clients of a soak (soak.py): each kind is a function that does one thing to the server and says nothing.
What is wrong with an answer raises Failed; what was lost without a cause goes into the account.

Every text and key that clients send has MARK in it, which no line of the log may have.
"""

import contextlib
import http.client
import json
import random
import socket
import time

import clients
import conftest
from world import Failed, demand

MARK = "xqzvplugh"  # in every key and prompt, and in no log
KEYS = {"alpha": f"sk-{MARK}-alpha", "beta": f"sk-{MARK}-beta"}
ADMIN = f"sk-{MARK}-admin"
TOKENS = 16
KEPT = 12  # prompts
LAST_WORDS = 2.0  # seconds before a signal within which a request may not have been read yet

THEMES = ["a river in spring", "the history of bread", "how ships find their way", "an old library", "the moon",
          "a garden in winter", "the invention of glass", "mountain railways", "bees and flowers", "a lost letter",
          "the deep sea", "a clock tower", "salt and trade", "the desert at night", "a small harbour", "wool"]
BEGIN = f"({MARK}) This is a collection of short notes. Each of them is complete. " * 2


def candidates():
    """Prompts of several lengths, some of which begin alike, of which those serve whose texts are no near ties."""
    for i, theme in enumerate(THEMES):
        yield f"({MARK}) A text about {theme}. It begins so:"
        yield f"({MARK}) 1, 2, 3, 4, 5, " + ", ".join(str(n) for n in range(6, 12 + i)) + ","
        yield BEGIN + f"Note {i} is about {theme}. The first note again: This is a"


def references(server):
    """{prompt: text} of those prompts whose greedy texts depend least on the last bits of sums, and the least
    distance of two tokens' log-probabilities in all of them."""
    found = []
    for prompt in candidates():
        choice = server.complete(prompt, max_tokens=TOKENS, logprobs=2, ignore_eos=True)["choices"][0]
        tops = (sorted(top.values()) for top in choice["logprobs"]["top_logprobs"])
        found.append((min(top[-1] - top[-2] for top in tops if len(top) > 1), prompt, choice["text"]))
    found = sorted(found, reverse=True)[:KEPT]
    return {prompt: text for _, prompt, text in found}, found[-1][0]


def room_of(server):
    """Characters that fit into a third of the context beside BEGIN, which takes few."""
    context = server.get("/v1/models").json()["data"][0]["max_model_len"]
    return len(BEGIN) * context // server.post("/tokenize", {"prompt": BEGIN}).json()["count"] // 3


class Lost(Exception):
    """The connection ended before the answer did."""


class Account:
    """What became of requests, by kind; and what was wrong."""

    def __init__(self):
        self.counts, self.wrong = {}, []

    def add(self, kind, outcome):
        row = self.counts.setdefault(kind, {})
        row[outcome] = row.get(outcome, 0) + 1

    def total(self):
        return sum(n for row in self.counts.values() for n in row.values())


# ---- one request --------------------------------------------------------------------------------


def exchange(server, method, path, body=None, key=None, timeout=conftest.PATIENCE):
    """Status, headers and body of one request on a connection of its own; Lost if there is no whole answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=timeout)
    headers = {"authorization": f"Bearer {key or KEYS['alpha']}"}
    if body is not None:
        headers["content-type"] = "application/json"
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        # Who is turned away has an answer before all of the request was read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    except (OSError, http.client.HTTPException) as e:
        raise Lost(f"{method} {path}: {e!r}") from e
    finally:
        connection.close()


def error_of(status, body):
    """An answer that is no success names its cause; what it says."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError) as e:
        raise Failed(f"{status} without an error in it: {body[:200]!r}") from e
    demand(error.get("message") and error.get("type"), lambda: f"{status} names no cause: {error}")
    return error


def judge(status, body, allowed, world):
    """True if it is a success; else its error must be one that may be."""
    if status == 200:
        return True
    error = error_of(status, body)
    if error.get("code") == "rate_limit_exceeded":  # more choices than the client may have at once
        return False
    demand(status in allowed, lambda: f"{status} {error}")
    if status == 503:
        demand(world.ending or "connections" in error["message"] or not world.ready,
               lambda: f"503 from a server that serves: {error}")
    return False


BUSY = (429, 503)


def choices_of(body, choices, tokens):
    answer = json.loads(body)
    demand(sorted(c["index"] for c in answer["choices"]) == list(range(choices)),
           lambda: f"{choices} choices were asked for, {[c['index'] for c in answer['choices']]} came")
    demand(all(c["finish_reason"] in ("stop", "length") for c in answer["choices"]), lambda: f"{body[:300]!r}")
    demand(answer["usage"]["completion_tokens"] <= choices * tokens, lambda: f"{answer['usage']}")
    return answer


def stream_of(body):
    """The chunks of a stream, or None if it ended with an error that names its cause."""
    text = body.decode()
    if '"error"' in text:
        last = [e for e in text.split("\n\n") if e.startswith("data: {")][-1]
        error = json.loads(last[6:]).get("error")
        if error:
            demand(error.get("message"), lambda: f"an error event names no cause: {error}")
            demand("[DONE]" not in text, "an error event and [DONE]")
            return None
    try:
        return conftest.parse_events(body)
    except AssertionError as e:
        raise Failed(f"a broken stream: {e} {body[-200:]!r}") from e


# ---- kinds of clients ---------------------------------------------------------------------------


def fixed(w, r):
    """A prompt whose text is known, plain or as a stream, alone or as one choice of several."""
    prompt, text = r.choice(list(w.texts.items()))
    body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= r.choice([{}, {}, {"speculate": True}, {"n": 2}, {"speculate": True, "bit_equal": True}])
    wanted, stream = body.get("n", 1), r.random() < 0.5
    status, _, got = exchange(w.server, "POST", "/v1/completions", {**body, "stream": stream}, KEYS["alpha"])
    if not judge(status, got, BUSY, w):
        return status
    texts = [""] * wanted
    if stream:
        chunks = stream_of(got)
        if chunks is None:
            demand(w.ending, lambda: f"a stream ended with an error: {got[-300:]!r}")
            return "error event"
        for choice in (c for chunk in chunks for c in chunk["choices"]):
            texts[choice["index"]] += choice["text"]
    else:
        texts = [c["text"] for c in choices_of(got, wanted, TOKENS)["choices"]]
    for t in texts:
        demand(t == text or w.lied, lambda: f"{prompt[-60:]!r} gave {t!r}, not {text!r}")
    return 200


def drawn(r, room):
    """A request of drawn length (`room` characters at most) and fields: path, body, choices, most tokens of each."""
    words = " ".join(r.choice(THEMES) for _ in range(r.choice([1, 2, 5, 20, 60])))[:room]
    tokens = r.choice([1, 2, 8, 30, 120])
    body = {"max_tokens": tokens, "temperature": r.choice([0, 0.7, 1.5]), "seed": r.randrange(1 << 30)}
    more = [{"n": r.randint(2, 6)}, {"stop": ["the", "\n\n"]}, {"top_p": 0.9, "top_k": 40}, {"ignore_eos": True},
            {"repetition_penalty": 1.2}, {"speculate": True}, {"logit_bias": {"260": -100}}, {"min_p": 0.1},
            {"prediction": {"type": "content", "content": words}, "speculate": True}]
    for extra in r.sample(more, r.randint(0, 3)):
        body |= extra
    if r.random() < 0.4:
        body["messages"] = [{"role": "user", "content": f"({MARK}) {words}"}]
        if r.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": 5}
        return "/v1/chat/completions", body, body.get("n", 1), tokens
    shared = BEGIN if r.random() < 0.5 else f"({MARK}) "
    prompts = [f"{shared}{words} {i}" for i in range(r.choice([1, 1, 1, 3]))]
    body["prompt"] = prompts if len(prompts) > 1 else prompts[0]
    if r.random() < 0.3:
        body |= {"logprobs": 3, "echo": r.random() < 0.5}
    return "/v1/completions", body, body.get("n", 1) * len(prompts), tokens


def mixed(w, r):
    """Any request, plain or as a stream."""
    path, body, choices, tokens = drawn(r, w.room)
    key = KEYS[r.choice(("alpha", "beta"))]
    if r.random() < 0.5:
        status, _, got = exchange(w.server, "POST", path, {**body, "stream": True}, key)
        if not judge(status, got, BUSY, w):
            return status
        chunks = stream_of(got)
        if chunks is None:
            demand(w.ending, lambda: f"a stream ended with an error: {got[-300:]!r}")
            return "error event"
        ends = [c["index"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
        demand(sorted(ends) == list(range(choices)), lambda: f"{choices} choices, ends of {ends}")
        return 200
    status, _, got = exchange(w.server, "POST", path, body, key)
    if judge(status, got, BUSY, w):
        choices_of(got, choices, tokens)
    return status


def leaver(w, r):
    """A client that goes at any moment: in the middle of its request, while it waits or while it reads."""
    path, body, _, _ = drawn(r, w.room)
    body |= {"max_tokens": 200, "ignore_eos": True, "stream": r.random() < 0.7}
    data = json.dumps(body).encode()
    raw = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS['beta']}\r\n"
           f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n").encode() + data
    with contextlib.suppress(OSError):
        s = socket.create_connection((w.server.host, w.server.port), 20)
        try:
            s.sendall(raw[:r.randrange(1, len(raw))] if r.random() < 0.3 else raw)
            if r.random() < 0.6:
                s.settimeout(r.uniform(0.05, 3))
                s.recv(r.choice([1, 200, 5000]))
            else:
                time.sleep(r.uniform(0, 0.5))
        finally:
            (clients.reset if r.random() < 0.5 else socket.socket.close)(s)
    return "left"


def crowd(w, r):
    """Many at once, more than the queue has room for; some leave it before they are served."""
    def one(i):
        q = random.Random(r.random() + i)
        if i % 4 == 3:
            return leaver(w, q)
        body = {"prompt": f"({MARK}) {i} {BEGIN if i % 2 else ''}", "max_tokens": 4, "n": 1 + i % 3}
        begun, key = time.monotonic(), KEYS["alpha" if i % 2 else "beta"]
        try:
            status, _, got = exchange(w.server, "POST", "/v1/completions", body, key)
        except Lost:
            if w.excused(begun):  # asked now: the others may take long
                return "cut"
            raise
        if judge(status, got, BUSY, w):
            choices_of(got, 1 + i % 3, 4)
        return status

    clients.in_threads(r.choice([6, 16]), one)
    return "crowd"


def slow(w, r):
    """Takes its stream in small pieces, with rests, and gets all of it."""
    body = json.dumps({"prompt": f"({MARK}) Count:", "max_tokens": 40, "ignore_eos": True, "logprobs": 20,
                       "stream": True}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    s.settimeout(conftest.PATIENCE)
    got = b""
    try:
        s.connect((w.server.host, w.server.port))
        s.sendall(clients.post(body, more=f"Authorization: Bearer {KEYS['alpha']}\r\nConnection: close\r\n"))
        for _ in range(r.choice([5, 30])):
            got += s.recv(100)
            time.sleep(0.05)
        while piece := s.recv(65536):
            got += piece
    except OSError as e:
        raise Lost(f"a slow reader: {e!r}") from e
    finally:
        s.close()
    if not got:
        raise Lost("a slow reader got nothing")
    demand(got.startswith(b"HTTP/1.1 "), lambda: f"a slow reader got {got[:80]!r}")
    if not got.startswith(b"HTTP/1.1 200"):
        return int(got[9:12])
    demand(b"data: [DONE]" in got or b'"error"' in got or w.ending, lambda: f"cut: {got[-200:]!r}")
    return 200


UNSUPPORTED = [{"tools": [{"type": "function", "function": {"name": "f"}}]}, {"json_schema": {"type": "object"}},
               {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
               {"guided_regex": "a+"}, {"structured_outputs": {"choice": ["a"]}}, {"best_of": 7}]


def wrong(w, r):
    """What is refused: unsupported fields, values out of range, no key, bodies that are no JSON."""
    body = {"prompt": f"({MARK})", "max_tokens": 2}
    body, status = r.choice([({**body, **r.choice(UNSUPPORTED)}, 400), ({**body, "temperature": 9}, 400),
                             ({**body, "max_tokens": 1 << 20}, 400), (b"{", 400), ({**body, "model": "none"}, 404)])
    got, _, text = exchange(w.server, "POST", "/v1/completions", body)
    error = error_of(got, text)
    demand(got in (status, *BUSY), lambda: f"{got} for {body}: {error}")
    got, _, text = exchange(w.server, "GET", "/v1/models", key=f"sk-{MARK}-nobody")
    demand(got in (401, 503), lambda: f"{got} for a key that nobody has: {text[:200]!r}")
    return "refused"


KINDS = [(fixed, 6), (mixed, 5), (leaver, 3), (crowd, 1), (slow, 1), (wrong, 1)]


def client(w, i, seed):
    """One client after another until the soak ends, with a rest whenever it is told to."""
    r = random.Random(f"{seed} client {i}")
    kinds, weights = zip(*KINDS)
    while not w.over.is_set():
        if not w.enter():
            continue
        kind = r.choices(kinds, weights)[0]
        with w.doing(kind.__name__, time.monotonic()):
            w.account.add(kind.__name__, str(kind(w, r)))
        w.over.wait(r.choice([0, 0.05, 0.3]))
