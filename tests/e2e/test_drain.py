# SPDX-License-Identifier: Apache-2.0
"""Start and end: the port before the model, SIGTERM, a second one, SIGHUP."""

import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests

from conftest import BINARY, MODEL, PATIENCE, parse_events

ALL_CHILDREN = 0x40000000  # __WALL: threads that are traced, too
LONG = {"prompt": "Tell me a long story.", "max_tokens": 4000, "ignore_eos": True}


def background(call):
    """Runs call on a thread; the returned list gets its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    return thread, result


def wait_draining(s):
    """The first answer of /ready that says so."""
    end = time.time() + PATIENCE
    ready = None
    while ready is None or ready.status_code != 503:
        assert time.time() < end
        try:
            ready = requests.get(s.url + "/ready", timeout=PATIENCE)
        except requests.ConnectionError:  # accepted as the signal came: idle, so it was closed
            pass
    return ready


def test_port_opens_before_the_model_is_loaded(start):
    s = start(wait=False)
    codes = set()
    end = time.time() + PATIENCE
    while time.time() < end:
        answer = s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        codes.add(answer.status_code)
        if answer.status_code == 200:
            break
        assert answer.status_code == 503 and "retry-after" in answer.headers
        ready = s.get("/ready")
        if ready.status_code == 503:
            assert ready.json()["status"] in ("loading", "restoring")
            assert 0 <= ready.json()["progress"] <= 1
        assert s.get("/health").status_code == 200
    assert 200 in codes
    s.wait_ready()
    assert s.get("/ready").json() == {"status": "ready", "progress": 1.0,
                                      "message": s.get("/ready").json()["message"]}


@pytest.mark.threads
def test_sigterm_finishes_what_runs(start):
    """With longer requests, until they still run when the signal comes."""
    for tokens in (24, 96, 384, 1536):
        s = start("--server-drain-s", "600")
        body = {**LONG, "max_tokens": tokens}
        plain, got = background(lambda: s.post("/v1/completions", body))
        stream, events = background(
            lambda: parse_events(s.post("/v1/completions", {**body, "stream": True}).content))
        idle = s.connect()
        s.wait_metric("whet_time_to_first_token_seconds_count", 2)
        s.signal(signal.SIGTERM)
        assert idle.recv(10) == b""
        plain.join(PATIENCE)
        stream.join(PATIENCE)
        assert got[0].status_code == 200
        assert got[0].json()["usage"]["completion_tokens"] == tokens
        assert events[0][-1]["choices"][0]["finish_reason"] == "length"
        assert s.wait() == 0
        if got[0].headers["connection"] == "close":
            return
    pytest.fail("no request was still running")


def test_the_port_says_draining_and_refuses_new_work(start):
    s = start("--server-drain-s", "600")
    running = requests.post(s.url + "/v1/completions", json={**LONG, "stream": True}, stream=True,
                            timeout=PATIENCE)
    chunks = (line for line in running.iter_lines() if line)
    assert next(chunks).startswith(b"data: {")
    s.signal(signal.SIGTERM)
    ready = wait_draining(s)
    for path in ("/ready", "/health"):
        answer = s.get(path)
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        assert "retry-after" in answer.headers and answer.headers["connection"] == "close"
    assert ready.json()["status"] == "draining"
    for method, path in (("post", "/v1/completions"), ("get", "/v1/models")):
        answer = getattr(requests, method)(s.url + path, json={"prompt": "x"}, timeout=PATIENCE)
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert "shutting down" in answer.json()["error"]["message"]
    assert s.metric("whet_ready") == 0
    assert s.get("/specializer").json()["server"]["state"] == "draining"
    idler = s.connect()  # nobody waits for it
    assert all(next(chunks).startswith(b"data: {") for _ in range(20))  # what runs goes on
    running.close()
    assert s.wait() == 0
    assert idler.recv(10) == b""
    with pytest.raises(requests.ConnectionError):
        requests.get(s.url + "/ready", timeout=5)


def test_after_the_drain_time_requests_end_with_an_error(start):
    s = start("--server-drain-s", "0.3")
    plain, got = background(lambda: s.post("/v1/completions", LONG))
    stream, raw = background(
        lambda: requests.post(s.url + "/v1/completions", json={**LONG, "stream": True}).text)
    s.wait_metric("whet_time_to_first_token_seconds_count", 2)  # the stream has begun
    s.signal(signal.SIGTERM)
    plain.join(PATIENCE)
    stream.join(PATIENCE)
    assert got[0].status_code == 503
    assert 'data: {"error":' in raw[0] and "[DONE]" not in raw[0]
    assert s.wait() == 0


def test_second_sigterm_ends_at_once(start):
    s = start()
    thread, _ = background(lambda: pytest.raises(requests.RequestException, s.post,
                                                 "/v1/completions", LONG))
    s.wait_metric("whet_requests_running", 1)
    s.signal(signal.SIGTERM)
    wait_draining(s)  # two that come as one would be one
    assert s.process.poll() is None
    s.signal(signal.SIGTERM)
    assert s.wait() == -signal.SIGTERM  # by the signal itself, not at the end of the drain
    thread.join(PATIENCE)


def threads_called(pid, name):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(task.name)] if (task / "comm").read_text() == name + "\n" else []
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            pass
    return found


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_an_engine_that_does_not_stop_is_given_up(start, busy):
    """Its thread is stopped as a debugger does it, so it is not the one that sees the signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt = 0x4206, 0x4207
    s = start("--server-drain-s", "0.2", "--engine-threads", "1")
    if busy:
        thread, got = background(lambda: s.post("/v1/completions", LONG))
        s.wait_metric("whet_requests_running", 1)
    engine, = threads_called(s.process.pid, "whet-engine")
    none = ctypes.c_void_p()
    if libc.ptrace(seize, engine, none, none) or libc.ptrace(interrupt, engine, none, none):
        s.process.kill()
        if busy:
            thread.join(PATIENCE)
        pytest.skip("ptrace is not allowed here")
    os.waitpid(engine, ALL_CHILDREN)
    assert s.get("/health").status_code == 200
    s.signal(signal.SIGTERM)
    end = time.time() + PATIENCE
    while os.waitpid(engine, ALL_CHILDREN | os.WNOHANG) == (0, 0):  # it ends with the process
        if time.time() > end:
            s.process.kill()
            os.waitpid(engine, ALL_CHILDREN)
            pytest.fail("the server does not end: " + s.text())
        time.sleep(0.02)
    assert s.wait() == 1
    assert "the engine has made no step for 1" in s.text()
    if busy:
        thread.join(PATIENCE)
        assert got[0].status_code == 503


@pytest.mark.parametrize("closed", [(2,), (0, 1, 2)])
def test_closed_standard_streams_are_no_files_of_the_server(tmp_path, closed):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = tmp_path / "store.db"
    p = subprocess.Popen(["sh", "-c", 'exec "$@" ' + " ".join(f"{fd}>&-" for fd in closed), "sh", BINARY, "serve",
                          "--model", MODEL, "--port", str(port), "--store", str(store)],
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end = time.time() + PATIENCE
        while True:
            assert time.time() < end and p.poll() is None
            try:
                if requests.get(f"http://127.0.0.1:{port}/ready", timeout=PATIENCE).status_code == 200:
                    break
            except requests.ConnectionError:
                pass
            time.sleep(0.05)
        for fd in range(3):
            assert os.readlink(f"/proc/{p.pid}/fd/{fd}") == "/dev/null"
    finally:
        p.terminate()
        code = p.wait(PATIENCE)
    assert code == 0
    lines = [f.name for f in tmp_path.iterdir() if f.is_file() and b"info  " in f.read_bytes()]
    assert not lines


def test_sigterm_while_loading(start):
    s = start(wait=False, model="random:llama-3.2-1b")  # whose weights take many seconds
    s.signal(signal.SIGTERM)
    assert s.wait() == 0
    assert "that is given up" in s.text()
    assert "ready after" not in s.text()


def test_bad_model_is_an_error_that_names_it():
    run = subprocess.run([BINARY, "serve", "--model", "/nonexistent/model.gguf", "--port", "0",
                          "--specializer-enabled=false"], capture_output=True, text=True,
                         timeout=PATIENCE)
    assert run.returncode == 1
    assert "/nonexistent/model.gguf" in run.stderr


@pytest.mark.parametrize("options,named", [
    (["--port", "99999"], "server.port"), (["--no-such-option"], "no-such-option"),
    (["--log-level", "loud"], "log.level")])
def test_wrong_usage_is_exit_code_2(options, named):
    run = subprocess.run([BINARY, "serve", "--model", MODEL] + options, capture_output=True,
                         text=True, timeout=PATIENCE)
    assert run.returncode == 2 and named in run.stderr


def test_port_in_use_is_an_error(start):
    s = start()
    run = subprocess.run([BINARY, "serve", "--model", MODEL, "--port", str(s.port),
                          "--store", s.store.name + "/other.db", "--specializer-enabled=false"],
                         capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 1 and str(s.port) in run.stderr


def test_commands():
    assert subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout.startswith(
        "whet ")
    help_text = subprocess.run([BINARY, "--help"], capture_output=True, text=True)
    assert help_text.returncode == 0 and "server-port" in help_text.stdout.replace(".", "-")
    for command, word in (("bench", "--context"), ("tune", "--measure"), ("kernels", "export")):
        own = subprocess.run([BINARY, command, "--help"], capture_output=True, text=True)
        assert own.returncode == 0 and own.stdout.startswith(f"usage: whet {command}"), own
        assert word in own.stdout and not own.stderr
    assert subprocess.run([BINARY, "dance"], capture_output=True).returncode == 2
    assert subprocess.run([BINARY], capture_output=True).returncode == 2


def test_a_compiler_that_hangs_at_the_start_holds_nobody_up(start, tmp_path):
    """It is tried before anything is searched, and may take a minute for that; SIGTERM does not wait."""
    cc, tried = tmp_path / "cc", tmp_path / "tried"
    cc.write_text(f"#!/bin/sh\ncase \"$*\" in *--version*) exec cc \"$@\";; esac\ntouch {tried}\nexec sleep 1000\n")
    cc.chmod(0o700)
    s = start("--specializer-enabled=true", "--specializer-compiler", str(cc))
    end = time.time() + PATIENCE
    while not tried.exists():
        assert time.time() < end, s.text()
        time.sleep(0.02)
    s.signal(signal.SIGTERM)
    assert s.wait() == 0
    assert "given up, because we stop" in s.text() and "timed out" not in s.text()
