# SPDX-License-Identifier: Apache-2.0
"""`whet tune`: what it finds without a server, a server on the same store begins with."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from agentic import ALONE, HELD, SLOT, Model, text
from conftest import BINARY, MODEL, NONE_SERVES, ROOT, WHATEVER_SPEED

PATIENCE = 900  # beyond the --seconds that searches get


def tune(*options):
    return subprocess.run([BINARY, "tune", *options], capture_output=True, text=True,
                          timeout=PATIENCE)


def table_of(text):
    """The lines at the end of a search, by slot."""
    return {line.split()[0]: line for line in text.splitlines() if re.match(r"\w+/m\d+ ", line)}


def test_winners_are_served_from_the_start(start, tmp_path):
    store = tmp_path / "store.db"
    command = [BINARY, "tune", "--model", MODEL, "--store", str(store), "--slot", "mlp_in/m1",
               "--slot", "head/m1", "--seconds", "600", WHATEVER_SPEED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if re.search(r"tried; \w+ \w+ PACK=", line):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        assert process.wait(PATIENCE) == 0, lines
    found = {slot: re.search(r"\w+ \w+ PACK=.*$", line) for slot, line in table_of(rest).items()}
    kernels = {slot: kernel[0] for slot, kernel in found.items() if kernel}
    assert kernels, lines + [rest]
    server = start("--store", str(store), "--specializer-enabled=true", "--specializer-numerics=tolerance",
                   "--specializer-paused=true", "--specializer-restore-s=60", WHATEVER_SPEED)
    # Ready means restored: the very first request meets the kernels.
    restored = f'whet_kernel_swaps_total{{result="restored"}} {len(kernels)}\n'
    assert restored in server.get("/metrics").text, server.text()
    for slot, kernel in kernels.items():
        assert f"{slot}: {kernel}" in server.text()
    assert server.complete("Bread is")["choices"][0]["text"]
    server.stop()

    # A bench runs them as well, but none that processes died with.
    bench = [BINARY, "bench", "decode", "--model", MODEL, "--batch", "1", "--context", "16", "--pairs", "1", "--store",
             str(store)]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=PATIENCE)
    for slot, kernel in kernels.items():
        assert done.returncode == 0 and re.search(f"^ +{slot} +{kernel}$", done.stdout, re.M), done.stdout + done.stderr
    with contextlib.closing(sqlite3.connect(store)) as db, db:
        db.execute("UPDATE candidate SET deaths = 3")
    done = subprocess.run(bench, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for slot in kernels:
        assert re.search(f"{slot}: .* is not used: the process died three times with it", done.stderr), done.stderr
        assert not re.search(f"^ +{slot} ", done.stdout, re.M), done.stdout


def test_a_slot_on_eager_says_why(tmp_path):
    command = [BINARY, "tune", "--model", MODEL, "--store", str(tmp_path / "store.db"),
               NONE_SERVES, "--seconds", "600", "--slot", "mlp_out/m1", "--slot", "head/m1", "--slot", "attn_in/m1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as process:
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(PATIENCE) == 0, rest
    reason = r"(bench: [+-]\d+\.\d % \[[+-]\d+\.\d, [+-]\d+\.\d\]|probe: .+|build: .+)"
    assert re.search(r"tried; eager; " + reason + "$", first), first
    table = table_of(rest)
    slot = first.split()[2]
    assert re.search("  eager; " + reason + "$", table[slot]), rest
    untouched = [line for line in table.values() if line.endswith("  eager; not searched yet")]
    assert len(table) == 3 and untouched, rest
    assert max(len(line) for line in table.values()) < 160


def test_a_signal_does_not_wait_for_live_steps(tmp_path):
    """A candidate for prompts of 64 tokens whose canary has begun is left undecided: no 32 steps are waited for."""
    store = tmp_path / "store.db"
    command = [BINARY, "tune", "--model", MODEL, "--store", str(store), "--slot", "mlp_in/m64",
               "--seconds", "600", WHATEVER_SPEED]

    def states():
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
            try:
                return [row[0] for row in db.execute("SELECT state FROM candidate")]
            except sqlite3.OperationalError:
                return []  # no table yet

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        end = time.time() + PATIENCE
        while not (store.exists() and "shadowed" in states()):
            assert process.poll() is None and time.time() < end, states()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()
        assert process.wait(PATIENCE) == 0, rest
    assert "shadowed" in states() and "active" not in states(), (states(), rest)


@pytest.mark.once  # a search under a sanitizer takes minutes
@pytest.mark.parametrize("strategy", ["agentic", "template"])
def test_texts_of_a_language_model_are_tried_beside_points(tmp_path, strategy):
    # A text that does not compile, its repair, and then nothing of use. The seed is measured first.
    # The repair computes in floats, as eager does: three digits of FAST are too far from the truth for rows
    # that a search may record.
    model, store = Model([text(start="int x = undefined_name;"), text()]), tmp_path / "store.db"
    command = [BINARY, "tune", "--model", MODEL, "--store", str(store), *ALONE,
               "--slot", SLOT, "--strategy", strategy, "--specializer-agentic", "on",
               "--agentic-attempts", "6", "--adviser-url", model.url, "--adviser-calls-per-hour", "1000",
               "--seconds", "600", NONE_SERVES]
    lines = []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env={**os.environ, **HELD}) as process:
            for line in process.stdout:
                lines.append(line)
                if strategy == "template" and sum(" text, " in each for each in lines) == 3:
                    process.send_signal(signal.SIGTERM)
                    break
            lines += process.stdout.readlines()  # alone, texts end the search when they are used up
            assert process.wait(PATIENCE) == 0, lines
    finally:
        model.close()
    assert [each["task"] for each in model.asked][:3] == ["plan", "code", "debug"], model.asked
    assert "undefined_name" in model.asked[2]["user"]
    texts = [line for line in lines if " text, " in line]
    assert len(texts) == 3 and all(SLOT in line for line in texts), lines
    # The one that was repaired got as far as a timing; whether it was faster is the machine's to say.
    with contextlib.closing(sqlite3.connect(store)) as db:
        tried = db.execute("SELECT speed, reason FROM agent_node ORDER BY id").fetchall()
    assert len(tried) >= 2 and tried[0][0] > 0 and tried[1][0] > 0, (tried, lines)
    assert any(" candidates, " in line for line in lines) == (strategy == "template"), lines


@pytest.mark.once  # a search under a sanitizer takes minutes
def test_advice_is_there_when_the_first_batch_of_a_slot_begins(tmp_path):
    # The third slot is asked about while the second is searched, when the first has taught something: the
    # question about the second itself, which comes first, is answered when its batch has long begun.
    def said(slot, label, seconds):
        reply = {"version": 1, "regions": [{"region": slot, "label": label, "priority": [], "hints": {}, "risks": []}]}
        return json.dumps({"region": slot, "reply": json.dumps(reply), "seconds": seconds}) + "\n"

    (tmp_path / "said.jsonl").write_text(said("mlp_out/m1", "late", 0.5) + said("attn_out/m1", "said ahead", 0))
    store = tmp_path / "store.db"
    command = [BINARY, "tune", "--model", MODEL, "--store", str(store), "--specializer-starts=false",
               NONE_SERVES, "--slot", "mlp_in/m1", "--slot", "mlp_out/m1", "--slot", "attn_out/m1", "--seconds", "600",
               "--adviser-url", f"replay:{tmp_path}/said.jsonl"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.split()[2:3] == ["attn_out/m1"]:
                process.send_signal(signal.SIGTERM)
                break
        lines += process.stdout.readlines()
        assert process.wait(PATIENCE) == 0, lines
    with contextlib.closing(sqlite3.connect(store)) as db:
        why = [row[0] for row in db.execute("SELECT text FROM trace WHERE slot = 'attn_out/m1' AND "
                                            "event = 'proposed' ORDER BY id")]
    assert why and why[0] == "said ahead", (why, lines)


def test_a_table_is_measured_and_goes_on_where_it_was(tmp_path):
    table = tmp_path / "table.json"
    command = ("--measure", "--table", str(table), "--model", MODEL, "--slot", "mlp_out/m1",
               "--points", "6", "--store", str(tmp_path / "store.db"), "--seconds", "600")
    done = tune(*command)
    said = re.search(r"^bench mlp_out/m1 +0 to do, (\d+) measured, (\d+) refused of (\d+)", done.stdout,
                     re.M)
    assert done.returncode == 0 and said, done.stdout + done.stderr
    measured, refused, points = map(int, said.groups())
    assert measured >= 2 and measured + refused == points, done.stdout
    rows = json.loads(table.read_text())["tables"][0]["rows"]
    states = [row[2] for row in rows]
    assert states.count("measured") == measured and states.count("refused") == refused
    again = tune(*command)
    assert again.returncode == 0 and said.group(0) in again.stdout, again.stdout
    assert [row[:5] for row in json.loads(table.read_text())["tables"][0]["rows"]] == \
        [row[:5] for row in rows]  # nothing was built or probed anew
    for mode in ("--ablate", "--report"):
        assert tune(mode, "--table", str(table)).returncode == 0


def test_a_table_of_something_else_is_not_gone_on_with(tmp_path):
    """Rows of another model, slot, machine or policy would be told apart by nothing."""
    table = tmp_path / "table.json"

    def measure(*options, model="random:tiny", slot=("--slot", "mlp_out/m1")):
        return tune("--measure", "--build-only", "--table", str(table), "--model", model, *slot, "--points", "6",
                    "--store", str(tmp_path / "store.db"), "--engine-backend", "cpu", "--engine-threads", "1",
                    "--seconds", "0.1", *options)

    done = measure(slot=())
    assert done.returncode == 1 and "no --slot" in done.stderr and not table.exists(), done.stderr
    done = measure()
    assert done.returncode == 0, done.stderr
    kept = table.read_text()
    for change, options, why in (
            (('"slot":"mlp_out/m1"', '"slot":"mlp_out/m1/q6_k"'), {}, '"mlp_out/m1/q6_k", which this model lacks'),
            (None, {"model": "random:smollm2-135m:q8_0"}, "mlp_out/m1 was measured with HIDDEN = "),
            (('"device":"', '"device":"Other '), {}, 'was measured on "Other '),
            (('"numerics":', '"numerics":1, "was":'), {}, "under numerics ")):
        said = kept.replace(*change, 1) if change else kept
        assert change is None or said != kept
        table.write_text(said)
        done = measure(**options)
        assert done.returncode == 1 and why in done.stderr, (why, done.returncode, done.stderr)
        assert table.read_text() == said
    done = measure("--engine-threads", "2")
    assert done.returncode == 1 and "with 1 threads, not 2" in done.stderr, done.stderr
    for mode in ("--ablate", "--report"):
        for text in (kept, re.sub(r'"tables":\[.*\]', '"tables":[]', kept, flags=re.S)):
            table.write_text(text)
            done = tune(mode, "--table", str(table))
            assert done.returncode == 1 and "no measured point" in done.stderr, (mode, done.stderr)


@pytest.mark.skipif(" fma " not in Path("/proc/cpuinfo").read_text(), reason="an x86 with FMA can do without")
def test_a_processor_without_fused_multiply_adds_is_another_device(tmp_path):
    """Its eager kernels have other bits: what was found on one is not taken for the other's."""
    table = tmp_path / "table.json"
    command = [BINARY, "tune", "--measure", "--build-only", "--table", str(table), "--model", "random:tiny",
               "--slot", "mlp_out/m1", "--points", "6", "--store", str(tmp_path / "store.db"),
               "--engine-backend", "cpu", "--engine-threads", "1", "--seconds", "0.1"]

    def measure(**env):
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE,
                              env={**{k: v for k, v in os.environ.items() if k != "WHET_ISA"}, **env})

    assert measure(WHET_ISA="portable").returncode == 0
    assert json.loads(table.read_text())["device"].endswith(", 1 thread, no FMA")
    done = measure()
    assert done.returncode == 1 and ', no FMA", and this is "' in done.stderr, done.stderr


@pytest.mark.once
def test_an_ablation_needs_neither_model_nor_compiler(tmp_path):
    table, out = ROOT / "tests/golden/tune_table.json", tmp_path / "out.json"
    done = tune("--ablate", "--table", str(table), "--seeds", "3", "--json", str(out),
                "--svg", str(tmp_path / "plot"))
    assert done.returncode == 0, done.stderr
    assert "samples to 95 %" in done.stdout and "adviser llm: open" in done.stdout
    variants = json.loads(out.read_text())["variants"]
    assert {v["strategy"] for v in variants} >= {"template", "mcts", "mcts4", "evolve", "cost", "random",
                                                 "exhaustive"}
    assert (tmp_path / "plot-advisers.svg").read_text().startswith("<svg")


def test_a_report_says_where_the_model_is_wrong(tmp_path):
    done = tune("--report", "--table", str(ROOT / "tests/golden/tune_table.json"))
    assert done.returncode == 0, done.stderr
    assert "than the formula thinks" in done.stdout
    # By family, not only by slot; and 34 points are too few to learn from 24 and rank the rest.
    assert re.search(r"^  attn_in vnni packed +\d+ points   formula [+-]0\.\d\d$", done.stdout, re.M)
    done = tune("--report", "--table", str(ROOT / "tests/golden/tune_table_gpu_first.json"))
    assert done.returncode == 0 and "nan" not in done.stdout
    assert re.search(r"measurements -$", done.stdout, re.M)
    done = tune("--report", "--table", str(ROOT / "tests/golden/tune_table_gpu.json"))
    assert done.returncode == 0 and "nan" not in done.stdout
    assert re.search(r"^  mma_mlp_in staged +2 points   formula -$", done.stdout, re.M)


def test_wrong_usage_is_2_and_says_why(tmp_path):
    for options, why in ((("--ablate",), "--table is missing"), ((), "--model is missing"),
                         (("--seeds", "x"), "--seeds x: "), (("--slot",), "--slot wants a value"),
                         (("--seconds", "-5"), "--seconds -5: "), (("--history", "4"), "--history 4: "),
                         (("--no-such-thing",), "no-such-thing")):
        done = tune(*options)
        assert done.returncode == 2 and why in done.stderr, (options, done.stderr)
    done = tune("--ablate", "--table", str(tmp_path / "none.json"))
    assert done.returncode == 1 and "none.json" in done.stderr
