# SPDX-License-Identifier: Apache-2.0
"""scripts/bench-serve: what it reports follows from what the server did."""

import json
import subprocess
import sys

import conftest

SCRIPT = conftest.ROOT / "scripts" / "bench-serve"


def bench(*options):
    return subprocess.run([sys.executable, str(SCRIPT), "--binary", conftest.BINARY, *options],
                          capture_output=True, text=True, timeout=conftest.PATIENCE)


def test_figures_add_up(tmp_path):
    file, store = tmp_path / "out.json", tmp_path / "store.db"
    done = bench("--model", "random:tiny", "--clients", "1,3", "--requests", "6",
                 "--prompt-tokens", "40", "--output-tokens", "9", "--goodput", "e2el:60000",
                 "--json", str(file), "--", "--specializer-enabled=false", "--backend", "cpu",
                 "--store", str(store))
    assert done.returncode == 0, done.stderr
    out = json.loads(file.read_text())
    assert out["model"] == "random-tiny" and out["ready_s"] > 0
    assert [level["clients"] for level in out["levels"]] == [1, 3]
    for level in out["levels"]:
        assert level["requests"] == 6 and level["failed"] == 0
        assert level["output_tokens"] == 6 * 9
        assert 6 * 30 <= level["prompt_tokens"] <= 6 * 50
        ms = level["ms"]
        assert 0 < ms["ttft"]["p50"] <= ms["e2el"]["p99"]
        # latency = TTFT + (tokens - 1) TPOT, for means too, since all answers are of one length
        assert abs(ms["e2el"]["mean"] - ms["ttft"]["mean"] - 8 * ms["tpot"]["mean"]) < 1e-6
        assert abs(level["goodput_requests_per_s"] - level["requests_per_s"]) < 1e-9
    assert "| 3 | 6 |" in done.stdout


def test_bounds_nobody_meets_leave_no_goodput(tmp_path):
    file = tmp_path / "out.json"
    done = bench("--model", "random:tiny", "--clients", "1", "--requests", "2", "--goodput",
                 "ttft:0.000001", "--json", str(file), "--", "--specializer-enabled=false",
                 "--backend", "cpu", "--store", str(tmp_path / "store.db"))
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["levels"][0]["goodput_requests_per_s"] == 0


def test_a_server_that_does_not_start_is_an_error():
    done = bench("--model", "random:nothing")
    assert done.returncode != 0
    assert "random:nothing is not known" in done.stderr
