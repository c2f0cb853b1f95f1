# SPDX-License-Identifier: Apache-2.0
"""HTTP itself, with raw sockets: smuggling, limits, pipelining, slow clients, timeouts."""

import re
import socket
import time
from email.utils import parsedate_to_datetime

import pytest

from conftest import PATIENCE

BODY = b'{"prompt":"Hi","max_tokens":2,"temperature":0}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
GOOD = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /version HTTP/1.1\r\nHost: t\r\n\r\n"
CLOSE = b"GET /version HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"


def statuses(data):
    return [int(s) for s in re.findall(rb"HTTP/1\.1 (\d{3})", data)]


def chunked(body, size=7):
    out = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + size]), body[i:i + size])
                   for i in range(0, len(body), size))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + out + b"0\r\n\r\n"


# Each is followed by a complete second request: an answer to it would mean that the two sides of
# a proxy disagree about where the first one ends.
SMUGGLING = {
    "both lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, swapped": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "list of lengths": HEAD + b"Content-Length: 2, 2\r\n\r\n{}",
    "signed length": HEAD + b"Content-Length: +2\r\n\r\n{}",
    "spaced length": HEAD + b"Content-Length : 2\r\n\r\n{}",
    "unknown coding": HEAD + b"Transfer-Encoding: cow\r\n\r\n0\r\n\r\n",
    "coding list": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    "vertical tab": HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "bare CR in a head": HEAD + b"X: a\rContent-Length: 2\r\n\r\n{}",
    "bare LF in a head": HEAD + b"X: a\nContent-Length: 2\r\n\r\n{}",
    "folded header": HEAD + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}",
    "NUL in a head": HEAD + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    "nameless header": HEAD + b": x\r\nContent-Length: 2\r\n\r\n{}",
    "chunk of wrong size": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n",
    "chunk ended by LF": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n",
    "CR in an extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;a\rb\r\n{}\r\n0\r\n\r\n",
    "negative chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunked in 1.0": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0, other coding": HEAD.replace(b"1.1", b"1.0") +
                                    b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "space in a name": HEAD + b"X A: b\r\nContent-Length: 2\r\n\r\n{}",
    "length with a space in its name": HEAD + b"Content-Length X: 2\r\n\r\n{}",
    "chunk of 2^63": HEAD + b"Transfer-Encoding: chunked\r\n\r\n8000000000000000\r\n{}",
    "chunk of 2^64 and two": HEAD + b"Transfer-Encoding: chunked\r\n\r\n10000000000000002\r\n{}",
    "trailer without a colon": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nGET / x\r\n\r\n",
    "folded trailer": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: a\r\n b\r\n\r\n",
    "long extension": HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 2000,
    "two names": b"GET http://a/version HTTP/1.1\r\nHost: b\r\n\r\n",
    "list of hosts": b"GET /version HTTP/1.1\r\nHost: t, t\r\n\r\n",
    "two hosts": b"GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "no host": b"GET /version HTTP/1.1\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/0.9": b"GET /version\r\n\r\n",
    "garbage": b"\x00\xff\xfe hello\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_smuggling_is_refused_and_the_connection_closed(server, name):
    got = server.raw(SMUGGLING[name] + GET)
    assert statuses(got) == [400], got
    assert b"Connection: close" in got
    assert b'"invalid_request_error"' in got


def test_requests_in_one_packet_are_answered_in_order(server):
    got = server.raw(GOOD + GET + chunked(BODY) + GET + GOOD + CLOSE)
    assert statuses(got) == [200] * 6
    kinds = re.findall(rb'"(version|text_completion)"', got)
    assert kinds == [b"text_completion", b"version", b"text_completion", b"version",
                     b"text_completion", b"version"]


def test_every_answer_has_its_date(server):
    stream = HEAD + b"Content-Length: %d\r\n\r\n" % (len(BODY) + 14) + BODY[:-1] + b',"stream":true}'
    got = server.raw(GET + GOOD + stream + b"GET /nothing HTTP/1.1\r\nHost: t\r\n\r\n" + b"garbage\r\n\r\n")
    assert statuses(got) == [200, 200, 200, 404, 400]
    dates = re.findall(rb"\r\nDate: (.*)\r\n", got)
    assert len(dates) == 5
    for date in dates:
        assert abs(parsedate_to_datetime(date.decode()).timestamp() - time.time()) < PATIENCE


def test_the_line_of_a_long_path_has_its_status(server):
    path = "/" + "long" * 4000
    assert server.get(path, headers={"x-request-id": "a-long-path"}).status_code == 404
    server.wait_text("a-long-path GET")
    line = next(line for line in server.log if "a-long-path GET" in line)
    assert re.search(r" GET /(long)+\w*\.\.\. 404 [\d.]+ ms prompt=0 output=0\n$", line) and len(line) < 1300, line
    exact = "/" + "x" * 999
    assert server.get(exact, headers={"x-request-id": "exact"}).status_code == 404
    server.wait_text(f"exact GET {exact} 404 ")


def test_many_pipelined_requests(server):
    assert statuses(server.raw(GET * 500 + CLOSE)) == [200] * 501


def test_requests_byte_by_byte(server):
    with server.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for data in (GOOD, chunked(BODY, 3)):
            for i in range(len(data)):
                s.sendall(data[i:i + 1])
            assert statuses(s.recv(65536)) == [200]


def test_keep_alive_and_close(server):
    with server.connect() as s:
        for _ in range(3):
            s.sendall(GET)
            assert statuses(s.recv(65536)) == [200]
        s.sendall(CLOSE)
        got = b""
        while piece := s.recv(65536):
            got += piece
        assert statuses(got) == [200] and b"Connection: close" in got
    old = server.raw(b"GET /version HTTP/1.0\r\n\r\n")
    assert statuses(old) == [200] and b"Connection: close" in old


def test_expect_100_continue(server):
    with server.connect() as s:
        s.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY))
        assert s.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(BODY)
        assert statuses(s.recv(65536)) == [200]
    refused = server.raw(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
    assert statuses(refused) == [413]
    elsewhere = server.raw(b"POST /nowhere HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\n"
                           b"Content-Length: 5\r\n\r\n")
    assert statuses(elsewhere) == [404]


def test_bodies_above_the_cap_are_refused_before_they_are_read(server):
    assert statuses(server.raw(HEAD + b"Content-Length: 8388609\r\n\r\n")) == [413]
    assert statuses(server.raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n800001\r\n")) == [413]
    assert statuses(server.raw(HEAD + b"Content-Length: 1" + b"0" * 30 + b"\r\n\r\n")) == [400]


def test_a_post_without_a_length_is_411(server):
    with server.connect() as s:
        s.sendall(HEAD + b"\r\n")
        assert statuses(s.recv(65536)) == [411]


@pytest.mark.parametrize("data", [
    b"GET /" + b"a" * 40000 + b" HTTP/1.1\r\nHost: t\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: t\r\nX: " + b"a" * 40000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: t\r\n" + b"a: b\r\n" * 200 + b"\r\n"], ids=["url", "field", "fields"])
def test_heads_above_the_cap_are_431(server, data):
    assert statuses(server.raw(data)) == [431]


def test_head_and_options(server):
    with server.connect() as s:
        s.sendall(b"HEAD /health HTTP/1.1\r\nHost: t\r\n\r\n")
        got = s.recv(65536)
        assert statuses(got) == [200] and got.endswith(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", got).group(1))
        s.sendall(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n")
        assert len(s.recv(65536).partition(b"\r\n\r\n")[2]) == length
        s.sendall(b"OPTIONS * HTTP/1.1\r\nHost: t\r\n\r\n")
        assert statuses(s.recv(65536)) == [204]
        s.sendall(b"OPTIONS /health HTTP/1.1\r\nHost: t\r\n\r\n")
        assert b"Allow: GET, HEAD, OPTIONS\r\n" in s.recv(65536)
        s.sendall(b"TRACE /health HTTP/1.1\r\nHost: t\r\n\r\n")
        assert statuses(s.recv(65536)) == [405]


def slow_clients(s):
    """Sixty connections: a third in a head, a third in a body, a third silent."""
    slow = []
    for i in range(60):
        slow.append(s.connect())
        slow[-1].sendall([b"GET /version HT", HEAD + b"Content-Length: 100\r\n\r\n{", b""][i % 3])
    return slow


def test_others_do_not_wait_for_slow_requests(start):
    s = start("--server-header-timeout", "600", "--server-body-timeout", "600",
              "--server-idle-timeout", "600")
    slow = slow_clients(s)
    s.wait_metric("whet_connections", 61)  # all are in, and so is who asks
    assert s.get("/version").status_code == 200
    for c in slow:
        c.close()


def test_slow_requests_time_out(start):
    # Long enough for a test that is kept waiting between two lines of its own.
    s = start("--server-header-timeout", "4", "--server-body-timeout", "4",
              "--server-idle-timeout", "4")
    for i, c in enumerate(slow_clients(s)):
        got = b""
        while piece := c.recv(65536):
            got += piece
        assert statuses(got) == ([] if i % 3 == 2 else [408])
        c.close()
    with s.connect() as idle:
        idle.sendall(GET)
        assert statuses(idle.recv(65536)) == [200]
        assert idle.recv(65536) == b""


def test_a_drip_of_header_bytes_does_not_hold_a_connection(start):
    s = start("--server-header-timeout", "0.5")
    drips = b"GET /version HTTP/1.1\r\nX: " + b"a" * 1000
    with s.connect() as c, pytest.raises(OSError):
        for byte in drips:  # twenty seconds of them, were nobody to hang up
            c.sendall(bytes([byte]))
            time.sleep(0.02)


@pytest.mark.once  # a prompt of 1800 tokens, which sanitizers make slow
def test_a_slow_reader_is_cut_and_others_are_served(start):
    s = start("--server-write-timeout", "0.5")
    # The log-probabilities of a long prompt: an answer of more than the socket buffers hold.
    body = (b'{"prompt":[%s],"max_tokens":1,"stream":true,"echo":true,"logprobs":20}' %
            b",".join(b"%d" % (1000 + i % 700) for i in range(1800)))
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((s.host, s.port))
    slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    end = time.time() + PATIENCE
    while s.metric("whet_slow_clients_total") == 0:
        assert s.get("/health").status_code == 200
        assert time.time() < end
        time.sleep(0.1)
    s.wait_metric("whet_requests_running", 0)
    slow.close()
    assert s.complete("The capital of France is")["choices"][0]["text"].startswith(" Paris")


def test_too_many_connections_are_turned_away(start):
    s = start("--server-max-connections", "10")
    held = []
    for i in range(10):  # at work for as long as they like
        c = s.connect()
        c.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: 100\r\n\r\n")
        assert b"100 Continue" in c.recv(100)  # from now on its place is its own
        held.append(c)
    s.wait_metric("whet_connections", 11)
    with s.connect() as extra:
        extra.sendall(b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n")
        got = extra.recv(65536)
    assert statuses(got) == [503] and b"Retry-After" in got
    assert s.get("/health").status_code == 200
    for c in held:
        c.close()
    end = time.time() + PATIENCE
    while True:
        try:
            if s.get("/v1/models").status_code == 200:
                break
        except OSError:
            pass
        assert time.time() < end
        time.sleep(0.05)
