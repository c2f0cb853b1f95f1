# SPDX-License-Identifier: Apache-2.0
"""Servers on machines that lack something: descriptors, stack, /dev, a reader of their log."""

import re
import subprocess
import threading
import time

import pytest
import requests

from conftest import BINARY, MODEL, PATIENCE

APART = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]  # mounts in a namespace of its own


@pytest.mark.parametrize("files", [4, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18])
def test_too_few_descriptors_are_an_error_that_says_so(files, tmp_path):
    """libuv ends the process without a word, or with a segmentation fault, where it cannot have its own."""
    r = subprocess.run(["prlimit", f"--nofile={files}", BINARY, "serve", "--model", MODEL, "--port", "0",
                        "--store", str(tmp_path / "s" / "store.db")], capture_output=True, text=True, timeout=PATIENCE)
    if "error while loading shared libraries" in r.stderr:
        return  # the loader's own words
    assert r.returncode == 1, (r.returncode, r.stderr)
    assert f"the limit of open files ({files}) leaves less than" in r.stderr


def test_stack_for_threads_is_not_what_a_shell_left(start):
    s = start(prefix=["prlimit", f"--stack={64 << 10}:"])
    assert s.complete("Once upon a time", max_tokens=16)["choices"][0]["text"]
    assert s.chat("Hello.")["choices"][0]["message"]["content"]
    assert s.process.poll() is None


@pytest.mark.once  # AddressSanitizer wants 14 TiB of addresses for itself
def test_keys_and_values_fit_a_limit_of_address_space(start):
    s = start(prefix=["prlimit", f"--as={1 << 30}"])
    assert s.complete("Once upon a time")["choices"][0]["text"]
    assert "(RLIMIT_AS is 1024 MiB)" in s.text()


def test_server_without_dev_null_takes_connections(start):
    mount = "mount -t tmpfs none /dev; "
    if subprocess.run([*APART, mount], capture_output=True).returncode != 0:
        pytest.skip("no mounts in a namespace of its own here")
    s = start(prefix=[*APART, mount + 'exec "$@"', "sh"])
    for _ in range(4):
        assert s.get("/health").json()["status"] == "ok"
    assert s.complete("Once upon a time")["choices"][0]["text"]


def test_a_stuck_reader_of_the_log_stops_nobody(tmp_path):
    """The log goes into a pipe that is never read, as where a collector hangs."""
    p = subprocess.Popen([BINARY, "serve", "--model", MODEL, "--port", "0", "--specializer-enabled=false",
                          "--store", str(tmp_path / "s" / "store.db")], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    try:
        url = p.stdout.readline().split()[-1]
        end = time.time() + PATIENCE
        while requests.get(url + "/ready", timeout=PATIENCE).status_code != 200:
            assert time.time() < end
            time.sleep(0.05)
        for _ in range(1500):  # of some ninety bytes each; a pipe holds 64 KiB
            assert requests.get(url + "/health", timeout=30).status_code == 200
        log = [p.stderr.readline()]  # and with it what fits a buffer: there is room again
        assert requests.get(url + "/health", timeout=30).status_code == 200
        reader = threading.Thread(target=lambda: log.append(p.stderr.read()))
        reader.start()
        p.terminate()
        assert p.wait(PATIENCE) == 0
        reader.join()
        said = re.search(r"warn  log: (\d+) lines are missing here: nobody read them", log[1])
        assert said and int(said.group(1)) > 100
        assert log[1].count(" GET /health ") + int(said.group(1)) >= 1500
    finally:
        p.kill()
        p.wait()
