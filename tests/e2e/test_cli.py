# SPDX-License-Identifier: Apache-2.0
"""The command line: what is refused by name, what becomes of output that cannot be written, and the scripts
that say what they do before they do it."""

import os
import pathlib
import re
import subprocess

import pytest

from conftest import BINARY

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = str(ROOT / "tests/golden/tune_table.json")
SCRIPT = {**os.environ, "WHET_DRY_RUN": "1"}


def whet(*words, **more):
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=100, **more)


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--config", ""), ("--config=",), ("--config=x", "--config", "")])
def test_a_configuration_file_without_a_name_is_refused(words):
    """As `--config "$FILE"` is where FILE is not set."""
    refused = whet("serve", *words, "--model", "/nowhere.gguf")
    assert refused.returncode == 2 and "--config wants a file, and has an empty name" in refused.stderr
    none = whet("serve", "--model", "/nowhere.gguf", env={**os.environ, "WHET_CONFIG": ""})
    assert "--config" not in none.stderr and "/nowhere.gguf" in none.stderr


@pytest.mark.parametrize("words, says", [
    (("--report", "--svg", "x"), "--svg does nothing with --report: it is for --ablate"),
    (("--report", "--slot", "head/m1"), "--slot does nothing with --report: it is for a search, --measure"),
    (("--report", "--seeds", "3"), "--seeds does nothing with --report"),
    (("--seeds", "3", "--report"), "--seeds does nothing with --report"),
    (("--report", "--table", TABLE, "--store", "x"), "--store does nothing with --report --table"),
    (("--store=x", "--report", "--table", TABLE), "--store does nothing with --report --table"),
    (("--report", "--specializer-store", "x", "--table", TABLE), "--store does nothing with --report --table"),
    (("--report", "--at-once"), "--at-once does nothing with --report"),
    (("--ablate", "--build-only"), "--build-only does nothing with --ablate: it is for --measure"),
    (("--measure", "--json", "x"), "--json does nothing with --measure: it is for --ablate, --report"),
    (("--table", TABLE), "--table does nothing in a search: it is for --measure, --ablate, --report"),
    (("--measure", "--points", "1.9"), "--points 1.9: want a whole number from 1 to 100000"),
    (("--ablate", "--seeds", "0"), "--seeds 0: want a whole number"),
    (("--ablate", "--drop", "1"), "--drop 1: want a number from 0 to 0.9"),
    (("--ablate", "--json", ""), "--json wants a file"),
    (("--ablate", "--report"), "--ablate and --report: one of them"),
    (("--measure", "--ablate"), "--measure and --ablate: one of them")])
def test_tune_refuses_what_does_nothing(words, says):
    done = whet("tune", *words)
    assert done.returncode == 2 and f"whet tune: {says}" in done.stderr, done.stderr


# ---- output -------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("tune", "--help"), ("serve", "--help"),
                                   ("tune", "--report", "--table", TABLE)])
def test_output_that_cannot_be_written_is_a_failure(words):
    with open("/dev/full", "w") as full:
        done = subprocess.run([BINARY, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == 1 and "could not be written: No space left on device" in done.stderr, done.stderr
    assert whet(*words).returncode == 0


def test_a_reader_that_leaves_early_ends_the_command_without_a_word():
    ends, feeds = os.pipe()
    os.close(ends)
    with os.fdopen(feeds, "w") as nobody:
        done = subprocess.run([BINARY, "--help"], stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=100)
    assert done.returncode == -13 and not done.stderr  # SIGPIPE


def test_a_bench_says_why_its_file_was_not_written(tmp_path):
    done = whet("bench", "decode", "--model", "random:tiny", "--batch", "1", "--context", "16", "--pairs", "1",
                "--engine-threads", "1", "--json", "/dev/full",
                env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 1, done.stdout
    assert "--json /dev/full: cannot be written: No space left on device" in done.stderr
    assert not list(tmp_path.iterdir())  # nothing was learnt here, and no store was named


# ---- scripts ------------------------------------------------------------------------------------


def script(name, *words, **env):
    return subprocess.run([ROOT / "scripts" / name, *words], capture_output=True, text=True, timeout=100,
                          env={**os.environ, **env})


@pytest.fixture
def bare(tmp_path):
    """Environment of a machine where whatever would be installed or built fails the test."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("apt-get", "meson", "ninja", "pip", "curl", "sudo"):
        (tools / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/called\nexit 1\n")
        (tools / name).chmod(0o755)
    yield {"PATH": f"{tools}:{os.environ['PATH']}", "WHET_BUILD": str(tmp_path / "build"),
           "WHET_CACHE": str(tmp_path / "cache"), "WHET_DRY_RUN": ""}
    assert not (tmp_path / "called").exists(), (tmp_path / "called").read_text()
    assert not (tmp_path / "build").exists() and not (tmp_path / "cache").exists()


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("name", ["serve", "test"])
def test_scripts_say_what_they_do_and_do_none_of_it(bare, name, flag):
    said = script(name, flag, **bare)
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{name} - ") and f"scripts/{name}" in said.stdout
    assert "set -" not in said.stdout and "SPDX" not in said.stdout


def test_scripts_test_looks_at_all_parts_before_anything_is_installed(bare):
    said = script("test", "unit", "typo", **bare)
    assert said.returncode == 1 and 'there is no part "typo"' in said.stderr


def served(tmp_path, text):
    conf = tmp_path / "whet.conf"
    conf.write_text(text)
    said = script("serve", "--config", str(conf), WHET_DRY_RUN="1")
    assert said.returncode == 0, said.stderr
    return re.search("would serve (.*)\n", said.stderr)[1]


@pytest.mark.parametrize("line, model", [
    ("model: /m.gguf", "/m.gguf"), ("model=/m.gguf", "/m.gguf"), ("  model\t:\t/m.gguf  ", "/m.gguf"),
    ("model = /m.gguf ; the large one", "/m.gguf"), ("model = /m;1.gguf", "/m;1.gguf"),
    ("model = /a=b:c.gguf", "/a=b:c.gguf"), ("model = /m.gguf\t", "/m.gguf"), ("model = /m.gguf\r", "/m.gguf"),
    ("model = /a.gguf\nmodel : /b.gguf", "/b.gguf"), ("; model = /m.gguf", "the default model"),
    ("# model = /m.gguf", "the default model"), ("model = ; none", "the default model"),
    ("model_name = /m.gguf", "the default model")])
def test_scripts_serve_reads_a_file_as_the_server_does(tmp_path, line, model):
    text = f"[server]\nmodel = /no.gguf\nport : 9001 ; for now\n[engine]\n{line}\n[log]\nmodel = /no.gguf\n"
    assert served(tmp_path, text) == f"{model} on 127.0.0.1:9001"
    conf = tmp_path / "whet.conf"
    conf.write_text(f"[engine]\n{line}\n")
    if model.startswith("/"):
        assert f"{model}:" in whet("serve", "--config", str(conf)).stderr


def test_scripts_knobs_wants_values():
    table = str(ROOT / "kernels/cpu/out.def")
    assert "-DROWS=8\n" in script("knobs", table, "ROWS=8").stdout
    for wrong in ("ROWS", "ROWS=", "=8"):
        said = script("knobs", table, wrong)
        assert said.returncode == 2 and f'"{wrong}" is not KNOB=VALUE' in said.stderr and not said.stdout
