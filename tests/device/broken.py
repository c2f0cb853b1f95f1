#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""broken.py - a server whose device fails for good, and one whose memory plan does not fit.

    broken.py WHET TRAP_LIBRARY

The first is broken under load by tests/device/trap.c: every request must end (with tokens, or with an
error that says so), new ones must be refused at once, /health must say lost, /metrics stay readable,
and the process must end when it is told to. The second must say what it needs and what there is.
Needs only Python's standard library.
"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

CLIENTS = 4
made = failed = 0


def check(ok, what):
    global made, failed
    made += 1
    failed += not ok
    print(("ok   " if ok else "FAIL ") + what, flush=True)


class Server:
    def __init__(self, whet, model, trap=None, options=()):
        self.dir = tempfile.mkdtemp(prefix="whet-broken-")
        self.trap = os.path.join(self.dir, "trap")
        self.log = open(os.path.join(self.dir, "log"), "w+")
        env = dict(os.environ)
        if trap:
            env.update(LD_PRELOAD=trap, WHET_TRAP=self.trap)
        self.process = subprocess.Popen(
            [whet, "serve", "--model", model, "--backend", "cuda", "--port", "0", "--store",
             os.path.join(self.dir, "store.db"), "--model-name", "m", *options],
            stdout=self.log, stderr=subprocess.STDOUT, env=env)

    def said(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()

    def wait_ready(self):
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            m = re.search(r"listen\S* .*:(\d+)\b", self.said())
            if m:
                self.port = int(m.group(1))
                try:
                    if self.get("/ready")[0] == 200:
                        return True
                except OSError:
                    pass
            time.sleep(0.1)
        return False

    def get(self, path):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        c.request("GET", path)
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        return r.status, text

    def complete(self, tokens, stream):
        """The end of a request: ('error', text), ('tokens', text) or ('broken', text)."""
        try:
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            c.request("POST", "/v1/completions", json.dumps(
                {"prompt": "once upon a time", "max_tokens": tokens, "stream": stream,
                 "ignore_eos": True}), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read().decode()
            c.close()
        except Exception as e:
            return "broken", repr(e)
        if r.status != 200 or '"error"' in text:
            return "error", f"{r.status} {text[-300:]}"
        return "tokens", text[-100:]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def lost_device(whet, trap):
    s = Server(whet, "random:llama-3.2-1b", trap)
    if not s.wait_ready():
        check(False, "the server starts: " + s.said()[-1500:])
        return
    check(s.complete(8, False)[0] == "tokens", "a request before is answered")
    ends = [None] * CLIENTS

    def client(i):
        ends[i] = s.complete(100000, i % 2 == 0)
    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    for t in threads:
        t.start()
    time.sleep(1)
    open(s.trap, "w").close()
    begin = time.monotonic()
    for t in threads:
        t.join(40)
    check(all(e and e[0] == "error" for e in ends),
          f"all {CLIENTS} requests end with an error {time.monotonic() - begin:.1f} s later: {ends[0]}")
    if s.process.poll() is not None:
        check(False, f"the process is there: exit status {s.process.poll()}, " + s.said()[-1500:])
        return
    begin = time.monotonic()
    kind, text = s.complete(8, False)
    check(kind == "error" and time.monotonic() - begin < 5, f"a new request is refused: {text}")
    status, text = s.get("/health")
    check(status == 503 and "lost" in text, f"/health: {status} {text.strip()}")
    status, text = s.get("/metrics")
    check(status == 200 and "whet_generation_tokens_total" in text,
          f"/metrics: {status}, {len(text.splitlines())} lines")
    check(s.process.poll() is None, "the process is there")
    check(s.stop() is not None, "and ends when it is told to")
    said = [l for l in s.said().splitlines() if "lost" in l or "trap" in l]
    print("      " + "\n      ".join(said[:4]))


def out_of_memory(whet):
    begin = time.monotonic()
    s = Server(whet, "random:llama-3.2-1b", options=["--engine-kv-mib", "1000000"])
    ready = s.wait_ready()
    check(not ready, "a KV cache of a terabyte is not ready")
    said = [l for l in s.said().splitlines() if "GiB" in l and "ERROR" in l.upper()]
    check(bool(said), f"and says why after {time.monotonic() - begin:.1f} s: "
          + (said[0] if said else s.said()[-1500:]))
    status = s.process.poll() if s.process.poll() is not None else s.stop()
    check(status not in (0, None), f"exit status {status}")


lost_device(sys.argv[1], os.path.abspath(sys.argv[2]))
out_of_memory(sys.argv[1])
print(f"{made} checks, {failed} failed")
sys.exit(failed > 0)
