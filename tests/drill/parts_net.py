# SPDX-License-Identifier: Apache-2.0
"""Clients that are rude: what a server on a network must live with.

Each part is a function of a world (world.py) and the counts of the run; its sentence says what it
defends. Every connection that sends a byte of a request is in the book.
"""

import contextlib
import select
import socket
import time

import clients
from world import World, demand, memory, wait_until

MIB = 1 << 20
SLOWLY = 0.05  # seconds between two bytes of who is slow


def connect(w, receive=None, send=None):
    """A raw connection; the sizes are those of the kernel's buffers."""
    s = socket.socket()
    if receive:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    if send:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
    s.settimeout(300)
    s.connect((w.server.host, w.server.port))
    return s


def readable(s, seconds=0):
    """There is something to read, or the end; select() ends at descriptor 1023."""
    poll = select.poll()
    poll.register(s, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def health(w):
    w.book.enter()
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


# ---- connections ------------------------------------------------------------------------------


def idle_connections(w, n):
    """Connections that say nothing cost nobody an answer, and those that stayed are answered."""
    total = n["idle"]
    before = w.server.metric("whet_connections_total")
    with clients.closing_all([]) as silent, clients.closing_all([]) as used:
        for i in range(total):
            s = connect(w)
            (used if i % 2 else silent).append(s)
            if i % 2:  # half of them have had an answer and are kept
                s.sendall(health(w))
                demand(clients.read_answer(s, w.book), "a kept connection got no answer")
        came = w.server.metric("whet_connections_total") - before
        demand(came >= total, lambda: f"{came:.0f} of {total} connections were taken")
        w.operators_get_in()
        w.goes_on(4)
        for s in used:
            if not readable(s):  # not closed by the server
                s.sendall(health(w))
                demand(clients.read_answer(s, w.book), "a kept connection was lost")
    return f"{total} connections"


def full_house(_, n):
    """At the default of server.max_connections, twice as many silent ones lock nobody out."""
    with World("--server-max-connections", "1024") as w:
        w.goes_on()
        w.begin()
        # Half of what the load does may find the door shut for a moment; who counts asks below.
        w.load.rest()
        with clients.closing_all([]) as silent:
            for _ in range(n["house"]):
                silent.append(connect(w))
            w.operators_get_in()
        w.load.go_on()
        return w.report(f"{n['house']} connections at a limit of 1024")


# ---- clients that leave -----------------------------------------------------------------------


def abandoned_streams(w, n):
    """Streams whose clients leave in the middle end there, and take nothing with them."""
    def leave(i):
        s = connect(w)
        w.book.enter()
        s.sendall(clients.post(clients.completion(f"Tale {i} of the sea:", max_tokens=400,
                                                  ignore_eos=True, stream=True)))
        first = s.recv(256)
        demand(b" 200 " in first, lambda: f"a stream began with {first!r}")
        w.book.leave()
        (clients.reset if i % 2 else socket.socket.close)(s)

    before = w.server.metric("whet_client_disconnects_total")
    for first in range(0, n["streams"], 16):
        clients.in_threads(min(16, n["streams"] - first), lambda i, first=first: leave(first + i))
    left = lambda: w.server.metric("whet_client_disconnects_total") - before
    wait_until(lambda: left() >= n["streams"], lambda: f"{left():.0f} were seen leaving")
    running = lambda: w.server.metric("whet_requests_running")
    wait_until(lambda: running() <= w.count, "work goes on for nobody")
    return f"{n['streams']} streams"


def body_storm(w, n):
    """Bodies of 8 MiB, whole or half, whose clients leave: memory is bounded and comes back."""
    whole = clients.completion("word " * (MIB * 8 // 5 - 40))
    demand(len(whole) <= 8 * MIB, "the body is too large for the test")

    def send(i):
        s = connect(w, send=65536)
        half = i % 3 == 2
        w.book.enter()
        try:
            # The answer to Expect says that the head was read: from then on the server counts it.
            s.sendall(clients.post(b"", len(whole), "Expect: 100-continue\r\n"))
            if b" 100 " in s.recv(64):
                s.sendall(whole[:len(whole) // 2] if half else whole)
        except OSError:
            pass  # it was refused while it sent; that too is an end of this request
        w.book.leave()
        (clients.reset if i % 2 else socket.socket.close)(s)

    for first in range(0, n["bodies"], 8):
        clients.in_threads(min(8, n["bodies"] - first), lambda i, first=first: send(first + i))
    w.operators_get_in(1)
    # server.h: bodies of 32 times server.max_body; a buffer that grows may have twice the room.
    peak = (memory(w.pid, "VmHWM") - w.before["memory"]) // 1024 if w.before else 0
    demand(peak <= 2 * 32 * 8, lambda: f"{peak} MiB more than before at the peak, 512 are allowed")
    return f"{n['bodies']} bodies, {peak} MiB more at the peak"


# ---- slow clients -----------------------------------------------------------------------------


def slow_readers(w, n):
    """Who reads a byte now and then gets all of his answer; who reads none is cut."""
    # An answer of far more bytes than the buffers between us hold.
    body = clients.completion(["river " * 600] * 4, max_tokens=1, echo=True, logprobs=20)
    before = w.server.metric("whet_slow_clients_total")
    cut = lambda: w.server.metric("whet_slow_clients_total") - before

    def read(i):
        s = connect(w, receive=2048)
        w.book.enter()
        s.sendall(clients.post(body))
        if i % 2:
            got = b""
            for _ in range(40):
                got += s.recv(1)
                time.sleep(SLOWLY)
            demand(got.startswith(b"HTTP/1.1 200"), lambda: f"a slow reader got {got!r}")
            while piece := s.recv(MIB):
                got += piece
                if got.endswith(b"}") and complete(got):
                    break
            demand(complete(got), lambda: f"a slow reader got {len(got)} bytes of its answer")
            w.book.answer(200)
        else:  # whose end of the connection cannot see it: the window is shut
            wait_until(lambda: cut() >= n["readers"] // 2, lambda: f"{cut():.0f} were cut",
                       pause=0.3, looks=600)
            w.book.leave()
        s.close()

    clients.in_threads(n["readers"], read)
    return f"{n['readers']} readers"


def complete(got):
    """All the bytes that the head promised."""
    head, end, rest = got.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n")
               if line.lower().startswith(b"content-length:")]
    return bool(end) and lengths == [len(rest)]


def slow_writers(w, n):
    """Heads and bodies that trickle are read to their end, or refused when their time is up."""
    request = clients.post(clients.completion(clients.PROMPTS[0]))

    def write(i):
        s = connect(w)
        w.book.enter()
        if i % 2:  # all of it, in pieces
            for at in range(0, len(request), 12):
                s.sendall(request[at:at + 12])
                time.sleep(SLOWLY)
        else:      # for ever
            s.sendall(request[:40] if i % 4 else request[:-30])
            with contextlib.suppress(OSError):
                while not readable(s, SLOWLY * 20):
                    s.sendall(b"a" if i % 4 else b" ")
        answer = clients.read_answer(s, w.book)
        s.close()
        # A machine that has no time for us may take too long over the first sort, too.
        good = (200, 408) if i % 2 else (408,)
        demand(answer and answer[0] in good, lambda: f"a slow writer got {answer}")

    clients.in_threads(n["writers"], write)
    w.operators_get_in(1)
    return f"{n['writers']} writers"
