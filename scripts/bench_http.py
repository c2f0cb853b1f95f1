# SPDX-License-Identifier: Apache-2.0
"""bench_http.py - `whet serve` as a child process, and one streamed completion with its times.

What scripts/bench-serve and scripts/bench-agentcompile share. Python's standard library alone.
"""
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

CHOICES, USAGE = re.compile(rb'"choices": ?\[ ?\{'), re.compile(rb'"usage": ?\{')


# ---- the server -------------------------------------------------------------------------------


class Server:
    """`whet serve` with its output in a file, until stop()."""

    def __init__(self, binary, model, options):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="whet-bench-")
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            [binary, "serve", "--model", model, "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if not found:
            self.fail("it did not start")
        self.url = found.group(0)
        while not self.ready():
            if self.process.poll() is not None:
                self.fail("it ended while loading")
            time.sleep(0.02)
        self.ready_s = time.perf_counter() - self.begun

    def ready(self):
        try:
            return urllib.request.urlopen(self.url + "/ready", timeout=60).status == 200
        except OSError: # not yet, or no more
            return False

    def fail(self, why):
        self.log.seek(0)
        sys.exit(f"whet serve: {why}\n{self.log.read()[-3000:]}")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def ask(url, path, body=None):
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body else None,
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


# ---- one request ------------------------------------------------------------------------------


async def read_stream(reader):
    """(times of chunks with choices, usage) of a response of server-sent events."""
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n", 1)[0]:
        rest = await reader.read(2000)
        raise RuntimeError((head + rest).decode(errors="replace")[:500])
    times, usage, text = [], None, b""
    while True:
        piece = await reader.read(1 << 16)
        now = time.perf_counter()
        if not piece:
            break
        text += piece
        *events, text = text.split(b"\n\n")
        for event in events:
            if CHOICES.search(event):
                times.append(now)
            if USAGE.search(event):
                usage = json.loads(event[event.index(b"{"):])["usage"]
    if not usage or not times:
        raise RuntimeError("the stream had no usage or no tokens")
    return times, usage


async def one_request(address, path, body, head=""):
    """One request on a connection of its own, with what was measured of it. `head`: further header lines."""
    payload = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=1 << 20)
    sent = time.perf_counter()
    writer.write((f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n"
                  f"{head}Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
                  ).encode() + payload)
    try:
        times, usage = await read_stream(reader)
    finally:
        writer.close()
    latency, made = times[-1] - sent, usage["completion_tokens"]
    return {"sent": sent, "end": times[-1], "ttft": times[0] - sent, "latency": latency,
            "tpot": (latency - (times[0] - sent)) / (made - 1) if made > 1 else 0,
            "itl": [b - a for a, b in zip(times, times[1:])],
            "prompt": usage["prompt_tokens"], "output": made,
            "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)}
