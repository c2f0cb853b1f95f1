# SPDX-License-Identifier: Apache-2.0
"""scripts/bench-gains and scripts/bench-agentcompile: what their tables say follows from what was measured."""

import json
import re
import subprocess
import sys

import pytest

import conftest
from agentic import text

pytestmark = pytest.mark.once

SCRIPTS = conftest.ROOT / "scripts"

# Answers as the worker with transformers does: eager takes half a second, a static cache a quarter,
# and the prompt of 300 tokens cannot be compiled.
STAND_IN = """#!/usr/bin/env python3
import json, sys
print(json.dumps({"torch": "none", "transformers": "none"}), flush=True)
for line in sys.stdin:
    what, prompt, _ = line.split()
    answer = {"seconds": {"eager": 0.5, "static": 0.25, "compile": 9.0}[what]}
    if prompt == "300":
        answer = {"error": "too long"} if what != "eager" else answer
    print(json.dumps(answer), flush=True)
"""


def run(script, *options):
    return subprocess.run([sys.executable, str(SCRIPTS / script), "--binary", conftest.BINARY, "--backend",
                           "cpu", *options], capture_output=True, text=True, timeout=conftest.PATIENCE)


def rows(text):
    """Cells of the lines of a Markdown table, without its head."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_gains_are_over_eager_of_the_same_process(tmp_path):
    file = tmp_path / "out.json"
    done = run("bench-gains", "--models", "tiny,nothing", "--batch", "1,2", "--context", "64",
               "--arms", "starts,search", "--seconds", "2", "--json", file)
    assert done.returncode == 0, done.stderr
    assert "random:nothing is not known" in done.stderr
    found = json.loads(file.read_text())["models"]
    assert set(found["tiny"]) == {"starts", "search"} and found["nothing"] == {}
    table = rows(done.stdout)
    assert [r[:2] for r in table] == [["tiny", "1"], ["tiny", "2"], ["nothing", "1"], ["nothing", "2"]]
    assert all(r[2:] == ["-", "-", "-"] for r in table[2:])
    for row in table[:2]:
        steps = found["tiny"]["starts"]["steps"][row[1]]
        assert row[2] == f"{steps['eager']:.0f}"
        assert row[3] == f"{steps['specialized']:.0f}, {steps['specialized'] / steps['eager']:.2f}x"
    assert any("mlp_in/m2" in line for line in found["tiny"]["search"]["slots"])


def test_texts_go_on_where_the_search_with_advice_ended(tmp_path):
    said, file, log = tmp_path / "said.jsonl", tmp_path / "out.json", tmp_path / "log"
    seed = (conftest.ROOT / "specializer/prompts/seed_mlp_in.c").read_text().count("\n")
    plan = {"version": 1, "label": "another text", "plan": "do it", "spans": [{"first": 1, "last": seed}]}
    code = f"```c\n// [span 1]\n{text()}\n// [end 1]\n```"
    lines = [{"region": "mlp_in/m1", "kind": "plan", "reply": json.dumps(plan)},
             {"region": "mlp_in/m1", "kind": "code", "reply": code}]
    said.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("bench-gains", "--models", "tiny", "--batch", "1", "--context", "64", "--arms", "alone",
               "--seconds", "2", "--unseen", "--advice", f"replay:{tmp_path}/said.jsonl",
               "--texts", f"replay:{tmp_path}/said.jsonl", "--text-seconds", "60",
               "--text-slots", "mlp_in/m1,mlp_out/m1,attn_out/m1,attn_in/m1", "--json", file, "--tune-log", log)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["models"]["tiny"]
    assert set(found) == {"alone", "advice", "texts"}, done.stderr
    assert sum("/m1" in line for line in found["texts"]["slots"]) == 4
    assert len(rows(done.stdout)[0]) == 6
    parts = log.read_text().split("== random:tiny ")[1:]
    assert len(parts) == 3 and all("--specializer-starts=false" in part for part in parts)
    # Each slot's seed, and the text that was said; of the other slots nothing was.
    assert [part.count(" text, ") for part in parts] == [0, 0, 5], parts


def test_a_search_that_would_not_end_in_time_is_left_out():
    done = run("bench-gains", "--models", "tiny", "--batch", "1", "--context", "64", "--arms", "search",
               "--seconds", "60", "--within", "5")
    assert done.returncode == 0, done.stderr
    assert "left out, there is no time" in done.stderr
    assert rows(done.stdout) == [["tiny", "1", "-", "-"]]


def compared(tmp_path, *options):
    peer, file = tmp_path / "python", tmp_path / "out.json"
    peer.write_text(STAND_IN)
    peer.chmod(0o755)
    done = run("bench-agentcompile", "--models", "tiny", "--python", peer, "--json", file, *options)
    assert done.returncode == 0, done.stderr
    return rows(done.stdout), json.loads(file.read_text())["models"]["tiny"]["workloads"], done.stderr


def test_systems_take_turns_and_ratios_are_of_one_round(tmp_path):
    table, found, said = compared(tmp_path, "--workloads", "32/16,300/8", "--rounds", "2", "--tune", "2")
    assert [r[:3] for r in table] == [["tiny", "32/16", "2"], ["tiny", "300/8", "2"]]
    assert table[0][3:5] == ["0.500", "0.250 (2.00x)"]
    assert table[1][3:5] == ["0.500", "-"] and "too long" in said
    for row, figures in zip(table, found.values()):
        assert len(figures["whet eager"]) == len(figures["whet specialized"]) == 2
        low, high = sorted(0.5 / s for s in figures["whet eager"])
        ratio = float(re.fullmatch(r"[0-9.]+ \(([0-9.]+)x\)", row[5]).group(1))
        assert low - 0.01 <= ratio <= high + 0.01


def alone(tmp_path, *options):
    """Without torch: its Python ends at once."""
    peer = tmp_path / "python"
    peer.write_text("#!/bin/sh\nexit 1\n")
    peer.chmod(0o755)
    done = run("bench-agentcompile", "--models", "tiny", "--python", peer, "--workloads", "16/4,8/4",
               "--tune", "0", *options)
    assert done.returncode == 0, done.stderr
    return rows(done.stdout), done.stderr


def test_without_torch_whet_is_measured_alone(tmp_path):
    table, said = alone(tmp_path, "--rounds", "1")
    assert [r[1:5] + r[6:7] for r in table] == [[w, "1", "-", "-", "-"] for w in ("16/4", "8/4")]
    assert all(re.fullmatch(r"[0-9.]+", r[5]) for r in table) and "worker of transformers is gone" in said


def test_no_round_begins_that_would_not_end_in_time(tmp_path):
    table, said = alone(tmp_path, "--rounds", "50", "--within", "0.01")
    assert table == [] and "left out, there is no time" in said


def test_workloads_are_pairs_of_numbers():
    for text in ("12", "12/0", "a/b", "1/2/3"):
        done = run("bench-agentcompile", "--workloads", text)
        assert done.returncode == 2 and "want prompt/tokens" in done.stderr
