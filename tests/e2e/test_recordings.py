# SPDX-License-Identifier: Apache-2.0
"""What a language model said is replayed from tests/golden/llm, and the tables made of it are current."""

import json
import sqlite3
import subprocess
import sys

import pytest

from conftest import BINARY, ROOT

pytestmark = pytest.mark.once
GOLDEN = ROOT / "tests" / "golden"
TABLES = ("tune_table", "tune_table_huge", "tune_table_gpu", "tune_table_gpu_first")


def lines(table):
    return [json.loads(x) for x in (GOLDEN / "llm" / f"{table}.jsonl").read_text().splitlines()]


def replay(table, out, *options, recording=None):
    """The rows of `llm` and the whole result of an ablation that a recording answers."""
    recording = recording or GOLDEN / "llm" / f"{table}.jsonl"
    done = subprocess.run([BINARY, "tune", "--ablate", "--table", GOLDEN / f"{table}.json", "--at-once",
                           "--adviser-url", f"replay:{recording}", "--json", out,
                           *options], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    return [v for v in result["variants"] if v["adviser"] == "llm"], result


@pytest.mark.parametrize("table", TABLES)
def test_a_recorded_model_is_consulted_again(table, tmp_path):
    rows, result = replay(table, tmp_path / "out.json", "--seeds", "1", "--questions", "4")
    assert len(rows) == 2 * len(result["slots"]) >= 6
    assert rows == replay(table, tmp_path / "out.json", "--seeds", "1", "--questions", "4")[0]
    for v in rows:
        assert v["llm"]["advice"] > 0 and v["llm"]["seconds"] > 0, v
        assert v["llm"]["tokens_in"] > v["llm"]["tokens_out"] > 0, v
        assert v["llm"]["rejected"] == 0, v  # the form that was asked for then is still read
    found = {s["slot"]: s["points"] for s in result["slots"]}
    assert all(v["samples_to_95"]["median"] <= found[v["slot"]] for v in rows)


@pytest.mark.parametrize("table", TABLES)
def test_every_recorded_reply_is_to_a_question_that_is_asked_today(table, tmp_path):
    """Else the rows of `llm` are made of replies in the order they came, whatever was asked."""
    asked = {"advice": set(), "moves": 0}
    recorded = lines(table)
    histories = (3, 2, 1) if any(x["kind"] == "moves" for x in recorded) else (3,)
    for history in histories:
        rows, _ = replay(table, tmp_path / "out.json", "--seeds", "2", "--questions", "4",
                         "--history", str(history))
        assert all(v["llm"]["of_another_state"] == 0 for v in rows), rows
        asked["advice"] |= {v["slot"] for v in rows if v["llm"]["advice"] > 0}
        asked["moves"] += round(2 * sum(v["llm"]["moves"] for v in rows))
    assert asked["advice"] == {x["region"] for x in recorded if x["kind"] == "advice"}
    assert asked["moves"] == sum(x["kind"] == "moves" for x in recorded)
    assert len({(x["kind"], x["state"]) for x in recorded}) == len(recorded)


def test_a_reply_to_another_state_is_counted(tmp_path):
    """What the test above would see: the same replies, all but one of another state."""
    stale = lines("tune_table_gpu")
    for x in stale[1:]:
        x["state"] = "0" * 16
    path = tmp_path / "stale.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in stale))
    rows, _ = replay("tune_table_gpu", tmp_path / "out.json", "--seeds", "1", recording=path)
    assert [v["llm"]["of_another_state"] for v in rows] == [0, 0, 1, 1, 1, 1, 1, 1]


def test_no_more_is_asked_than_may_be(tmp_path):
    rows, _ = replay("tune_table", tmp_path / "out.json", "--seeds", "2", "--questions", "1")
    assert {v["llm"]["advice"] + v["llm"]["moves"] for v in rows} == {1}


@pytest.mark.parametrize("table", TABLES)
def test_a_recording_says_who_answered_and_when(table):
    for x in lines(table):
        assert x["model"] and x["seconds"] > 0 and len(x["state"]) == 16 and json.loads(x["reply"])


def kernel_table(*arguments):
    return subprocess.run([sys.executable, ROOT / "scripts" / "kernel-table", *arguments],
                          capture_output=True, text=True, timeout=60)


def test_the_table_of_kernels_is_made_of_its_recordings():
    done = kernel_table("make", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("recording, day", [("exchanges_m8", "2026-11-25"), ("exchanges_m32", "2026-11-26")])
def test_what_was_said_of_the_texts_of_a_day_is_there(recording, day):
    """A plan and a text for each first text of the table, a repair for each that was repaired."""
    said = lines(recording)
    rows = [t for t in lines("texts") if t["when"] == day]
    assert rows and all(x["model"] and x["reply"] and x["verdict"] for x in said)
    texts = {t["slot"]: t for t in rows if "of" not in t}
    for t in rows:
        if "of" in t:  # a step, made of texts that served
            assert t["of"] and all(texts[slot]["published"] for slot in t["of"]), t
            continue
        of = [x["kind"] for x in said
              if (x["shape"], x["region"]) == (t["shape"], t["slot"]) and x["verdict"] == "accepted"]
        assert of.count("plan") >= t["text"] and of.count("code") >= t["text"], (t, of)
        assert of.count("debug") >= t["repairs"], (t, of)


def test_texts_of_a_store_become_lines(tmp_path):
    store = tmp_path / "store.db"
    db = sqlite3.connect(store)
    db.execute("create table agent_node(slot, id, parent, state, debugs, speed, source)")
    db.execute("create table candidate(key, slot, source, template, state, evidence)")
    db.executemany("insert into agent_node values('mlp_in/m8', ?, ?, ?, ?, ?, ?)",
                   [(0, -1, "measured", 0, 1.0, "seed"), (1, 0, "measured", 2, 2.2, "one"),
                    (2, 1, "failed", 1, 0.0, "two"), (3, 1, "failed", 0, 0.0, "")])
    bench = {"against": "t", "bench_mean": 0.1, "bench_low": 0.045, "bench_high": 0.2}
    db.executemany("insert into candidate values(?, 'mlp_in/m8', ?, ?, ?, ?)",
                   [("t", "template text", "mlp_in", "retired", "{}"),
                    ("a", "one", "agent_mlp_in", "active", json.dumps(bench))])
    db.commit()
    db.close()
    done = kernel_table("import", "--store", store, "--shape", "S", "--model", "M", "--when", "D",
                        "--where", "W")
    assert done.returncode == 0, done.stderr
    one, two = (json.loads(line) for line in done.stdout.splitlines())  # no seed, no unwritten plan
    assert one == {"shape": "S", "model": "M", "when": "D", "where": "W", "slot": "mlp_in/m8", "text": 1,
                   "parent": 0, "repairs": 2, "right": True, "speed": 2.2, "low": 2.09,
                   "template": [10.0, 4.5, 20.0], "published": True}
    assert (two["right"], two["speed"], two["template"], two["published"]) == (False, None, None, False)
