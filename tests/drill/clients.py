# SPDX-License-Identifier: Apache-2.0
"""Who speaks to the server in a drill, and the book that is kept of every request.

A request is entered when its first byte is sent and crossed out when it was answered, or when we
left it on purpose. A request that was neither is lost, and that is what a drill is about. The
server keeps the same book in whet_requests_total; world.py holds one against the other.
"""

import collections
import contextlib
import http.client
import json
import socket
import struct
import threading
import time

import conftest

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):"]
TOKENS = 24
JSON = "Content-Type: application/json\r\n"


class Book:
    """Requests by what became of them. Any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.sent = self.left = self.turned_away = 0
        self.codes = collections.Counter()
        self.lost = []

    def enter(self):
        with self.lock:
            self.sent += 1

    def answer(self, code):
        with self.lock:
            self.codes[int(code)] += 1

    def leave(self):
        with self.lock:
            self.left += 1

    def turn_away(self, entered=True):
        """The connection was refused, so that the server never saw the request."""
        with self.lock:
            self.sent -= entered
            self.turned_away += 1

    def lose(self, why):
        with self.lock:
            self.lost.append(str(why))

    def state(self):
        with self.lock:
            good = sum(n for code, n in self.codes.items() if code < 400)
            return {"sent": self.sent, "answered": good,
                    "errored": sum(self.codes.values()) - good, "left": self.left,
                    "lost": len(self.lost), "codes": dict(self.codes)}


def is_turned_away(code, body):
    return code == 503 and b"server.max_connections" in body


def completion(prompt, **more):
    return json.dumps({"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, **more}).encode()


def post(body, length=None, more=""):
    """The bytes of a completion request; `length` if more is promised than `body`."""
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{JSON}{more}"
            f"Content-Length: {len(body) if length is None else length}\r\n\r\n")
    return head.encode() + body


def read_answer(s, book):
    """Reads one whole answer from a raw connection and enters it. None: the connection ended."""
    answer = http.client.HTTPResponse(s)
    try:
        answer.begin()
        body = answer.read()
    except (OSError, http.client.HTTPException) as e:
        book.lose(f"raw request: {e!r}")
        return None
    book.answer(answer.status)
    return answer.status, body


def reset(s):
    """Closes with RST instead of FIN."""
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def in_threads(n, work):
    """Runs work(i) for every i at once, n threads; what they raise is raised here."""
    raised = []

    def one(i):
        try:
            work(i)
        except Exception as e:  # told by who joins
            raised.append(e)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if raised:
        raise raised[0]


class Load:
    """Clients that stream greedy completions all the time, each text held against what it was
    before the drill. Even ones keep their connection, odd ones open one for each request."""

    # So many times what a stream took is waited for after it. With 0 two cores leave compilers next to
    # nothing, as a drill wants and a test cannot wait for.
    pause = 0

    def __init__(self, server, book, expected, clients):
        self.server, self.book, self.expected = server, book, expected
        self.stop, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.lock = threading.Condition()
        self.answers, self.busy, self.wrong = 0, 0, []
        # While descriptors or connections are short a new connection may be refused; that is
        # no lost request as long as the server never began one: its count tells.
        self.may_be_refused = False
        self.exact = True  # hold texts against `expected`
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True)
                        for i in range(clients)]
        for t in self.threads:
            t.start()

    def run(self, i):
        connection, turn = None, i
        while not self.stop.is_set():
            self.go.wait()
            with self.lock:
                if not self.go.is_set():
                    continue
                self.busy += 1
            begin = time.monotonic()
            try:
                prompt = PROMPTS[turn % len(PROMPTS)]
                turn += 1
                connection = connection or http.client.HTTPConnection(
                    self.server.host, self.server.port, timeout=conftest.PATIENCE)
                if not self.once(connection, prompt) or i % 2:
                    connection.close()
                    connection = None
            finally:
                with self.lock:
                    self.busy -= 1
                    self.lock.notify_all()
            self.stop.wait(0.02 + Load.pause * (time.monotonic() - begin))
        if connection:
            connection.close()

    def once(self, connection, prompt):
        """One streamed request. True if the connection can be used again."""
        fresh, entered = connection.sock is None, False
        try:
            if fresh:
                connection.connect()
            self.book.enter()
            entered = True
            connection.request("POST", "/v1/completions", completion(prompt, stream=True),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as e:
            # A kept connection may be closed between two requests, to make room for instance; who
            # meets that sends again on a new one (RFC 9112, section 9.3.1), and so does the load.
            if not fresh or self.may_be_refused:
                self.book.turn_away(entered)
            elif not self.stop.is_set():
                self.book.lose(f"load: {e!r}")
            self.stop.wait(0.1)
            return False
        return self.read(answer, prompt)

    def read(self, answer, prompt):
        try:
            body = answer.read()
            if is_turned_away(answer.status, body):
                self.book.turn_away()
                if not self.may_be_refused:
                    self.wrong.append("turned away: too many connections")
                return False
            self.book.answer(answer.status)
            if answer.status != 200:
                raise AssertionError(f"{answer.status}: {body[:200]!r}")
            chunks = conftest.parse_events(body)
            if any("error" in c for c in chunks):
                raise AssertionError(f"an error event: {chunks[-1]}")
            text = "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
            if self.exact and text != self.expected[prompt]:
                raise AssertionError(f"{prompt!r} gave {text!r}, not {self.expected[prompt]!r}")
            with self.lock:
                self.answers += 1
            return True
        except (OSError, http.client.HTTPException) as e:
            self.book.lose(f"load, in the middle: {e!r}")
        except AssertionError as e:
            self.wrong.append(str(e))
        return False

    def rest(self):
        """Returns once no request of the load is under way; go_on() ends that."""
        with self.lock:
            self.go.clear()
            assert self.lock.wait_for(lambda: self.busy == 0, conftest.PATIENCE), "load hangs"

    def go_on(self):
        self.go.set()

    def end(self):
        self.stop.set()
        self.go.set()
        for t in self.threads:
            t.join(conftest.PATIENCE)


@contextlib.contextmanager
def closing_all(sockets):
    """Closes a list of sockets that grows meanwhile."""
    try:
        yield sockets
    finally:
        for s in sockets:
            with contextlib.suppress(OSError):
                s.close()
