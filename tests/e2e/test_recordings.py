# SPDX-License-Identifier: Apache-2.0
"""What a language model said is replayed from tests/golden/llm."""

import json
import subprocess

import pytest

from conftest import BINARY, ROOT

GOLDEN = ROOT / "tests" / "golden"
TABLES = ("tune_table", "tune_table_gpu")


def replay(table, out, *options):
    """The rows of `llm` and the whole result of an ablation that a recording answers."""
    done = subprocess.run([BINARY, "tune", "--ablate", "--table", GOLDEN / f"{table}.json", "--at-once",
                           "--adviser-url", f"replay:{GOLDEN / 'llm' / table}.jsonl", "--json", out,
                           *options], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    return [v for v in result["variants"] if v["adviser"] == "llm"], result


@pytest.mark.parametrize("table", TABLES)
def test_a_recorded_model_is_consulted_again(table, tmp_path):
    rows, result = replay(table, tmp_path / "out.json", "--seeds", "1", "--questions", "4")
    assert len(rows) == 2 * len(result["slots"]) == 8
    assert rows == replay(table, tmp_path / "out.json", "--seeds", "1", "--questions", "4")[0]
    for v in rows:
        assert v["llm"]["advice"] > 0 and v["llm"]["seconds"] > 0, v
        assert v["llm"]["tokens_in"] > v["llm"]["tokens_out"] > 0, v
        assert v["llm"]["rejected"] == 0, v  # the form that was asked for then is still read
    found = {s["slot"]: s["points"] for s in result["slots"]}
    assert all(v["samples_to_95"]["median"] <= found[v["slot"]] for v in rows)


def test_no_more_is_asked_than_may_be(tmp_path):
    rows, _ = replay("tune_table", tmp_path / "out.json", "--seeds", "2", "--questions", "1")
    assert {v["llm"]["advice"] + v["llm"]["moves"] for v in rows} == {1}


@pytest.mark.parametrize("table", TABLES)
def test_a_recording_says_who_answered_and_when(table):
    for line in (GOLDEN / "llm" / f"{table}.jsonl").read_text().splitlines():
        x = json.loads(line)
        assert x["model"] and x["seconds"] > 0 and len(x["state"]) == 16 and json.loads(x["reply"])
